"""What a causal scheduler could gain on a real trace, if it knew how that very trace behaves.

A forecaster of what a merge costs (ridge regression, linear or on radial basis functions) reads what every scheduler
sees: arrivals and prompt tokens of the last 1 to 120 seconds, requests in flight or queued.  Its forecasts, in bins,
are the states of a Markov chain, and backward induction (`protocol/placement/ceiling.py`) makes the best stopping rule.
It forecasts the difference to the window's own mean, because that is what a placement can gain.

*in sample*: forecaster, chain and rule are fitted to the windows on which they are judged.  That is more than any
scheduler can know; how much more, grows with the forecaster's degrees of freedom.
*left out*: each window is judged by what was fitted to the other windows of the same trace: what is gained by a
scheduler that has seen as much of this trace beforehand.
*told*: in sample, and at each decision it is also told how many requests and prompt tokens will arrive in each quarter
of a merge that starts now.  No forecast of the load during the merge can be better.
None of them is a scheduler to deploy, and no scheduler was made from them.

The last column is the chance to pass of a scheduler with this gain in windows that vary as these
(`protocol.stats.power`: tests of the gain over chance at the minimum effect, one claim).  The tests of following the
load are left out, so it is too high.

    python benchmarks/real_ceiling.py TRACE...
"""

from __future__ import annotations

import argparse
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
from ceiling import Floats, Maker, gains, half_width, loaded, maker
from numpy.typing import NDArray

from adapters.traces.load_states import present
from adapters.traces.readers import Reading
from protocol import seeds
from protocol.campaign.arms import costs
from protocol.campaign.plan import Setting
from protocol.cli.settings import Overrides, settings_for
from protocol.placement.ceiling import CausalOptimum, LoadChain, causal_optimum
from protocol.scheduler import Observation
from protocol.stats.gains import MIN_EFFECT_PP
from protocol.stats.power import Design, Spread, simulate_power
from protocol.workload.trace import NS_PER_S, RequestTrace

#: Seconds that each sum of arrivals and of prompt tokens looks back.
BACK_S = (1, 2, 4, 8, 16, 32, 64, 120)
#: Bins of a forecast.
STATES = 16
#: Width of the radial basis functions in standard deviations, None for a linear forecast; ridge penalty.
FORECASTERS = {"linear": (None, 1.0), "smooth": (8.0, 1.0), "rough": (3.0, 1.0)}
QUARTERS = 4
ALPHA, REPS = 0.05, 2000


def features(arrivals: Floats, tokens: Floats, seen_s: NDArray[np.int64], here: NDArray[np.int64]) -> Floats:
    """Of each moment, shape (n, features): sums over the last seconds of `seen_s` full ones, and requests present."""
    sums = [np.concatenate([[0.0], np.cumsum(x)]) for x in (arrivals, tokens)]
    columns = [s[seen_s] - s[np.maximum(seen_s - back, 0)] for s in sums for back in BACK_S]
    return np.log1p(np.column_stack([*columns, here, seen_s]).astype(float))


@dataclass(frozen=True)
class Rows:
    """Every moment of the grid of one window: features now, at the next decision and at H_min after a merge; requests
    late because of a merge there, less their mean over the window: controls merge as often in the same window."""

    x: Floats
    price: Floats
    next_x: Floats
    after_x: Floats


