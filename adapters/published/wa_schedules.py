"""Schedules of the WA-DiLoCo artifact that its files do not hold: their pace, and those that its scripts generate.

Learnt from the public scripts: random schedules draw uniform starts one by one and keep those at least 18 s from all
earlier ones, seeded by 1009 seed + draw; the trainer stops at its last merge; trained arms meet the coordinator after
H steps (fixed) or every 128 steps (the others).
"""

from __future__ import annotations

import random
import re
import statistics
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from protocol.audit.imported import Run

FIXED = re.compile(r"fixed_h_(\d+)")
#: The published corridor in inner steps, and how often polled arms meet the coordinator.
H_MIN, H_MAX, POLL = 128, 512, 128
LEAST_GAP_S = 18.0


@dataclass(frozen=True)
class Pace:
    """Seconds between merges, from the fixed-H arms: least at H_MIN, longest at H_MAX, each over seeds."""

    least: float | None
    longest: float | None
    text: str


def pace_of(runs: Sequence[Run]) -> Pace:
    """Mean gap of fixed-H arms is a H + b (two values of H needed): a seconds a step, b a meeting with the coordinator.

    Least gap: H_MIN at the fastest seed's pace.  Longest: H_MAX with a meeting every POLL steps, or the slowest
    recorded schedule's mean gap, whichever is longer.
    """
    gaps: dict[int, list[float]] = {}
    slowest = 0.0
    for run in runs:
        if run.replay is None or run.replay.schedule_s is None or run.replay.merges < 1:
            continue
        gap = (run.replay.schedule_s - run.replay.window_s) / run.replay.merges
        slowest = max(slowest, gap)
        fixed = FIXED.fullmatch(run.arm)
        if fixed:
            gaps.setdefault(int(fixed[1]), []).append(gap)
    if len(gaps) < 2:
        return Pace(None, None, "")
    (h1, g1), (h2, g2) = [(h, statistics.mean(gaps[h])) for h in (min(gaps), max(gaps))]
    step = (g2 - g1) / (h2 - h1)
    meeting = g1 - step * h1
    fastest = min(gap / statistics.mean(found) for found in gaps.values() for gap in found)
    if not step > 0 or meeting < 0:
        return Pace(None, None, "")
    least = (step * H_MIN + meeting) * fastest
    longest = max(step * H_MAX + meeting * H_MAX / POLL, slowest)
    text = (
        f"Pace from the fixed-H schedules: {step:.4f} s a step and {meeting:.1f} s a merge; so merges are at least "
        f"{least:.1f} s apart ({H_MIN} steps, fastest seed) and at most {longest:.1f} s ({H_MAX} steps with a meeting "
        f"every {POLL}, or the slowest recorded schedule's mean)."
    )
    return Pace(least, longest, text)


def steps_per_s(arm: str, merges: int, schedule_s: float | None) -> tuple[float, float] | None:
    """Least and most inner steps a second of the training run that made a schedule; None for drawn schedules.

    Fixed-H arms merge every H steps; the others between H_MIN and H_MAX, and a run stops at its last merge.
    """
    if schedule_s is None or schedule_s <= 0 or merges < 1:
        return None
    fixed = FIXED.fullmatch(arm)
    low, high = (int(fixed[1]), int(fixed[1])) if fixed else (H_MIN, H_MAX)
    return merges * low / schedule_s, merges * high / schedule_s


def random_starts(seed: int, draw: int, merges: int, run_s: float, window_s: float) -> tuple[float, ...]:
    """The published rule of a random schedule, from the same generator and seed as its public script.

    Falls back to a regular grid after 10,000 refused starts, as the script does.
    """
    rng = random.Random(seed * 1009 + draw)
    latest, starts = max(window_s, run_s - window_s), list[float]()
    for _ in range(10_000):
        if len(starts) == merges:
            break
        start = rng.uniform(0.0, latest)
        if all(abs(start - other) >= LEAST_GAP_S for other in starts):
            starts.append(start)
    if len(starts) < merges:
        starts = [i * (run_s - window_s) / max(1, merges - 1) for i in range(merges)]
    return tuple(round(start, 3) for start in sorted(starts))


def offline_starts(merges: int, run_s: float, window_s: float, bursts: tuple[float, float, float]) -> tuple[float, ...]:
    """The published rule of the offline plan: merge by merge, the start with the least busy share of its window, then
    nearest to an even spread, then earliest, at least 18 s from those already taken.

    bursts : period, busy seconds at its beginning, and phase of the load.  Empty when the rule finds no place.
    """
    period, busy_s, phase = bursts
    starts = np.arange(int(max(run_s - window_s, 0) * 2) + 1) / 2
    moments = starts[:, None] + window_s * (np.arange(32) + 0.5) / 32
    share = ((moments + phase) % period < busy_s).mean(axis=1)
    taken: list[float] = []
    for i in range(merges):
        free = np.all([np.abs(starts - other) >= LEAST_GAP_S for other in taken], axis=0) & np.ones(len(starts), bool)
        if not free.any():
            return ()
        far = np.abs(starts - (i + 0.5) * run_s / merges)
        taken.append(float(starts[free][np.lexsort((starts[free], far[free], share[free]))[0]]))
    return tuple(sorted(taken))
