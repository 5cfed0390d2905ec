"""What the WA-DiLoCo artifact's numbers say beside its claims: training pace, clocks, exact tests, the greedy plan."""

from __future__ import annotations

import itertools
import math
from collections.abc import Mapping, Sequence

import numpy as np
import scipy
from numpy.typing import NDArray

from adapters.published.wa_diloco import RunSummary
from adapters.published.wa_schedules import LEAST_GAP_S, Pace, random_starts
from protocol.audit.imported import Aggregate, Finding, Run
from protocol.audit.windows import longest_gap_s
from protocol.stats.randomization import sign_flip

#: Period of the telemetry that the schedules were made under (the public scripts' default), seconds.
TRAINING_PERIOD_S = 300.0
#: Grid of the published plan, and of the exact counts and optima here.
GRID_S = 0.5
#: Schedules drawn by the published rule for a share of them.
_DRAWS = 10_000
_SAMPLES = 32


def pace_finding(runs: Sequence[Run], policy: str) -> tuple[Finding, ...]:
    """Steps a second behind each arm's schedules: exact for fixed-H, at most H_max a merge for the rest."""
    bounds: dict[str, tuple[float, float]] = {}
    for arm in dict.fromkeys(run.arm for run in runs):
        known = [run.steps_per_s for run in runs if run.arm == arm]
        if known and all(b is not None for b in known):
            ends = np.mean([b for b in known if b is not None], axis=0)
            bounds[arm] = (float(ends[0]), float(ends[1]))
    if policy not in bounds or len(bounds) < 2:
        return ()
    told = ", ".join(
        f"{arm} {high:.1f}" if high - low < 0.05 else f"{arm} at most {high:.1f}" for arm, (low, high) in bounds.items()
    )
    exact = [high for arm, (low, high) in bounds.items() if arm != policy and high - low < 0.05]
    if not exact:
        return ()
    text = (
        f"Inner steps a second, from the schedules' lengths and the corridor: {told}.  A schedule that "
        "trains slower has fewer merges in the same 600 s without placing one of them better."
    )
    return (Finding("training pace", f"at most {bounds[policy][1]:.1f} against {max(exact):.1f} steps/s", text),)


def steady_clock(summaries: Sequence[RunSummary]) -> tuple[Finding, ...]:
    """Training and replay clocks of the steady replays: pressures of unequal periods."""
    periods = {s.period_s for s in summaries if s.period_s and s.bursts is None and s.seed is not None}
    if len(periods) != 1:
        return ()
    (period,) = periods
    if period == TRAINING_PERIOD_S:
        return ()
    beat = 1 / abs(1 / period - 1 / TRAINING_PERIOD_S)
    text = (
        f"The schedules were made under a pressure with a period of {TRAINING_PERIOD_S:.0f} s (the scripts' default), "
        f"and replayed under one of {period:.0f} s that starts with the process: the two drift apart by a whole cycle "
        f"every {beat:.0f} s, so a merge that was placed in a trough of the one falls anywhere in the other."
    )
    return (Finding("training and replay clocks", f"{TRAINING_PERIOD_S:.0f} s against {period:.0f} s", text),)


def bursty_clock(own: Mapping[int | None, RunSummary]) -> tuple[Finding, ...]:
    """Where in the burst cycle a schedule that is repeated from its end starts anew."""
    shifts = {
        seed: s.schedule_s % s.bursts[0]
        for seed, s in own.items()
        if s.bursts is not None and s.repeat and s.schedule_s is not None and s.schedule_s < s.run_s
    }
    if not shifts:
        return ()
    period = next(s.bursts[0] for s in own.values() if s.bursts is not None)
    told = ", ".join(f"{shift:.1f} s (seed {seed})" for seed, shift in shifts.items())
    text = (
        f"A schedule that is repeated from its end starts anew {told} into the burst cycle of {period:.0f} s.  Its "
        "decisions were made from the cycle's beginning: what it knew of the bursts no longer holds in the second pass."
    )
    low, high = min(shifts.values()), max(shifts.values())
    return (Finding("training and replay clocks", f"{low:.0f} to {high:.0f} s of phase", text),)


