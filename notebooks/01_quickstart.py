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
# # Quickstart
#
# How fast would BERT-large train on eight machines, why not faster, and what would help? This notebook
# describes a job, runs it, takes its step apart, varies it and plots the outcome. It needs no GPU.

# %%
import sim

# %% [markdown]
# ## Describe
#
# A workload, a cluster, a strategy. All have names in a catalogue; fields can be replaced.

# %%
sim.list_names("clusters")

# %%
cluster = sim.cluster("dgx-1", num_hosts=8)
workload = sim.workload("bert-large", dtype="fp16", batch_per_device=8)
strategy = sim.strategy(bucket_size="25MiB")
cluster.num_devices, f"{workload.num_parameters / 1e6:.0f} million parameters"

# %% [markdown]
# A strategy that means nothing is refused, with a reason and a way out:

# %%
for refusal in sim.check(workload, cluster, {"synchronization": "asp"}):
    print(refusal)

# %% [markdown]
# ## Run

# %%
result = sim.run(workload, cluster, strategy)
result

# %% [markdown]
# ## Break down
#
# Each instant of the critical device's step has one cause; the parts add up.

# %%
result.breakdown()

# %%
sim.plot.timeline(result, title="One step of one device")

# %%
result.links().head(3)

# %% [markdown]
# Which resource would help? Percent of throughput per percent of the resource:

# %%
result.sensitivity()

# %% [markdown]
# How sure is this? The intervals of the calibration, propagated:

# %%
print(result.interval())

# %% [markdown]
# ## Vary
#
# A sweep is a product of axes; every field of every spec can be one.

# %%
axes = {
    "cluster.num_hosts": [1, 2, 4, 8],
    "strategy.collective": ["ring", "tree", "halving_doubling"],
    "strategy.overlap": [True, False],
}
sweep = sim.sweep(workload, cluster, axes)
table = sweep.run(num_workers=1)
table.nlargest(5, "samples_per_s")[["num_devices", "strategy", "samples_per_s", "exposed_comm_s"]]

# %% [markdown]
# ## Plot

# %%
sim.plot.scaling(table)

# %% [markdown]
# Where does the time go when nothing overlaps?

# %%
largest = table[(table.num_devices == 64) & ~table["strategy.overlap"]]
sim.plot.breakdown(largest)

# %% [markdown]
# And what if each worker ran at its own pace, with a parameter server in every host?

# %%
servers = sim.run(
    workload,
    sim.cluster("dgx-1", num_hosts=2),
    sim.strategy(state="ps_colocated", synchronization="asp", bucket_size="100MiB"),
)
print(servers)
print("mean staleness:", round(servers.staleness["mean"], 1), "updates")

# %% [markdown]
# Very slow, and no link is busy. The critical path says why: the servers' processors update the model once
# per worker, and their memory is the limit.

# %%
servers.critical_path().groupby(["device", "cause"], as_index=False)["share"].sum()

# %% [markdown]
# Save the timeline for <https://ui.perfetto.dev> with `result.save_trace("run.json.gz")`, and the result with
# `result.save("run.json")`.
