"""Service-level objectives as text."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from protocol.errors import BadInput
from protocol.workload.slo import MOST_S, Slo

LIMIT = st.none() | st.integers(1, int(MOST_S * 1e9))


def test_examples() -> None:
    assert Slo.parse("e2e<=1s") == Slo(e2e_ns=10**9)
    assert Slo.parse(" ttft <= 200ms , itl<=50 ms") == Slo(ttft_ns=200_000_000, itl_ns=50_000_000)
    assert Slo.parse("tpot<=.5us") == Slo(tpot_ns=500)
    assert str(Slo.parse("ttft<=1s,e2e<=2.5s")) == "e2e<=2500ms,ttft<=1000ms"


@given(LIMIT, LIMIT, LIMIT, LIMIT)
def test_the_text_says_the_whole_slo(e2e: int | None, ttft: int | None, tpot: int | None, itl: int | None) -> None:
    slo = Slo(e2e, ttft, tpot, itl)
    if slo != Slo():
        assert Slo.parse(str(slo)) == slo


@pytest.mark.parametrize(
    "text",
    [
        "", "e2e", "e2e<=", "e2e<=1", "e2e<=1m", "e2e<1s", "e2e>=1s", "p95<=1s", "e2e<=0s", "e2e<=-1s", "e2e<=1s,",
        "e2e<=1s,e2e<=2s", "e2e<=nans", "e2e<=infs", "e2e<=1e3s", "e2e<=0.0000001us", "e2e<=" + "9" * 400 + "s",
    ],
)  # fmt: skip
def test_refusals_are_one_line(text: str) -> None:
    with pytest.raises(BadInput) as caught:
        Slo.parse(text)
    assert "\n" not in str(caught.value) and str(caught.value).startswith("--slo")


@given(st.text(max_size=20))
def test_any_text_parses_or_is_refused(text: str) -> None:
    try:
        slo = Slo.parse(text)
    except BadInput:
        return
    assert slo != Slo()
