"""Recommenders: NCF (He et al. 2017, arXiv:1708.05031) and DLRM (Naumov et al. 2019, arXiv:1906.00091).

A sample is one interaction of a user and an item (NCF), or one advertisement shown (DLRM). Gradients of the
tables are dense, as PyTorch's embeddings have them by default, unless a strategy treats tables otherwise.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from pydantic import Field

from sim.architecture.common import Generator
from sim.spec.base import Spec
from sim.spec.layer import Embedding, Gemm, Layer, MemoryBound, Op

CRITEO_KAGGLE_ROWS = (
    1460, 583, 10_131_227, 2_202_608, 305, 24, 12_517, 633, 3, 93_145, 5_683, 8_351_593, 3_194, 27, 14_992,
    5_461_306, 10, 5_652, 2_173, 4, 7_046_547, 18, 15, 286_181, 105, 142_572,
)  # fmt: skip
"""Distinct values of the 26 categorical features (facebookresearch/dlrm)."""


class NcfShape(Spec):
    """Sizes of neural collaborative filtering; the defaults are MovieLens-20M with NVIDIA's settings."""

    users: int = Field(138_493, ge=1, description="rows of the users' tables")
    items: int = Field(26_744, ge=1, description="rows of the items' tables")
    factors: int = Field(64, ge=1, description="width of the matrix factorisation's embeddings")
    mlp_layers: tuple[int, ...] = Field(
        (256, 256, 128, 64), min_length=2, description="widths of the perceptron, the joined embeddings first"
    )
    dropout: bool = Field(True, description="whether the perceptron drops activations")


class DlrmShape(Spec):
    """Sizes of a deep learning recommendation model; the defaults are the Criteo Kaggle data set."""

    dense_features: int = Field(13, ge=1, description="numbers that the bottom perceptron reads")
    table_rows: tuple[int, ...] = Field(
        CRITEO_KAGGLE_ROWS,
        min_length=1,
        description="rows of each embedding table",
    )  # fmt: skip
    embedding_dim: int = Field(16, ge=1, description="elements of a row of every table")
    bottom_mlp: tuple[int, ...] = Field(
        (512, 256, 64, 16), min_length=1, description="the last is embedding_dim"
    )
    top_mlp: tuple[int, ...] = Field(
        (512, 256, 1), min_length=1, description="widths above; the last is the output"
    )
    lookups: int = Field(1, ge=1, description="rows looked up in each table per sample")
    cross_layers: int = Field(
        0, ge=0, description="low-rank cross layers in place of the pairwise products (DCN v2)"
    )
    cross_rank: int = Field(512, ge=1, description="rank of a cross layer")


def build_ncf(shape: NcfShape) -> tuple[Layer, ...]:
    """Embeddings of both branches, the perceptron and the final product."""
    half = shape.mlp_layers[0] / 2
    width = 2 * (shape.factors + half)
    tables = (
        float(shape.users * shape.factors), float(shape.items * shape.factors),
        float(shape.users * half), float(shape.items * half),
    )  # fmt: skip
    chain = [
        _embedding("embedding", 0, tables, rows=4.0, width=width / 4, out=width),
        Layer(
            name="factorisation", kind="linear", block=0,
            ops=(MemoryBound(elements=3.0 * shape.factors, backward_elements=5.0 * shape.factors),),
            input_elements=width, output_elements=width, stored_elements=float(shape.factors),
        ),
        *_perceptron(shape.mlp_layers[1:], 0, first_input=shape.mlp_layers[0], dropout=shape.dropout),
    ]  # fmt: skip
    chain.append(_linear("head", "head", 1, shape.factors + shape.mlp_layers[-1], 1, relu=False))
    return tuple(chain)


