"""How far a server's gauges lag behind it, found by comparing them with what its client had under way.

Seen on a vLLM: gauges at 0 for 18 s after the start, and 5 s behind afterwards.  A scheduler that decides by them then
decides by the load of 5 s ago, however fresh the page is that it reads them from.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from protocol.replay.replay import Scrape
from protocol.workload.trace import NS_PER_S

#: Lags that are tried.
STEP_S, MOST_S = 0.25, 15.0
#: A lag is seen when gauges that late are nearer to the counts than gauges of the moment by this share of the distance.
FITS_BETTER = 0.8
#: Fewer looks show nothing.
FEWEST_LOOKS = 20


@dataclass(frozen=True)
class Lag:
    """What the gauges of a session show of their age.

    blind_s : from the first look at which the client had requests under way to the first at which the gauges had any.
    lag_s : how far they were behind afterwards, 0 where they were not; None where too little moved to tell.
    distance, distance_at_0 : mean distance in requests between gauges and counts, at that lag and without one.
    looks : that were compared.
    """

    blind_s: float
    lag_s: float | None
    distance: float
    distance_at_0: float
    looks: int

    def __str__(self) -> str:
        if self.lag_s is None:
            return f"gauges blind for {self.blind_s:.1f} s; their lag cannot be told from {self.looks} looks"
        return (
            f"gauges blind for {self.blind_s:.1f} s, then {self.lag_s:.2f} s behind (mean distance from the client's "
            f"counts {self.distance:.2f} requests, {self.distance_at_0:.2f} without a lag; {self.looks} looks)"
        )


def gauge_lag(replays: Sequence[Sequence[Scrape]]) -> Lag | None:
    """The lag of a session's gauges over its replays, in their order; None where no look found any gauge.

    A replay begins without requests.  The first moments of the session, before the gauges moved at all, are its blind
    spell; what comes after is compared: gauges now with counts before.
    """
    series = [found for replay in replays if len((found := _series(replay))[0])]
    if not series:
        return None
    blind_s, after_s = _blind(*series[0])
    kept = [(t, gauge, t >= after_s if k == 0 else np.ones(len(t), bool)) for k, (t, gauge, _) in enumerate(series)]
    looks = int(sum(rows.sum() for _, _, rows in kept))
    lags = np.arange(0.0, MOST_S + STEP_S / 2, STEP_S)
    distances = np.array([
        np.concatenate([
            np.abs(gauge - np.interp(t - lag, t, client, left=0.0))[rows]
            for (t, gauge, rows), (_, _, client) in zip(kept, series, strict=True)
        ]).mean() if looks else np.nan
        for lag in lags
    ])  # fmt: skip
    moved = len(np.unique(np.concatenate([client for _, _, client in series]))) > 1
    if looks < FEWEST_LOOKS or not moved:
        return Lag(blind_s, None, float(distances[0]), float(distances[0]), looks)
    best = int(np.argmin(distances))
    if distances[best] > FITS_BETTER * distances[0]:
        best = 0
    return Lag(blind_s, float(lags[best]), float(distances[best]), float(distances[0]), looks)


_Series = tuple[NDArray[np.float64], NDArray[np.float64], NDArray[np.float64]]


def _series(looks: Sequence[Scrape]) -> _Series:
    """Seconds, requests by the gauges, and by the client, of the looks that found gauges."""
    found = [s for s in looks if s.running is not None and s.waiting is not None]
    table = [(s.at_ns / NS_PER_S, (s.running or 0) + (s.waiting or 0), s.client) for s in found]
    columns = np.array(table, np.float64).reshape(-1, 3).T
    return columns[0], columns[1], columns[2]


def _blind(t: NDArray[np.float64], gauge: NDArray[np.float64], client: NDArray[np.float64]) -> tuple[float, float]:
    """Length of the blind spell, and when it ended (the end of the replay where it did not)."""
    busy = np.flatnonzero(client > 0)
    if not len(busy):
        return 0.0, float(t[0])
    seen = np.flatnonzero(gauge > 0)
    if not len(seen):
        return float(t[-1] - t[busy[0]]), np.inf
    return max(float(t[seen[0]] - t[busy[0]]), 0.0), float(t[seen[0]])
