"""Merges of several lengths: exchanged between traces only where their number does not follow the load."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from protocol.gates.unlike import uneven, weights
from protocol.merging.placements import Placements
from protocol.merging.practice import Merges
from protocol.replay.replay import POLICY

SPEC: Any = SimpleNamespace(
    peers=None,
    timing=SimpleNamespace(lengths_ns=lambda m: m.took_ns, busy_ns=lambda m: int(m.took_ns.sum())),
)


def seed(*took_s: float) -> Any:
    n = len(took_s)
    merges = Merges(np.array(took_s) * 1e9, np.zeros(n, np.int16), np.ones(n, bool), 10**9)
    placed = Placements.of(np.ones((1, n), np.int64), np.zeros((1, 1), np.int64), [merges])
    return SimpleNamespace(placed={POLICY: placed})


@pytest.mark.parametrize(
    ("numbers", "said"),
    [((20, 20, 21), None), ((20, 22, 21), None), ((3, 4, 4), None), ((20, 23, 21), "20 to 23 merges"),
     ((3, 5, 4), "3 to 5 merges"), ((5, 400, 5), "5 to 400 merges")],
)  # fmt: skip
def test_a_long_merge_padded_with_short_ones_is_not_exchanged(numbers: tuple[int, ...], said: str | None) -> None:
    """Its cost a busy second falls with every one that is added, whenever it was."""
    found = uneven([seed(20.0, *[0.4] * (n - 1)) for n in numbers], SPEC)
    assert (found is None) == (said is None) and (said or "") in (found or "")


def test_merges_of_one_length_may_be_any_number() -> None:
    """Those are counted, not weighed: what a number that follows the load leaks is docs/statistics.md's."""
    assert uneven([seed(*[8.0] * n) for n in (3, 40, 12)], SPEC) is None
    assert uneven([], SPEC) is None


def test_weights_are_busy_time() -> None:
    one, other = seed(20.0, 0.4).placed[POLICY], seed(20.0, 0.4, 0.4).placed[POLICY]
    assert weights(one.joined(other), SPEC).tolist() == [20_400_000_000, 20_800_000_000]
