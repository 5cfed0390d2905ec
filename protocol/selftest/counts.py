"""What a selftest counts, with exact intervals, and the bars that the counts are held to."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

import numpy as np
import scipy

from protocol.stats.gains import Gains
from protocol.stats.inversion import EXCHANGE, LOAD_FLIP, SIGN_FLIP, STRATIFIED

ALPHA = 0.05
TESTS = (STRATIFIED, SIGN_FLIP, EXCHANGE, LOAD_FLIP)
CERTIFIED, ONE_OF_FIVE = "certified", "any of five"
COVERED, LOAD_COVERED, T_COVERED, BET_COVERED = "gain covered", "load gain covered", "t covers", "bet covers"
FOUND, FOUND_AMONG_FIVE = "found", "found of five"

#: Bars, by name: what the share is held to, in words.
FALSE, COVERS, NINE_IN_TEN, POWER = "false", "covers", "nine in ten", "power"
EIGHTY, NOT_EIGHTY = "eighty", "not eighty"
_LIMITS = {
    FALSE: (0.0, ALPHA), COVERS: (0.93, 1.0), NINE_IN_TEN: (0.85, 0.95), POWER: (0.9, 1.0), EIGHTY: (0.8, 1.0),
    NOT_EIGHTY: (0.0, 0.8),
}  # fmt: skip
#: A schedule that is the same on every trace has a load gain of exactly 0, and a point for its interval.
_ROUNDING = 1e-9
#: A run holds some 150 shares to a bar, so one is called missed at an exact one-sided p below this.
SIGNIFICANT = 0.001
BARS = {
    FALSE: "at most 5 %: not significantly more, and an upper limit of at most 6.5 % over 2,000 or more",
    COVERS: "at least 93 %: not significantly less",
    NINE_IN_TEN: "85 to 95 %: significantly outside neither",
    POWER: "at least 90 %: not significantly less",
    EIGHTY: "at least 80 %: not significantly less",
    NOT_EIGHTY: "at most 80 %, so that half of these replays suffice with predictions: not significantly more",
}


@dataclass(frozen=True)
class Row:
    """How often `what` happened: `count` of `n`.  effect_pp : the true gain.  bar : one of BARS; None: only reported.

    design : seeds, draws and what else a reader needs.
    """

    world: str
    family: str
    design: str
    effect_pp: float
    what: str
    count: int
    n: int
    bar: str | None = None

    @property
    def rate(self) -> float:
        return self.count / self.n

    @property
    def interval(self) -> tuple[float, float]:
        """Exact (Clopper and Pearson) 95 % limits of the share."""
        limits = scipy.stats.binomtest(self.count, self.n).proportion_ci(0.95, "exact")
        return float(limits.low), float(limits.high)

    def missed(self) -> str | None:
        low, high = self.interval
        least, most = _LIMITS[self.bar] if self.bar is not None else (0.0, 1.0)
        below = scipy.stats.binomtest(self.count, self.n, least, "less").pvalue
        above = scipy.stats.binomtest(self.count, self.n, most, "greater").pvalue
        wide = self.bar == FALSE and self.n >= 2000 and high > 0.065
        if min(below, above) >= SIGNIFICANT and not wide:
            return None
        where = f"{self.world}, {self.family}, {self.design}, {self.what}"
        seen = f"{self.count} of {self.n} ({100 * low:.2f} to {100 * high:.2f} %)"
        return f"{where}: {seen}, expected {BARS[self.bar or '']}"

    def to_json(self) -> dict[str, object]:
        low, high = self.interval
        return {
            "world": self.world, "family": self.family, "design": self.design, "effect_pp": self.effect_pp,
            "what": self.what, "count": self.count, "n": self.n, "rate": self.rate, "low": low, "high": high,
            "bar": self.bar or "", "held": self.missed() is None,
        }  # fmt: skip


def tally(
    found: Iterable[Mapping[str, bool]], bars: Mapping[str, str | None], *, world: str, family: str, design: str,
    effect_pp: float = 0.0,
) -> list[Row]:  # fmt: skip
    """One row for each thing of `bars`, in that order, over the verdicts that say something about it."""
    made = list(found)
    rows = []
    for what, bar in bars.items():
        said = [bool(verdict[what]) for verdict in made if what in verdict]
        if said:
            rows.append(Row(world, family, design, effect_pp, what, int(np.sum(said)), len(said), bar))
    return rows


def verdict(gains: Gains, chance: float | None = None, load: float | None = None) -> dict[str, bool]:
    """What one claim says: each test at the minimum effect, all of them, and whether the limits hold the true gains."""
    found = {test.name: test.outcome.pvalue is not None and test.outcome.pvalue <= gains.alpha for test in gains.tests}
    found = {name: found.get(name, False) for name in TESTS}
    found[CERTIFIED] = gains.pvalue is not None and gains.pvalue <= gains.alpha
    if chance is not None and gains.chance is not None:
        inside = gains.chance.interval
        found[COVERED] = inside.lower <= chance <= inside.upper
        student = gains.chance.t_interval
        if student is not None:
            found[T_COVERED] = student.lower <= chance <= student.upper
        if gains.bounded is not None and gains.bounded.lower_bound is not None:
            found[BET_COVERED] = gains.bounded.lower_bound <= chance
    if load is not None and gains.load is not None:
        inside = gains.load.interval
        found[LOAD_COVERED] = inside.lower - _ROUNDING <= load <= inside.upper + _ROUNDING
    return found
