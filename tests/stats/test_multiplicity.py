from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from statsmodels.stats.multitest import multipletests

from protocol.stats.multiplicity import holm


def test_by_hand() -> None:
    """Ordered .01 .03 .04 times 3 2 1: .03, .06, then not below the one before."""
    found = holm([0.04, 0.01, 0.03])
    assert found.adjusted == pytest.approx((0.06, 0.03, 0.06))
    assert found.rejected == (False, True, False)


def test_an_undecidable_claim_stays_in_the_family() -> None:
    assert holm([0.03, None], 0.05).rejected == (False, False)
    assert holm([0.03], 0.05).rejected == (True,)
    found = holm([0.01, None, math.nan, 0.02])
    assert found.adjusted[1] is None and found.adjusted[2] is None and found.family == 4
    assert found.adjusted[0] == pytest.approx(0.04)
    assert holm([None, None]).rejected == (False, False)
    assert holm([]).family == 0


def test_refuses_what_is_no_pvalue() -> None:
    for bad in (-0.1, 1.1, math.inf):
        with pytest.raises(ValueError, match="outside"):
            holm([0.5, bad])


@given(st.lists(st.floats(0, 1), min_size=1, max_size=8), st.floats(0.001, 0.3))
def test_equals_the_step_down_definition(pvalues: list[float], alpha: float) -> None:
    order = sorted(range(len(pvalues)), key=lambda i: pvalues[i])
    expected = [0.0] * len(pvalues)
    running = 0.0
    for step, i in enumerate(order):
        running = max(running, min(1.0, (len(pvalues) - step) * pvalues[i]))
        expected[i] = running
    found = holm(pvalues, alpha)
    assert found.adjusted == pytest.approx(tuple(expected))
    assert all(r == (a is not None and a <= alpha) for r, a in zip(found.rejected, found.adjusted, strict=True))


@pytest.mark.parametrize("seed", range(6))
def test_equals_statsmodels(seed: int) -> None:
    pvalues = np.round(np.random.default_rng(seed).random(7) ** 3, 2)
    assert holm(pvalues.tolist()).adjusted == pytest.approx(tuple(multipletests(pvalues, method="holm")[1]))
