"""What the page's charts are drawn from: stored numbers, and of rows only counts in bins and percentiles.

The same values are behind the interactive charts and the figures that stand for them in print.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from itertools import count
from typing import Any

import numpy as np
from numpy.typing import NDArray

from protocol.calibration.model import ON_OFF, CalibrationRun
from protocol.evidence.model import OPTIMUM, Evidence
from protocol.merging.corridor import Corridor
from protocol.merging.practice import Practice, Timing
from protocol.replay.measurements import SERVED, Measurements
from protocol.replay.replay import NO_SYNC, POLICY, UNIFORM
from protocol.workload.slo import Slo
from protocol.workload.trace import NS_PER_S
from reports import format as fmt

#: Quantiles of a seed's draws: all of them, 5 to 95 %, the middle half, the median.
QUANTILES = (0.0, 0.05, 0.25, 0.5, 0.75, 0.95, 1.0)
#: Bins of a timeline, timelines of a page, and bins of the time since a merge began.
MOST_BINS, MOST_TIMELINES, MERGE_BINS = 400, 200, 16
#: A merge's surroundings, as shares of its length: from before its start to after its end.
BEFORE, AFTER = 0.5, 1.5
_FROM_ENVELOPE = (
    "gain_pp", "interval_pp", "load_gain_pp", "load_interval_pp", "optimum_gain_pp", "p_holm", "attainable_p",
    "detectable_gain_pp", "min_effect_pp", "requests_saved_per_sidecar_per_10_min", "n_draws",
)  # fmt: skip

Pairs = Sequence[tuple[CalibrationRun, Measurements]]


def chart_data(
    certificate: Mapping[str, Any], evidence: Sequence[Evidence], calibrations: Mapping[str, Pairs]
) -> dict[str, Any]:
    """Plain values for every chart of a page.

    calibrations : by name, the runs of a calibration as measured and as its model serves them.
    """
    most = max(1, MOST_TIMELINES // max(len(certificate["regimes"]), 1))
    claims = [_claim(claim, column, evidence, most) for _, column, claim in with_columns(certificate["claims"])]
    regimes = {r["name"]: _regime(r, [e for e in evidence if e.regime == r["name"]], most) for r in
               certificate["regimes"]}  # fmt: skip
    return {
        "level": fmt.level(certificate),
        "alpha": certificate["settings"]["alpha"],
        "claims": claims,
        "regimes": regimes,
        "transfers": [*_measured(certificate, evidence), *_calibrated(calibrations)],
    }


def with_columns(claims: Sequence[Mapping[str, Any]]) -> Iterator[tuple[int, int, Mapping[str, Any]]]:
    """Each claim with its number and the place of its SLO among the distinct ones of its regime."""
    seen: dict[str, list[str]] = {}
    for index, claim in enumerate(claims):
        slos = seen.setdefault(claim["regime"], [])
        if claim["slo"] not in slos:
            slos.append(claim["slo"])
        yield index, slos.index(claim["slo"]), claim


def excess_pp(e: Evidence, arm: str, column: int, slo: str) -> NDArray[np.float64]:
    """Sync-excess violations of every judged schedule of an arm, percentage points; empty where the arm is missing."""
    limit = Slo.parse(slo)
    idle, found = e.violations(NO_SYNC, limit, column), e.violations(arm, limit, column)
    return 100.0 * (found - idle.mean()) / e.n_requests if len(idle) and e.n_requests else np.empty(0)


# A claim ---------------------------------------------------------------------------------------------------------


def _claim(claim: Mapping[str, Any], column: int, evidence: Sequence[Evidence], most: int) -> dict[str, Any]:
    envelope, slo = claim["envelope"], claim["slo"]
    mine = [e for e in evidence if e.regime == claim["regime"]]
    compared = {row["seed"]: row for row in envelope["per_seed"]}
    placebo = next((c["gain_pp"] for c in envelope["controls"] if c["name"] == "placebo"), None)
    return {
        "key": claim["regime"],
        "regime": fmt.clean(claim["regime"]),
        "slo": fmt.clean(slo),
        "verdict": claim["verdict"],
        "tier": claim["tier"]["number"],
        "tier_name": claim["tier"]["name"],
        **{key: envelope[key] for key in _FROM_ENVELOPE},
        "placebo_pp": placebo,
        "power_curve": envelope.get("power_curve"),
        "tests": [{k: t[k] for k in ("name", "p", "p_at_zero", "smallest_p")} for t in envelope["tests"]],
        "seeds": [_seed(e, compared[e.seed], column, slo) for e in mine if e.seed in compared],
        "missed": {str(e.seed): _missed(e, slo) for e in _shown(mine, most)},
    }


def _seed(e: Evidence, row: Mapping[str, Any], column: int, slo: str) -> dict[str, Any]:
    draws = excess_pp(e, UNIFORM, column, slo)
    bands = np.quantile(draws, QUANTILES).round(6).tolist() if len(draws) else None
    return {key: row[key] for key in ("seed", "policy", "draw_mean", "optimum", "rank", "of")} | {"draws": bands}


def _missed(e: Evidence, slo: str) -> list[int]:
    """Violations of the policy's replay by arrival, one number a bin."""
    rows = _rows(e)
    return [] if rows is None else _counts(rows.arrival_ns[rows.violates(Slo.parse(slo))], *_span(rows))


