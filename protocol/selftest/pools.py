"""Schedulers of known worth on many simulated worlds at the full horizon, with the draws of a real certificate.

One merge is priced at every decision of every world (`LoadedSidecar.merge_cost`); a schedule costs the sum over its
merges.  On the bursty regimes that sum and a full replay correlate .993 to .996 over uniform placements of one trace,
with equal means and spreads (`tests/selftest/test_pools.py`), and it makes thousands of certificates of 999 draws
affordable.  A certificate is made on worlds chosen at random from the pool, so the true gains are the pool's means,
known and not estimated.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from protocol import seeds
from protocol.campaign.plan import Setting, Worlds
from protocol.merging.corridor import Corridor
from protocol.selftest.counts import (
    BET_COVERED,
    CERTIFIED,
    COVERED,
    FALSE,
    LOAD_COVERED,
    T_COVERED,
    TESTS,
    Row,
    tally,
    verdict,
)
from protocol.selftest.families import BLIND, completed
from protocol.stats.gains import judge_gains
from protocol.workload.trace import NS_PER_S

#: Placements of each number of merges from which draws are taken.
BANK = 5_000

Starts = NDArray[np.int64]


@dataclass(frozen=True, eq=False)
class Pool:
    """Worlds of one regime.

    prices : float64, shape (W, G): excess in pp of one merge that starts at decision g of the horizon.
    arrivals : int64, shape (W, seconds), requests in each second.  root : of every random stream.
    """

    name: str
    corridor: Corridor
    prices: NDArray[np.float64]
    arrivals: NDArray[np.int64]
    root: int

    @classmethod
    def of(cls, name: str, setting: Setting, worlds: Worlds, size: int, root: int) -> Pool:
        corridor, slo = setting.corridor, setting.slos[0]
        starts = np.arange(0, corridor.horizon_ns - corridor.merge_ns + 1, corridor.grid_ns)
        prices = np.empty((size, len(starts)))
        arrivals = np.zeros((size, corridor.horizon_ns // NS_PER_S + 1), np.int64)
        for w in range(size):
            trace = worlds.workload(w).trace
            sidecar = setting.sidecar.load(trace, seeds.generator(root, "sidecar", name, w))
            prices[w] = 100 * sidecar.merge_cost(starts, corridor.merge_ns, slo) / len(trace)
            second = np.minimum(trace.arrival_ns // NS_PER_S, arrivals.shape[1] - 1)
            arrivals[w] = np.bincount(second, minlength=arrivals.shape[1])
        return cls(name, corridor, prices, arrivals, root)

    def __len__(self) -> int:
        return len(self.prices)

    def starts(self, gaps: NDArray[np.integer]) -> Starts:
        """Nearest decisions of the horizon at which merges with these gaps start; any shape (..., K)."""
        c = self.corridor
        merges = np.arange(gaps.shape[-1]) * c.merge_ns
        at = np.cumsum(gaps, axis=-1) * c.grid_ns + merges
        return np.minimum((at + c.grid_ns // 2) // c.grid_ns, self._last)

    @property
    def _last(self) -> int:
        return self.prices.shape[1] - 1

    @cached_property
    def banks(self) -> Mapping[int, Starts]:
        """Uniform placements, shape (BANK, K), by number of merges."""
        found = {}
        for k in self.corridor.feasible_budgets():
            gaps = self.corridor.sample(k, BANK, seeds.generator(self.root, "bank", self.name, k))
            found[k] = self.starts(gaps).astype(np.int64)
        return found

    def cost(self, world: int, starts: Starts) -> NDArray[np.float64]:
        """Excess in pp of schedules (..., K) on a world, shape (...)."""
        return np.asarray(self.prices[world][starts].sum(axis=-1))

    def dearest(self, world: int, k: int) -> float:
        """Excess in pp of the worst placement of k merges on a world, exact."""
        most = self.corridor.sum_range(k)[1]
        at = np.arange(most + 1)[None, :] * self.corridor.grid_ns + np.arange(k)[:, None] * self.corridor.merge_ns
        price = self.prices[world][np.minimum((at + self.corridor.grid_ns // 2) // self.corridor.grid_ns, self._last)]
        return float(self.cost(world, self.starts(self.corridor.optimum(k, -price))))

    def draws(self, world: int, k: int, n: int, rng: np.random.Generator) -> NDArray[np.float64]:
        first = int(rng.integers(0, BANK - n, endpoint=True))
        return self.cost(world, self.banks[k][first : first + n])

    def exchanged(self, worlds: Sequence[int], made: Sequence[Starts]) -> NDArray[np.float64]:
        """[s, t]: on world s the schedule made on world t, scaled to the merges of the one made on s."""
        prices, lengths = self.prices[list(worlds)], np.array([len(m) for m in made], np.float64)
        cost = np.stack([prices[:, m].sum(axis=1) for m in made], axis=1)
        return np.asarray(cost * lengths[:, None] / lengths[None, :])


# Schedulers ------------------------------------------------------------------------------------------------------

#: Gives a world's merges; random ones take from the generator.
Scheduler = Callable[[Pool, int, np.random.Generator], Starts]


def _blind(family: str) -> Scheduler:
    return lambda pool, world, rng: pool.starts(BLIND[family](pool.corridor, rng))


def _uniform(pool: Pool, world: int, rng: np.random.Generator) -> Starts:
    budgets = pool.corridor.feasible_budgets()
    return pool.banks[budgets[len(budgets) // 2]][rng.integers(BANK)]


def _budget_by_load(pool: Pool, world: int, rng: np.random.Generator) -> Starts:
    """Few merges on a busy trace, many on a quiet one; where they go is chance."""
    busy = float((pool.arrivals.sum(axis=1) < pool.arrivals[world].sum()).mean())
    budgets = pool.corridor.feasible_budgets()
    return pool.banks[budgets[round((1 - busy) * (len(budgets) - 1))]][rng.integers(BANK)]


def _looking(decides: Callable[[NDArray[np.int64], float, float, np.random.Generator], bool]) -> Scheduler:
    """A control loop that asks at every decision: decides(arrivals by second, now in s, requests per s so far, rng)."""

    def made(pool: Pool, world: int, rng: np.random.Generator) -> Starts:
        c, arrivals = pool.corridor, pool.arrivals[world]
        total = np.concatenate([[0], np.cumsum(arrivals)])
        now_ns = 0

        def wish(i: int) -> int:
            nonlocal now_ns
            for gap in range(c.gap_min, c.gap_max):
                now_s = (now_ns + gap * c.grid_ns) / NS_PER_S
                second = min(int(now_s), len(arrivals) - 1)
                if decides(arrivals, now_s, total[second] / max(second, 1), rng):
                    break
            else:
                gap = c.gap_max
            now_ns += gap * c.grid_ns + c.merge_ns
            return gap

        return pool.starts(completed(c, wish))

    return made


def _lately(arrivals: NDArray[np.int64], now_s: float, window_s: int = 8) -> float:
    second = int(now_s)
    return float(arrivals[max(second - window_s, 0) : second].sum()) / window_s


def _gamble(pool: Pool, world: int, rng: np.random.Generator) -> Starts:
    """The dearest placement on one world in ten, and on the others a gain that makes up for that on average."""
    budgets = pool.corridor.feasible_budgets()
    bank = pool.banks[budgets[len(budgets) // 2]]
    tried = bank[rng.integers(0, BANK, 400)]
    cost = pool.cost(world, tried)
    if world % 10 == 0:
        return tried[int(np.argmax(cost))]
    # The dearest of 400 costs about 2.9 standard deviations more than the mean; a ninth of that is given back.
    return tried[int(np.argmin(np.abs(cost - (cost.mean() - 2.9 / 9 * cost.std()))))]


def _best_of(k: int) -> Scheduler:
    def made(pool: Pool, world: int, rng: np.random.Generator) -> Starts:
        budgets = pool.corridor.feasible_budgets()
        tried = pool.banks[budgets[len(budgets) // 2]][rng.integers(0, BANK, k)]
        return tried[int(np.argmin(pool.cost(world, tried)))]

    return made


def _clock(quiet: Callable[[float], bool], looks: bool) -> Scheduler:
    """In a world whose bursts come at the same time in every seed: waits for the quiet part, and then may look."""
    return _looking(lambda a, t, usual, rng: quiet(t) and (not looks or _lately(a, t, 2) <= 0.5 * usual))


@dataclass(frozen=True)
class Player:
    """blind : its placements know nothing of the load, so the gain from following it is 0 but for the budgets' leak.
    held : whether a test of a mean can hold its level on it.
    """

    name: str
    scheduler: Scheduler
    blind: bool = False
    held: bool = True


#: Bursts of the same-phase pool come in the first 30 of every 120 s.
def _quiet(now_s: float) -> bool:
    return now_s % 120 > 30


PLAYERS = (
    Player("uniform draw", _uniform, blind=True),
    Player("odd gaps", _blind("odd gaps"), blind=True),
    Player("phase drift", _blind("phase drift"), blind=True),
    Player("clusters", _blind("clusters"), blind=True),
    Player("budget by load, random placement", _budget_by_load, blind=True),
    Player("noise", _looking(lambda a, t, usual, rng: rng.random() < 0.05), blind=True),
    Player("stale by 60 s", _looking(lambda a, t, usual, rng: _lately(a, max(t - 60, 0)) <= usual)),
    Player("wrong direction", _looking(lambda a, t, usual, rng: _lately(a, t) > usual)),
    Player("gamblers", _gamble, held=False),
    Player("looks at the last 8 s", _looking(lambda a, t, usual, rng: _lately(a, t) <= usual)),
    Player("best of 2 uniform draws", _best_of(2)),
    Player("best of 5 uniform draws", _best_of(5)),
)
CLOCKS = (
    Player("clock", _clock(_quiet, looks=False), blind=True),
    Player("clock plus a little looking", _clock(_quiet, looks=True)),
)


# Certificates ----------------------------------------------------------------------------------------------------


@dataclass(frozen=True, eq=False)
class Played:
    """A player on every world of a pool: its schedules, each world's dearest placement of as many merges, in pp, and
    the true gains over chance and from following the load.
    """

    pool: Pool
    player: Player
    made: list[Starts]
    dearest: list[float]
    chance: float
    load: float

    @classmethod
    def on(cls, pool: Pool, player: Player) -> Played:
        made = [
            player.scheduler(pool, w, seeds.generator(pool.root, "player", player.name, w)) for w in range(len(pool))
        ]
        over_chance = [pool.cost(w, pool.banks[len(m)]).mean() - pool.cost(w, m) for w, m in enumerate(made)]
        dearest = [pool.dearest(w, len(m)) for w, m in enumerate(made)]
        cost = pool.exchanged(range(len(pool)), made)
        own = np.diagonal(cost)
        followed = (cost.sum(axis=1) - own) / (len(pool) - 1) - own
        return cls(pool, player, made, dearest, float(np.mean(over_chance)), float(followed.mean()))

    def certificate(self, r: int, n_seeds: int, draws: int, resamples: int) -> dict[str, bool]:
        """One certificate on worlds chosen at random, whose minimum effect is the smaller of the true gains, or 0."""
        pool, rng = self.pool, seeds.generator(self.pool.root, "certificate", self.pool.name, self.player.name, r)
        worlds = rng.choice(len(pool), n_seeds, replace=False).tolist()
        made = [self.made[w] for w in worlds]
        cost = pool.exchanged(worlds, made)
        drawn = [pool.draws(w, len(m), draws, rng) for w, m in zip(worlds, made, strict=True)]
        worst = [self.dearest[w] for w in worlds]
        gains = judge_gains(np.diagonal(cost), drawn, cost, rng, delta=self.least, worst=worst, n_resamples=resamples)
        return verdict(gains, self.chance, self.load)

    @property
    def least(self) -> float:
        return max(0.0, min(self.chance, self.load))

    def rows(self, n: int, n_seeds: int, draws: int, resamples: int) -> list[Row]:
        found = [self.certificate(r, n_seeds, draws, resamples) for r in range(n)]
        bars: dict[str, str | None] = dict.fromkeys(TESTS)
        bars |= {CERTIFIED: FALSE if self.player.held else None}
        bars |= {COVERED: None, LOAD_COVERED: None, T_COVERED: None, BET_COVERED: None}
        seconds = self.pool.corridor.horizon_ns // NS_PER_S
        design = f"{n_seeds} seeds x {draws}, {seconds} s, {self.chance:.2f} pp over chance, {self.load:.2f} by load"
        return tally(found, bars, world=self.pool.name, family=self.player.name, design=design, effect_pp=self.least)


def budget_leak(pool: Pool, budgets: NDArray[np.int64]) -> float:
    """The gain from following the load, pp, of schedulers whose placements are chance and only their number is not.

    budgets : int64, shape (W,), merges on each world.  A merge costs a little more or less when there are more of them,
    for they fill the corridor otherwise; so the exchange, which counts costs per merge, sees who chose the number.
    """
    chosen = np.unique(budgets)
    per_merge = np.array([[pool.cost(w, pool.banks[int(k)]).mean() / k for k in chosen] for w in range(len(pool))])
    mine = np.searchsorted(chosen, budgets)
    own = per_merge[np.arange(len(pool)), mine]
    others = (per_merge[:, mine].sum(axis=1) - own) / (len(pool) - 1)
    return float(np.mean(budgets * (others - own)))
