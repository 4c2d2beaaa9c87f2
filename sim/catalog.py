"""The catalogue: name -> spec. Folders of the user first, then plug-ins, then what is built in."""

from __future__ import annotations

import csv
import os
from collections import OrderedDict
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from contextlib import contextmanager
from functools import lru_cache
from importlib import metadata
from pathlib import Path
from typing import Any, TypeVar

from sim import origin, yamlio
from sim.errors import InputError
from sim.spec.base import Spec
from sim.spec.calibration import Calibration
from sim.spec.cluster import Cluster
from sim.spec.convergence import Convergence
from sim.spec.device import Device
from sim.spec.host import Host
from sim.spec.preset import Preset
from sim.spec.scenario import Scenario, ScenarioFile
from sim.spec.strategy import Strategy
from sim.spec.sweep import Sweep
from sim.spec.workload import Workload
from sim.suggestions import name_hint
from sim.units import nearest
from sim.workload_file import build_workload, document_of

ENTRY_POINTS = "clusterloom.catalog"

# Where the files of a kind lie below a catalogue folder.
FOLDERS: dict[str, str] = {
    "device": "topologies/devices",
    "host": "topologies/hosts",
    "cluster": "topologies/clusters",
    "calibration": "topologies/calibrations",
    "workload": "workloads/models",
    "strategy": "workloads/strategies",
    "sweep": "workloads/sweeps",
    "scenario": "workloads/scenarios",
}
_PLURALS = {"strategies": "strategy", **{f"{kind}s": kind for kind in FOLDERS}}
# Words for a kind that are not its own.
_SYNONYMS = {
    "model": "workload", "gpu": "device", "accelerator": "device", "preset": "strategy", "machine": "host",
    "node": "host", "server": "host", "topology": "cluster", "fabric": "cluster", "system": "cluster",
}  # fmt: skip
_PRESET_HEADER = tuple(info.alias or name for name, info in Preset.model_fields.items())
# Fields of a cluster that resolving fills in.
_RESOLVED = frozenset({"host_types", "host_type_of", "device_types", "server_host_type"})
_CACHE_SIZE = 1024

SpecT = TypeVar("SpecT", bound=Spec)


def kind_of(text: str) -> str:
    """Catalogue kind of a singular or plural word."""
    kind = _PLURALS.get(text, text)
    if kind not in FOLDERS:
        words = [word for word in _PLURALS if word != "strategys"]
        meant = _SYNONYMS.get(text.lower().removesuffix("s"))
        close = _plural(meant) if meant else nearest(text, words)
        raise InputError(
            "kind", f"be one of {', '.join(sorted(words))}", repr(text), hint=f"Try {close}." if close else ""
        )
    return kind


