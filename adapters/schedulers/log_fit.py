"""What a regime and the windows of a trace take from a merge log: its corridor, its lengths, where its merges end."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from statistics import median
from typing import Any

import numpy as np
from numpy.typing import NDArray

from adapters.schedulers.merge_logs import RecordedSchedule
from adapters.schedulers.recorded import RecordedSource, is_log
from protocol.errors import BadInput
from protocol.merging.logged import snapped
from protocol.merging.practice import Practice, Timing
from protocol.reading import read
from protocol.regimes.regime import Regime
from protocol.workload.trace import NS_PER_S, seconds_to_ns


@dataclass(frozen=True)
class LogFit:
    """A merge log as far as a regime and a trace need it.

    source : the log; None where a certificate states what was taken from it.  corridor : whether pace and horizon come
    from the log.  stated, begins_ns, stated_alike : of a certificate: the changes of a regime, where windows begin, and
    whether merges are all alike.
    """

    name: str
    source: RecordedSource | None = None
    corridor: bool = False
    stated: Mapping[str, Any] = field(default_factory=dict)
    begins_ns: tuple[int, ...] = ()
    stated_alike: bool = True

    def alike(self, regime_merge_s: float) -> bool:
        """Whether every merge is of the whole model, committed, and as long as the regime's: as a calibration's are."""
        if self.source is None:
            return self.stated_alike
        made = self.source.schedule(regime_merge_s).schedule
        same = bool((made.busy_ns == seconds_to_ns(regime_merge_s)).all() and made.committed.all())
        return same and not made.fragment.any()

    def ends_ns(self, regime: Regime, horizon_s: float) -> tuple[int, ...]:
        """When its merges end: windows of a trace begin there, with a whole wait before their first merge.

        Of a log that says how far it goes, only where a window of this horizon still lies in it.
        """
        if self.source is None:
            return self.begins_ns
        recorded = self.source.schedule(regime.merge_s)
        ends = recorded.schedule.windows_ns(0)[1]
        if recorded.span_s is not None:
            ends = ends[ends + seconds_to_ns(horizon_s) <= seconds_to_ns(recorded.span_s)]
        return tuple(ends.tolist())

    def changes(self, regime: Regime, whole: bool) -> dict[str, Any]:
        """What it changes of a regime.  whole : the log is judged from its time 0 to its end, not by windows.

        Raises BadInput where both name fragments, and other numbers of them; where merges leave no decision between.
        """
        if self.source is None:
            given = dict(self.stated)
            return given | ({"merge": read(Practice, given["merge"], self.name)} if "merge" in given else {})
        found, practice, fragments = dict[str, Any](), regime.merge, self.source.fragments
        if fragments > 1 and practice.fragments not in (1, fragments):
            logged = f"{fragments} fragments of {self.name}"
            raise BadInput(f"regime {regime.name}, merge.fragments", logged, f"{practice.fragments}")
        # A regime's merges are of the whole model or, where it has fragments, of one.
        each_s = regime.merge_s if practice.fragments > 1 else self.source.share_s(regime.merge_s)
        recorded = self.source.schedule(each_s)
        if self.corridor and recorded.said_s is not None:
            # The log's lengths hold, and their median for merges without one, as it will when the log is judged.
            each_s = recorded.said_s
            recorded = self.source.schedule(each_s)
        if fragments > 1:
            practice = practice.replace(fragments=fragments)
            found |= {"merge": practice, "merge_s": each_s}
        if self.corridor and len(recorded.schedule):
            found |= self._pace(recorded, regime, practice, whole)
        return found

    def _pace(self, recorded: RecordedSchedule, regime: Regime, practice: Practice, whole: bool) -> dict[str, Any]:
        took, start = recorded.schedule.busy_ns.max(axis=1), recorded.schedule.start_ns
        corridor = regime.replace(merge=Practice()).corridor()
        end = start + practice.length_ns(took, corridor.step_ns)
        waits = (start - np.concatenate([[0], end[:-1]])) / corridor.grid_ns
        asked = waits if whole else waits[1:]
        if not len(asked) or asked.min() < 1:
            raise self._nothing_between(start, asked, whole)
        # On the grid, which begins anew where the last merge ended, a wait is a whole one beside what it was.
        least, most = int(np.floor(asked.min())), int(np.ceil(asked.max()))
        steps = [
            (gap * regime.decision_steps + practice.sync_delay_steps) * practice.fragments for gap in (least, most)
        ]
        changes: dict[str, Any] = {"h_min": steps[0], "h_max": steps[1], "merge_s": median(took.tolist()) / NS_PER_S}
        if whole:
            moved = snapped(recorded.schedule, Timing(corridor, practice))[0].start_ns[-1] + (end - start)[-1]
            span_ns = 0 if recorded.span_s is None else round(recorded.span_s * NS_PER_S)
            latest = moved + (most - 1) * corridor.grid_ns
            changes["horizon_s"] = float(max(moved, min(span_ns, latest)) / NS_PER_S)
        return changes

    def _nothing_between(self, start: NDArray[np.int64], asked: NDArray[np.float64], whole: bool) -> BadInput:
        where = f"{self.name}, --corridor from-log"
        if not len(asked):
            return BadInput(where, "one merge", "two or more, with inner steps between")
        at = int(np.argmin(asked)) + (0 if whole else 1)
        since = "time 0" if at == 0 else f"merge {at} ended"
        found = f"merge {at + 1} at {start[at] / NS_PER_S:g} s, with no decision since {since}"
        return BadInput(where, found, "a decision between: another --log-zero, --log-merge-s or --decision-steps")

    def applied(self, regime: Regime, whole: bool) -> Regime:
        """The regime with what the log changes, under a name that says so."""
        changes = self.changes(regime, whole)
        named = {"name": f"{regime.name} with {self.name}"} if changes and whole else {}
        return regime.replace(**changes, **named) if changes else regime


def fit_of(spec: str, corridor: bool) -> LogFit | None:
    """Of a merge log that stands for a scheduler; None where something else does."""
    if not is_log(spec):
        return None
    source = RecordedSource(spec)
    return LogFit(source.name, source, corridor)
