"""The card that ``clusterloom run`` prints for one result."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from sim.cli.output import MISSING, escape, grid, number, percent, seconds, size

if TYPE_CHECKING:
    from rich.console import Console

    from sim.analysis.result import Result

_BAR = 40
_COLORS = {
    "compute_s": "blue",
    "optimizer_s": "cyan",
    "data_s": "green",
    "exposed_comm_s": "red",
    "wait_s": "yellow",
    "bubble_s": "white",
}


def show_card(screen: Console, result: Result) -> None:
    """Print the headline, the breakdown, links, memory, cost and the critical path of an ok result."""
    devices = f"{result.num_devices} device{'' if result.num_devices == 1 else 's'}"
    screen.print(
        f"[bold]{escape(result.workload)}[/bold] on {escape(result.cluster)}, {devices}, {result.fidelity}"
    )
    for label, text in _headline(result):
        screen.print(f"  {label:<18}{escape(text)}")
    _breakdown(screen, result)
    _links(screen, result)
    _collectives(screen, result)
    _memory(screen, result)
    _critical_path(screen, result)
    for warning in result.warnings:
        screen.print(f"[yellow]warning:[/yellow] {escape(warning)}", soft_wrap=True)


def _headline(result: Result) -> list[tuple[str, str]]:
    rows = [("step time", _with_interval(result))]
    if result.samples_per_s is not None:
        rows.append(("throughput", f"{number(result.samples_per_s)} samples/s"))
    if result.tokens_per_s_per_device is not None:
        rows.append(("", f"{number(result.tokens_per_s_per_device)} tokens/s per device"))
    if result.mfu is not None:
        rows.append(("MFU", percent(result.mfu)))
    if result.overlap_fraction is not None and result.communication_s:
        hidden = (
            f"{seconds(result.communication_s)}, {percent(result.overlap_fraction, 0)} hidden behind compute"
        )
        rows.append(("communication", hidden))
    rows += _loading(result)
    if result.price_per_sample is not None:
        million = number(1e6 * result.price_per_sample)
        rows.append(("price", f"${number(result.price_per_step)} per step, ${million} per million samples"))
    if result.energy_joules_per_step is not None:
        rows.append(("energy", f"{number(result.energy_joules_per_step)} J per step"))
    if result.staleness is not None:
        stale = (
            f"mean {number(result.staleness['mean'], 3)}, 95 % within {result.staleness['p95']}, "
            f"at most {result.staleness['max']} updates"
        )
        rows.append(("staleness", stale))
    rows += _updates(result)
    return rows


def _updates(result: Result) -> list[tuple[str, str]]:
    """What an update is worth, where it is not simply the step; the way to the target."""
    rows, found = [], result.updates
    if found and found["bytes_per_update_per_worker"]:
        samples = f"{number(found['samples_per_update'])} samples"
        if found["local_steps"] > 1:
            samples += f" in {found['local_steps']} steps"
        text = f"{samples}, {size(found['bytes_per_update_per_worker'])} per worker"
        if found["dropped_gradient_share"]:
            text += f", {percent(found['dropped_gradient_share'])} of gradients dropped"
        rows.append(("update", text))
    target = result.convergence
    if target:
        price = target["cost_to_target"]
        cost = "" if price is None else f", ${number(price)}"
        text = f"{number(target['epochs_to_target'])} epochs, {seconds(target['time_to_target_s'])}{cost}"
        rows.append((f"to {target['target']}", text))
    return rows


def _loading(result: Result) -> list[tuple[str, str]]:
    rows = []
    if result.data_path is not None:
        path = result.data_path
        slowest = path["bottleneck"]
        text = f"{seconds(path[f'{slowest}_s'])} per step, {slowest} is slowest"
        rows.append(
            ("loading", text if path[f"{slowest}_s"] else f"{seconds(path['device_s'])} on the device")
        )
        if path["staging_s"] is not None:
            rows.append(("", f"staging once {seconds(path['staging_s'])}"))
    if result.checkpoint is not None:
        saved = result.checkpoint
        stall = seconds(saved["stall_s"])
        rows.append(
            (
                "checkpoint",
                f"{size(saved['bytes_total'])} every {saved['every_steps']} steps, each {stall} of stall",
            )
        )
    if result.epoch_time_s is not None:
        rows.append(("epoch", seconds(result.epoch_time_s)))
    return rows


def _with_interval(result: Result) -> str:
    text = seconds(result.step_time_s)
    if result.step_time_interval_s is not None:
        low, high = result.step_time_interval_s
        text += f" ({seconds(low)} .. {seconds(high)}, 80 %)"
    return text


def _breakdown(screen: Console, result: Result) -> None:
    step = result.step_time_s or 0.0
    on = f", critical device {escape(result.critical_device)}" if result.critical_device else ""
    screen.print(f"\n[bold]where a step goes[/bold]{on}")
    for name, value in sorted(result.parts.items(), key=lambda item: -item[1]):
        share = value / step if step else 0.0
        filled = round(_BAR * share)
        bar = f"[{_COLORS.get(name, 'white')}]{'█' * filled}[/]{'·' * (_BAR - filled)}"
        label = name.removesuffix("_s").replace("exposed_comm", "exposed comm.")
        screen.print(f"  {label:<15}{bar} {percent(share):>7}  {seconds(value)}")


def _links(screen: Console, result: Result) -> None:
    if not result.bottlenecks:
        return
    rows = [
        (
            str(link.get("link", "")),
            str(link.get("kind", "")),
            percent(link.get("utilisation")),
            size(link.get("bytes", link.get("bytes_per_step"))),
        )
        for link in result.bottlenecks[:3]
    ]
    columns = [("busiest links", "left"), ("kind", "left"), ("busy", "right"), ("per step", "right")]
    screen.print()
    screen.print(grid(columns, rows))


def _collectives(screen: Console, result: Result) -> None:
    if not result.collectives:
        return
    columns = [("collectives", "left"), ("ranks", "right"), ("algorithm", "left"), ("sizes", "right")]
    rows = []
    for each in result.collectives:
        algorithm = " ".join(part for part in (each["algorithm"], each["protocol"].upper()) if part)
        low, high = size(each["min_bytes"]), size(each["max_bytes"])
        sizes = low if low == high else f"{low} .. {high}"
        rows.append((str(each["family"]), str(each["num_ranks"]), algorithm, sizes))
    screen.print()
    screen.print(grid(columns, rows))


def _memory(screen: Console, result: Result) -> None:
    if not result.memory_bytes:
        return
    capacity = result.memory_capacity_bytes
    of = (
        f" of {size(capacity)} ({percent((result.peak_memory_bytes or 0) / capacity, 0)})" if capacity else ""
    )
    parts = ", ".join(
        f"{name.replace('_', ' ')} {size(value)}"
        for name, value in sorted(result.memory_bytes.items(), key=lambda item: -item[1])
        if value
    )
    screen.print(f"[bold]memory[/bold] {size(result.peak_memory_bytes)}{of}: {escape(parts)}", soft_wrap=True)


def _critical_path(screen: Console, result: Result) -> None:
    if result.run is None:
        return
    path: Any = result.critical_path()
    if not len(path):
        return
    length = path["duration_s"] if "duration_s" in path else path["end_s"] - path["start_s"]
    by_cause = length.groupby(path["cause"]).sum().sort_values(ascending=False)
    total = float(by_cause.sum())
    shares = [
        f"{str(cause).lower().replace('_', ' ')} {percent(value / total, 0)}"
        for cause, value in by_cause.items()
    ]
    text = ", ".join(shares[:5]) if total else MISSING
    screen.print(f"[bold]critical path[/bold] {len(path)} tasks: {escape(text)}", soft_wrap=True)