# Exact in place of Monte Carlo -----------------------------------------------------------------------------------


def offline_tests(runs: Sequence[Run], offline: str, random: str, table: Sequence[Aggregate]) -> tuple[Finding, ...]:
    """The offline plan against the random draws: by seeds, exactly, and as the one schedule that it is."""
    ours, theirs = ({r.seed: r.violation_pct for r in runs if r.arm == arm} for arm in (offline, random))
    seeds = sorted(seed for seed in set(ours) & set(theirs) if isinstance(seed, int))
    pairs = [(ours[s], theirs[s]) for s in seeds]
    if len(pairs) < 3 or any(a is None or b is None or not math.isfinite(a + b) for a, b in pairs):
        return ()
    mine, other = (np.array([float(p[k] or 0.0) for p in pairs]) for k in (0, 1))
    flip, swap = sign_flip(mine - other).pvalue or math.nan, permutation_p(mine, other)
    n, both = len(seeds), min(2 * swap, 1.0)
    text = (
        f"Every relabelling counted, on {n} seeds: sign flip p = {flip:.4f}, exchange of seed means p = {swap:.4f} "
        f"one-sided and {both:.4f} two-sided; {n} seeds allow no less than {0.5**n:.4f} and "
        f"{1 / math.comb(2 * n, n):.4f}.  With {_DRAWS:,} random relabellings in place of all, such p come out as "
        f"{flip:.4f} ± {_error(flip):.4f} and {both:.4f} ± {_error(both):.4f} (one standard error): a Monte Carlo p "
        "that is smaller shows nothing more."
    )
    value = f"p = {flip:.3f}, {swap:.4f}"
    draws = next((a for a in table if a.arm == random), None)
    if draws is not None and draws.sd_pct > 0:
        z = (float(mine.mean()) - draws.mean_pct) / draws.sd_pct
        one = float(scipy.stats.norm.cdf(z))
        text += (
            f"  But the plan is one schedule under one load, replayed {len(seeds)} times: against the spread of the "
            f"{draws.n} draws it lies {z:+.2f} standard deviations from their mean, p = {one:.3f} (normal)."
        )
        value += f"; as one schedule {one:.3f}"
    return (Finding("offline plan against random, exactly", value, text),)


def _error(share: float) -> float:
    """Standard error of a share of `_DRAWS` draws."""
    return math.sqrt(share * (1 - share) / _DRAWS)


def permutation_p(ours: NDArray[np.float64], theirs: NDArray[np.float64]) -> float:
    """P(sum of a uniformly chosen half <= sum of ours), every choice counted."""
    pooled = np.concatenate([ours, theirs])
    chosen = np.array(list(itertools.combinations(range(len(pooled)), len(ours))))
    return float(np.mean(pooled[chosen].sum(axis=1) <= ours.sum() + 1e-9 * np.abs(pooled).sum()))


# The greedy plan -------------------------------------------------------------------------------------------------


