"""One correction over every claim of every certificate, and only among comparable ones."""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache
from typing import Any

import pytest
from strategies import FunctionSource, head_for, quiet, ran, setting

from protocol.certificate.assess import assess
from protocol.certificate.compare import MUST_AGREE, compare, paired
from protocol.certificate.model import Certificate, plain
from protocol.errors import BadInput


@cache
def made() -> Certificate:
    return assess(head_for(FunctionSource(quiet), [setting()]), ran())


def certificate(
    name: str, *ps: float | None, verdict: str = "PASS", settings: Mapping[str, object] | None = None, trace: str = "a"
) -> Certificate:
    """The toy scheduler's, with as many claims as p-values."""
    values = plain(made())
    regime, claim = values["regimes"][0], values["claims"][0]
    names = [f"r{i}" for i in range(len(ps))]
    seeds = [{**seed, "trace_digest": trace * 64} for seed in regime["seeds"]]
    return Certificate.model_validate({
        **values,
        "contender": {**values["contender"], "name": name},
        "settings": {**values["settings"], **(settings or {})},
        "regimes": [{**regime, "name": r, "seeds": seeds} for r in names],
        "claims": [
            {**claim, "regime": r, "verdict": "INCONCLUSIVE" if p is None else verdict,
             "envelope": {**claim["envelope"], "p": p, "p_holm": p}}
            for r, p in zip(names, ps, strict=True)
        ],
    })  # fmt: skip


def test_trying_many_schedulers_is_paid_for() -> None:
    rows = compare({"a": certificate("a", 0.02), "b": certificate("b", 0.001), "c": certificate("c", 0.04)})
    assert [row.p_overall for row in rows] == pytest.approx([0.04, 0.003, 0.04])  # by hand: 2 x .02, 3 x .001, max
    rows = compare({"a": certificate("a", 0.03), "b": certificate("b", 0.03)})
    assert [row.verdict for row in rows] == ["FAIL", "FAIL"]  # 2 x .03 > .05, though each passed alone


def test_refused_and_undecidable_stay_so() -> None:
    rows = compare({"a": certificate("a", 0.0001, verdict="FAIL"), "b": certificate("b", None)})
    assert [row.verdict for row in rows] == ["FAIL", "INCONCLUSIVE"] and rows[1].p_overall is None


@pytest.mark.parametrize("key", MUST_AGREE)
def test_claims_judged_at_other_levels_are_refused(key: str) -> None:
    other = {"alpha": 0.01, "min_effect_pp": 0.5, "bounded": True}[key]
    with pytest.raises(BadInput, match=f"a and b, {key}: found"):
        compare({"a": certificate("a", 0.1), "b": certificate("b", 0.1, settings={key: other})})


@pytest.mark.parametrize(
    ("change", "word"), [({"settings": {"root_seed": 2}}, "root_seed"), ({"trace": "b"}, "regimes")]
)
def test_schedulers_of_other_worlds_are_not_paired(change: Any, word: str) -> None:
    """One correction covers claims of any worlds; a difference seed by seed needs the same ones."""
    both = {"a": certificate("a", 0.1), "b": certificate("b", 0.1, **change)}
    assert len(compare(both)) == 2
    with pytest.raises(BadInput, match=word):
        paired(both)


def test_one_is_no_comparison() -> None:
    with pytest.raises(BadInput, match="at least two"):
        compare({"a": certificate("a", 0.1)})
