"""How much of what can be had the schedulers get: the causal ceiling, the offline optimum and gains over chance.

The ceiling is the exact causal optimum of a load whose state is known (protocol/placement/ceiling.py).  Its chain is
counted on worlds of another root; then the oracle that it makes runs in the same worlds as the schedulers, with
matched controls of its own.  Schedulers run in this process.  Intervals: Student's t over seeds for gains and their
differences, Fieller's for shares of the ceiling, which may be "unbounded".  The last table has all differences of
gains, * where a paired t test says that one is above 0, at 5 % after Holm's correction for all cells of the table.

    python benchmarks/ceiling.py --seeds 40 --root 20261130
    python benchmarks/ceiling.py --published --no-ceiling
    python benchmarks/ceiling.py --trace trace.csv
    python benchmarks/ceiling.py --regime islands-offset --no-ceiling --scheduler baselines/quiet_peers.py
"""

from __future__ import annotations

import argparse
import importlib.util
import inspect
import math
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy import stats
from statsmodels.stats.multitest import multipletests

from adapters.traces.load_states import LoadStates, present
from adapters.traces.readers import Reading
from protocol import registry, seeds
from protocol.campaign.arms import costs, violations_of
from protocol.campaign.plan import Setting
from protocol.cli.settings import PUBLISHED, Overrides, setting_of, settings_for
from protocol.merging.peers.controls import draws as peer_draws
from protocol.merging.peers.schedules import Peers, PeerSchedule
from protocol.placement.ceiling import CausalOptimum, LoadChain, causal_optimum
from protocol.placement.peer_rollout import peer_rollout
from protocol.placement.planning import optimum
from protocol.placement.rollout import rollout
from protocol.regimes.regime import Regime
from protocol.replay.sidecar import LoadedSidecar
from protocol.scheduler import Decision, Observation
from protocol.workload.trace import RequestTrace, Workload

BURSTY = ("bursty-aperiodic", "bursty-periodic")
SCHEDULERS = (
    "baselines/quiet.py", "examples/ten_line.py", "examples/ewma.py", "wa-calibrated", "wa-calibrated-forecast",
    "wa-diloco", "pressure-gate", "pressure-gate-matched", "adaptive-load", "adaptive-tokens", "fixed-h-256",
    "fixed-h-512", "random-deferral", "random-deferral-70",
)  # fmt: skip
ORACLE = "causal ceiling"
#: (root of this seed, its number) to a fresh scheduler.
Maker = Callable[[int, int], Any]
Floats = NDArray[np.float64]


class Run:
    """One rollout of a scheduler in this process."""

    def __init__(self, scheduler: Any) -> None:
        self.scheduler = scheduler

    def decide(self, seen: Observation) -> Decision:
        found = self.scheduler.decide(seen)
        return found if isinstance(found, Decision) else Decision(bool(found))

    def close(self) -> None:
        """Nothing was opened."""


class Stale:
    """A scheduler whose telemetry is at least `age_s` old; before there was any, it sees the first."""

    def __init__(self, scheduler: Any, age_s: int) -> None:
        self.scheduler, self.age_s = scheduler, age_s
        self.kept: list[Observation] = []

    def decide(self, seen: Observation) -> Any:
        self.kept.append(seen)
        while len(self.kept) > 1 and self.kept[1].time_s <= seen.time_s - self.age_s:
            self.kept.pop(0)
        old = self.kept[0]
        names = ("in_flight", "queued", "completed", "serving_pressure", "recent_e2e_s", "recent_ttft_s", "islands")
        upto = max(len(seen.arrivals_per_s) - self.age_s, 0)
        return self.scheduler.decide(
            replace(
                seen,
                **{name: getattr(old, name) for name in names},
                arrivals_per_s=seen.arrivals_per_s[:upto],
                prompt_tokens_per_s=seen.prompt_tokens_per_s[:upto],
                telemetry_age_s=seen.time_s - old.time_s,
            )
        )


