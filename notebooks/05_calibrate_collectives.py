# ---
# jupyter:
#   jupytext:
#     formats: ipynb,py:percent
#     text_representation:
#       extension: .py
#       format_name: percent
#   kernelspec:
#     display_name: Python 3
#     language: python
#     name: python3
# ---

# %% [markdown]
# # Calibrate from an nccl-tests log
#
# You ran `all_reduce_perf` on your machines. This notebook turns that log into a calibration, looks at what
# it found, and holds predicted times beside measured ones at sizes that the fit has not seen.

# %%
from pathlib import Path

import matplotlib.pyplot as plt
import pandas as pd

from sim.calibrate.collectives import alternate_sizes, fit
from sim.catalog import default_catalog
from sim.validate.collectives.board import Board, predictions
from sim.validate.collectives.load import load_rows

# %% [markdown]
# ## A log
#
# Ours here is written from published measurements of one machine with 8 H100 (the `dgxc-h100x8` rows of
# `measurements/collectives.csv`), in the shape that nccl-tests prints. Put the path of your own instead.

# %%
published = pd.read_csv(default_catalog().data_file("measurements/collectives.csv"))
mine = published[(published["system"] == "dgxc-h100x8") & (published["in_place"] == 0)]
ranks = "\n".join(f"#  Rank {i} Group 0 Pid {i} on node0 device {i} [0x00] NVIDIA H100 SXM" for i in range(8))
lines = "\n".join(
    f"0: {r.message_bytes} {r.message_bytes // 4} float sum -1 {r.time_us} {r.algbw_GBs} {r.busbw_GBs} 0"
    for r in mine.itertuples()
)
log = Path("my_cluster.log")
log.write_text(f"# all_reduce_perf\n{ranks}\n{lines}\n")
print(*log.read_text().splitlines()[7:12], sep="\n")

# %% [markdown]
# The reader copes with launchers' prefixes, missing columns, digit groups and NCCL's own lines. The number of
# ranks follows from bus bandwidth over algorithm bandwidth if the log does not list them all.

# %%
rows = load_rows([log])
len(rows), rows[0].case.cluster.name, rows[0].case.setting

# %% [markdown]
# ## Fit
#
# Every second size is kept back. The prior is what other systems with such links have in common.

# %%
kept, left_out = alternate_sizes(rows)
fitted = fit(kept)
calibration = fitted.calibration("my-cluster", "my_cluster.log")
own = next(entries for key, entries in calibration.library.items() if "@" in key)
pd.DataFrame(
    {name: {"value": p.value, "low": p.at("low"), "high": p.at("high")} for name, p in own.items()}
).T

# %% [markdown]
# ## Predicted against measured
#
# The shaded band is the 80 % interval. The dashed line is what the datasheet alone gives: a ring at full
# NVLink speed, no latency.

# %%
everything = predictions(rows, calibration)
seen = everything["id"].isin({row.id for row in kept})
figure, axes = plt.subplots(figsize=(8, 4.5))
axes.fill_between(everything["message_bytes"], everything["low_us"], everything["high_us"], alpha=0.25)
axes.plot(everything["message_bytes"], everything["predicted_time_us"], label="predicted")
for points, marker, label in ((seen, "o", "measured, fitted on"), (~seen, "x", "measured, not seen")):
    part = everything[points]
    axes.plot(
        part["message_bytes"], part["measured_time_us"], marker, color="black", label=label, markersize=4
    )
axes.plot(everything["message_bytes"], everything["baseline_us"], "--", color="grey", label="datasheet ring")
axes.set(xscale="log", yscale="log", xlabel="message (bytes)", ylabel="time (us)", ylim=(5, None))
axes.legend()
plt.show()

# %%
judged = predictions(left_out, calibration)
board = Board.of(judged)
pd.DataFrame([vars(line) for line in board.lines]).set_index(["system", "operation", "band"]).round(3)

# %% [markdown]
# ## Keep it
#
# On the command line the same is `clusterloom calibrate collectives my_cluster.log -o my_cluster.yaml`, and
# `clusterloom validate collectives --measurements other.log --calibration my_cluster.yaml` judges it.

# %%
assert board.systems[0].mape < 0.1
