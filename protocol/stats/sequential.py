"""Early stopping of draws that keeps validity (Besag and Clifford 1991, Biometrika 78, 301-304)."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

#: Level of the futility rule; certificates at a smaller alpha are stricter still.
FUTILITY_ALPHA = 0.05


@dataclass(frozen=True)
class StoppingRule:
    """Stop at the `h`-th draw that is at most the observed value, or after `most` draws.  Fix both beforehand."""

    h: int
    most: int

    def __post_init__(self) -> None:
        if not 1 <= self.h <= self.most:
            raise ValueError(f"stopping rule h = {self.h}, most = {self.most}: needs 1 <= h <= most")

    @classmethod
    def futility(cls, alpha: float, most: int) -> StoppingRule:
        """The least h with h / most > alpha, so that stopping early always means p > alpha.

        With it a certificate is only ever issued on the full `most` draws, and the claims it can make are a subset of
        those of a fixed design: early stopping cannot raise the error of *any* test that is computed afterwards.
        """
        return cls(math.floor(alpha * most * (1 + 1e-12)) + 1, most)


@dataclass(frozen=True)
class SequentialOutcome:
    """pvalue : h / n_draws when stopped early, else (as_low + 1) / (most + 1); None when undecidable."""

    pvalue: float | None
    n_draws: int
    as_low: int
    stopped_early: bool
    rule: StoppingRule
    floor: float
    reason: str | None = None


def besag_clifford(observed: float, draws: Iterable[float], rule: StoppingRule) -> SequentialOutcome:
    """H0: the observed value and the draws are exchangeable; lower is better, ties count as low.

    `draws` is consumed one by one and never beyond the stopping point, so each may be an expensive replay; the value
    may be one seed's cost or the sum over seeds of a joint draw.  P(p <= x) <= x for every x.
    """
    floor = 1 / (rule.most + 1)
    as_low = taken = 0
    if not math.isfinite(observed):
        return SequentialOutcome(None, 0, 0, False, rule, floor, "the observed value is NaN or infinite")
    for value in draws:
        taken += 1
        if not math.isfinite(value):
            return SequentialOutcome(None, taken, as_low, False, rule, floor, f"draw {taken} is NaN or infinite")
        as_low += value <= observed
        if as_low == rule.h:
            return SequentialOutcome(rule.h / taken, taken, as_low, taken < rule.most, rule, floor)
        if taken == rule.most:
            return SequentialOutcome((as_low + 1) / (rule.most + 1), taken, as_low, False, rule, floor)
    reason = f"{taken} draws, fewer than the {rule.most} declared"
    return SequentialOutcome(None, taken, as_low, False, rule, floor, reason)


def joint_test(
    own: Sequence[NDArray[np.float64]], draws: Sequence[NDArray[np.float64]], requests: Sequence[int], most: int
) -> SequentialOutcome:
    """Besag and Clifford's test on joint draws: draw j is the sum over seeds of each seed's j-th rate.

    own : S arrays, shape (1,), violations of the policy.  draws : S arrays, shape (m_s,).  requests : S totals.
    The rule stops only once the p-value must exceed 5 %, so a certificate is only ever given on all draws.
    """
    observed = sum(float(o[0]) / n if len(o) else math.nan for o, n in zip(own, requests, strict=True))
    fewest = min(map(len, draws))
    joint = np.sum([d[:fewest] / n for d, n in zip(draws, requests, strict=True)], axis=0)
    return besag_clifford(observed, joint.tolist(), StoppingRule.futility(FUTILITY_ALPHA, most))
