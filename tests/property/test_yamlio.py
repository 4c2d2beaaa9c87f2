"""Whatever the text, reading it gives data or one line; what we write we read back."""

from __future__ import annotations

from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from sim import yamlio
from sim.errors import InputError
from sim.spec import Cluster, Device, Fabric, Host, Strategy, Sweep, Workload

MODELS = [Cluster, Device, Fabric, Host, Strategy, Sweep, Workload]

scalars = st.none() | st.booleans() | st.integers(-(2**63), 2**63) | st.floats() | st.text(max_size=12)
keys = st.text(st.characters(codec="utf-8", exclude_categories=["Cc", "Cs"]), min_size=1, max_size=8)
trees = st.recursive(
    scalars,
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(keys, inner, max_size=4),
    max_leaves=12,
)
yaml_like = st.text(st.sampled_from("ab01:-[]{}#&*!|>'\"%,? \n\t.~é"), max_size=60)


def one_line(error: InputError) -> bool:
    return "\n" not in str(error) and ": must" in str(error)


@given(yaml_like | st.text(max_size=40))
def test_any_text_is_data_or_one_line(text: str) -> None:
    try:
        document = yamlio.loads(text, "x.yaml")
    except InputError as error:
        assert one_line(error)
    else:
        assert isinstance(document.data, dict)


def fields_of(model: type[Any]) -> st.SearchStrategy[dict[str, Any]]:
    return st.dictionaries(st.sampled_from(list(model.model_fields)) | keys, trees, max_size=5)


@given(st.sampled_from(MODELS).flatmap(lambda model: st.tuples(st.just(model), fields_of(model))))
def test_any_fields_make_a_model_or_one_line(case: tuple[type[Any], dict[str, Any]]) -> None:
    model, data = case
    try:
        yamlio.validate(model, yamlio.Document(data, "x.yaml"))
    except InputError as error:
        assert one_line(error)


@given(st.dictionaries(keys, st.integers() | st.booleans() | st.text(max_size=12), min_size=1, max_size=5))
def test_what_is_written_reads_back(data: dict[str, Any]) -> None:
    assert yamlio.loads(yamlio.dumps(data)).data == data