# A regime's timelines --------------------------------------------------------------------------------------------


def _shown(evidence: Sequence[Evidence], most: int) -> list[Evidence]:
    return [e for e in evidence if _rows(e) is not None][:most]


def _rows(e: Evidence) -> Measurements | None:
    replay = e.replay(POLICY)
    return None if replay is None or not len(replay.rows) else replay.rows


def _regime(regime: Mapping[str, Any], evidence: Sequence[Evidence], most: int) -> dict[str, Any]:
    corridor = Corridor(**regime["corridor"])
    timing = Timing(corridor, Practice(**(regime.get("merge") or {})))
    return {
        "horizon_s": corridor.horizon_ns / NS_PER_S,
        "of": len(evidence),
        "seeds": [_timeline(e, timing, "peer" in regime) for e in _shown(evidence, most)],
    }


def _timeline(e: Evidence, timing: Timing, peers: bool) -> dict[str, Any]:
    """Arrivals and requests in flight in bins, and the merges of three schedules, all in seconds."""
    rows = _rows(e)
    assert rows is not None
    width_s, bins = _span(rows)
    served = rows.outcome == SERVED
    at = ((np.arange(bins) + 0.5) * width_s * NS_PER_S).astype(np.int64)
    began = np.searchsorted(np.sort(rows.arrival_ns[served]), at, side="right")
    ended = np.searchsorted(np.sort((rows.arrival_ns + rows.e2e_ns)[served]), at, side="right")
    return {
        "seed": e.seed,
        "bin_s": width_s,
        "arrivals": _counts(rows.arrival_ns, width_s, bins),
        "in_flight": (began - ended).tolist(),
        "merges": {arm: _windows(e, arm, timing, peers) for arm in (POLICY, OPTIMUM, UNIFORM)},
    }


def _span(rows: Measurements) -> tuple[float, int]:
    """Width of a bin, the least of 1, 2, 5, 10, ... s that takes at most MOST_BINS, and how many there are."""
    end_s = (int(rows.arrival_ns[-1]) + 1) / NS_PER_S
    width = next(m * 10.0**k for k in count(-1) for m in (1, 2, 5) if end_s / (m * 10.0**k) <= MOST_BINS)
    return width, int(np.ceil(end_s / width))


