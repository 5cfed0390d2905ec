"""Could any scheduler pass on a real trace?  What the gates can find there, beside what a placement can gain.

Of each trace, cut into windows as `protocol certify --trace` cuts it, and each number of merges that fits a window: the
gain of the offline optimum over matched random draws, and the power of the gates' two tests of the gain over chance
(`protocol.stats.power`, minimum effect and level as in a certificate of one claim) for a scheduler that captures a
share of it.  The optimum knows every request to come: no causal scheduler gains more at as many merges.  Two spreads:
the scheduler captures the *same share in every window*, so that its gain varies as the optimum's; or its gain does *not
vary* from window to window at all, and then the least gain is found.  Leaving out the tests of following the load makes
power too high: what cannot pass here cannot pass there.  Of all numbers of merges, the one at which the least share is
needed is printed.

    python benchmarks/real_traces.py TRACE...
"""

from __future__ import annotations

import argparse
import math
from bisect import bisect_left
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from adapters.traces.readers import Reading
from protocol import seeds
from protocol.campaign.arms import costs
from protocol.campaign.plan import Setting
from protocol.cli.settings import Overrides, settings_for
from protocol.errors import InfeasibleCorridor
from protocol.placement.planning import optimum
from protocol.stats.gains import MIN_EFFECT_PP
from protocol.stats.power import Design, Spread, needed_gains, required_seeds

POWER, ALPHA, REPS = 0.8, 0.05, 2000


@dataclass(frozen=True)
class Bound:
    """Of one number of merges: the optimum's gain by window and the spread of a draw, pp."""

    merges: int
    gain: NDArray[np.float64]
    draw_sd: float
    draws: int

    @property
    def mean(self) -> float:
        return float(self.gain.mean())

    def spread(self, share: float) -> Spread:
        """Of a scheduler that captures this share in every window; of 0, its gain does not vary."""
        own = max(float(self.gain.var(ddof=1)) - self.draw_sd**2 / self.draws, 0.0)
        return Spread(share * math.sqrt(own), self.draw_sd)

    def needed(self, share: float, root: int) -> NDArray[np.float64]:
        """Gains above which simulated certificates pass, sorted, pp."""
        rng = seeds.generator(root, "real-trace", self.merges)
        design = Design(len(self.gain), self.draws, 0.0, self.spread(share), "normal", ALPHA, MIN_EFFECT_PP)
        return np.sort(np.max(list(needed_gains(design, rng, REPS).values()), axis=0))

    def power(self, share: float, root: int) -> float:
        """Of a scheduler that captures this share in every window."""
        return float((self.needed(share, root) < share * self.mean).mean())

    def least_share(self, root: int) -> float | None:
        """The least share, in percent, that passes with the power asked; None when all of it does not."""
        if self.power(1.0, root) < POWER:
            return None
        return (
            1 + bisect_left(range(1, 100), True, key=lambda percent: self.power(percent / 100, root) >= POWER)
        ) / 100

    def windows(self, share: float, root: int) -> int | None:
        """Windows of this length that such a scheduler would need; None above 200."""
        gain = share * self.mean
        if gain <= MIN_EFFECT_PP:
            return None
        found = required_seeds(
            gain=gain, spread=self.spread(share), draws=self.draws, power=POWER, alpha=ALPHA, delta=MIN_EFFECT_PP,
            rng=seeds.generator(root, "real-trace windows", self.merges),
        )  # fmt: skip
        return found.design.seeds if found is not None else None


def bounds(setting: Setting, root: int, draws: int) -> Iterator[Bound]:
    """One for each number of merges that can vary."""
    slo, c = setting.slos[0], setting.corridor
    worlds = [setting.worlds.workload(seed).trace for seed in range(setting.n_seeds)]
    loads = [
        setting.sidecar.load(trace, seeds.generator(root, "sidecar", setting.name, seed))
        for seed, trace in enumerate(worlds)
    ]
    for k in c.feasible_budgets():
        if k == 0:
            continue
        gains, within = [], []
        for seed, (trace, sidecar) in enumerate(zip(worlds, loads, strict=True)):
            try:
                drawn = c.sample(k, draws, seeds.generator(root, "uniform", setting.name, seed, k))
            except InfeasibleCorridor:
                break
            least = optimum(c, k, sidecar, slo)
            paid = 100.0 / len(trace) * costs(sidecar, [*drawn, least], c, setting.slos[:1])[:, 0]
            gains.append(float(paid[:-1].mean() - paid[-1]))
            within.append(float(paid[:-1].var(ddof=1)))
        if len(gains) == len(worlds) and np.mean(within) > 0:
            yield Bound(k, np.array(gains), math.sqrt(float(np.mean(within))), draws)


def row(path: Path, root: int, draws: int, windows: int | None) -> str:
    (setting,), _ = settings_for([], [path], Reading(), root, Overrides(seeds=windows))
    setting = replace(setting, slos=setting.slos[:1])
    found = list(bounds(setting, root, draws))
    shares = [(b.least_share(root), b) for b in found]
    able = [(share, b) for share, b in shares if share is not None]
    share, b = min(able, key=lambda one: one[0]) if able else (None, max(found, key=lambda one: one.power(1.0, root)))
    steady = float(np.quantile(b.needed(0.0, root), POWER, method="higher"))
    half = b.windows(0.5, root)
    c = setting.corridor
    minutes = None if half is None else half * (c.horizon_ns / 1e9 + 30) / 60
    return (
        f"| {path.name} | {len(b.gain)} x {c.horizon_ns / 1e9:g} s | {setting.slos[0]} | {b.merges} | {b.mean:.2f} "
        f"| {steady:.2f} | {100 * b.power(1.0, root):.0f} % | {100 * b.power(0.5, root):.0f} % "
        f"| {'none' if share is None else f'{100 * share:.0f} %'} "
        f"| {'over 200' if half is None else f'{half} ({minutes:.0f} min)'} |"
    )


def main() -> None:
    asked = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    asked.add_argument("trace", type=Path, nargs="+")
    asked.add_argument("--windows", type=int, help="fewer and longer ones than the default")
    asked.add_argument("--draws", type=int, default=99)
    asked.add_argument("--root", type=int, default=20261130)
    o = asked.parse_args()
    print(
        "| trace | windows | limit | merges | optimum's gain, pp | found at no spread, pp | power at all of it "
        "| at half | least share | windows for half |\n|---|---|---|---|---|---|---|---|---|---|"
    )
    for path in o.trace:
        print(row(path, o.root, o.draws, o.windows), flush=True)


if __name__ == "__main__":
    main()