class Catalog:
    """Finds files by name and reads them into specs.

    Parameters
    ----------
    folders : iterable of path
        Searched before plug-ins and the built-in data. A folder holds ``topologies/devices/*.yaml`` and
        so on, or the same without the first level (``devices/*.yaml``).

    Notes
    -----
    A name is a file's stem, or a path to a YAML file. Specs are cached by file, modification time and
    overrides, so editing a file in a notebook session takes effect.
    """

    def __init__(self, folders: Iterable[str | Path] = ()) -> None:
        self.folders = tuple(Path(folder) for folder in folders)
        for folder in self.folders:
            if not folder.is_dir():
                raise InputError("catalog folder", "be an existing folder", str(folder))
        self._cache: OrderedDict[Any, Any] = OrderedDict()
        self._files: dict[tuple[str, str], Path] = {}

    # -- files ---------------------------------------------------------------------------------------

    def roots(self) -> tuple[Path, ...]:
        """Catalogue folders in search order."""
        return (*self.folders, *_plugin_roots(), *_builtin_roots())

    def _places(self, kind: str) -> list[Path]:
        full = FOLDERS[kind]
        short = full.split("/", 1)[1]
        places = [root / part for root in self.roots() for part in (full, short)]
        return [place for place in places if place.is_dir()]

    def names(self, kind: str) -> list[str]:
        """Sorted names of a kind; ``kind`` may be singular or plural."""
        return sorted({path.stem for place in self._places(kind_of(kind)) for path in place.glob("*.yaml")})

    def find_file(self, kind: str, name: str) -> Path:
        """Path of the YAML file of ``name``.

        Raises
        ------
        InputError
            If there is none; the message carries the nearest name.
        """
        kind = kind_of(kind)
        if not isinstance(name, str):
            raise InputError(kind, f"be the name of a {kind} or a path to its YAML file", repr(name))
        if kind == "workload" and name.endswith(".json"):
            if not Path(name).is_file():
                raise InputError(kind, "be a readable JSON file", repr(name))
            return Path(name)
        if _is_path(name):
            if not Path(name).is_file():
                raise InputError(kind, "be an existing YAML file", repr(name))
            return Path(name)
        known = self._files.get((kind, name))
        if known is not None and known.is_file():
            return known
        for place in self._places(kind):
            path = place / f"{name}.yaml"
            if path.is_file():
                self._files[kind, name] = path
                return path
        hint = name_hint(kind, name, self.names(kind), _plural(kind))
        raise InputError(
            kind, f"be the name of a known {kind} or a path to a YAML file", repr(name), hint=hint
        )

    def data_file(self, relative: str) -> Path:
        """Path of a data file such as ``measurements/runs.csv``, in search order."""
        for root in self.roots():
            if (root / relative).is_file():
                return root / relative
        raise InputError("data file", "exist in the catalogue", repr(relative))

    def _cached(self, kind: str, name: str, key: Any, build: Callable[[yamlio.Document], SpecT]) -> SpecT:
        path = self.find_file(kind, name)
        full_key = (kind, str(path), path.stat().st_mtime_ns, key)
        if full_key in self._cache:
            self._cache.move_to_end(full_key)
        else:
            self._cache[full_key] = build(document_of(path))
            if len(self._cache) > _CACHE_SIZE:
                self._cache.popitem(last=False)
        found: SpecT = self._cache[full_key]
        return found

    def _plain(self, kind: str, model: type[SpecT], name: str, overrides: Mapping[str, Any]) -> SpecT:
        def build(document: yamlio.Document) -> SpecT:
            return yamlio.validate(model, document, field_prefix=kind, overrides=overrides)

        return self._cached(kind, name, repr(sorted(overrides.items())), build)

    @contextmanager
    def located(
        self, kind: str, name: str, given: Collection[str] = (), *, builtin: bool = False
    ) -> Iterator[None]:
        """Errors about fields of a user's file carry its line; see :func:`sim.origin.located`.

        Parameters
        ----------
        kind, name : str
            As for :meth:`find_file`.
        given : collection of str
            Dotted fields that did not come from the file.
        builtin : bool
            Also name files that come with the program.
        """
        try:
            yield
        except InputError as error:
            if error.where:
                raise
            try:
                path = self.find_file(kind, name)
            except InputError:  # there is no such file, which the error says
                raise error from None
            if not (builtin or _is_path(name)) and _is_builtin(path):
                raise
            root = "" if kind in ("scenario", "sweep") else kind
            with origin.located(document_of(path), root, given):
                raise

    # -- specs ---------------------------------------------------------------------------------------

    def get(self, kind: str, name: str) -> Spec:
        """Spec of any kind by name."""
        found: Spec = getattr(self, kind_of(kind))(name)
        return found

    def device(self, name: str, **overrides: Any) -> Device:
        """Device by name; overrides are (dotted) fields."""
        return self._plain("device", Device, name, overrides)

    def host(self, name: str, **overrides: Any) -> Host:
        """Host by name; overrides are (dotted) fields."""
        return self._plain("host", Host, name, overrides)

    def devices_of(self, host: Host, name: str | None = None) -> list[Device]:
        """Devices and processors of a host.

        Raises
        ------
        InputError
            One is unknown; ``name`` is the catalogue name or path of the host's file, if it has one.
        """
        named: list[tuple[tuple[str | int, ...], str]]
        named = [(("devices", i), device) for i, (device, _) in enumerate(host.devices)]
        named += [(("cpu_device",), host.cpu_device)] if host.cpu_device else []
        found = []
        for path, device in named:
            try:
                found.append(self.device(device))
            except InputError as error:
                if error.where:
                    raise
                where = yamlio.load(self.find_file("host", name)).where(path) if name else ""
                raise InputError(
                    f"host.{yamlio.dotted(path)}", error.must, error.got, hint=error.hint, where=where
                ) from None
        return found

    def sweep(self, name: str, **overrides: Any) -> Sweep:
        """Sweep by name; overrides are (dotted) fields."""
        return self._plain("sweep", Sweep, name, overrides)

    def cluster(self, name: str, num_hosts: int | None = None, **overrides: Any) -> Cluster:
        """Cluster by name, resolved: its host and device types are filled in.

        Parameters
        ----------
        name : str
            Catalogue name or path.
        num_hosts : int, optional
            Number of machines instead of the file's.
        **overrides
            Other (dotted) fields, e.g. ``**{"fabric.oversubscription": 2}``.
        """
        if num_hosts is not None:
            overrides = {**overrides, "num_hosts": num_hosts}
        own, of_host = _split_host(overrides)
        cluster = self._plain("cluster", Cluster, name, own)
        with self.located("cluster", name, {f"cluster.{field}" for field in overrides}, builtin=True):
            return self.resolve(self._with_host(cluster, of_host))

    def _with_host(self, cluster: Cluster, changes: Mapping[str, Any]) -> Cluster:
        """The cluster with (dotted) fields of its host changed, e.g. ``nics.*.bandwidth``."""
        if not changes:
            return cluster
        if cluster.host is None:
            hint = "Describe the host in a file, and name that in `hosts`."
            raise InputError("cluster.host", "be the one host of all machines to be changed", hint=hint)
        key = ("with host", cluster, repr(sorted(changes.items())))
        if key not in self._cache:  # thousands of points of a sweep share the one changed cluster
            host = cluster.host
            described = (
                self.host(host, **changes) if isinstance(host, str) else apply_overrides(host, changes)
            )
            kept = {
                name: getattr(cluster, name) for name in cluster.model_fields_set if name not in _RESOLVED
            }
            self._cache[key] = Cluster(**{**kept, "host": described})
        found: Cluster = self._cache[key]
        return found

    def resolve(self, cluster: Cluster) -> Cluster:
        """Fill the host and device types of a cluster; a resolved one is returned as it is."""
        if cluster.is_resolved:
            return cluster
        key = ("resolve", cluster)
        if key not in self._cache:
            self._cache[key] = self._resolve(cluster)
        found: Cluster = self._cache[key]
        return found

    def _resolve(self, cluster: Cluster) -> Cluster:
        def as_host(host: str | Host, field: str = "host") -> Host:
            try:
                return self.host(host) if isinstance(host, str) else host
            except InputError as error:
                if not error.where:
                    error.field = f"cluster.{field}"
                raise

        if cluster.host is not None:
            types = [as_host(cluster.host)]
            type_of = (0,) * cluster.size
        else:
            groups = [as_host(group.host, f"hosts[{i}].host") for i, group in enumerate(cluster.hosts)]
            types = list(dict.fromkeys(groups))
            counts = zip(groups, (group.count for group in cluster.hosts), strict=True)
            type_of = tuple(types.index(host) for host, count in counts for _ in range(count))
        server = (
            as_host(cluster.server_host, "server_host")
            if cluster.server_host is not None
            else types[0].without_devices
        )
        given = (cluster.host, *(group.host for group in cluster.hosts), cluster.server_host)
        name_of = {as_host(host): host for host in given if isinstance(host, str)}
        devices = [device for host in (*types, server) for device in self.devices_of(host, name_of.get(host))]
        return cluster.model_copy(
            update={
                "num_hosts": cluster.size,
                "host_types": tuple(types),
                "host_type_of": type_of,
                "device_types": tuple({device.name: device for device in devices}.values()),
                "server_host_type": server,
            }
        )

    def workload(self, name: str, **overrides: Any) -> Workload:
        """Workload by name; overrides are fields of the workload or of its generator.

        Giving one of ``global_batch_size`` and ``batch_per_device`` takes the file's other one away. A path
        to a Hugging Face ``config.json`` is read as well; the batch must then be given.
        """
        key = repr(sorted(overrides.items()))
        found = self._cached("workload", name, key, lambda document: build_workload(document, overrides))
        with self.located("workload", name, {f"workload.{field}" for field in overrides}, builtin=True):
            return self._measured(found)

    def _measured(self, workload: Workload) -> Workload:
        """Fill in the device on which a workload's layers were measured."""
        if not isinstance(workload.measured_on, str):
            return workload
        try:
            return workload.model_copy(update={"measured_on": self.device(workload.measured_on)})
        except InputError as error:
            if not error.where:
                error.field = "workload.measured_on"
            raise

    def strategy(self, name: str, **overrides: Any) -> Strategy:
        """Strategy preset by name; overrides are fields of the strategy."""

        def build(document: yamlio.Document) -> Strategy:
            # A preset file holds the catalogue header and the strategy's fields side by side.
            body = document.without(*_PRESET_HEADER)
            header = yamlio.validate(Preset, document.without(*body.data), field_prefix="strategy")
            if header.alias_of is not None:
                self._check_alias(name, header.alias_of, document)
                inherited = self.strategy(header.alias_of)
                kept = {field: getattr(inherited, field) for field in inherited.model_fields_set}
                own = yamlio.validate(Strategy, body, field_prefix="strategy")
                kept |= {field: getattr(own, field) for field in own.model_fields_set}
                return yamlio.validate(Strategy, kept, field_prefix="strategy", overrides=overrides)
            return yamlio.validate(Strategy, body, field_prefix="strategy", overrides=overrides)

        return self._cached("strategy", name, repr(sorted(overrides.items())), build)

    def _check_alias(self, name: str, target: str, document: yamlio.Document) -> None:
        """Refuse aliases of aliases: a reader should find the fields one step away, and never in a circle."""
        where = document.where(("alias_of",))
        known = [each for each in self.names("strategy") if each != name]
        if target not in known:
            close = nearest(target, known)
            hint = f"Try {close}." if close else ""
            raise InputError("strategy.alias_of", "name another preset", target, hint=hint, where=where)
        if self.preset(target).alias_of is not None:
            raise InputError(
                "strategy.alias_of", "name a preset that is no alias itself", target, where=where
            )

    def preset(self, name: str) -> Preset:
        """What the file of a preset says beside the strategy's fields."""
        document = yamlio.load(self.find_file("strategy", name))
        body = document.without(*_PRESET_HEADER)
        return yamlio.validate(Preset, document.without(*body.data), field_prefix="strategy")

    def calibration(self, names: str | Iterable[str] = ()) -> Calibration:
        """The default calibration with others merged over it, in order."""
        wanted = [names] if isinstance(names, str) else list(names)
        result = self._plain("calibration", Calibration, "default", {})
        for name in wanted:
            if name != "default":
                result = result.merge(self._plain("calibration", Calibration, name, {}))
        return result

    # -- scenarios -----------------------------------------------------------------------------------

    def scenario(self, name: str, **overrides: Any) -> Scenario:
        """Scenario file by name or path, resolved; overrides are dotted fields (``strategy.tp``)."""
        document = yamlio.load(self.find_file("scenario", name))
        with origin.located(document, given=overrides):
            return self._scenario(document, overrides)

    def _scenario(self, document: yamlio.Document, overrides: Mapping[str, Any]) -> Scenario:
        file = yamlio.validate(ScenarioFile, document, field_prefix="scenario")
        fields: dict[str, Any] = {"workload": file.workload, "cluster": file.cluster}
        if isinstance(file.strategy, str):
            fields["strategy"] = file.strategy
        else:
            fields |= {f"strategy.{key}": value for key, value in file.strategy.items()}
        fields["calibration"] = file.calibration
        for key in ("seed", "fidelity", "perturbation", "confidence", "convergence", "fold"):
            fields[key] = getattr(file, key)
        return self.build_scenario({**fields, **file.overrides, **overrides})

    def build_scenario(self, fields: Mapping[str, Any]) -> Scenario:
        """Scenario from a flat mapping, such as one point of a sweep.

        Parameters
        ----------
        fields : mapping
            ``workload``, ``cluster`` (name, path or spec), ``strategy`` (preset name or spec),
            ``calibration`` (names), ``seed``, ``fidelity``, ``perturbation``, ``confidence``, ``fold``,
            and dotted fields below them, which win.
        """
        parts: dict[str, dict[str, Any]] = {}
        whole: dict[str, Any] = {}
        for name, value in fields.items():
            root, _, rest = name.partition(".")
            if rest:
                parts.setdefault(root, {})[rest] = value
            else:
                whole[root] = value
        for name in fields:
            if (root := name.partition(".")[0]) not in Scenario.model_fields:
                raise InputError(name, "be a part of a scenario", hint=_field_hint(root))
        for root in ("workload", "cluster"):
            if root not in whole:
                raise InputError(root, "be given")
        built: dict[str, Any] = {
            "workload": self._measured(
                self._part(self.workload, whole.pop("workload"), parts.pop("workload", {}))
            ),
            "cluster": self._cluster_part(whole.pop("cluster"), parts.pop("cluster", {})),
            "strategy": self._strategy_part(whole.pop("strategy", None), parts.pop("strategy", {})),
        }
        given = whole.pop("calibration", ())
        built["calibration"] = given if isinstance(given, Calibration) else self.calibration(given)
        if isinstance(whole.get("convergence"), str | Path):
            whole["convergence"] = load_convergence(whole["convergence"])
        other = {
            f"{root}.{name}": value for root, changes in parts.items() for name, value in changes.items()
        }
        return yamlio.validate(Scenario, yamlio.Document({**built, **whole}), overrides=other)

    def _part(self, lookup: Callable[..., SpecT], given: Any, changes: dict[str, Any]) -> SpecT:
        if not isinstance(given, Spec):
            if "name" in changes:
                kind = lookup.__name__
                raise InputError(f"{kind}.name", f"stay what the {kind} is called", changes["name"])
            return lookup(given, **changes)
        return apply_overrides(given, changes)  # type: ignore[return-value]

    def _cluster_part(self, given: Any, changes: dict[str, Any]) -> Cluster:
        if isinstance(given, Cluster):
            count = changes.pop("num_hosts", None)
            if count is not None:
                given = given.with_hosts(_whole(count, "cluster.num_hosts"))
            own, of_host = _split_host(changes)
            return self.resolve(self._with_host(apply_overrides(given, own), of_host))
        return self.cluster(given, **changes)

    def _strategy_part(self, given: Any, changes: dict[str, Any]) -> Strategy:
        if given is None or isinstance(given, Mapping):
            return yamlio.validate(
                Strategy, yamlio.Document({}), field_prefix="strategy", overrides={**(given or {}), **changes}
            )
        return self._part(self.strategy, given, changes)