def rows_of(setting: Setting, root: int, seed: int, told: bool) -> Rows:
    c = setting.corridor
    sidecar = loaded(setting, root, seed)
    cycle_ns = c.merge_ns + c.gap_min * c.grid_ns
    now = np.arange(0, c.horizon_ns - cycle_ns, c.grid_ns, dtype=np.int64)
    counts = per_second(sidecar.trace, c.horizon_ns // NS_PER_S + 1)

    def at(t: NDArray[np.int64]) -> Floats:
        x = features(*counts, (t // NS_PER_S).astype(np.int64), present(sidecar, t))
        return np.hstack([x, ahead(sidecar.trace, t, c.merge_ns)]) if told else x

    x, next_x, after_x = (at(t) for t in (now, now + c.grid_ns, now + cycle_ns))
    price = sidecar.merge_cost(now, c.merge_ns, setting.slos[0]).astype(float)
    return Rows(x, price - price.mean(), next_x, after_x)


def per_second(trace: RequestTrace, seconds: int) -> tuple[Floats, Floats]:
    at = trace.arrival_ns // NS_PER_S
    kept = at < seconds
    return (
        np.bincount(at[kept], minlength=seconds).astype(float),
        np.bincount(at[kept], trace.prompt_tokens[kept], minlength=seconds),
    )


def ahead(trace: RequestTrace, at_ns: NDArray[np.int64], merge_ns: int) -> Floats:
    """What will arrive in each quarter of a merge, shape (n, 8): requests, and their prompt tokens."""
    edges = at_ns[:, None] + np.arange(QUARTERS + 1) * merge_ns // QUARTERS
    upto = np.searchsorted(trace.arrival_ns, edges)
    tokens = np.concatenate([[0], np.cumsum(trace.prompt_tokens)])[upto]
    return np.log1p(np.concatenate([np.diff(upto, axis=1), np.diff(tokens, axis=1)], axis=1).astype(float))


class Forecaster:
    """Ridge regression of the price, on standardised features or on radial basis functions of them."""

    def __init__(self, x: Floats, y: Floats, width: float | None, penalty: float) -> None:
        self.mean, self.sd = x.mean(axis=0), np.maximum(x.std(axis=0), 1e-9)
        self.width, self.level = width, float(y.mean())
        self.at = self._scaled(x)
        base = self._base(self.at)
        gram = base @ base.T if width is None else base
        self.dual = np.linalg.solve(gram + penalty * np.eye(len(y)), y - self.level)
        #: Effective degrees of freedom.
        self.freedom = float(np.trace(np.linalg.solve(gram + penalty * np.eye(len(y)), gram)))

    def _scaled(self, x: Floats) -> Floats:
        return (x - self.mean) / self.sd

    def _base(self, z: Floats) -> Floats:
        if self.width is None:
            return z
        square = (z**2).sum(axis=1)[:, None] + (self.at**2).sum(axis=1) - 2.0 * z @ self.at.T
        return np.asarray(np.exp(-np.maximum(square, 0.0) / (2.0 * self.width**2)))

    def __call__(self, x: Floats) -> Floats:
        base = self._base(self._scaled(x))
        kernel = base @ self.at.T if self.width is None else base
        return self.level + kernel @ self.dual


class Rule:
    """The best stopping rule for a chain of forecasts that was counted on some windows."""

    def __init__(self, setting: Setting, rows: list[Rows], width: float | None, penalty: float) -> None:
        x, price = np.concatenate([r.x for r in rows]), np.concatenate([r.price for r in rows])
        self.forecast = Forecaster(x, price, width, penalty)
        self.edges = np.unique(np.quantile(self.forecast(x), np.arange(1, STATES) / STATES))
        chain = LoadChain.counted(
            self.state(x), price, self.state(np.concatenate([r.next_x for r in rows])),
            self.state(np.concatenate([r.after_x for r in rows])), len(self.edges) + 1,
        )  # fmt: skip
        self.best: CausalOptimum = causal_optimum(chain, setting.corridor)

    def state(self, x: Floats) -> NDArray[np.int64]:
        return np.searchsorted(self.edges, self.forecast(x), side="right")

    def decide(self, seen: Observation, more: Floats | None = None) -> bool:
        m = np.array([len(seen.arrivals_per_s)])
        here = np.array([seen.in_flight + seen.queued])
        x = features(seen.arrivals_per_s, seen.prompt_tokens_per_s, m, here)
        state = int(self.state(x if more is None else np.hstack([x, more]))[0])
        decision = round(seen.time_s / (seen.decision_steps * seen.step_s))
        waited = seen.steps_since_merge // seen.decision_steps - -(-seen.h_min // seen.decision_steps)
        return bool(self.best.merge[min(decision, len(self.best.merge) - 1), waited, state])


class Told:
    """A rule that is told what will arrive."""

    def __init__(self, rule: Rule, trace: RequestTrace, merge_ns: int) -> None:
        self.rule, self.trace, self.merge_ns = rule, trace, merge_ns

    def decide(self, seen: Observation) -> bool:
        at_ns = np.array([round(seen.time_s * NS_PER_S)])
        return self.rule.decide(seen, ahead(self.trace, at_ns, self.merge_ns))


def rules(setting: Setting, root: int) -> tuple[dict[str, Maker], dict[str, str]]:
    """Makers of every kind for every forecaster; degrees of freedom, and R2 on the prices it is used for."""
    makers: dict[str, Maker] = {}
    fits = {}
    rows, knowing = ([rows_of(setting, root, s, told) for s in range(setting.n_seeds)] for told in (False, True))
    for name, (width, penalty) in FORECASTERS.items():
        whole = Rule(setting, rows, width, penalty)
        others = [Rule(setting, rows[:s] + rows[s + 1 :], width, penalty) for s in range(len(rows))]
        told = Rule(setting, knowing, width, penalty)
        makers[f"{name}, in sample"] = lambda root, seed, rule=whole: rule
        makers[f"{name}, left out"] = lambda root, seed, rules=others: rules[seed]
        makers[f"{name}, told"] = lambda root, seed, rule=told: Told(
            rule, setting.worlds.workload(seed).trace, setting.corridor.merge_ns
        )
        for kind, by_window, known in (
            ("in sample", [whole] * len(rows), rows), ("left out", others, rows), ("told", [told] * len(rows), knowing)
        ):  # fmt: skip
            price = np.concatenate([r.price for r in known])
            missed = price - np.concatenate([u.forecast(r.x) for u, r in zip(by_window, known, strict=True)])
            r2 = 1.0 - float((missed**2).sum()) / float(((price - price.mean()) ** 2).sum())
            fits[f"{name}, {kind}"] = f"{by_window[0].forecast.freedom:.0f} | {r2:.2f}"
    return makers, fits


def chance_to_pass(gain: Floats, draw_sd: float, draws: int, rng: np.random.Generator) -> float:
    own = np.sqrt(max(float(gain.var(ddof=1)) - draw_sd**2 / draws, 0.0))
    spread = Spread(own, draw_sd)
    design = Design(len(gain), draws, float(gain.mean()), spread, "normal", ALPHA, MIN_EFFECT_PP)
    return simulate_power(design, rng, REPS).power


def spread_of_a_draw(setting: Setting, root: int, k: int, draws: int) -> float:
    """Standard deviation within a window of a random placement of k merges, pp."""
    c, found = setting.corridor, []
    for seed in range(setting.n_seeds):
        sidecar = loaded(setting, root, seed)
        drawn = c.sample(k, draws, seeds.generator(root, "uniform", setting.name, seed, k))
        paid = 100.0 / len(sidecar.trace) * costs(sidecar, drawn, c, setting.slos)[:, 0]
        found.append(float(paid.var(ddof=1)))
    return float(np.sqrt(np.mean(found)))


def main() -> None:
    asked = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    asked.add_argument("trace", type=Path, nargs="+")
    asked.add_argument("--scheduler", action="append", default=[])
    asked.add_argument("--draws", type=int, default=99)
    asked.add_argument("--root", type=int, default=20261130)
    o = asked.parse_args()
    print(
        "| trace | policy | degrees of freedom | R2 of the price | merges | gain, pp | of the offline optimum "
        "| chance to pass |\n|---|---|---|---|---|---|---|---|"
    )
    for path in o.trace:
        (setting,), _ = settings_for([], [path], Reading(), o.root, Overrides())
        setting = replace(setting, slos=setting.slos[:1])
        makers, fits = rules(setting, o.root)
        makers |= {name: maker(name) for name in o.scheduler or ["baselines/quiet.py", "examples/ten_line.py"]}
        for name, found in gains(setting, o.root, makers, o.draws).items():
            gain, k = found[:, 0], found[:, 2]
            sd = spread_of_a_draw(setting, o.root, round(float(k.mean())), o.draws)
            power = chance_to_pass(gain, sd, o.draws, seeds.generator(o.root, "chance", path.name, name))
            print(
                f"| {path.name} | {name} | {fits.get(name, '- | -')} | {k.mean():.1f} "
                f"| {gain.mean():+.2f} ± {half_width(gain):.2f} "
                f"| {100 * gain.mean() / found[:, 1].mean():.0f} % of {found[:, 1].mean():.2f} | {100 * power:.0f} % |",
                flush=True,
            )


if __name__ == "__main__":
    main()
