"""Logs of nccl-tests with what real ones are like."""

from __future__ import annotations

from pathlib import Path

import pytest

from sim.errors import InputError
from sim.trace.readers.nccl_tests import NcclRow, ranks_of_bandwidths, read_nccl_tests
from sim.validate.collectives.load import load_rows

HEADER = """# nThread 1 nGpus 1 minBytes 8 maxBytes 17179869184 step: 2(factor) warmup iters: 5 iters: 20
#
# Using devices
#  Rank  0 Group  0 Pid  41 on   node-a device  0 [0x10] NVIDIA A100-SXM4-80GB
#  Rank  1 Group  0 Pid  42 on   node-a device  1 [0x16] NVIDIA A100-SXM4-80GB
#  Rank  2 Group  0 Pid  41 on   node-b device  0 [0x10] NVIDIA A100-SXM4-80GB
#  Rank  3 Group  0 Pid  42 on   node-b device  1 [0x16] NVIDIA A100-SXM4-80GB
NCCL version 2.18.3+cuda12.1
node-a:41:60 [0] NCCL INFO NET/IB : Using [0]mlx5_0:1/IB
#       size         count      type   redop    root     time   algbw   busbw #wrong     time
#        (B)    (elements)                               (us)  (GB/s)  (GB/s)            (us)
"""


OUT, IN = "  120.1   8.73   13.10   0", "  119.3   8.79   13.18   0"


def test_a_current_log() -> None:
    row = "     1048576        262144     float     sum      -1" + OUT + IN
    log = read_nccl_tests(["# Collective test starting: all_reduce_perf", *HEADER.splitlines(), row])
    assert (log.collective, log.num_ranks, log.num_hosts) == ("all_reduce", 4, 2)
    assert log.device == "NVIDIA A100-SXM4-80GB"
    assert (log.version, log.network) == ("NCCL 2.18.3+cuda12.1", "InfiniBand")
    out, inside = log.rows
    assert out == NcclRow(1048576, pytest.approx(120.1e-6), 8.73, 13.10, False, "float")
    assert inside.in_place
    assert inside.time_s == pytest.approx(119.3e-6)


@pytest.mark.parametrize(
    ("line", "expected"),
    [
        ("0:    1024   256   float   sum" + OUT + IN, [120.1, 119.3]),  # a launcher's prefix, no root
        ("[1,0]<stdout>:  1024  256  float  sum  -1" + (OUT + IN).replace("   0", " N/A"), [120.1, 119.3]),
        ("   1_073_741_824   268435456   float   sum   -1" + OUT + IN, [120.1, 119.3]),
        ("   1024   256   float " + OUT + IN, [120.1, 119.3]),  # no reduction, no root
        ("   1024   256   float   -1" + OUT + IN, [120.1, 119.3]),  # no reduction
        ("   1024   256   float   sum   0   120.1   8.73   13.1   119.3  8.8  13.2", [120.1, 119.3]),
        ("   1024   256   half    none   -1" + OUT, [120.1]),  # one half only
        ("   0   0   float   sum   -1   10.0   0.00   0.00   0   11.0  0.00  0.00  0", []),  # size 0
        ("   1024   256   float   sum", []),
        ("   ...", []),
    ],
)  # fmt: skip
def test_a_row(line: str, expected: list[float]) -> None:
    log = read_nccl_tests([line])
    assert [row.time_s * 1e6 for row in log.rows] == pytest.approx(expected)


@pytest.mark.parametrize(("collective", "factor"), [("all_reduce", 2), ("all_gather", 1), ("alltoall", 1)])
@pytest.mark.parametrize("ranks", [2, 8, 96, 128])
def test_the_bandwidths_give_the_ranks(collective: str, factor: int, ranks: int) -> None:
    bus = round(200.0 * factor * (ranks - 1) / ranks, 2)
    assert ranks_of_bandwidths(collective, [NcclRow(1 << 30, 1.0, 200.0, bus, False, "float")]) == ranks


def test_the_table_overrules_too_few_rank_lines() -> None:
    """A log cut at the top names one rank, but its bandwidths are those of 16."""
    lines = ["# all_reduce_perf", HEADER.splitlines()[3]]
    lines.append("   1073741824   268435456   float   sum   -1   10000.0   107.37   201.33   0")
    assert read_nccl_tests(lines).num_ranks == 16


def test_a_log_becomes_rows(tmp_path: Path) -> None:
    path = tmp_path / "mine.log"
    path.write_text(HEADER + "   1048576   262144   float   sum   -1   120.1   8.73   13.10   0\n")
    with_name = load_rows([path], {"collective": "all_reduce"})
    assert [row.size_bytes for row in with_name] == [1048576]
    case = with_name[0].case
    assert case is not None
    assert (case.cluster.size, case.num_ranks) == (2, 4)
    assert case.setting.transport == "verbs"
    assert load_rows([path])[0].case is None  # neither the log nor the caller says which collective


def test_no_rows_is_an_input_error(tmp_path: Path) -> None:
    path = tmp_path / "empty.log"
    path.write_text("nothing here\n")
    with pytest.raises(InputError, match=r"nccl-tests"):
        load_rows([path])


def test_several_tests_in_one_file(tmp_path: Path) -> None:
    """Each has its own collective and ranks; what a later one does not repeat comes from the one before."""
    first = HEADER + " 67108864 16777216 float sum -1 500.0 134.2 201.3 0\n"
    second = (
        "# nThread 1 nGpus 1 minBytes 8\nall_gather_perf\n 67108864 2097152 float -1 400.0 167.8 146.8 0\n"
    )
    path = tmp_path / "two.log"
    path.write_text("all_reduce_perf -b 8\n" + first + second)
    one, two = load_rows([path])
    assert (one.operation, two.operation) == ("all_reduce", "all_gather")
    assert one.case is not None
    assert two.case is not None
    assert (one.case.num_ranks, two.case.num_ranks) == (4, 8)
    assert two.case.setting.device == "a100"


def test_an_old_all_gather_counts_what_a_rank_sends() -> None:
    """Bus bandwidth of n - 1 times algorithm bandwidth gives it away; the size becomes the whole result."""
    log = read_nccl_tests(["all_gather_perf", " 8388608 2097152 float -1 400.0 20.97 146.8 0"])
    (row,) = log.rows
    assert row.size_bytes == 8 * 8388608
    assert log.num_ranks == 8


def test_tables_with_other_separators(tmp_path: Path) -> None:
    path = tmp_path / "mine.csv"
    path.write_text(
        "hardware; gpus; nodes; collective; message_bytes; time_us\nH100; 8; 1; all_reduce; 1MiB; 30\n"
    )
    (row,) = load_rows([path])
    assert row.case is not None
    assert row.time_s == pytest.approx(30e-6)
    assert row.size_bytes == 1 << 20
