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
# # Calibrate with your own cluster
#
# From files to a what-if in ten cells: a profiler's trace of one rank becomes a workload with measured
# times, a log of the network becomes a calibration, and both together answer what other strategies would
# take. The trace is a real one of ours: a small transformer on one CPU core. Put your own's path instead.

# %%
import matplotlib.pyplot as plt
import pandas as pd

import sim
from sim.catalog import default_catalog
from sim.trace.info import trace_info
from sim.trace.read import read
from sim.trace.replay import replay
from sim.trace.to_graph import operations_of
from sim.trace.to_workload import import_workload

# %%
trace = read([default_catalog().data_file("workloads/traces/transformer_cpu.json.gz")], host=True)
pd.DataFrame(trace_info(trace)["ranks"][0]["steps"]).round(4)

# %% [markdown]
# ## The trace as a workload
#
# Shapes come from the recorded operators, times from what they launched (here, on a CPU, from the operators
# themselves). Attention cores and the products that tensor parallelism would split were recognised. On the
# command line: `clusterloom trace import FILE... -o mine.yaml`.

# %%
imported = import_workload(trace, name="mine")
mine = imported.workload
rows = [
    {"layer": layer.name, "kind": layer.kind, "block": layer.block, "parameters": layer.parameters,
     "forward_ms": layer.measured.forward_s * 1e3, "backward_ms": layer.measured.backward_s * 1e3}
    for layer in mine.layers
]  # fmt: skip
pd.DataFrame(rows).nlargest(8, "backward_ms").round(3)

# %%
f"{mine.num_parameters / 1e6:.2f} million parameters, {mine.num_heads} heads, {mine.num_blocks} blocks"

# %% [markdown]
# ## The machines
#
# Four hosts with one CPU each on 1 Gb/s Ethernet, torch.distributed over gloo. Simulated on one of them, the
# workload takes what was measured.

# %%
host = sim.host(
    "single-gpu",
    devices=[["xeon-8480c", 1]],
    nics=[{"name": "nic0", "bandwidth": "1Gbps", "latency": "25us"}],
)
cluster = sim.cluster("single-gpu", 4, host=host, library="gloo", transport="tcp")
alone = sim.run(mine, sim.cluster("single-gpu", 1, host=host), calibration="gloo")
pd.DataFrame({"measured": [imported.measured_step_s], "simulated": [alone.step_time_s]}).round(4)

# %% [markdown]
# ## The network
#
# `gloo` is a calibration that comes with the package. Your own is made of what you measured:
# `clusterloom calibrate collectives LOG... -o mine.yaml` from logs of nccl-tests, or
# `clusterloom calibrate recordings DIR -o mine.yaml` from jobs recorded with `clusterloom record`. It is
# merged over the default one, value by value.

# %%
sim.calibration("gloo").library["gloo"]["step_latency_network"]

# %% [markdown]
# ## What if
#
# Strategies that the trace never ran, on hosts it never saw.

# %%
choices = {
    "1 host": {"dp": 1},
    "dp 4": {"dp": 4},
    "dp 4, 1 MB buckets": {"dp": 4, "bucket_size": "1MB"},
    "dp 4, fp16 gradients": {"dp": 4, "bucket_size": "1MB", "compression": "fp16"},
    "dp 2 x tp 2": {"dp": 2, "tp": 2},
    "dp 2 x pp 2": {"dp": 2, "pp": 2, "micro_batch_size": 2},
}
results = {
    name: sim.run(
        mine,
        cluster if name != "1 host" else sim.cluster("single-gpu", 1, host=host),
        fields,
        calibration="gloo",
    )
    for name, fields in choices.items()
}
table = pd.DataFrame(
    {name: {"step_s": r.step_time_s, "samples_per_s": r.samples_per_s} for name, r in results.items()}
).T
table.round(3)

# %%
parts = pd.DataFrame({name: result.parts for name, result in results.items()}).T
axes = parts.loc[:, parts.sum() > 0].plot.barh(stacked=True, figsize=(8, 3.5))
axes.set(xlabel="seconds of a step")
axes.invert_yaxis()
plt.tight_layout()
plt.show()

# %% [markdown]
# ## Replay
#
# A trace of a whole job can be played again as it happened and changed: here an export of the simulation
# above (simulated, not measured), with links twice as fast. With traces of your job:
# `clusterloom trace replay FILE... --what-if links=2 --what-if no-stragglers`.

# %%
path = results["dp 4"].save_trace("job.json.gz")
job = operations_of(read([path], host=True))
faster, _ = replay(job, ["links=2"])
f"replay error {faster.error:+.2%}; with links twice as fast {faster.what_if['speedup']:.2f} times as fast"

# %%
assert abs(alone.step_time_s / imported.measured_step_s - 1) < 1e-6
assert abs(faster.error) < 1e-6
