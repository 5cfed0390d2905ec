"""What a scheduler is shown of a real server: gauges where they are fresh, counts for the rest.

`protocol live` has the counts of its own client; a training loop, which sends no requests, has those of the server's
metrics page (`PageWatch`).  Both states are made by `state_of`.
"""

from __future__ import annotations

import threading
import time
import urllib.request
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from adapters.sidecars.metrics import Gauges, Totals, read_gauges, read_totals
from protocol.replay.replay import Scrape
from protocol.replay.sidecar import ServingState
from protocol.workload.trace import NS_PER_S

#: Span over which latencies and the serving pressure are averaged, as `Observation` says.
RECENT_NS = 5 * NS_PER_S
#: Gauges older than this are not believed any more.
STALE_NS = 2 * NS_PER_S


def state_of(
    looks: Sequence[Scrape], now_ns: int, slots: int, outstanding: int, completed: int,
    recent_e2e_s: float | None, recent_ttft_s: float | None,
) -> ServingState:  # fmt: skip
    """The server now.  looks : at its gauges, in their order.  outstanding : requests sent and not ended."""
    last = looks[-1] if looks else None
    fresh = last is not None and last.waiting is not None and now_ns - last.at_ns <= STALE_NS
    queued = min(last.waiting or 0, outstanding) if fresh and last is not None else 0
    lately = [s for s in looks if s.at_ns > now_ns - RECENT_NS]
    busy = [s.client if s.running is None else s.running for s in lately] or [outstanding]
    return ServingState(
        serving_pressure=min(sum(busy) / len(busy) / slots, 1.0),
        in_flight=outstanding - queued,
        queued=queued,
        completed=completed,
        recent_e2e_s=recent_e2e_s,
        recent_ttft_s=recent_ttft_s,
        telemetry_age_s=(now_ns - last.at_ns) / NS_PER_S if fresh and last is not None else 0.0,
    )


@dataclass(frozen=True)
class _Look:
    at_ns: int
    gauges: Gauges
    totals: Totals


class PageWatch:
    """A thread that looks at a server's metrics page; requests are counted by the page alone.

    A request has arrived once it is running, waiting or answered; what came between two looks counts in the second of
    the later one.  A page that cannot be read leaves what was last known.
    """

    def __init__(self, url: str, slots: int, scrape_s: float = 0.5) -> None:
        """url : of the server; slots : requests that it admits at a time."""
        self.page, self.slots, self.scrape_s = f"{url.rstrip('/')}/metrics", slots, scrape_s
        self._began_ns = time.monotonic_ns()
        self._scrapes: list[Scrape] = []
        self._looks: list[_Look] = []
        self._arrived, self._completed = 0, 0
        self._by_second: list[tuple[float, float]] = []
        self._lock, self._over = threading.Lock(), threading.Event()
        self._thread = threading.Thread(target=self._watch, daemon=True, name="watch")
        self._thread.start()

    def _watch(self) -> None:
        while not self._over.is_set():
            self.look()
            self._over.wait(self.scrape_s)

    def look(self) -> None:
        """One look, whatever it finds."""
        try:
            with urllib.request.urlopen(self.page, timeout=max(1.0, self.scrape_s)) as answer:
                text = answer.read().decode("utf-8", "replace")
        except (OSError, ValueError):
            text = ""
        gauges, now_ns = read_gauges(text), time.monotonic_ns() - self._began_ns
        with self._lock:
            if gauges is not None:
                self._count(_Look(now_ns, gauges, read_totals(text)))
            running, waiting = (None, None) if gauges is None else (gauges.running, gauges.waiting)
            kept = [s for s in self._scrapes if s.at_ns > now_ns - 2 * RECENT_NS]
            self._scrapes = [*kept, Scrape(now_ns, running, waiting, self._outstanding())]

    def _count(self, look: _Look) -> None:
        last = self._looks[-1] if self._looks else look
        completed, prompts = look.totals.answered(last.totals)
        self._completed += completed
        arrived = self._completed + look.gauges.running + look.gauges.waiting
        second = look.at_ns // NS_PER_S
        self._by_second += [(0.0, 0.0)] * (second + 1 - len(self._by_second))
        was = self._by_second[second]
        self._by_second[second] = (was[0] + max(arrived - self._arrived, 0), was[1] + prompts)
        self._arrived = max(arrived, self._arrived)
        kept = [x for x in self._looks if x.at_ns > look.at_ns - 2 * RECENT_NS]
        self._looks = [*kept, look]

    def _outstanding(self) -> int:
        return self._looks[-1].gauges.running + self._looks[-1].gauges.waiting if self._looks else 0

    def state(self) -> ServingState:
        """The server now."""
        with self._lock:
            now_ns, looks = time.monotonic_ns() - self._began_ns, self._looks
            before = next((x for x in reversed(looks) if x.at_ns <= now_ns - RECENT_NS), looks[0] if looks else None)
            e2e_s, ttft_s = (None, None) if before is None else looks[-1].totals.means_s(before.totals)
            found = state_of(self._scrapes, now_ns, self.slots, self._outstanding(), self._completed, e2e_s, ttft_s)
            # Nothing stands in for a page that is gone: what was last known has its age.
            return replace(found, telemetry_age_s=(now_ns - looks[-1].at_ns) / NS_PER_S) if looks else found

    def arrivals(self, seconds: int) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
        """Requests, and their prompt tokens, in each of the first so many full seconds; float64 each."""
        with self._lock:
            table = np.array(self._by_second[:seconds], np.float64).reshape(-1, 2)
        rows = np.zeros((seconds, 2))
        rows[: len(table)] = table
        return rows[:, 0], rows[:, 1]

    def close(self) -> None:
        self._over.set()
        self._thread.join(10)
