"""One correction over every claim of every certificate, and only among comparable ones."""

from __future__ import annotations

from typing import Any

import pytest

from protocol.certificate.compare import compare
from protocol.errors import BadInput


def certificate(
    name: str, *ps: float | None, verdict: str = "PASS", root_seed: int = 1, trace: str = "a"
) -> dict[str, Any]:
    settings = {
        "root_seed": root_seed,
        "draws": 9,
        "sequential": False,
        "control_draws": 9,
        "alpha": 0.05,
        "min_effect_pp": 0.0,
    }
    regimes = [
        {
            "name": f"r{i}",
            "digest": "d" * 64,
            "slos": ["e2e<=1s"],
            "n_seeds": 8,
            "seeds": [{"trace_digest": trace * 64}],
        }
        for i in range(len(ps))
    ]
    claims = [
        {"regime": f"r{i}", "slo": "e2e<=1s", "verdict": "INCONCLUSIVE" if p is None else verdict,
         "envelope": {"p": p, "p_holm": p, "gain_pp": 1.0}}
        for i, p in enumerate(ps)
    ]  # fmt: skip
    return {"contender": {"name": name}, "settings": settings, "regimes": regimes, "claims": claims}


def test_trying_many_schedulers_is_paid_for() -> None:
    rows = compare({"a": certificate("a", 0.02), "b": certificate("b", 0.001), "c": certificate("c", 0.04)})
    assert [row.p_overall for row in rows] == pytest.approx([0.04, 0.003, 0.04])  # by hand: 2 x .02, 3 x .001, max
    rows = compare({"a": certificate("a", 0.03), "b": certificate("b", 0.03)})
    assert [row.verdict for row in rows] == ["FAIL", "FAIL"]  # 2 x .03 > .05, though each passed alone


def test_refused_and_undecidable_stay_so() -> None:
    rows = compare({"a": certificate("a", 0.0001, verdict="FAIL"), "b": certificate("b", None)})
    assert [row.verdict for row in rows] == ["FAIL", "INCONCLUSIVE"] and rows[1].p_overall is None


@pytest.mark.parametrize(
    ("other", "word"),
    [(certificate("b", 0.1, root_seed=2), "root_seed"), (certificate("b", 0.1, trace="b"), "regimes")],
)
def test_incomparable_certificates_are_refused(other: dict[str, Any], word: str) -> None:
    with pytest.raises(BadInput, match=word):
        compare({"a": certificate("a", 0.1), "b": other})


def test_one_is_no_comparison() -> None:
    with pytest.raises(BadInput, match="at least two"):
        compare({"a": certificate("a", 0.1)})
