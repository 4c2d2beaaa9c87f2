"""Measured layers: the measurement on its own device, the ratio of modelled times elsewhere."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from sim import api
from sim.catalog import default_catalog
from sim.models.compute import Measurement, chain_cost
from sim.spec import Gemm, Layer, LayerTime, MemoryBound, Workload
from tests.scenarios import fast_host

CALIBRATION = fast_host(default_catalog())
V100, A100 = api.device("v100-32gb"), api.device("a100-80gb")


def layers(**times: float) -> tuple[Layer, ...]:
    given: dict[str, Any] = {"forward_s": 2e-3, "backward_s": 5e-3, "batch": 8, **times}
    measured = LayerTime(**given)
    gemm = Gemm(rows=512, n=4096, k=1024, split="column")
    return (
        Layer(name="a", kind="linear", block=0, ops=(MemoryBound(elements=1e6),)),
        Layer(name="b", kind="linear", block=1, ops=(gemm,), measured=measured, tensors=(1.0,), parameters=1),
    )


def cost(device: Any = V100, batch: float = 8, tp: int = 1, **times: float) -> Any:
    chain = layers(**times)
    return chain_cost(
        chain,
        device=device,
        dtype="fp32",
        micro_batch=batch,
        tp=tp,
        calibration=CALIBRATION,
        measured=Measurement(V100, "fp32"),
    )[1]


def modelled(device: Any = V100, batch: float = 8, tp: int = 1) -> Any:
    chain = (layers()[0], layers()[1].replace(measured=None))
    return chain_cost(chain, device=device, dtype="fp32", micro_batch=batch, tp=tp, calibration=CALIBRATION)[
        1
    ]


def test_where_nothing_changes_the_measurement_comes_back() -> None:
    found = cost()
    assert (found.forward_s, found.backward_s) == pytest.approx((2e-3, 5e-3), rel=1e-12)


@pytest.mark.parametrize("change", [{"device": A100}, {"batch": 16}, {"tp": 4}, {"device": A100, "batch": 2}])
def test_elsewhere_the_ratio_of_modelled_times_scales_it(change: dict[str, Any]) -> None:
    found, there, here = cost(**change), modelled(**change), modelled()
    assert found.forward_s == pytest.approx(2e-3 * there.forward_s / here.forward_s)
    backward = here.backward_s
    assert found.backward_input_s == pytest.approx(5e-3 * there.backward_input_s / backward)
    assert found.backward_weight_s == pytest.approx(5e-3 * there.backward_weight_s / backward)
    assert found.forward_s != pytest.approx(2e-3, rel=0.05)


def test_a_layer_is_never_faster_than_its_host() -> None:
    assert cost(A100, forward_host_s=1.9e-3).forward_s == pytest.approx(1.9e-3)
    assert cost(batch=16, forward_host_s=1.9e-3).forward_s > 2.5e-3


def test_without_ops_times_follow_the_batch() -> None:
    chain = (Layer(name="x", kind="linear", block=0, measured=LayerTime(forward_s=1, backward_s=2, batch=4)),)
    found = chain_cost(chain, device=A100, dtype="fp32", micro_batch=6, calibration=CALIBRATION)[0]
    assert (found.forward_s, found.backward_input_s) == pytest.approx((1.5, 3.0))


def workload(**fields: Any) -> Workload:
    given: dict[str, Any] = {
        "name": "w", "description": "d", "source": "s", "family": "mlp", "layers": layers()[1:],
        "batch_per_device": 8, "optimizer_time": 1e-3, "step_overhead": 4e-3, **fields,
    }  # fmt: skip
    return Workload(**given)


def test_a_step_is_the_sum_of_what_was_measured() -> None:
    host = api.host("single-gpu", devices=[["v100-32gb", 1]])
    cluster = api.cluster("single-gpu", 1, host=host)
    result = api.run(workload(measured_on=V100), cluster)
    assert result.step_time_s == pytest.approx(2e-3 + 5e-3 + 1e-3 + 4e-3, rel=1e-9)
    named = api.run(workload(measured_on="v100-32gb"), cluster)
    assert named.step_time_s == result.step_time_s
    faster = api.run(workload(measured_on="v100-32gb"), api.cluster("single-gpu", 1))
    assert faster.step_time_s < 0.9 * result.step_time_s
    unscaled = api.run(workload(), api.cluster("single-gpu", 1))
    assert unscaled.step_time_s == pytest.approx(result.step_time_s, rel=1e-9)


def test_the_device_is_a_name_of_the_catalogue(tmp_path: Path) -> None:
    path = tmp_path / "w.yaml"
    path.write_text(
        "schema: 1\nname: w\ndescription: d\nsource: s\nfamily: mlp\nbatch_per_device: 1\n"
        "measured_on: v100-32gb\nlayers:\n"
        "- {name: a, kind: linear, block: 0, measured: {forward_s: 1ms, backward_s: 2ms}}\n"
    )
    assert api.workload(str(path)).measured_on == V100
    path.write_text(path.read_text().replace("v100-32gb", "v101"))
    with pytest.raises(Exception, match="v101"):
        api.workload(str(path))
