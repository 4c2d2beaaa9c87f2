"""The ``clusterloom`` command: picks the command, loads only that one's module, maps errors to exit codes.

Exit codes: 0 fine, 1 internal, 2 bad input, 3 infeasible or invalid strategy, 4 a sweep with failed points,
130 interrupted, 143 terminated.
"""

from __future__ import annotations

import difflib
import importlib
import io
import itertools
import os
import signal
import sys
from collections.abc import Callable, Sequence
from typing import Any

import typer

import sim
from sim.errors import ClusterloomError, InputError, Terminated

# Command -> what `--help` says of it. A command lives in the module of its name (`list` in `list_`),
# which is imported only when that command is asked for: `--help` must not pay for pandas and SciPy.
COMMANDS: dict[str, str] = {
    "list": "List what the catalogue holds.",
    "show": "Show one entry with units, derived sizes and sources.",
    "check": "Validate YAML files; messages carry file:line.",
    "run": "Simulate one training job: how fast, and why.",
    "collective": "Simulate one bare collective over sizes: time and bandwidth.",
    "sweep": "Simulate many; a restart continues where it stopped.",
    "trace": "Read real traces: statistics, import, replay, export.",
    "record": "Run real torch.distributed jobs here and store what they took.",
    "calibrate": "Fit a calibration to measurements.",
    "validate": "Accuracy board: predictions beside published measurements.",
    "compare": "Attribute the difference of two results to causes.",
}
_MODULES = {"list": "list_"}
EXIT_INTERNAL, EXIT_INPUT, EXIT_INTERRUPTED, EXIT_TERMINATED = 1, 2, 130, 143
_CONTEXT = {"help_option_names": ["-h", "--help"]}


def build_app(command: str | None) -> typer.Typer:
    """The typer application with the real function of one command and the names of the others."""
    app = typer.Typer(
        name="clusterloom",
        help="Simulate distributed training on GPU clusters: how fast, why, and how sure.",
        no_args_is_help=False,
        add_completion=False,
        rich_markup_mode=None,
        pretty_exceptions_enable=False,
        context_settings=_CONTEXT,
    )
    app.callback(invoke_without_command=True)(_top)
    for name, text in COMMANDS.items():
        function = _load(name) if name == command else _absent
        if isinstance(function, typer.Typer):
            app.add_typer(function, name=name)
            continue
        app.command(name, help=None if name == command else text, context_settings=_CONTEXT)(function)
    return app


def _top(
    context: typer.Context,
    version: bool = typer.Option(False, "--version", help="Print the version and exit."),
) -> None:
    if version:
        typer.echo(f"clusterloom {sim.__version__}")
    elif context.invoked_subcommand is None:
        typer.echo(context.get_help())


def _absent() -> None:
    """Stands for a command that was not asked for."""


def _load(name: str) -> Callable[..., Any] | typer.Typer:
    function: Callable[..., Any] | typer.Typer = importlib.import_module(
        f"sim.cli.{_MODULES.get(name, name)}"
    ).command
    return function


def _terminate(*_: object) -> None:
    if hasattr(signal, "alarm"):  # raised inside a destructor the exception is lost: ask until it is not
        signal.alarm(1)
    raise Terminated


def _stops_on_sigterm() -> None:
    signal.signal(signal.SIGTERM, _terminate)
    if hasattr(signal, "SIGALRM"):
        signal.signal(signal.SIGALRM, _terminate)


def _printable() -> None:
    """Streams that are closed swallow what is printed; what their encoding lacks is a question mark."""
    sys.stdout, sys.stderr = (
        stream or open(os.devnull, "w", encoding="utf-8")  # noqa: SIM115
        for stream in (sys.stdout, sys.stderr)
    )
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="replace")


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line; returns the exit code and prints any error as one line on stderr."""
    given = list(sys.argv[1:] if arguments is None else arguments)
    command = next((word for word in given if not word.startswith("-")), None)
    if arguments is None:  # the process is ours; called from Python it is not
        _stops_on_sigterm()
        _printable()
    try:
        if command is not None and command not in COMMANDS:
            raise _unknown(command)
        outcome = build_app(command)(given, prog_name="clusterloom", standalone_mode=False)
        sys.stdout.flush()
        return outcome if isinstance(outcome, int) and not isinstance(outcome, bool) else 0
    except ClusterloomError as error:
        return _fail(str(error), error.exit_code)
    except Terminated:
        return _fail("terminated", EXIT_TERMINATED)
    except KeyboardInterrupt:
        return _fail("interrupted", EXIT_INTERRUPTED)
    except BrokenPipeError:  # `clusterloom ... | head`
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 0
    except SystemExit as stop:
        if type(sys.stdout).__name__ == "PacifyFlushWrapper":  # how typer leaves a closed pipe
            return 0
        return stop.code if isinstance(stop.code, int) else 0
    except Exception as error:
        return _unexpected(error, given)


def _unknown(command: str) -> InputError:
    close = difflib.get_close_matches(command, COMMANDS, 1, 0.5)
    hint = f"Try {close[0]}." if close else ""
    return InputError("command", f"be one of {', '.join(COMMANDS)}", command, hint=hint)


def _unexpected(error: Exception, given: Sequence[str]) -> int:
    """Usage errors of typer know their text and code; anything else is ours and internal."""
    if hasattr(error, "format_message"):
        return _fail(_usage(error, given), int(getattr(error, "exit_code", EXIT_INPUT)))
    if type(error).__name__ == "Exit":
        return int(getattr(error, "exit_code", 0))
    if type(error).__name__ == "Abort":
        return _fail("interrupted", EXIT_INTERRUPTED)
    if isinstance(error, OSError):
        path = f"{error.filename}: " if error.filename else ""
        return _fail(f"{path}{(error.strerror or str(error)).lower()}", EXIT_INPUT)
    if isinstance(error, OverflowError | MemoryError | RecursionError):
        kind = type(error).__name__
        return _fail(f"input: must be of a size that can be simulated. Got {kind}: {error}", EXIT_INPUT)
    if os.environ.get("CLUSTERLOOM_DEBUG"):
        raise error
    hint = "Set CLUSTERLOOM_DEBUG=1 for the traceback."
    return _fail(f"internal error: {type(error).__name__}: {error} {hint}", EXIT_INTERNAL)


def _usage(error: Any, given: Sequence[str]) -> str:
    """What typer says of a wrong option, in the words of all our messages."""
    options: Sequence[str] = getattr(getattr(error, "param", None), "opts", ())
    after = [value for option, value in itertools.pairwise(given) if option in options]
    joined = [
        value
        for option, equals, value in (word.partition("=") for word in given)
        if option in options and equals
    ]
    rule = str(getattr(error, "message", "")).partition(",")[0]
    if (after or joined) and rule.startswith("Input should be "):
        rule = rule.removeprefix("Input should be ")
        return f"{options[0]}: must be {rule}. Got {(after + joined)[-1] or 'nothing'}."
    text = str(error.format_message())
    if "unexpected extra argument" in text and "--set" in given and "=" in text:
        return f"{text}. Repeat --set before each FIELD=VALUE."
    return text


def _fail(message: str, code: int) -> int:
    if code == EXIT_TERMINATED and hasattr(signal, "alarm"):
        signal.alarm(0)
    print("error: " + " ".join(message.split()), file=sys.stderr)
    return code


if __name__ == "__main__":
    sys.exit(main())
