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
# # How wrong is it?
#
# `measurements/training_runs.csv` holds thousands of published training runs. `clusterloom validate runs`
# simulates every one (minutes; its board is in the documentation). This notebook does the same with a
# sample, in seconds: the board, the residuals, one source in detail, and whether the intervals hold what
# they promise.

# %%
from pathlib import Path

import matplotlib.pyplot as plt
import numpy as np
import pandas as pd

from sim.catalog import default_catalog
from sim.validate.causes import causes
from sim.validate.report import validate_runs

published = pd.read_csv(default_catalog().data_file("measurements/training_runs.csv"), dtype=str)
published["group"] = published["id"].str.split("-").str[0]
published.groupby(["split", "group"]).size()

# %% [markdown]
# ## A sample
#
# At most three rows of each source, spread over its table; runs without pipelines, which cost least to
# simulate. Your own file works as well: the columns `id, model, gpu, gpus` are enough to start with, and
# what is missing is assumed, named, and paid for with a wider interval.

# %%
small = published[(published["pp"].fillna("1") == "1") & (published["tier"] != "X")]
sample = pd.concat(
    rows.iloc[np.linspace(0, len(rows) - 1, min(3, len(rows))).astype(int)]
    for _, rows in small.groupby("group")
)
path = Path("sample.csv")
sample.drop(columns="group").to_csv(path, index=False)
report = validate_runs(path, workers=1)
print(f"{len(report.scored)} simulated, {len(report.skipped)} not:")
print(*sorted({item.reason for item in report.skipped}), sep="\n")

# %% [markdown]
# ## The board
#
# Errors of step time in percent. `constant` is the error of one utilisation per device and precision, which
# knows nothing of shapes, networks and strategies: what the simulator has to beat. Rows of the calibration
# split were used to fit efficiencies, rows of the validation split never.

# %%
columns = [
    "group",
    "split",
    "rows",
    "scored",
    "mape",
    "median",
    "bias",
    "worst",
    "coverage",
    "half_width",
    "constant",
]
lines = pd.DataFrame([line.to_dict() for line in report.lines if line.regime == "all"])
lines[columns].round(1)

# %% [markdown]
# ## Residuals
#
# Predicted over measured, by measured step time. A band of 10 % either way is drawn.

# %%
good = [item for item in report.scored if item.error is not None]
table = pd.DataFrame(
    {
        "id": [item.run.row.id for item in good],
        "source": [item.run.row.group for item in good],
        "model": [item.run.row.text("model") for item in good],
        "gpus": [item.run.row.whole("gpus") for item in good],
        "framework": [item.run.framework for item in good],
        "measured_s": [item.run.measured_s for item in good],
        "predicted_s": [item.prediction.step_time_s for item in good],
        "low_s": [item.low_s for item in good],
        "high_s": [item.high_s for item in good],
        "error": [item.error for item in good],
        "assumed": [len(item.run.assumed) for item in good],
    }
)
figure, axes = plt.subplots(figsize=(7, 4))
for source, rows in table.groupby("source"):
    axes.scatter(rows["measured_s"], 1 + rows["error"], s=18, label=source)
axes.axhspan(0.9, 1.1, color="0.9", zorder=0)
axes.set(xscale="log", xlabel="measured step time (s)", ylabel="predicted / measured")
axes.legend(ncols=2, fontsize="small")

# %% [markdown]
# Where does it come from? The mean squared residual by cause: parts of the step in proportion to their
# share, the mean of each framework, and the scatter of runs of the very same configuration.

# %%
pd.DataFrame([vars(cause) for cause in causes(report.scored)]).round(3)

# %% [markdown]
# ## One source in detail
#
# InternEvo's 7-billion-parameter model on 8 to 1,024 A100 was never fitted. The worst rows first, with what
# the simulator says the time goes into.

# %%
mine = [item for item in good if item.run.row.group == "INTERN"]
detail = pd.DataFrame([{**item.prediction.parts, "id": item.run.row.id} for item in mine]).merge(
    table, on="id"
)
detail["abs"] = detail["error"].abs()
detail.sort_values("abs", ascending=False).drop(columns="abs").round(2).head(8)

# %% [markdown]
# ## Intervals
#
# An 80 % interval should hold 80 % of the measurements, and be no wider than it must. A framework that was
# not calibrated, unknown columns, and much exposed communication widen it.

# %%
inside = (table["low_s"] <= table["measured_s"]) & (table["measured_s"] <= table["high_s"])
width = (table["high_s"] - table["low_s"]) / 2 / table["predicted_s"]
intervals = table.assign(inside=inside, half_width=width).groupby("framework")[["inside", "half_width"]]
print(f"{inside.mean():.0%} of {len(table)} inside")
intervals.agg({"inside": "mean", "half_width": "median"}).round(2)

# %%
ordered = table.assign(half_width=width).sort_values("error").reset_index(drop=True)
figure, axes = plt.subplots(figsize=(7, 3.5))
axes.vlines(
    ordered.index,
    ordered["low_s"] / ordered["measured_s"],
    ordered["high_s"] / ordered["measured_s"],
    color="0.7",
)
axes.scatter(ordered.index, ordered["predicted_s"] / ordered["measured_s"], s=8, zorder=3)
axes.axhline(1, color="black", linewidth=0.8)
axes.set(xlabel="run", ylabel="predicted / measured", title="80 % intervals")

# %% [markdown]
# The whole board, and the predictions as a table: `clusterloom validate runs --out predictions.csv`. Fit
# your own measurements with `clusterloom calibrate runs mine.csv -o mine.yaml` and use them with
# `--calibration mine.yaml`.
