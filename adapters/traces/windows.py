"""A real trace cut into windows: the strata, and the unit of replication, of a campaign on recorded load."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from protocol.errors import BadInput
from protocol.workload.trace import NS_PER_S, RequestTrace, seconds_to_ns


@dataclass(frozen=True, eq=False)
class Cut:
    """windows : non-empty windows in order, each re-based at 0; fitting : windows of that width that fit the trace;
    empty : positions, from 0, of windows without a request, which were left out; unused_s : what no window covers.
    begins_ns : where each window begins in the trace.
    """

    windows: tuple[RequestTrace, ...]
    fitting: int
    empty: tuple[int, ...]
    unused_s: float
    begins_ns: tuple[int, ...] = ()

    @property
    def report(self) -> str:
        """One line for the user."""
        n, left_out = len(self.windows), f"; {len(self.empty)} empty windows left out" if self.empty else ""
        used = f"{n} windows, all that fit" if n == self.fitting else f"{n} of {self.fitting} windows used"
        return f"{used}{left_out}; {self.unused_s:.1f} s of the trace unused"


def cut(
    trace: RequestTrace, n_max: int, horizon_s: float, cooldown_s: float, begins_ns: Sequence[int] | None = None
) -> Cut:
    """Consecutive windows of horizon_s + cooldown_s seconds that do not overlap, at most n_max non-empty ones.

    begins_ns : where a window may begin, rising; None: where the last one ended.
    A trace lasts until one mean gap after its last arrival (nobody recorded when the observation ended).

    Raises BadInput for a width that is not positive, and when fewer than two non-empty windows fit.
    """
    width_ns = seconds_to_ns(horizon_s + cooldown_s)
    if width_ns <= 0 or horizon_s <= 0 or cooldown_s < 0:
        raise BadInput(f"windows of {trace.name}", f"{horizon_s:g} + {cooldown_s:g} s", "a positive width")
    if n_max < 2:
        raise BadInput(f"windows of {trace.name}", f"{n_max} asked for", "at least 2")
    end_ns = _end_ns(trace)
    places = _places(end_ns, width_ns, begins_ns)
    found: list[RequestTrace] = []
    begun: list[int] = []
    empty: list[int] = []
    position = 0
    while position < len(places) and len(found) < n_max:
        begin = places[position]
        window = trace.window(begin, begin + width_ns, f"{trace.name}[{position}]")
        if len(window):
            found.append(window)
            begun.append(begin)
        else:
            empty.append(position)
        position += 1
    if len(found) < 2:
        where = (
            "" if begins_ns is None else ", each from the end of a logged merge on (--log-zero: where the trace begins)"
        )
        raise BadInput(
            f"trace {trace.name}",
            f"{end_ns / NS_PER_S:.1f} s, {len(found)} non-empty windows of {horizon_s:g} + {cooldown_s:g} s",
            f"at least 2 windows: they are the replicates{where}",
        )
    unused_s = (end_ns - position * width_ns) / NS_PER_S
    return Cut(tuple(found), len(places), tuple(empty), unused_s, tuple(begun))


def fitting(trace: RequestTrace, horizon_s: float, cooldown_s: float, begins_ns: Sequence[int]) -> int:
    """How many windows of `cut` there are room for, empty ones among them."""
    return len(_places(_end_ns(trace), seconds_to_ns(horizon_s + cooldown_s), begins_ns))


def _end_ns(trace: RequestTrace) -> int:
    last_ns = int(trace.arrival_ns[-1]) if len(trace) else 0
    return last_ns + last_ns // (len(trace) - 1) if len(trace) > 1 else last_ns


def _places(end_ns: int, width_ns: int, begins_ns: Sequence[int] | None) -> Sequence[int]:
    """Where windows begin that lie in the trace whole and apart."""
    if begins_ns is None:
        return range(0, end_ns - width_ns + 1, width_ns)
    found: list[int] = []
    for begin in begins_ns:
        if 0 <= begin <= end_ns - width_ns and (not found or begin >= found[-1] + width_ns):
            found.append(begin)
    return found


def windows(trace: RequestTrace, n_max: int, horizon_s: float, cooldown_s: float) -> list[RequestTrace]:
    """The windows of `cut`, without its report."""
    return list(cut(trace, n_max, horizon_s, cooldown_s).windows)
