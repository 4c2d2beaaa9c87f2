"""Every rule refuses (or warns of) what it should, in words a user can act on, and its advice works."""

from __future__ import annotations

from typing import Any

import pytest

from sim.errors import InvalidStrategyError
from sim.spec import Strategy
from sim.taxonomy import ALL_RULES, check, require_valid, warnings
from sim.taxonomy.context import Context
from sim.taxonomy.rules import apply, rule, violations
from tests.rule_cases import REFUSED, WARNED
from tests.rule_cases.case import RACK, Case, gpt


def _named(cases: list[Case]) -> list[Any]:
    return [pytest.param(case, id=f"{case.rule}-{index}") for index, case in enumerate(cases)]


def _dotted(name: str) -> str:
    return name if "." in name else f"strategy.{name}"


@pytest.mark.parametrize("case", _named(REFUSED))
def test_rule_refuses_with_its_reason_and_a_way_out(case: Case) -> None:
    strategy = Strategy(**case.strategy)
    refusals = {refusal.rule: refusal for refusal in check(strategy, case.workload, case.cluster)}
    refusal = refusals[case.rule]
    assert refusal.field == _dotted(case.field)
    assert str(refusal).startswith(f"{_dotted(case.field)}: must ")
    assert case.text in str(refusal)
    assert refusal.reason == rule(case.rule).reason
    if case.advice is not None:
        assert str(refusal).endswith(case.advice)


@pytest.mark.parametrize("case", _named(REFUSED))
def test_the_advice_settles_the_rule_and_breaks_no_other(case: Case) -> None:
    context = Context.of(Strategy(**case.strategy), case.workload, case.cluster)
    before = {each.id for each, _ in violations(context)}
    refusal = next(r for r in check(context.strategy, case.workload, case.cluster) if r.rule == case.rule)
    assert refusal.alternatives, "a refusal must say what would be accepted"
    for overrides in refusal.alternatives:
        after = {each.id for each, _ in violations(apply(context, overrides))}
        assert case.rule not in after
        assert after < before


@pytest.mark.parametrize("case", _named(WARNED))
def test_rule_warns_but_the_strategy_plays(case: Case) -> None:
    strategy = Strategy(**case.strategy)
    assert check(strategy, case.workload, case.cluster) == ()
    reason = rule(case.rule).reason
    spoken = [line for line in warnings(strategy, case.workload, case.cluster) if reason in line]
    assert len(spoken) == 1
    assert spoken[0].startswith(f"{_dotted(case.field)}: ")
    assert case.text in spoken[0]


def test_every_rule_has_a_case() -> None:
    assert {case.rule for case in REFUSED} == {each.id for each in ALL_RULES if each.verdict == "invalid"}
    assert {case.rule for case in WARNED} == {each.id for each in ALL_RULES if each.verdict == "warn"}


def test_rules_are_named_once_and_explained() -> None:
    ids = [each.id for each in ALL_RULES]
    assert len(ids) == len(set(ids))
    for each in ALL_RULES:
        assert each.reason
        assert not each.reason.endswith(".")
        assert set(each.fields) <= set(Strategy.model_fields)
        assert each.find.__doc__


def test_plain_strategy_has_neither_refusals_nor_warnings() -> None:
    assert check(Strategy(), gpt(), RACK) == ()
    assert warnings(Strategy(), gpt(), RACK) == ()


def test_error_follows_the_grammar_and_names_its_rule() -> None:
    with pytest.raises(InvalidStrategyError) as caught:
        require_valid(Strategy(tp=7, dp=1), gpt(num_heads=96, hidden=768), RACK, where="job.yaml:12")
    assert str(caught.value) == "strategy.tp: must divide num_heads (96). Got 7. Try 6 or 8. (job.yaml:12)"
    assert caught.value.rule == "tp-heads"
    assert caught.value.exit_code == 3


def test_advice_that_breaks_another_rule_is_not_given() -> None:
    with pytest.raises(InvalidStrategyError, match=r"Got 7\. Try 8 or 4\.$"):
        require_valid(Strategy(tp=7), gpt(num_heads=96, hidden=768), RACK)  # 6 does not divide 32 devices
