"""One table of what things cost here, beside what the same work costs on other simulators.

``make bench`` runs it; a quiet machine gives the numbers their meaning. The others' CPU seconds
(``peers.csv``) were measured once, side by side on one 2-core machine: public releases, whole processes,
medians.
"""

from __future__ import annotations

import csv
import sys
from collections import defaultdict
from pathlib import Path

from tests.perf.test_startup_and_sweep_speed import cpu_seconds
from tests.perf.works import WORKS, Measurement, fresh

HEADER = ("work", "CPU s", "lowering", "tasks", "events", "simulated", "bare SimPy", "others, CPU s")
START_UP = {
    "clusterloom --help": "from sim.cli.main import main; main(['--help'])",
    "import sim": "import sim",
}


def peers() -> dict[str, str]:
    """What is known of other simulators, by work."""
    found: dict[str, list[str]] = defaultdict(list)
    with (Path(__file__).parent / "peers.csv").open(newline="") as file:
        for row in csv.DictReader(file):
            note = f" ({row['note']})" if row["note"] else ""
            found[row["work"]].append(f"{row['simulator']} {row['cpu_s']}{note}")
    return {work: ", ".join(texts) for work, texts in found.items()}


def row(name: str, found: Measurement, others: str) -> tuple[str, ...]:
    """One line; ``bare SimPy``: thousands of bare callbacks that take as long."""
    return (
        name,
        f"{found.seconds:.3f}",
        f"{found.lower_s:.3f}",
        f"{found.tasks:,}",
        f"{found.events:,}",
        f"{found.simulated_s * 1e3:,.4f} ms",
        f"{found.callbacks / 1e3:,.0f} k",
        others,
    )


def main() -> None:
    """Measure everything, line by line as it comes."""
    known = peers()
    names = [*WORKS, *START_UP]
    widths = [max(map(len, names)), 7, 8, 7, 7, 15, 10, 0]

    def show(cells: tuple[str, ...]) -> None:
        first, *middle = (
            cell.ljust(width) if i in (0, len(widths) - 1) else cell.rjust(width)
            for i, (cell, width) in enumerate(zip(cells, widths, strict=True))
        )
        print("  ".join([first, *middle]).rstrip(), flush=True)

    show(HEADER)
    wanted = sys.argv[1:]
    for name in WORKS:
        if not wanted or any(word in name for word in wanted):
            show(row(name, fresh(name), known.get(name, "")))
    for name, program in START_UP.items():
        if not wanted or any(word in name for word in wanted):
            show((name, f"{cpu_seconds(program):.3f}", *[""] * 6))


if __name__ == "__main__":
    main()
