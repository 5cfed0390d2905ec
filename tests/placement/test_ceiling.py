"""The causal optimum against every policy there is, on models small enough to try them all."""

from __future__ import annotations

import itertools
from functools import cache

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import sparse

from protocol.errors import BadInput
from protocol.merging.corridor import Corridor
from protocol.placement.ceiling import LoadChain, causal_optimum

#: Merges of one decision, after one or two decisions; the horizon holds decisions 0 to 5.
TINY = Corridor(h_min=1, h_max=2, decision_steps=1, step_ns=1, merge_ns=1, horizon_ns=5)
chances = st.floats(0.0, 1.0)


def chain(price: tuple[float, float], up: float, down: float, up_after: float, down_after: float) -> LoadChain:
    matrices = [sparse.csr_array([[1 - a, a], [b, 1 - b]]) for a, b in ((up, down), (up_after, down_after))]
    return LoadChain(np.array(price), np.array([0.6, 0.4]), *matrices)


def worth(known: LoadChain, corridor: Corridor, policy: dict[tuple[int, int], bool]) -> float:
    """Saving of one policy (by decision and state, where it has a choice), by following every path."""
    step, after, mean = known.step.toarray(), known.after.toarray(), known.mean_price

    @cache
    def value(decision: int, gap: int, state: int) -> float:
        if decision + 1 > corridor.horizon_ns:
            return 0.0
        if gap == corridor.gap_max or policy[decision, state]:
            ahead = sum(p * value(decision + 2, 1, s) for s, p in enumerate(after[state]))
            return mean - known.price[state] + ahead
        return sum(p * value(decision + 1, gap + 1, s) for s, p in enumerate(step[state]))

    return sum(p * value(1, 1, s) for s, p in enumerate(known.share))


@settings(max_examples=25, deadline=None)
@given(st.tuples(st.floats(0, 9), st.floats(0, 9)), chances, chances, chances, chances)
def test_no_policy_of_all_does_better(
    price: tuple[float, float], up: float, down: float, up_after: float, down_after: float
) -> None:
    known = chain(price, up, down, up_after, down_after)
    cells = list(itertools.product(range(1, 5), (0, 1)))  # with gap 1: the only cells with a choice
    every = [dict(zip(cells, bits, strict=True)) for bits in itertools.product((False, True), repeat=len(cells))]
    found = causal_optimum(known, TINY)
    assert found.gain == pytest.approx(max(worth(known, TINY, policy) for policy in every), abs=1e-9)
    own = {(d, s): bool(found.merge[d, 0, s]) for d, s in cells}
    assert worth(known, TINY, own) == pytest.approx(found.gain, abs=1e-9)


def test_where_the_state_says_nothing_there_is_nothing_to_gain() -> None:
    assert causal_optimum(chain((3.0, 3.0), 0.2, 0.3, 0.5, 0.5), TINY).gain == pytest.approx(0.0)


def test_a_horizon_without_room_for_a_merge_gains_nothing() -> None:
    short = Corridor(h_min=4, h_max=8, decision_steps=1, step_ns=1, merge_ns=3, horizon_ns=6)
    assert causal_optimum(chain((0.0, 9.0), 0.2, 0.3, 0.5, 0.5), short).gain == 0.0


def test_a_chain_is_counted_by_hand() -> None:
    known = LoadChain.counted([0, 0, 1, 0], [2.0, 4.0, 9.0, 6.0], [0, 1, 1, 1], [1, 1, 0, 1], 3)
    assert known.price.tolist() == [4.0, 9.0, 21 / 4]  # state 2 was never seen
    assert known.share.tolist() == [0.75, 0.25, 0.0]
    assert known.step.toarray() == pytest.approx(np.array([[1 / 3, 2 / 3, 0], [0, 1, 0], [0, 0, 1]]))
    assert known.after.toarray() == pytest.approx(np.array([[0, 1, 0], [1, 0, 0], [0, 0, 1]]))
    assert known.mean_price == pytest.approx(5.25)


@pytest.mark.parametrize("bad", [([3], [1.0], [0], [0]), ([-1], [1.0], [0], [0]), ([0], [1.0], [0, 1], [0]), ([],) * 4])
def test_a_chain_of_nonsense_is_refused(bad: tuple[list[int], list[float], list[int], list[int]]) -> None:
    with pytest.raises(BadInput):
        LoadChain.counted(*bad, n_states=3)
