"""Sessions on a server that is only numbers: live blocks with carryover and drift, and tier 3 with predictions."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from protocol import seeds
from protocol.selftest.counts import ALPHA, CERTIFIED, EIGHTY, FALSE, NOT_EIGHTY, Row, tally
from protocol.stats.anytime import sign_bets
from protocol.stats.equivalence import tost_paired
from protocol.stats.gains import judge_gains
from protocol.stats.power import DRAW_SD, POLICY_SD
from protocol.stats.predicted import predicted_gain

LIVE, PREDICTED = "live", "tier 3"
WITH_AA, WATCHED = "and A/A", "watched"
PLAIN_P, PREDICTED_P = "plain", "predicted"
BALANCED, PUBLISHED = "NPNRN", "NPRN"
#: Blocks of a session, requests of a segment, percent late without merges, pp that merges add, and its spread.
BLOCKS, REQUESTS, IDLE_PCT, MERGES_PP, PLACEMENT_SD = 20, 400, 10.0, 10.0, 2.0
#: Margin of the A/A comparison in pp, as where no minimum effect is declared.
AA_MARGIN_PP = 1.0


@dataclass(frozen=True)
class Live:
    """A session whose policy is blind.  carryover_pp : added to a segment after one with merges; to those after the
    policy's only, or the control's only, with `after`.  drift_pp : over the whole session, linear.
    """

    name: str
    order: str = BALANCED
    carryover_pp: float = 0.0
    drift_pp: float = 0.0
    after: str = "PR"
    gain_pp: float = 0.0

    def rates(self, rng: np.random.Generator) -> NDArray[np.float64]:
        """Percent late, shape (blocks, segments of a block)."""
        arms = np.array(list(self.order * BLOCKS))
        merging = arms != "N"
        mean = IDLE_PCT + self.drift_pp * np.arange(len(arms)) / len(arms)
        mean = (
            mean + merging * (MERGES_PP + PLACEMENT_SD * rng.standard_normal(len(arms))) - self.gain_pp * (arms == "P")
        )
        mean[1:] += self.carryover_pp * np.isin(arms[:-1], list(self.after))
        late = rng.binomial(REQUESTS, np.clip(mean / 100, 0, 1))
        return (100 * late / REQUESTS).reshape(BLOCKS, len(self.order))

    def excess(self, rates: NDArray[np.float64], arm: str) -> NDArray[np.float64]:
        """Over the block's idle segments, read off at the arm's own place between its neighbours; shape (blocks,)."""
        idle = [i for i, a in enumerate(self.order) if a == "N"]
        at = self.order.index(arm)
        baseline = np.array([np.interp(at, idle, block[idle]) for block in rates])
        return np.asarray(rates[:, at] - baseline)

    def verdict(self, rng: np.random.Generator) -> dict[str, bool]:
        rates = self.rates(rng)
        policy, control = self.excess(rates, "P"), self.excess(rates, "R")
        p = judge_gains(policy, list(control[:, None]), None, rng, min_draws=1).pvalue
        same = tost_paired(rates[:, 0], rates[:, -1], AA_MARGIN_PP).outcome.pvalue
        passed = p is not None and p <= ALPHA
        return {
            CERTIFIED: passed,
            WITH_AA: passed and same is not None and same <= ALPHA,
            WATCHED: sign_bets(control - policy).decided_at is not None,
        }


SESSIONS = (
    *(Live(f"carryover {c:g} pp", carryover_pp=c) for c in (0.0, 0.5, 1.0, 1.5, 2.0)),
    Live("carryover 2 pp after the policy only", carryover_pp=2.0, after="P"),
    Live("drift 10 pp", drift_pp=10.0),
    Live("drift -10 pp, carryover 1 pp", drift_pp=-10.0, carryover_pp=1.0),
    *(Live(f"published order, carryover {c:g} pp", PUBLISHED, c) for c in (0.0, 1.0)),
    Live("true gain 3 pp", gain_pp=3.0),
)


def live_rows(root: int, n: int) -> Iterator[Row]:
    for session in SESSIONS:
        found = [session.verdict(seeds.generator(root, LIVE, session.name, r)) for r in range(n)]
        null = FALSE if session.order == BALANCED and session.gain_pp == 0 else None
        # Only a carryover that the control alone inherits favours the policy, and no order of two arms can tell.
        bars: Mapping[str, str | None] = {CERTIFIED: null, WITH_AA: null, WATCHED: null}
        design = f"{BLOCKS} blocks {' '.join(session.order)} of {REQUESTS} requests"
        yield from tally(found, bars, world=LIVE, family=session.name, design=design, effect_pp=session.gain_pp)


# Tier 3 ----------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Replayed:
    """Seeds and draws of a session on a server whose costs correlate `rho` with the simulator's within a seed."""

    seeds: int
    draws: int
    rho: float
    gain_pp: float
    promised_pp: float

    @property
    def replays(self) -> int:
        """Policy, draws and one replay without merges, for each seed."""
        return self.seeds * (self.draws + 2)

    def verdict(self, rng: np.random.Generator) -> dict[str, bool]:
        own, real, policy, drawn, elsewhere = replayed(
            rng, self.seeds, self.draws, self.rho, self.gain_pp, self.promised_pp
        )
        plain = judge_gains(own, list(real), None, rng, min_draws=2, n_resamples=999).pvalue
        predicted = predicted_gain(own, list(real), policy, list(drawn), elsewhere)
        return {
            PLAIN_P: plain is not None and plain <= ALPHA,
            PREDICTED_P: not isinstance(predicted, str) and predicted.pvalue() <= ALPHA,
        }


