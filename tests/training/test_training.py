"""Statistics of training curves, by hand and against scipy."""

from __future__ import annotations

import json
import math
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats

from protocol.errors import BadInput
from protocol.training import curves as tr


def curve(seed: int, loss: list[float], times: list[float], **changes: Any) -> tr.Curve:
    k = len(loss)
    base: dict[str, Any] = {
        "method": "m", "h": 30, "islands": 4, "seed": seed, "step": np.arange(1, k + 1), "tokens": np.arange(1, k + 1),
        "sent_bytes": np.arange(1.0, k + 1), "loss": np.array(loss), "train_loss": np.array(loss),
        "consensus": np.zeros(k), "time_s": {"equal": np.array(times)}, "island_loss": None, "worst_loss": None,
    }  # fmt: skip
    return tr.Curve(**{**base, **changes})


@given(st.lists(st.floats(-100, 100), min_size=2, max_size=8))
def test_interval_equals_scipys(values: list[float]) -> None:
    found = tr.estimate(values)
    assert found is not None and found.low is not None and found.high is not None
    if np.ptp(values) > 1e-6:
        low, high = stats.ttest_1samp(values, 0).confidence_interval(0.95)
        assert (found.low, found.high) == pytest.approx((low, high), rel=1e-9, abs=1e-9)


def test_what_is_unknown_stays_unknown() -> None:
    assert tr.estimate([]) is None
    assert tr.estimate([1.0, math.nan]) is None
    assert tr.estimate([1.0, math.inf]) is None
    assert tr.geometric([1.0, 0.0]) is None
    assert tr.estimate([2.0]) == tr.Estimate(2.0, None, None, 1)


def test_geometric_mean_by_hand() -> None:
    found = tr.geometric([1.0, 4.0])
    assert found is not None and found.mean == pytest.approx(2.0)
    # Half width: t_{0.975, 1} times the sd of logs over sqrt 2, which is log(4) / 2.
    assert found.high == pytest.approx(2.0 * math.exp(12.7062047 * math.log(4) / 2))


def test_reach_by_hand() -> None:
    assert tr.reach([10, 20, 30], [5.0, 3.0, 1.0], 2.0) == 25.0
    assert tr.reach([10, 20, 30], [5.0, 3.0, 4.0], 3.0) == 20.0
    assert tr.reach([10, 20, 30], [5.0, 3.0, 4.0], 6.0) == 10.0
    assert tr.reach([10, 20, 30], [5.0, 3.0, 4.0], 2.9) is None
    assert tr.reach([10, 20], [math.nan, 1.0], 0.5) is None


@given(st.lists(st.floats(0, 10), min_size=1, max_size=9), st.floats(0, 10))
def test_reach_is_the_first_crossing(loss: list[float], target: float) -> None:
    at = tr.reach(range(len(loss)), loss, target)
    if at is None:
        assert min(loss) > target
        return
    assert np.interp(at, range(len(loss)), loss) == pytest.approx(target, abs=1e-6) or at == 0
    assert all(value > target for value in loss[: math.ceil(at)])


def test_time_ratio_by_hand() -> None:
    """Common loss 2: the first sees it at 20 s in both seeds, the second at 5 s and at 20 s: ratios 4 and 1."""
    first = [curve(s, [4.0, 2.0], [10.0, 20.0]) for s in (0, 1)]
    second = [curve(1, [4.0, 2.0, 1.0], [10.0, 20.0, 30.0]), curve(0, [2.0, 1.0], [5.0, 10.0])]
    found = tr.time_ratio(first, second, "equal")
    assert found is not None and found.mean == pytest.approx(2.0) and found.n == 2


def test_time_ratio_half_way() -> None:
    """After half the points both have seen 3: at 5 s and at 10 s."""
    first = [curve(0, [3.0, 1.0], [5.0, 9.0])]
    second = [curve(0, [3.0, 2.0], [10.0, 12.0])]
    found = tr.time_ratio(first, second, "equal", 0.5)
    assert found is not None and found.mean == pytest.approx(0.5) and found.low is None


def test_differences_are_paired_by_seed() -> None:
    first = [curve(0, [2.0], [1.0]), curve(1, [3.0], [1.0])]
    second = [curve(1, [2.5], [1.0]), curve(0, [1.5], [1.0])]
    assert tr.loss_difference(first, second) == tr.Estimate(0.5, 0.5, 0.5, 2)
    for other in (second[:1], [curve(0, [1.0], [1.0], islands=8), curve(1, [1.0], [1.0], islands=8)]):
        with pytest.raises(BadInput, match="one run of each method a seed"):
            tr.loss_difference(first, other)


def test_a_diverged_run_has_no_ratio() -> None:
    bad = curve(0, [2.0, math.nan], [1.0, 2.0], diverged=True)
    assert tr.time_ratio([bad], [curve(0, [2.0], [1.0])], "equal") is None


def test_a_stored_curve_is_the_same() -> None:
    first = curve(3, [2.0, math.nan], [1.5, 2.5], island_loss=0.1, diverged=True, cpu_s=2.0)
    second = tr.Curve.from_dict(json.loads(json.dumps(first.as_dict())))
    assert second.as_dict().keys() == first.as_dict().keys()
    np.testing.assert_equal(second.as_dict(), first.as_dict())
    assert second.loss.dtype == first.loss.dtype and second.step.dtype == first.step.dtype