def plan_finding(
    starts: tuple[float, ...], run_s: float, window_s: float, bursts: tuple[float, float, float], pace: Pace
) -> tuple[Finding, ...]:
    """The published plan's burst seconds beside the exact optimum's with the same number of merges, in the set that its
    rule allows and in the corridor; and the share of random schedules that do as well."""
    if not starts:
        return ()
    k = len(starts)
    grid = np.arange(int((run_s - window_s) / GRID_S) + 1, dtype=np.float64) * GRID_S
    cost = busy_s(grid, window_s, bursts)
    plan = float(busy_s(np.array(starts, np.float64), window_s, bursts).sum())
    free = best(cost, k, LEAST_GAP_S, math.inf, window_s)
    text = f"{k} merges of {window_s:.0f} s: the greedy plan spends {plan:.1f} s in bursts; the exact optimum with the "
    text += f"rule's least gap of {LEAST_GAP_S:.0f} s {free:.1f} s"
    value = f"{plan - free:.1f} s"
    if pace.least is not None and pace.longest is not None:
        inside = best(cost, k, pace.least, pace.longest, window_s)
        gap = longest_gap_s(starts, starts[-1])
        where = "inside" if gap <= pace.longest else "outside"
        text += f", and in the corridor ({pace.least:.1f} to {pace.longest:.1f} s between starts) "
        text += f"{inside:.1f} s.  The plan's longest gap is {gap:.1f} s, {where} that corridor"
        value = f"{plan - inside:.1f} s of burst"
    drawn = np.array([random_starts(seed, 0, k, run_s, window_s) for seed in range(_DRAWS)], np.float64)
    spent = busy_s(drawn.ravel(), window_s, bursts).reshape(drawn.shape).sum(axis=1)
    as_good = float(np.mean(spent <= plan + 1e-9))
    text += f".  Of {_DRAWS:,} schedules by the published random rule "
    text += f"{100 * as_good:.1f} % (± {100 * _error(as_good):.1f}) do as well"
    if pace.least is not None and pace.longest is not None and plan == 0:
        share = share_without(cost, k, pace.least, pace.longest, window_s)
        text += f", of all in the corridor {100 * share:.1f} %"
    return (Finding("greedy plan against the exact optimum", value, f"{text}."),)


def busy_s(starts: NDArray[np.float64], window_s: float, bursts: tuple[float, float, float]) -> NDArray[np.float64]:
    """Seconds of each window that lie in bursts, by the published sampling.  bursts : period, busy seconds, phase."""
    period, busy, phase = bursts
    moments = np.asarray(starts, np.float64)[:, None] + window_s * (np.arange(_SAMPLES) + 0.5) / _SAMPLES
    share: NDArray[np.float64] = np.mean((moments + phase) % period < busy, axis=1)
    return window_s * share


def best(cost: NDArray[np.float64], k: int, least_s: float, longest_s: float, window_s: float) -> float:
    """Least total cost of k starts on the grid whose distances lie in [least, longest]; inf where there are none.

    The first start obeys the gap too, counted from time 0; after the last one nothing is asked.
    """
    total = cost
    for _ in range(k - 1):
        total = cost + [part.min(initial=np.inf) for part in _onward(total, least_s, longest_s)]
    return float(total[_first(cost.size, least_s, longest_s, window_s)].min(initial=np.inf))


def share_without(cost: NDArray[np.float64], k: int, least_s: float, longest_s: float, window_s: float) -> float:
    """Share of all such placements, each equally likely, that cost nothing.  NaN where there are none."""
    found = []
    for allowed in (np.ones(cost.size), (cost == 0).astype(np.float64)):
        total = allowed
        for _ in range(k - 1):
            total = allowed * [part.sum() for part in _onward(total, least_s, longest_s)]
        found.append(float(total[_first(cost.size, least_s, longest_s, window_s)].sum()))
    return found[1] / found[0] if found[0] else math.nan


def _onward(values: NDArray[np.float64], least_s: float, longest_s: float) -> list[NDArray[np.float64]]:
    """For each start the values of those that may follow it."""
    low = math.ceil(least_s / GRID_S - 1e-9)
    high = values.size if math.isinf(longest_s) else math.floor(longest_s / GRID_S + 1e-9)
    return [values[i + low : i + high + 1] for i in range(values.size)]


def _first(size: int, least_s: float, longest_s: float, window_s: float) -> slice:
    """Starts that the first merge may have: no merge lies before it, so the gap is the steps alone."""
    low = math.ceil(max(least_s - window_s, 0.0) / GRID_S - 1e-9)
    high = size if math.isinf(longest_s) else math.floor((longest_s - window_s) / GRID_S + 1e-9)
    return slice(low, high + 1)