def replayed(
    rng: np.random.Generator, n_seeds: int, draws: int, rho: float, gain: float, promised: float
) -> tuple[NDArray[np.float64], ...]:
    """Real policy and draws, simulated policy and draws, and simulated gains of 400 other seeds, in pp.

    Real costs are the simulated ones plus an error that is larger the less they correlate (at rho 0 the error alone),
    and that scales with an arm's own spread; the simulator sees a gain of `promised` where the true one is `gain`.
    """
    online, noise = POLICY_SD["online"], math.sqrt(1 / rho**2 - 1) if rho else 1.0
    level, kept = 3.0 * rng.standard_normal(n_seeds), float(rho > 0)
    policy, drawn = online * rng.standard_normal(n_seeds), DRAW_SD * rng.standard_normal((n_seeds, draws))
    own = kept * policy - gain + noise * online * rng.standard_normal(n_seeds)
    real = kept * drawn + noise * DRAW_SD * rng.standard_normal((n_seeds, draws))
    elsewhere = promised + math.sqrt(online**2 + DRAW_SD**2 / draws) * rng.standard_normal(400)
    return own + level, real + level[:, None], policy - promised + level, drawn + level[:, None], elsewhere


def replayed_rows(root: int, null: int, power: int) -> Iterator[Row]:
    """Levels and power, and the two designs of which one has half of the other's replays."""
    designs = [Replayed(s, m, rho, *gains) for rho in (0.9, 0.82, 0.6, 0.0) for s, m in ((8, 5), (8, 2), (12, 2))
               for gains in ((0.0, 0.0), (0.0, 3.0), (1.5, 1.5))]  # fmt: skip
    for one in designs:
        level = FALSE if one.gain_pp == 0 else None
        n = null if one.gain_pp == 0 else power
        says = f", the simulator says {one.promised_pp:g} pp" if one.promised_pp != one.gain_pp else ""
        yield from _replayed(root, n, one, {PLAIN_P: None, PREDICTED_P: level}, f"correlation {one.rho:g}{says}")
    half, whole = Replayed(9, 2, 0.82, 1.5, 1.5), Replayed(18, 2, 0.82, 1.5, 1.5)
    yield from _replayed(root, power, half, {PREDICTED_P: EIGHTY}, "half of the replays, with predictions")
    yield from _replayed(root, power, whole, {PLAIN_P: NOT_EIGHTY}, "all of the replays, without")


def _replayed(root: int, n: int, one: Replayed, bars: Mapping[str, str | None], family: str) -> list[Row]:
    name = (one.seeds, one.draws, str(one.rho), str(one.gain_pp), str(one.promised_pp))
    found = [one.verdict(seeds.generator(root, PREDICTED, *name, r)) for r in range(n)]
    design = f"{one.seeds} seeds x {one.draws}, {one.replays} replays"
    return tally(found, bars, world=PREDICTED, family=family, design=design, effect_pp=one.gain_pp)
