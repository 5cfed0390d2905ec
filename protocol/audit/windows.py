"""How many merges really ran inside a measured run, when a schedule of known length was replayed in a longer one.

The replays audited here run a clock from process start: a merge window is open at elapsed time t when some start s
has s <= t <= s + window, and with repetition t is first taken modulo the schedule's length.  Requests begin only when
the server is up, so windows before that touch nobody.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from protocol.errors import BadInput

#: More windows than any run of this kind can hold; a bound on work for a malformed file.
MOST_WINDOWS = 1_000_000
#: Closer than this, which of two times comes first is a matter of rounding.
EDGE_S = 1e-6


@dataclass(frozen=True)
class Replay:
    """What is known of one replayed schedule, seconds.

    merges : merges in the schedule.  schedule_s : its length, the period when it repeats; None if not stated.
    starts_s : merge starts, None without the log.  run_s : length of the replay, measured from process start.
    startup_s : least and greatest time from process start to the first request.  even : merges come a fixed number of
    steps apart, so that they are evenly spaced to within one window.
    """

    merges: int
    schedule_s: float | None
    window_s: float
    run_s: float
    repeat: bool
    startup_s: tuple[float, float] = (0.0, 0.0)
    starts_s: tuple[float, ...] | None = None
    even: bool = False


@dataclass(frozen=True)
class Realised:
    """Windows that ran in the measured part of a run: `windows` the estimate, within [low, high].

    All three count a window cut by either end of the measured part as the share of it that ran.
    how : by what rule.  exact : counted from the log.
    """

    windows: float
    low: float
    high: float
    how: str
    exact: bool


def expand(
    starts_s: Sequence[float], schedule_s: float | None, window_s: float, run_s: float, repeat: bool
) -> list[tuple[float, float]]:
    """All windows that open during the run, as (begin, end) on its clock, in order of begin.

    A schedule no longer than its window is not repeated.  A window is cut where the schedule's length ends, since the
    clock then starts anew.
    """
    period = schedule_s if repeat and schedule_s is not None and schedule_s > window_s else None
    cycles = 1 if period is None else math.ceil(run_s / period)
    if cycles * max(len(starts_s), 1) > MOST_WINDOWS:
        raise BadInput("replay", f"{cycles} repeats of {len(starts_s)} merges", f"at most {MOST_WINDOWS} windows")
    found = []
    for cycle in range(cycles):
        offset = 0.0 if period is None else cycle * period
        end_of_cycle = run_s if period is None else min(offset + period, run_s)
        for start in sorted(starts_s):
            if offset + start < end_of_cycle:
                found.append((offset + start, min(offset + start + window_s, end_of_cycle)))
    return _joined(found)


def _joined(windows: list[tuple[float, float]]) -> list[tuple[float, float]]:
    """Windows that overlap become one busy interval, so that no second counts twice."""
    joined: list[tuple[float, float]] = []
    for begin, end in windows:
        if joined and begin < joined[-1][1]:
            joined[-1] = (joined[-1][0], max(end, joined[-1][1]))
        else:
            joined.append((begin, end))
    return joined


def realised(replay: Replay, least_gap_s: float | None = None, longest_gap_s: float | None = None) -> Realised:
    """Windows inside the measured part [start-up, run end] of a replay.

    With the log they are counted, cut ones by the share that ran; the bounds are those at both ends of the start-up
    interval.  Without it, starts
    lie anywhere in [0, schedule - window], at least `least_gap_s` apart (the window itself if not given); the first is
    no earlier than that gap less the window, and the last ends the schedule, as it does when the trainer stops at its
    last merge; no gap is above `longest_gap_s`.  The bounds cover every such schedule; the estimate takes evenly spaced
    starts, and where the schedule is even the bounds are one window to either side.

    Raises BadInput when the length of the schedule is needed and not known.
    """
    if replay.starts_s is not None:
        return _counted(replay, replay.starts_s)
    k, w, run = replay.merges, replay.window_s, replay.run_s
    if k == 0:
        return Realised(0.0, 0, 0, "no merge in the schedule", True)
    if replay.schedule_s is None:
        raise BadInput("replay", "neither merge starts nor the schedule's length", "one of them")
    length = max(replay.schedule_s, w)
    even = [(i + 1) * (length - w) / k for i in range(k)]
    estimate = _busy(expand(even, length, w, run, replay.repeat), sum(replay.startup_s) / 2) / w
    gap = max(least_gap_s or w, w)
    first = gap - w

    def started_by(time_s: float) -> tuple[int, int]:
        """Least and most starts up to a time on the replay's clock."""
        if time_s < 0:
            return 0, 0
        passes, rest = divmod(time_s, length) if replay.repeat and length > w else (0.0, time_s)
        low, high = _partial(k, length, w, rest, gap, first, longest_gap_s)
        return int(passes) * k + low, int(passes) * k + high

    # The first gap runs from time 0 and obeys the corridor too: H_min steps, which is the least gap less the merge.
    # Windows over before the first request touch nobody.  At least those that lie wholly inside the measured part ran
    # whole; a window that either end cuts ran in part.
    early, late = (min(t, run) for t in replay.startup_s)
    low = max(started_by(run - w)[0] - started_by(late)[1], 0)
    high = started_by(run)[1] - started_by(early - w)[0]
    if replay.even:
        low, high = max(low, math.floor(estimate) - 1), min(high, math.ceil(estimate) + 1)
    return Realised(min(max(estimate, low), high), low, high, _how(replay, gap), False)


def _partial(
    k: int, length: float, w: float, rest: float, gap: float, first: float, longest: float | None
) -> tuple[int, int]:
    """Least and most starts in [0, rest] of a pass over a schedule with k starts in [0, length - w]."""
    last = length - w
    if abs(rest - last) <= EDGE_S:
        return k - 1, k
    if rest > last:
        return k, k
    after = _fits(rest, last, gap)
    before = _fits(first, rest, gap)
    least, most = max(k - after, 0), min(before, k - 1)
    if longest is not None and longest >= gap and k * longest >= last:
        least = max(least, min(int(rest / longest), k - 1))
        most = max(min(most, k - math.ceil((last - rest) / longest)), least)
    return least, most


def _fits(begin: float, end: float, gap: float) -> int:
    """Most starts within [begin, end] that are at least `gap` apart."""
    return 0 if end < begin else int((end - begin) / gap + 1e-9) + 1


def _counted(replay: Replay, starts_s: tuple[float, ...]) -> Realised:
    windows = expand(starts_s, replay.schedule_s, replay.window_s, replay.run_s, replay.repeat)
    early, late = replay.startup_s
    # Rounded, so that whole windows count as whole.
    low, share, high = (round(_busy(windows, t) / replay.window_s, 9) for t in (late, (early + late) / 2, early))
    # Nothing is in doubt where no window meets the interval in which the first request came.
    return Realised(share, low, high, "counted from the merge log", low == high)


def _busy(windows: Sequence[tuple[float, float]], since: float) -> float:
    return sum(max(end - max(begin, since), 0.0) for begin, end in windows)


def _how(replay: Replay, gap: float) -> str:
    rule = "repeated from its end" if replay.repeat else "not repeated"
    return f"schedule of {replay.schedule_s:.1f} s {rule} in {replay.run_s:.1f} s; merges at least {gap:.1f} s apart"


def longest_gap_s(starts_s: Sequence[float], horizon_s: float) -> float:
    """Longest time without a merge start: from 0 to the first, between starts, and from the last to the horizon."""
    edges = [0.0, *sorted(starts_s), horizon_s]
    return max(b - a for a, b in zip(edges, edges[1:], strict=False))