def build_dlrm(shape: DlrmShape) -> tuple[Layer, ...]:
    """Bottom perceptron, tables, pairwise products, top perceptron."""
    dim, tables = shape.embedding_dim, len(shape.table_rows)
    vectors = tables + 1
    pairs = vectors * (vectors - 1) // 2
    chain = _perceptron(shape.bottom_mlp, 0, first_input=shape.dense_features, name="bottom")
    sizes = tuple(float(rows * dim) for rows in shape.table_rows)
    chain.append(
        _embedding(
            "tables", 0, sizes, rows=float(tables * shape.lookups), width=float(dim), out=float(vectors * dim)
        )
    )
    product: list[Op] = [
        MemoryBound(elements=2.0 * vectors * dim, backward_elements=2.0 * vectors * dim),
        Gemm(rows=vectors, n=vectors, k=dim),
        MemoryBound(
            elements=float(vectors * vectors + pairs), backward_elements=float(vectors * vectors + pairs)
        ),
    ]
    if shape.cross_layers:
        joined = vectors * dim
        chain += [_cross(index, joined, shape.cross_rank) for index in range(shape.cross_layers)]
        return (*chain, *_perceptron(shape.top_mlp, 1, first_input=joined, name="top", head=True))
    joined = pairs + dim
    chain.append(
        Layer(
            name="interaction", kind="linear", block=0, ops=tuple(product),
            input_elements=float(vectors * dim), output_elements=float(joined),
            stored_elements=float(vectors * dim + joined),
        )
    )  # fmt: skip
    return (*chain, *_perceptron(shape.top_mlp, 1, first_input=joined, name="top", head=True))


def _cross(index: int, width: int, rank: int) -> Layer:
    """x0 * (W (V x) + b) + x (Wang et al. 2021, arXiv:2008.13535, equation 2)."""
    tensors = (float(width * rank), float(rank * width), float(width))
    return Layer(
        name=f"cross{index}", kind="linear", block=0, parameters=sum(tensors), tensors=tensors,
        ops=(
            Gemm(rows=1, n=rank, k=width), Gemm(rows=1, n=width, k=rank),
            MemoryBound(elements=5.0 * width, backward_elements=8.0 * width),
        ),
        input_elements=float(width), output_elements=float(width), stored_elements=2.0 * width + rank,
    )  # fmt: skip


CRITEO_TERABYTE_ROWS = (
    40_000_000, 39_060, 17_295, 7_424, 20_265, 3, 7_122, 1_543, 63, 40_000_000, 3_067_956, 405_282, 10, 2_209,
    11_938, 155, 4, 976, 14, 40_000_000, 40_000_000, 40_000_000, 590_152, 12_973, 108, 36,
)  # fmt: skip
"""Rows of MLPerf's tables: those of Criteo's click logs, at most 40 million."""


def _embedding(
    name: str, block: int, tables: tuple[float, ...], *, rows: float, width: float, out: float
) -> Layer:
    return Layer(
        name=name,
        kind="embedding",
        block=block,
        ops=(Embedding(rows=rows, width=width, tables=len(tables)),),
        parameters=sum(tables),
        tensors=tables,
        output_elements=out,
        stored_elements=out,
    )


def _perceptron(
    widths: Sequence[int],
    block: int,
    *,
    first_input: int,
    name: str = "mlp",
    dropout: bool = False,
    head: bool = False,
) -> list[Layer]:
    layers = []
    for index, (source, target) in enumerate(zip((first_input, *widths), widths, strict=False)):
        last = head and index == len(widths) - 1
        label = "head" if last else f"{name}{index}"
        layers.append(
            _linear(
                label, "head" if last else "linear", block, source, target, relu=not last, dropout=dropout
            )
        )
    return layers


def _linear(
    name: str, kind: str, block: int, source: int, target: int, *, relu: bool, dropout: bool = False
) -> Layer:
    ops: list[Op] = [Gemm(rows=1, n=target, k=source)]
    if relu or dropout:
        ops.append(
            MemoryBound(elements=2.0 * (relu + dropout) * target, backward_elements=3.0 * relu * target)
        )
    return Layer(
        name=name,
        kind=kind,
        block=block,
        ops=tuple(ops),
        parameters=float(source * target + target),
        tensors=(float(source * target), float(target)),
        input_elements=float(source),
        output_elements=float(target),
        stored_elements=float(source + target),
    )


def _describe(shape: Spec) -> Mapping[str, Any]:
    return {"family": "recommender"}


generate_ncf = Generator(NcfShape, build_ncf, _describe)
"""NCF from :class:`NcfShape` fields and workload fields."""


generate_dlrm = Generator(DlrmShape, build_dlrm, _describe)
"""DLRM from :class:`DlrmShape` fields and workload fields."""