def load_convergence(path: str | Path) -> Convergence:
    """A convergence curve from YAML, or from CSV with columns ``quantity, at, value``.

    A CSV row states ``samples_per_epoch`` (``at`` is empty), ``epochs`` at a batch, or a factor at a
    ``staleness``, number of ``local_steps`` or name of a ``compression``.
    """
    source = Path(path)
    if source.suffix.lower() != ".csv":
        return yamlio.validate(Convergence, yamlio.load(source), field_prefix="convergence")
    data: dict[str, Any] = {}
    try:
        with source.open(newline="", encoding="utf-8-sig") as file:
            rows = list(csv.DictReader(file))
    except (OSError, UnicodeDecodeError, csv.Error) as error:
        raise InputError("convergence", "be a readable file", str(path), hint=str(error)) from None
    for number, row in enumerate(rows, 2):
        quantity, at, value = ((row.get(name) or "").strip() for name in ("quantity", "at", "value"))
        if not quantity or not value:
            raise InputError("convergence", "have quantity, at and value", where=f"{path}:{number}")
        if at:
            data.setdefault(quantity, {})[at] = value
        else:
            data[quantity] = value
    return yamlio.validate(Convergence, yamlio.Document(data, str(source)), field_prefix="convergence")


def apply_overrides(spec: SpecT, changes: Mapping[str, Any]) -> SpecT:
    """Validated copy of a spec with (dotted) fields changed; errors are one line."""
    if not changes:
        return spec
    prefix = type(spec).__name__.lower()
    top = {name.split(".")[0] for name in changes}
    # Only what changes is taken apart; large parts (layers, host types) stay the objects they are.
    data = {
        name: getattr(spec, name).model_dump()
        if name in top and isinstance(getattr(spec, name), Spec)
        else getattr(spec, name)
        for name in spec.model_fields_set
    }
    return yamlio.validate(type(spec), data, field_prefix=prefix, overrides=changes)


