"""What training runs are compared by: validation loss against steps, tokens, bytes and modelled time, over seeds."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields
from typing import Any

import numpy as np
import scipy
from numpy.typing import ArrayLike, NDArray

from protocol.errors import BadInput


@dataclass(frozen=True)
class Curve:
    """One run.  Arrays of shape (points,), one value after each evaluated outer round.

    step : inner steps, nominal.  tokens, sent_bytes : all islands.  loss : validation loss of the averaged model.
    train_loss : mean since the point before.  consensus : relative distance of islands from their mean.
    time_s : modelled seconds by the name of a network.  island_loss, worst_loss : mean and largest final loss over the
    islands' own models, None if not evaluated.  diverged : the loss stopped being a number before the end.
    cpu_s : processor seconds that the run took.
    """

    method: str
    h: int
    islands: int
    seed: int
    step: NDArray[np.int64]
    tokens: NDArray[np.int64]
    sent_bytes: NDArray[np.float64]
    loss: NDArray[np.float64]
    train_loss: NDArray[np.float64]
    consensus: NDArray[np.float64]
    time_s: Mapping[str, NDArray[np.float64]]
    island_loss: float | None
    worst_loss: float | None
    diverged: bool = False
    cpu_s: float = 0.0

    def as_dict(self) -> dict[str, Any]:
        """Plain values; `from_dict` makes an equal curve of them."""
        found: dict[str, Any] = {}
        for field in fields(self):
            value = getattr(self, field.name)
            found[field.name] = value.tolist() if isinstance(value, np.ndarray) else value
        return {**found, "time_s": {name: times.tolist() for name, times in self.time_s.items()}}

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> Curve:
        found: dict[str, Any] = {n: np.asarray(v) if isinstance(v, list) else v for n, v in values.items()}
        found["time_s"] = {name: np.asarray(times) for name, times in values["time_s"].items()}
        return cls(**found)


@dataclass(frozen=True)
class Estimate:
    """Mean over runs with a two-sided 95 % t interval; low and high are None with fewer than two runs."""

    mean: float
    low: float | None
    high: float | None
    n: int


def estimate(values: ArrayLike, level: float = 0.95) -> Estimate | None:
    """Runs are the unit.  None when there is no run or one is not finite."""
    x = np.asarray(values, np.float64)
    if not len(x) or not np.isfinite(x).all():
        return None
    mean = float(x.mean())
    if len(x) < 2:
        return Estimate(mean, None, None, len(x))
    half = float(scipy.stats.t.ppf(0.5 + level / 2, len(x) - 1) * x.std(ddof=1) / math.sqrt(len(x)))
    return Estimate(mean, mean - half, mean + half, len(x))


def geometric(ratios: ArrayLike) -> Estimate | None:
    """Geometric mean of positive ratios, with the t interval of their logarithms."""
    x = np.asarray(ratios, np.float64)
    found = estimate(np.log(x)) if len(x) and (x > 0).all() else None
    if found is None:
        return None
    low, high = (None if v is None else math.exp(v) for v in (found.low, found.high))
    return Estimate(math.exp(found.mean), low, high, found.n)


def reach(x: ArrayLike, loss: ArrayLike, target: float) -> float | None:
    """Where a loss curve first is at or below `target`, between points by linear interpolation; None if nowhere.

    >>> reach([1.0, 2.0, 3.0], [4.0, 2.0, 1.0], 3.0)
    1.5
    """
    at, y = np.asarray(x, np.float64), np.asarray(loss, np.float64)
    below = np.flatnonzero(y <= target)
    if not len(below):
        return None
    k = int(below[0])
    if k == 0:
        return float(at[0])
    share = (y[k - 1] - target) / (y[k - 1] - y[k])
    return float(at[k - 1] + share * (at[k] - at[k - 1]))


def paired(first: Sequence[Curve], second: Sequence[Curve]) -> list[tuple[Curve, Curve]]:
    """Runs of equal seed.  Raises BadInput when the seeds differ or islands do."""
    left, right = ({c.seed: c for c in curves} for curves in (first, second))
    if left.keys() != right.keys() or len({c.islands for c in (*first, *second)}) > 1:
        raise BadInput("curves", "different seeds or numbers of islands", "one run of each method a seed")
    return [(left[seed], right[seed]) for seed in sorted(left)]


def loss_difference(first: Sequence[Curve], second: Sequence[Curve]) -> Estimate | None:
    """Final loss of the first minus the second, by seed."""
    return estimate([a.loss[-1] - b.loss[-1] for a, b in paired(first, second)])


def time_ratio(first: Sequence[Curve], second: Sequence[Curve], network: str, share: float = 1.0) -> Estimate | None:
    """Modelled time of the first to a common loss, over that of the second; above 1 the second is faster.

    The common loss of a seed is the worse of the two lowest losses that the runs have seen by `share` of their points,
    so that both reach it.
    """
    ratios = []
    for a, b in paired(first, second):
        if a.diverged or b.diverged:
            return None
        target = max(float(c.loss[: max(1, round(share * len(c.loss)))].min()) for c in (a, b))
        times = [reach(c.time_s[network], c.loss, target) for c in (a, b)]
        assert times[0] is not None and times[1] is not None  # both saw the target
        ratios.append(times[0] / times[1])
    return geometric(ratios)
