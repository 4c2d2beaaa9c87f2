"""Where a fit to runs starts from: values as cited, which do not depend on any earlier fit."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

from sim.spec import Calibration
from sim.spec.calibration import Parameter

SOURCE = "fitted to published training runs (measurements/training_runs.csv, split calibration)"
OWN = "fitted to measured training runs ("
"""How the source of a parameter begins that was fitted to other files."""
UNKNOWN = "default"
"""Member of each population that no run belongs to: what a device or framework without measurements gets."""

CHIPS: dict[str, tuple[str, ...]] = {
    "k80": ("k80",),
    "p100": ("p100-16gb",),
    "v100": ("v100-16gb", "v100-32gb", "v100-sxm3-32gb", "v100-pcie-16gb"),
    "a100": ("a100-40gb", "a100-80gb", "a100-pcie-40gb", "a100-pcie-80gb", "a800-80gb"),
    "h100": (
        "h100-80gb", "h200-141gb", "h100-96gb", "h100-pcie-80gb", "h100-nvl-94gb", "h800-80gb", "gh200-96gb",
    ),
    "blackwell": ("b200-180gb", "b300-270gb", "gb200-186gb", "gb300-279gb"),
}  # fmt: skip
"""Catalogue devices that share a chip, and its efficiencies."""

PRIORS: dict[str, dict[str, Parameter]] = {
    section: {name: Parameter(value=value, source=source) for name, value, source in entries}
    for section, entries in (
        (
            "device",
            (
                (
                    "gemm_efficiency_vector",
                    0.89,
                    "cuBLAS SGEMM of P100 and V100 (arXiv:1804.06826, section 5)",
                ),
                ("gemm_efficiency_matrix", 0.68, "large cuBLAS products, less power and clock limits"),
                ("gemm_efficiency_tf32", 0.6, "as gemm_efficiency_matrix, operands of 4 bytes"),
                ("gemm_efficiency_eight_bit", 0.6, "as gemm_efficiency_matrix, less casts and scaling"),
                (
                    "gemm_efficiency_four_bit",
                    0.4,
                    "as gemm_efficiency_eight_bit, half as much work to hide casts",
                ),
                ("conv_efficiency_vector", 0.9, "cuDNN implicit products (doi:10.1109/ACCESS.2019.2918851)"),
                ("conv_efficiency_matrix", 0.57, "cuDNN on tensor cores (doi:10.1109/ACCESS.2019.2918851)"),
                ("conv_efficiency_tf32", 0.55, "as conv_efficiency_matrix"),
                ("winograd_gain", 2.1, "Lavin & Gray 2016, arXiv:1509.09308"),
                ("attention_efficiency", 0.55, "Dao 2023, arXiv:2307.08691, section 4.1"),
                ("memory_efficiency", 0.75, "STREAM (arXiv:1804.06826, table 3.1)"),
                ("tile_fill_time", 1.5e-6, "a few memory latencies (arXiv:1804.06826, table 3.1)"),
            ),
        ),
        (
            "framework",
            (
                ("kernel_issue_time", 6e-6, "CPU time to launch one PyTorch operator"),
                ("collective_issue_time", 30e-6, "CPU time of one torch.distributed collective"),
                ("exposed_launches", 0.05, "nearly all launches hidden"),
                (
                    "elementwise_traffic",
                    1.2,
                    "what the layer description says, and a little that it leaves out",
                ),
                ("attention_speed", 1.0, "the fused attention that attention_efficiency is stated for"),
                ("optimizer_bandwidth_efficiency", 0.7, "multi-tensor kernels, somewhat below STREAM"),
                ("step_overhead", 2e-3, "gradient norm, loss scaling, loss transfer, Python between steps"),
            ),
        ),
    )
}
"""Middles of the populations of devices and frameworks before any run is looked at."""


ASYNCHRONOUS = Parameter(
    value=0.35,
    source="FlashAttention-2 on H100 (Shah et al. 2024, arXiv:2407.08608, abstract): its kernels do not use "
    "the asynchronous tensor cores of Hopper and Blackwell",
)
CHIP_PRIORS = {chip: {"attention_efficiency": ASYNCHRONOUS} for chip in ("h100", "blackwell")}
"""Where a chip is known to differ from the middle before any run is looked at."""


def source_of(files: Iterable[str | Path]) -> str:
    """Source of parameters that are fitted to the rows of some files."""
    names = dict.fromkeys(Path(file).name for file in files)
    return f"{OWN}{', '.join(names)})"


def without_fits(calibration: Calibration) -> Calibration:
    """The calibration as cited: what an earlier fit to runs has put into it is taken out again."""
    sections = {}
    for name, middles in PRIORS.items():
        kept = {
            key: {n: p for n, p in parameters.items() if not p.source.startswith((SOURCE, OWN))}
            for key, parameters in getattr(calibration, name).items()
        }
        kept[UNKNOWN] = {**middles, **kept.get(UNKNOWN, {})}
        sections[name] = {key: parameters for key, parameters in kept.items() if parameters}
    return calibration.model_copy(update=sections)


def prior_of(calibration: Calibration) -> Calibration:
    """Means of the priors: the cited values, with :data:`PRIORS` for what is unknown."""
    cited = without_fits(calibration)
    sections = {
        name: {**getattr(cited, name), UNKNOWN: {**getattr(cited, name)[UNKNOWN], **middles}}
        for name, middles in PRIORS.items()
    }
    for chip, parameters in CHIP_PRIORS.items():
        for device in CHIPS[chip]:
            sections["device"][device] = {**parameters, **sections["device"].get(device, {})}
    return cited.model_copy(update=sections)