def _split_host(changes: Mapping[str, Any]) -> tuple[dict[str, Any], dict[str, Any]]:
    """Changes of a cluster's own fields, and those of its host's (``host.`` cut off)."""
    for name in changes:
        if name.split(".")[0] in _RESOLVED:
            raise InputError(
                f"cluster.{name}", "be left to the catalogue, which fills it in",
                hint="Change cluster.host, e.g. cluster.host.nics.*.bandwidth=400Gbps.",
            )  # fmt: skip
    of_host = {name.removeprefix("host."): v for name, v in changes.items() if name.startswith("host.")}
    return {name: v for name, v in changes.items() if not name.startswith("host.")}, of_host


def _field_hint(name: str) -> str:
    """Where a field that is no part of a scenario may belong: ``tp`` is ``strategy.tp``."""
    for root, model in (("strategy", Strategy), ("cluster", Cluster), ("workload", Workload)):
        if name in model.model_fields:
            return f"Try {root}.{name}."
    close = nearest(name, list(Scenario.model_fields))
    return f"Try {close}." if close else ""


def _whole(value: Any, field: str) -> int:
    number = yamlio.read_value(value) if isinstance(value, str) else value
    if isinstance(number, bool) or not isinstance(number, int) or number < 1:
        raise InputError(field, "be a whole number of at least 1", value)
    return number


def _is_path(name: str) -> bool:
    return name.endswith((".yaml", ".yml", ".json")) or os.sep in name


def _is_builtin(path: Path) -> bool:
    return any(path.is_relative_to(root) for root in _builtin_roots())


def _plural(kind: str) -> str:
    return "strategies" if kind == "strategy" else f"{kind}s"


@lru_cache(maxsize=1)
def _plugin_roots() -> tuple[Path, ...]:
    """Folders that installed packages offer under the entry point group ``clusterloom.catalog``.

    The entry point names a module whose folder is used, or a function that returns a folder.
    """
    roots = []
    for entry in sorted(metadata.entry_points(group=ENTRY_POINTS), key=lambda entry: entry.name):
        found = entry.load()
        if callable(found):
            found = found()
        roots.append(Path(found) if isinstance(found, str | Path) else Path(str(found.__file__)).parent)
    return tuple(roots)


@lru_cache(maxsize=1)
def _builtin_roots() -> tuple[Path, ...]:
    package = Path(__file__).resolve().parent
    return tuple(root for root in (package / "_catalog", package.parent) if (root / "topologies").is_dir())


@lru_cache(maxsize=1)
def default_catalog() -> Catalog:
    """The catalogue without user folders."""
    return Catalog()