class Drifting:
    """Worlds whose rate grows from half to all of what it was over their length: requests are dropped by chance."""

    def __init__(self, worlds: Any, root: int) -> None:
        self.worlds, self.root = worlds, root

    def workload(self, seed: int) -> Workload:
        world = self.worlds.workload(seed)
        t = world.trace
        kept = seeds.generator(self.root, "drift", seed).random(len(t)) < 0.5 + 0.5 * t.arrival_ns / t.arrival_ns[-1]
        columns = (t.arrival_ns[kept], t.prompt_tokens[kept], t.output_tokens[kept], t.island[kept])
        return replace(world, trace=RequestTrace(*columns, t.n_islands, t.name))

    def other(self, seed: int, probe: int) -> Workload:
        return self.worlds.other(seed, probe)


class Oracle:
    """Knows the state of the load and the chain that it follows."""

    def __init__(self, states: LoadStates, best: CausalOptimum, root: int, seed: int) -> None:
        self.states, self.best, self.known = states, best, states.spells(root, seed)

    def decide(self, seen: Observation) -> bool:
        state = self.states.at([seen.time_s], [seen.in_flight + seen.queued], self.known)[0]
        decision = round(seen.time_s / (seen.decision_steps * seen.step_s))
        waited = seen.steps_since_merge // seen.decision_steps - -(-seen.h_min // seen.decision_steps)
        return bool(self.best.merge[min(decision, len(self.best.merge) - 1), waited, state])


def counted(setting: Setting, states: LoadStates, root: int, n_seeds: int) -> LoadChain:
    """The chain of a setting's load, from so many of its worlds at every decision of the grid."""
    c = setting.corridor
    cycle_ns = c.merge_ns + c.gap_min * c.grid_ns
    now = np.arange(0, c.horizon_ns - cycle_ns, c.grid_ns, dtype=np.int64)
    rows: list[tuple[NDArray[Any], ...]] = []
    for seed in range(n_seeds):
        sidecar = loaded(setting, root, seed)
        known = states.spells(root, seed)
        at = [states.at(t / 1e9, present(sidecar, t), known) for t in (now, now + c.grid_ns, now + cycle_ns)]
        rows.append((at[0], sidecar.merge_cost(now, c.merge_ns, setting.slos[0]), at[1], at[2]))
    return LoadChain.counted(*(np.concatenate(column) for column in zip(*rows, strict=True)), n_states=len(states))


def loaded(setting: Setting, root: int, seed: int) -> LoadedSidecar:
    trace = setting.worlds.workload(seed).trace
    return setting.sidecar.load(trace, seeds.generator(root, "sidecar", setting.name, seed))


def maker(name: str) -> Maker:
    """Fresh runs of a registered scheduler, or of the one in a file."""
    if not name.endswith(".py"):
        kind: Any = registry.load("protocol.schedulers", name)
    else:
        spec = importlib.util.spec_from_file_location(Path(name).stem, name)
        assert spec is not None and spec.loader is not None
        module = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(module)
        own = (v for v in vars(module).values() if getattr(v, "__module__", "") == module.__name__)
        kind = next(v for v in own if isinstance(v, type) and hasattr(v, "decide"))
    takes_rng = "rng" in inspect.signature(kind.__init__).parameters
    return lambda root, seed: kind(rng=seeds.generator(root, "scheduler", name, seed)) if takes_rng else kind()


def gains(setting: Setting, root: int, makers: dict[str, Maker], draws: int) -> dict[str, Floats]:
    """Of each scheduler, shape (seeds, 3): gain over chance and the offline optimum's at as many merges, pp; merges."""
    found: dict[str, list[tuple[float, float, float]]] = {name: [] for name in makers}
    for seed in range(setting.n_seeds):
        world, sidecar = setting.worlds.workload(seed), loaded(setting, root, seed)
        if setting.peers is not None:
            for name, make in makers.items():
                found[name].append(of_peers(setting, setting.peers, root, seed, Run(make(root, seed)), draws))
            continue
        controls: dict[int, tuple[float, float]] = {}  # mean and least cost by number of merges
        pp = 100.0 / len(world.trace)
        for name, make in makers.items():
            made = rollout(Run(make(root, seed)), world, sidecar, setting.corridor, setting.learner)
            gaps = setting.corridor.gaps(made.schedule.start_ns)
            k = len(gaps)
            if k not in controls:
                drawn = setting.corridor.sample(k, draws, seeds.generator(root, "uniform", setting.name, seed, k))
                least = optimum(setting.corridor, k, sidecar, setting.slos[0])
                paid = costs(sidecar, [*drawn, least], setting.corridor, setting.slos[:1])[:, 0]
                controls[k] = float(paid[:-1].mean()), float(paid[-1])
            own = float(costs(sidecar, [gaps], setting.corridor, setting.slos[:1])[0, 0])
            chance, least_cost = controls[k]
            found[name].append((pp * (chance - own), pp * (chance - least_cost), k))
    return {name: np.array(rows) for name, rows in found.items()}