def _counts(times_ns: NDArray[np.int64], width_s: float, bins: int) -> list[int]:
    cells = (times_ns // round(width_s * NS_PER_S)).astype(np.int64)
    return np.bincount(cells, minlength=bins).tolist()


def _windows(e: Evidence, arm: str, timing: Timing, peers: bool) -> list[list[float]]:
    """Begin and end of each merge: as executed on a server, else as placed; the first schedule of an arm."""
    replay = e.replay(arm)
    if replay is not None and len(replay.ran_ns):
        windows = replay.ran_ns
    elif arm in e.placed and len(e.placed[arm]):
        gaps, merges, corridor = e.placed[arm].rows()[0], e.placed[arm].merges_of(0), timing.corridor
        if peers:
            start = np.cumsum(gaps, dtype=np.int64) * corridor.grid_ns
            windows = np.column_stack([start, start + corridor.merge_ns])
        else:
            windows = np.column_stack(timing.schedule(gaps, 1, merges).windows_ns(0))
    else:
        return []
    return [[round(b / NS_PER_S, 3), round(f / NS_PER_S, 3)] for b, f in windows.tolist()]


# Effect transfer -------------------------------------------------------------------------------------------------


def _calibrated(calibrations: Mapping[str, Pairs]) -> Iterator[dict[str, Any]]:
    """Of each load of a calibration: latencies around merges, as measured and as simulated."""
    for name, pairs in calibrations.items():
        chosen = [(run, simulated) for run, simulated in pairs if run.kind == ON_OFF and len(run.merges)]
        for load in dict.fromkeys(run.load for run, _ in chosen):
            mine = [(run, simulated) for run, simulated in chosen if run.load == load]
            merge_s = float(np.median(np.concatenate([run.merges.busy_ns[:, 0] for run, _ in mine]))) / NS_PER_S
            starts = [run.merges.start_ns for run, _ in mine]
            yield _transfer(
                f"{name}, {load}", merge_s,
                real=_around([run.measurements for run, _ in mine], starts, merge_s),
                simulated=_around([simulated for _, simulated in mine], starts, merge_s),
            )  # fmt: skip


def _measured(certificate: Mapping[str, Any], evidence: Sequence[Evidence]) -> Iterator[dict[str, Any]]:
    """Of each regime whose draws a server served: latencies around their merges."""
    for regime in certificate["regimes"]:
        replays = [r for e in evidence if e.regime == regime["name"] and e.served for r in e.replays(UNIFORM)]
        replays = [r for r in replays if r.n_merges]
        if replays:
            merge_s = regime["corridor"]["merge_ns"] / NS_PER_S
            found = _around([r.rows for r in replays], [r.ran_ns[:, 0] for r in replays], merge_s)
            yield _transfer(str(regime["name"]), merge_s, real=found)


def _transfer(name: str, merge_s: float, **sides: Any) -> dict[str, Any]:
    width = merge_s * (BEFORE + AFTER) / MERGE_BINS
    at = [round(-BEFORE * merge_s + (k + 0.5) * width, 4) for k in range(MERGE_BINS)]
    return {"name": fmt.clean(name), "merge_s": round(merge_s, 3), "at_s": at, "sides": sides}


def _around(
    rows: Sequence[Measurements], starts: Sequence[NDArray[np.int64]], merge_s: float
) -> list[dict[str, float | int | None]]:
    """n, p50 and p95 (ms) of the requests that arrived in each bin of time since a merge began."""
    begin_s, width_s = -BEFORE * merge_s, merge_s * (BEFORE + AFTER) / MERGE_BINS
    places, values = [np.empty(0)], [np.empty(0)]
    for m, begins in zip(rows, starts, strict=True):
        e2e_ms = np.where(m.outcome == SERVED, m.e2e_ns / 1e6, np.inf)
        for begin in begins.tolist():
            places.append(np.floor(((m.arrival_ns - begin) / NS_PER_S - begin_s) / width_s))
            values.append(e2e_ms)
    place, value = np.concatenate(places), np.concatenate(values)
    cells = [value[place == k] for k in range(MERGE_BINS)]
    return [{"n": len(cell), **{f"p{q}_ms": _percentile(cell, q) for q in (50, 95)}} for cell in cells]


def _percentile(values: NDArray[np.float64], q: int) -> float | None:
    """Quantile "higher", as everywhere; None of no requests, and where it falls on one that was not served."""
    found = float(np.quantile(values, q / 100, method="higher")) if len(values) else np.inf
    return round(found, 1) if np.isfinite(found) else None
