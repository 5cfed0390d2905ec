from __future__ import annotations

import itertools
import math
from collections.abc import Iterator

import numpy as np
import pytest
from scipy import stats

from protocol.stats.sequential import StoppingRule, besag_clifford


def test_by_hand() -> None:
    rule = StoppingRule(h=2, most=5)
    early = besag_clifford(1.0, [2, 0, 3, 1], rule)
    assert (early.pvalue, early.n_draws, early.stopped_early) == (2 / 4, 4, True)
    late = besag_clifford(1.0, [2, 0, 3, 2, 2], rule)
    assert (late.pvalue, late.n_draws, late.stopped_early) == (2 / 6, 5, False)
    none = besag_clifford(1.0, [2] * 5, rule)
    assert none.pvalue == none.floor == 1 / 6
    at_the_end = besag_clifford(1.0, [2, 0, 3, 2, 0], rule)
    assert (at_the_end.pvalue, at_the_end.stopped_early) == (2 / 5, False)


def test_consumes_no_more_than_it_needs() -> None:
    taken = 0

    def draws() -> Iterator[float]:
        nonlocal taken
        while True:
            taken += 1
            yield 0.0

    assert besag_clifford(1.0, draws(), StoppingRule(3, 99)).n_draws == 3 == taken


def test_poison_is_undecidable() -> None:
    rule = StoppingRule(2, 5)
    assert besag_clifford(math.nan, [1.0] * 5, rule).pvalue is None
    assert besag_clifford(0.0, [1.0, math.nan, 1.0, 1.0, 1.0], rule).pvalue is None
    assert besag_clifford(0.0, [1.0, 1.0], rule).reason == "2 draws, fewer than the 5 declared"
    for h, most in ((0, 5), (6, 5)):
        with pytest.raises(ValueError):
            StoppingRule(h, most)


@pytest.mark.parametrize(("h", "most"), [(1, 4), (2, 5), (3, 6)])
def test_valid_exactly_by_enumeration(h: int, most: int) -> None:
    """Over all orders of most + 1 distinct values, P(p <= x) <= x at every attainable x."""
    found = [
        besag_clifford(order[0], order[1:], StoppingRule(h, most)).pvalue
        for order in itertools.permutations(range(most + 1))
    ]
    values = np.array(found, float)
    for x in np.unique(values):
        assert np.mean(values <= x + 1e-12) <= x + 1e-12


def test_size_and_draws_saved() -> None:
    """STATISTICS section 1: about 57 draws under the null with h = 10 and 999 at most, size .05."""
    source, rule = np.random.default_rng(3), StoppingRule(10, 999)
    outcomes = [besag_clifford(v[0], v[1:].tolist(), rule) for v in source.normal(size=(1500, 1000))]
    low = sum(o.pvalue is not None and o.pvalue <= 0.05 for o in outcomes)
    assert stats.binomtest(low, 1500, 0.05, alternative="greater").pvalue > 0.001
    assert 48 < np.mean([o.n_draws for o in outcomes]) < 66


@pytest.mark.parametrize("alpha", [0.05, 0.0125, 0.01])
@pytest.mark.parametrize("most", [19, 99, 999])
def test_stopping_for_futility_means_not_significant(alpha: float, most: int) -> None:
    rule = StoppingRule.futility(alpha, most)
    assert rule.h / most > alpha >= (rule.h - 1) / most
    assert besag_clifford(1.0, [0.0] * most, rule).n_draws == rule.h