def of_peers(setting: Setting, peers: Peers, root: int, seed: int, run: Run, draws: int) -> tuple[float, float, float]:
    """The same where islands merge as peers: no optimum is known."""
    world, sidecar = setting.worlds.workload(seed), loaded(setting, root, seed)

    def rng(what: str) -> np.random.Generator:
        return seeds.generator(root, what, setting.name, seed)

    made = peer_rollout(run, world, sidecar, peers, setting.learner, rng("partners"))
    own = PeerSchedule(made.schedule.start_ns // peers.corridor.grid_ns, made.groups or ())
    drawn = peer_draws(peers, own, draws, rng("hub"), rng("uniform"))
    late = violations_of(sidecar, [peers.schedule(one) for one in (own, *drawn)], setting.slos)[:, 0]
    return 100.0 / len(world.trace) * (float(late[1:].mean()) - float(late[0])), math.nan, len(own)


def half_width(x: Floats) -> float:
    return float(stats.t.ppf(0.975, len(x) - 1) * x.std(ddof=1) / math.sqrt(len(x)))


def fieller(top: Floats, bottom: Floats) -> tuple[float, float] | None:
    """95 % limits of mean(top) / mean(bottom), paired (Fieller 1954); None when the bottom may be 0."""
    n = len(top)
    t2 = stats.t.ppf(0.975, n - 1) ** 2 / n
    (a, b), cov = (top.mean(), bottom.mean()), np.cov(top, bottom)
    square, middle, last = b * b - t2 * cov[1, 1], a * b - t2 * cov[0, 1], a * a - t2 * cov[0, 0]
    if square <= 0:
        return None
    root = math.sqrt(max(middle * middle - square * last, 0.0))
    return (middle - root) / square, (middle + root) / square


def lines(found: dict[str, Floats], against: str) -> Iterator[str]:
    """A Markdown table."""
    yield f"| scheduler | merges | gain, pp | share of the ceiling | of the offline optimum | {against} less it, pp |"
    yield "|---|---|---|---|---|---|"
    for name, rows in found.items():
        gain, best = rows[:, 0], rows[:, 1]
        share = "-"
        if ORACLE in found:
            limits = fieller(gain, found[ORACLE][:, 0])
            ratio = gain.mean() / found[ORACLE][:, 0].mean()
            share = f"{100 * ratio:.0f} % " + (
                f"[{100 * limits[0]:.0f}, {100 * limits[1]:.0f}]" if limits else "(unbounded)"
            )
        less = found[against][:, 0] - gain if against in found else gain * np.nan
        yield (
            f"| `{name}` | {rows[:, 2].mean():.1f} | {gain.mean():+.2f} ± {half_width(gain):.2f} | {share} "
            f"| {'-' if np.isnan(best).any() else f'{100 * gain.mean() / best.mean():.0f} % of {best.mean():.2f}'} "
            f"| {less.mean():+.2f} ± {half_width(less):.2f} |"
        )


def differences(found: dict[str, dict[str, Floats]], ours: str) -> Iterator[str]:
    """A Markdown table over settings: our gains less those of each other scheduler."""
    others = [name for name in next(iter(found.values())) if name not in (ours, ORACLE)]
    less = [[f[ours][:, 0] - f[name][:, 0] for f in found.values()] for name in others]
    p = multipletests(
        [stats.ttest_1samp(x, 0.0, alternative="greater").pvalue for row in less for x in row], 0.05, "holm"
    )[1]
    star = iter(p <= 0.05)
    yield f"| {ours} less | {' | '.join(found)} |"
    yield "|---" * (len(found) + 1) + "|"
    for name, row in zip(others, less, strict=True):
        cells = [f"{x.mean():+.2f} ± {half_width(x):.2f}{' *' if next(star) else ''}" for x in row]
        yield f"| `{name}` | {' | '.join(cells)} |"


@contextmanager
def told(what: str) -> Iterator[None]:
    print(f"\n### {what}\n", flush=True)
    yield
    print(flush=True)


def chosen(o: argparse.Namespace) -> Iterator[tuple[Setting, Regime | None]]:
    overrides = Overrides(seeds=o.seeds, slos=(o.slo,) if o.slo else None)
    for path in o.trace:
        (setting,), _ = settings_for([], [path], Reading(), o.root, replace(overrides, seeds=None))
        yield setting, None
    for name in o.regime or ([] if o.trace else PUBLISHED if o.published else BURSTY):
        regime = Regime.load(name)
        (setting,), _ = settings_for([name], [], Reading(), o.root, overrides)
        if o.merge_s:
            regime = regime.replace(merge_s=o.merge_s, seeds=o.seeds)
            setting = setting_of(regime, setting.worlds, overrides.slos)
        yield replace(setting, worlds=Drifting(setting.worlds, o.root)) if o.drift else setting, regime


def main() -> None:
    asked = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    asked.add_argument("--regime", action="append", default=[])
    asked.add_argument("--published", action="store_true", help="all five regimes of the papers")
    asked.add_argument("--trace", type=Path, action="append", default=[])
    asked.add_argument("--scheduler", action="append", default=[])
    asked.add_argument("--seeds", type=int, default=40)
    asked.add_argument("--training-seeds", type=int, default=100)
    asked.add_argument("--draws", type=int, default=39)
    asked.add_argument("--root", type=int, default=20261130)
    asked.add_argument("--no-ceiling", action="store_true")
    asked.add_argument("--slo", help="instead of the regime's own")
    asked.add_argument("--merge-s", type=float, help="instead of the regime's own")
    asked.add_argument("--stale-s", type=int, default=0, help="age of all telemetry")
    asked.add_argument("--drift", action="store_true", help="the rate grows from half to all of the regime's own")
    o = asked.parse_args()
    if o.drift and not o.no_ceiling:
        asked.error("--drift: the ceiling's load does not drift; add --no-ceiling")
    names = o.scheduler or SCHEDULERS
    every: dict[str, dict[str, Floats]] = {}
    for setting, regime in chosen(o):
        makers = {name: maker(name) for name in names}
        if o.stale_s:
            makers = {n: (lambda r, s, m=m: Stale(m(r, s), o.stale_s)) for n, m in makers.items()}
        with told(f"{setting.name}, {setting.slos[0]}, {setting.n_seeds} seeds, root {o.root}"):
            if regime is not None and not o.no_ceiling:
                states = LoadStates.of(regime, setting.corridor.grid_ns / 1e9)
                trained = replace(
                    setting, worlds=settings_for([regime.name], [], Reading(), o.root + 1, Overrides())[0][0].worlds
                )
                best = causal_optimum(counted(trained, states, o.root + 1, o.training_seeds), setting.corridor)
                requests = np.mean([len(setting.worlds.workload(s).trace) for s in range(setting.n_seeds)])
                print(f"Expected of the best causal policy in the model: {100 * best.gain / requests:.2f} pp.\n")
                makers = {ORACLE: lambda r, s, a=states, b=best: Oracle(a, b, r, s), **makers}
            every[setting.name] = gains(setting, o.root, makers, o.draws)
            for line in lines(every[setting.name], names[0]):
                print(line)
    for line in differences(every, names[0]) if len(names) > 1 else ():
        print(line)


if __name__ == "__main__":
    main()
