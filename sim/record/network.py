"""Hosts out of network namespaces, behind a switch that this machine emulates (Linux, root)."""

from __future__ import annotations

import ctypes
import os
import platform
import shutil
import signal
import subprocess
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from types import TracebackType

from sim.errors import InputError
from sim.record.clock import end_with_parent

_CLONE_NEWNET = 0x40000000
_QUEUE_KB, _ONE_QUEUE_KB = 16384, 2048
_ALLOWED = Path("/proc/sys/net/ipv4/tcp_allowed_congestion_control")
_CONTROL = "cubic"  # TCP's usual congestion control: others (bbr) keep less data on the way
_FRAME_BYTES = 16384
MAX_HOSTS = 32
_PREFIX, _NAMES = "clusterloom", Path("/run/netns")


def loopback() -> tuple[str, str]:
    """Address of rank 0 and network interface without emulated hosts."""
    return "127.0.0.1", "lo"


class EmulatedHosts:
    """A star of hosts; use it as a context manager.

    Parameters
    ----------
    num_hosts : int
    rate_mbit : float
        Rate of each host's cable in Mbit/s.
    delay_us : float
        One-way delay of each cable; two of them lie between two hosts.
    slow_links : mapping of int to float, optional
        Host -> its own rate in Mbit/s.
    queued : bool
        Whether control messages wait in line with bulk data.
    """

    def __init__(
        self,
        num_hosts: int,
        rate_mbit: float,
        delay_us: float,
        *,
        slow_links: Mapping[int, float] | None = None,
        queued: bool = False,
    ) -> None:
        if not 2 <= num_hosts <= MAX_HOSTS:
            raise InputError("--hosts", f"be from 2 to {MAX_HOSTS}", num_hosts)
        require_emulation()
        self.num_hosts, self.rate_mbit, self.delay_us = num_hosts, rate_mbit, delay_us
        self.slow_links, self.queued = dict(slow_links or {}), queued
        # Several recordings may run side by side: names and addresses carry the process id.
        self._key = os.getpid()
        self._switch: subprocess.Popen[str] | None = None
        self._made: list[str] = []
        self._allowed_before = ""

    def name(self, host: int) -> str:
        """Name of a host's network namespace."""
        return f"{_PREFIX}{self._key}h{host}"

    def address(self, host: int) -> str:
        """IPv4 address of a host."""
        return f"10.77.{self._key % 250}.{host + 1}"

    def __enter__(self) -> EmulatedHosts:
        remove_stale()
        try:
            self._allow_control()
            self._start_switch()
            for host in range(self.num_hosts):
                self._make_host(host)
        except BaseException:
            self.close()
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """Remove the namespaces and stop the switch."""
        for name in self._made:
            subprocess.run(["ip", "netns", "del", name], check=False, capture_output=True)
        self._made.clear()
        if self._switch is not None:
            self._switch.send_signal(signal.SIGTERM)
            self._switch.communicate(timeout=10)
            self._switch = None
        if self._allowed_before:
            _ALLOWED.write_text(self._allowed_before)
            self._allowed_before = ""

    def _allow_control(self) -> None:
        """Let namespaces choose cubic; the machine's own choice stays what it is."""
        with suppress(OSError):
            before = _ALLOWED.read_text()
            if _CONTROL not in before.split():
                _ALLOWED.write_text(f"{before.strip()} {_CONTROL}")
                self._allowed_before = before

    def enter(self, host: int) -> None:
        """Move the calling process into a host's namespace."""
        handle = os.open(_NAMES / self.name(host), os.O_RDONLY)
        try:
            if ctypes.CDLL(None, use_errno=True).setns(handle, _CLONE_NEWNET):
                raise OSError(ctypes.get_errno(), "setns")
        finally:
            os.close(handle)

    def _start_switch(self) -> None:
        command = [
            str(build_switch()), str(self.num_hosts), str(self.rate_mbit), str(self.delay_us),
            str(_ONE_QUEUE_KB if self.queued else _QUEUE_KB), self._prefix, str(int(self.queued)),
        ]  # fmt: skip
        for port, rate in self.slow_links.items():
            command += [str(port), str(rate)]
        self._switch = subprocess.Popen(
            command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, preexec_fn=end_with_parent,
            start_new_session=True,  # Ctrl-C is for us: ranks lose their network after they have ended
        )  # fmt: skip
        assert self._switch.stdout is not None
        if self._switch.stdout.readline().strip() != "ready":
            assert self._switch.stderr is not None
            reason = self._switch.stderr.read().strip() or "it ended"
            raise InputError("--hosts", "find a machine that can emulate a switch", reason)

    @property
    def _prefix(self) -> str:
        return f"cl{self._key}p"

    def _make_host(self, host: int) -> None:
        name, mac = self.name(host), "02:00:00:00:00:{:02x}"
        _ip("netns", "add", name)
        self._made.append(name)
        _ip("link", "set", f"{self._prefix}{host}", "netns", name)
        inside = ["netns", "exec", name, "ip"]
        _ip(*inside, "link", "set", f"{self._prefix}{host}", "name", "eth0", "address", mac.format(host + 1))
        _ip(*inside, "link", "set", "eth0", "gso_max_size", str(_FRAME_BYTES), "txqueuelen", "200")
        _ip(*inside, "addr", "add", f"{self.address(host)}/24", "dev", "eth0")
        for device in ("eth0", "lo"):
            _ip(*inside, "link", "set", device, "up")
        for other in range(self.num_hosts):
            if other != host:
                neighbour = [self.address(other), "lladdr", mac.format(other + 1), "dev", "eth0"]
                _ip(*inside, "neigh", "add", *neighbour, "nud", "permanent")
        for setting, value in (("tcp_no_metrics_save", "1"), ("tcp_congestion_control", _CONTROL)):
            # Without sysctl(8), which is not on every PATH.
            write = 'echo "$1" > "/proc/sys/net/ipv4/$0"'
            command = ["ip", "netns", "exec", name, "sh", "-c", write, setting, value]
            done = subprocess.run(command, check=False, capture_output=True, text=True)
        if done.returncode:
            must = f"find a machine whose namespaces may use {_CONTROL}"
            raise InputError("--hosts", must, done.stderr.strip() or "no write")


