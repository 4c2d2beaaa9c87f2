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
# # A tour of the taxonomy
#
# Surveys of distributed deep learning put systems into boxes. Here the boxes are the axes of a product: every
# valid combination of the values of some dimensions is simulated, ranked, and asked what each value costs or
# gains on its own. Three products: ResNet-50 on two hosts of 8 V100s joined by 10 and by 100 Gb/s, and GPT-3
# 13B on 64 A100s. On the command line: `clusterloom sweep taxonomy-resnet50-10g`.
#
# `CLUSTERLOOM_TOUR=short` in the environment takes two values of a few dimensions only.

# %%
import os

import pandas as pd

from sim import plot
from sim.catalog import default_catalog
from sim.sweep.comparison import dimensions_of, main_effects
from sim.sweep.plan import plan_sweep
from sim.sweep.runner import SweepResult, run

SHORT = os.environ.get("CLUSTERLOOM_TOUR") == "short"


def tour(name: str) -> SweepResult:
    sweep = default_catalog().get("sweep", name)
    if SHORT:
        thin = {
            axis: values[: 2 if place < 4 else 1]
            for place, (axis, values) in enumerate(sweep.dimensions.items())
        }
        sweep = sweep.model_copy(update={"dimensions": thin})
    return run(plan_sweep(sweep))


def summary(results: dict[str, SweepResult]) -> pd.DataFrame:
    rows = {
        name: {"points": len(r.table), "valid": len(r.table) - r.counts.get("invalid", 0), **r.counts}
        for name, r in results.items()
    }
    return pd.DataFrame(rows).T.fillna(0).astype(int)


def ranking(result: SweepResult, count: int = 8) -> pd.DataFrame:
    table = result.table
    names = [f"dimension.{name}" for name in dimensions_of(table)]
    best = table[table["status"] == "ok"].nlargest(count, "samples_per_s")
    return best[[*names, "samples_per_s", "step_time_s"]].rename(
        columns=lambda c: c.removeprefix("dimension.")
    )


# %%
results = {name: tour(f"taxonomy-{name}") for name in ("resnet50-10g", "resnet50-100g", "gpt3-a100")}
summary(results)

# %% [markdown]
# Most combinations of a full product mean nothing: a server has no ring, a shard's owner cannot be left out.
# Each refused point has a rule and a reason; these stop the most.

# %%
refused = results["resnet50-10g"].refusals()
pd.Series({reason[:140]: len(points) for reason, points in refused.items()}, name="points").nlargest(
    6
).to_frame()

# %% [markdown]
# ## ResNet-50: a slow network makes a taxonomy matter
#
# The best combinations at 10 Gb/s, in images per second:

# %%
ranking(results["resnet50-10g"])

# %% [markdown]
# What each value costs or gains, averaged over the others. Not every combination is valid, so this is a fit
# of effects that multiply, not a plain mean; `n` is the number of points behind a bar.

# %%
effects = {name: main_effects(result.table) for name, result in results.items()}


def table_of(name: str) -> pd.DataFrame:
    table = effects[name].set_index(["dimension", "value"])[["points", "effect", "best"]]
    return table.assign(effect=(100 * table["effect"]).round(1)).rename(columns={"effect": "effect_percent"})


table_of("resnet50-10g")

# %%
plot.main_effects(effects["resnet50-10g"], objective="images/s", title="10 Gb/s")

# %%
plot.main_effects(effects["resnet50-100g"], objective="images/s", title="100 Gb/s")

# %% [markdown]
# Side by side: how far the best and the worst value of each dimension are apart. What is worth a factor on a
# slow network is worth less on a fast one.


# %%
def spread(name: str) -> pd.Series:
    found = (1 + effects[name]["effect"]).groupby(effects[name]["dimension"], sort=False)
    return (found.max() / found.min()).rename(name)


pd.concat([spread("resnet50-10g"), spread("resnet50-100g")], axis=1).round(2)

# %% [markdown]
# ## GPT-3 13B: degrees, schedules, memory
#
# Here memory decides as well: combinations that do not fit count as infeasible above.

# %%
ranking(results["gpt3-a100"])

# %%
table_of("gpt3-a100")

# %%
plot.main_effects(effects["gpt3-a100"], objective="sequences/s", title="GPT-3 13B on 64 A100s")

# %% [markdown]
# How much of the differences do effects that simply multiply explain? What is left are interactions: a
# pipeline schedule only matters where there is a pipeline.

# %%
pd.Series(
    {name: found["r_squared"].iloc[0] for name, found in effects.items() if len(found)}, name="r_squared"
).round(3).to_frame()
