"""The log of a training loop: what each merge was, and what was lost.  `protocol certify` and `logs inspect` read it.

JSON lines, times in seconds since the log began, by one clock: `begin` (calendar time, scheduler, corridor), `merge`
(`start_s`, `end_s`, `fragment`, `committed`, `bytes` a replica, `participants`, `steps`), `joined`, `healed`, `left`
(with the inner steps that were lost), `end`.
"""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from protocol.errors import BadInput
from protocol.regimes.regime import Regime
from protocol.workload.trace import NS_PER_S

#: Commits so far, and tries of the one that is due.
Turn = tuple[int, int]


@dataclass
class _Merge:
    """One that is under way, or over and not yet written: a replica that catches up may still report."""

    start_s: float
    fragment: int
    steps: int
    waiting: set[str]
    end_s: float | None = None
    committed: bool = False
    bytes: int = 0
    participants: set[str] = field(default_factory=set)
    lost: dict[str, int] = field(default_factory=dict)


class LoopLog:
    """Written by the coordinator as replicas report.  Raises BadInput where the file is there already."""

    def __init__(self, path: Path, about: Mapping[str, Any], regime: Regime) -> None:
        try:
            self._file = path.open("x", encoding="utf-8")
        except FileExistsError:
            raise BadInput(str(path), "a file that is there already", "a new file for the log") from None
        except OSError as error:
            raise BadInput(str(path), str(error.strerror), "a file that can be written") from None
        self._lock, self.began_ns = threading.RLock(), time.monotonic_ns()
        self._steps: dict[str, int] = {}
        self._merges: dict[Turn, _Merge] = {}
        #: Which merge each replica is in.
        self._in: dict[str, Turn] = {}
        corridor = regime.corridor()
        pace = {"h_min": corridor.h_min, "h_max": corridor.h_max, "decision_steps": corridor.decision_steps}
        now = datetime.now(UTC).isoformat()
        self._write({"event": "begin", "time": now, **about, **pace, "fragments": regime.merge.fragments})

    def _write(self, values: Mapping[str, Any]) -> None:
        if not self._file.closed:
            self._file.write(json.dumps(values) + "\n")
            self._file.flush()

    def _now_s(self) -> float:
        return round((time.monotonic_ns() - self.began_ns) / NS_PER_S, 6)

    def event(self, what: str, **values: object) -> None:
        """Something that is no merge, now."""
        with self._lock:
            self._write({"event": what, "at_s": self._now_s(), **values})

    @property
    def replicas(self) -> frozenset[str]:
        """That joined and have not left."""
        with self._lock:
            return frozenset(self._steps)

    def joined(self, replica: str) -> None:
        with self._lock:
            self._steps[replica] = 0
            self.event("joined", replica=replica)

    def trained(self, replica: str, steps: int) -> None:
        """Inner steps since the replica's last merge, as it last said."""
        with self._lock:
            self._steps[replica] = steps

    def begins(self, replica: str, turn: Turn, fragment: int, steps: int, follows: bool) -> None:
        """A replica sends.  One that follows the fleet may wait for it, which is no merge yet."""
        with self._lock:
            self._steps[replica] = steps
            if follows:
                return
            if turn not in self._merges:
                self._flush()
                self._merges[turn] = _Merge(self._now_s(), fragment, steps, set())
            self._merges[turn].waiting.add(replica)
            self._in[replica] = turn

    def ends(self, replica: str, *, committed: bool, healed: bool, n_bytes: int) -> None:
        """A replica has applied a fragment, or given it up."""
        with self._lock:
            lost, self._steps[replica] = self._steps.get(replica, 0), 0
            if healed:
                self.event("healed", replica=replica, steps_lost=lost)
            turn = self._in.pop(replica, None) or next(reversed(self._merges), None)
            merge = None if turn is None else self._merges.get(turn)
            if merge is None:
                return
            merge.participants.add(replica)
            merge.committed, merge.bytes = merge.committed or committed, max(merge.bytes, n_bytes)
            if not committed:
                merge.lost[replica] = lost
            self._done(merge, replica)

    def _done(self, merge: _Merge, replica: str) -> None:
        merge.waiting.discard(replica)
        if not merge.waiting and merge.participants and merge.end_s is None:
            merge.end_s = self._now_s()

    def left(self, replica: str, bye: bool) -> None:
        """A replica is gone; without a goodbye what it had trained since its last merge is lost."""
        with self._lock:
            steps = self._steps.pop(replica, 0)
            self.event("left", replica=replica, **({} if bye else {"steps_lost_at_least": steps}))
            turn = self._in.pop(replica, None)
            if turn in self._merges:
                self._done(self._merges[turn], replica)

    def _flush(self) -> None:
        """Write the merges that are over; who follows may still have reported until the next began."""
        for turn in [t for t, m in self._merges.items() if m.end_s is not None]:
            merge = self._merges.pop(turn)
            self._write({
                "event": "merge", "start_s": merge.start_s, "end_s": merge.end_s, "fragment": merge.fragment,
                "committed": merge.committed, "bytes": merge.bytes, "participants": sorted(merge.participants),
                "steps": merge.steps, **({"steps_lost": merge.lost} if merge.lost else {}),
            })  # fmt: skip

    def close(self) -> None:
        """The end; a merge that is under way is none."""
        with self._lock:
            if self._file.closed:
                return
            self._flush()
            self.event("end")
            self._file.close()