def remove_stale() -> None:
    """Remove the namespaces of recordings that were killed before they could."""
    for path in _NAMES.glob(f"{_PREFIX}*h*"):
        owner = path.name.removeprefix(_PREFIX).partition("h")[0]
        if owner.isdecimal() and not Path("/proc", owner).exists():
            subprocess.run(["ip", "netns", "del", path.name], check=False, capture_output=True)


def require_emulation() -> None:
    """Refuse, with the reason, where hosts cannot be emulated.

    Raises
    ------
    InputError
        Not Linux, not root, or without ``ip``, a C compiler or ``/dev/net/tun``.
    """
    missing = ""
    if platform.system() != "Linux":
        missing = f"a Linux kernel (this is {platform.system()})"
    elif os.geteuid():
        missing = "root"
    elif shutil.which("ip") is None:
        missing = "the command ip (package iproute2)"
    elif _compiler() is None:
        missing = "a C compiler (cc)"
    elif not Path("/dev/net/tun").exists():
        missing = "/dev/net/tun"
    if missing:
        must, hint = "run where hosts can be emulated", "Leave out --hosts."
        raise InputError("--hosts", must, f"no {missing}", hint=hint)


def build_switch() -> Path:
    """The compiled switch; compiled on first use into the user's cache."""
    source = Path(__file__).with_name("switch.c")
    base = os.environ.get("XDG_CACHE_HOME") or str(Path.home() / ".cache")
    target = Path(base) / "clusterloom" / f"switch-{source.stat().st_mtime_ns:x}"
    if not target.exists():
        target.parent.mkdir(parents=True, exist_ok=True)
        partial = target.with_suffix(f".{os.getpid()}")
        command = [str(_compiler()), "-O2", "-o", str(partial), str(source)]
        done = subprocess.run(command, check=False, capture_output=True, text=True)
        if done.returncode:
            raise InputError("--hosts", "have a working C compiler", done.stderr.strip()[:300])
        partial.replace(target)
    return target


def _compiler() -> str | None:
    return shutil.which("cc") or shutil.which("gcc")


def _ip(*arguments: str) -> None:
    done = subprocess.run(["ip", *arguments], check=False, capture_output=True, text=True)
    if done.returncode:
        got = f"ip {' '.join(arguments)}: {done.stderr.strip()}"
        raise InputError("--hosts", "run where network namespaces are allowed", got)
