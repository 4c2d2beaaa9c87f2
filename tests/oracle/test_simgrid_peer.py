"""Finish times under max-min sharing against SimGrid, an independent simulator, on random networks.

SimGrid shares a link by bytes/s of each flow only if the model's corrections are off: CM02 with bandwidth and
latency factors of 1, weight-S 0, no cross-traffic, no TCP window; flows of equal latency.
"""

from __future__ import annotations

import json
import subprocess
import sys
from importlib.util import find_spec

import numpy as np
import pytest

from sim.engine.play import play
from tests.graphs import make_graph

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(find_spec("simgrid") is None, reason="needs the extra `peers` (SimGrid)"),
]

LATENCY = 1e-4
NUM_CASES = 200

# SimGrid can be started once per process, so every batch of cases runs in one of its own. Names of calls
# are those of SimGrid 3.32 (Debian) and, where they changed, of 4.x (PyPI).
PEER = """
import json, sys
from simgrid import Actor, Comm, Engine, LinkInRoute, NetZone, this_actor

case = json.load(sys.stdin)
engine = Engine(["peer", "--log=root.thresh:critical", "--cfg=network/model:CM02",
    "--cfg=network/crosstraffic:0", "--cfg=network/TCP-gamma:0", "--cfg=network/weight-S:0",
    "--cfg=network/bandwidth-factor:1", "--cfg=network/latency-factor:1"])
new = hasattr(engine, "netzone_root") and hasattr(engine.netzone_root, "add_host")
zone = engine.netzone_root.add_netzone_full("peer") if new else NetZone.create_full_zone("peer")
add_host, add_link = (zone.add_host, zone.add_link) if new else (zone.create_host, zone.create_link)
finish, senders = [], []

def send(a, b, start, size, number):
    this_actor.sleep_until(start)
    Comm.sendto(a, b, size)
    finish[number] = engine.clock if new else Engine.get_clock()

for p, part in enumerate(case["parts"]):
    links = [add_link(f"l{p}_{i}", c) for i, c in enumerate(part["capacity"])]
    links = [link.seal() or link for link in links]
    for f, flow in enumerate(part["flows"]):
        a, b = (add_host(f"{side}{p}_{f}", 1e9) for side in ("a", "b"))
        pace = add_link(f"latency{p}_{f}", 1e15).set_latency(case["latency"])
        pace = pace.seal() or pace
        way = [LinkInRoute(link) for link in [pace, *(links[i] for i in flow["links"])]]
        if new:
            zone.add_route(a, b, way, True)
        else:
            zone.add_route(a.netpoint, b.netpoint, None, None, way, True)
        senders.append((a, b, flow["start"], flow["bytes"], len(finish)))
        finish.append(0.0)
zone.seal()
for sender in senders:
    if new:
        sender[0].add_actor(f"s{sender[4]}", send, *sender)
    else:
        Actor.create(f"s{sender[4]}", sender[0], send, *sender)
engine.run()
print(json.dumps(finish))
"""


def random_part(rng: np.random.Generator) -> dict[str, object]:
    """Up to 8 links and 12 flows; some start together, some meet on several links."""
    num_links, num_flows = int(rng.integers(1, 9)), int(rng.integers(1, 13))
    flows = [
        {
            "links": rng.choice(
                num_links, int(rng.integers(1, min(4, num_links) + 1)), replace=False
            ).tolist(),
            "start": float(rng.choice([0.0, 0.0, rng.uniform(0, 2)])),
            "bytes": int(rng.uniform(1e8, 5e9)),  # SimGrid takes whole bytes
        }
        for _ in range(num_flows)
    ]
    return {"capacity": rng.uniform(1e8, 1e10, num_links).tolist(), "flows": flows}


def ours(part: dict[str, object]) -> list[float]:
    """Finish times of the engine."""
    capacity, flows = part["capacity"], part["flows"]
    assert isinstance(capacity, list)
    assert isinstance(flows, list)
    tasks: list[dict[str, object]] = []
    for i, flow in enumerate(flows):
        tasks.append({"name": f"wait{i}", "work": flow["start"], "on": [f"s{i}"]})
        loads = {f"l{link}": 1.0 for link in flow["links"]}
        tasks.append(
            {"name": f"flow{i}", "kind": "transfer", "work": LATENCY, "bytes": flow["bytes"], "links": loads,
             "after": [f"wait{i}"], "on": [f"n{i}"]}
        )  # fmt: skip
    names = [f"flow{i}" for i in range(len(flows))]
    tasks.append({"name": "end", "kind": "counter", "boundary": True, "after": names})
    links = {f"l{i}": value for i, value in enumerate(capacity)}
    graph = make_graph(tasks, links=links, max_iterations=1)
    run = play(graph)
    ends = dict(zip(run.task.tolist(), run.end.tolist(), strict=True))
    return [ends[2 * i + 1] for i in range(len(flows))]


@pytest.mark.parametrize("seed", range(10))
def test_two_hundred_random_networks(seed: int) -> None:
    rng = np.random.default_rng(seed)
    parts = [random_part(rng) for _ in range(NUM_CASES // 10)]
    answer = subprocess.run(
        [sys.executable, "-c", PEER],
        input=json.dumps({"latency": LATENCY, "parts": parts}),
        capture_output=True,
        text=True,
        check=False,
        timeout=300,
    )
    assert answer.returncode == 0, answer.stderr
    theirs = json.loads(answer.stdout.splitlines()[-1])
    mine = [end for part in parts for end in ours(part)]
    np.testing.assert_allclose(mine, theirs, rtol=1e-6)
