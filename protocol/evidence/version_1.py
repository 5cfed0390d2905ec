"""Raw files as version 1 wrote them, as far as they differ: the arms' names, and live sessions in segments."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from protocol.evidence.model import Evidence, Probe
from protocol.files import from_json
from protocol.parquet import read_table
from protocol.replay.measurements import Measurements
from protocol.replay.replay import NO_SYNC, POLICY, UNIFORM, LiveDecision, Replay, Scrape

SEGMENTS = "segments.parquet"
#: How version 1 called an arm: which it is now, and which of its replays.
ARMS = {"no-sync-again": (NO_SYNC, 1)}
_LIVE_ARMS = {
    "no-sync-before": (NO_SYNC, 0), "policy": (POLICY, 0), "random": (UNIFORM, 0), "no-sync-after": (NO_SYNC, 1),
}  # fmt: skip
_DECISION = ("due_ns", "asked_ns", "answered_ns", "merge", "said")


def read_session(folder: Path) -> list[Evidence]:
    """The blocks of a live session of version 1, in order; the regime's name is not in its files.

    Raises BadInput naming a file or column that is missing or broken, KeyError and the like on contents of other kinds.
    """
    tables = {
        name: read_table(folder / f"{name}.parquet", None)
        for name in ("decisions", "merges", "requests", "scrapes", "segments")
    }
    rows = {name: tables[name].to_pylist() for name in ("decisions", "merges", "scrapes")}
    requests, of_request = tables["requests"], tables["requests"]["segment"].to_numpy()
    blocks: dict[int, list[tuple[dict[str, Any], Replay]]] = {}
    for number, segment in enumerate(tables["segments"].to_pylist()):
        windows = {
            kind: np.array(
                [(m["begin_ns"], m["end_ns"]) for m in rows["merges"] if (m["segment"], m["kind"]) == (number, kind)]
            )
            for kind in ("planned", "ran")
        }
        arm, draw = _LIVE_ARMS[segment["arm"]]
        replay = Replay(
            rows=Measurements.from_table(requests.filter(pa.array(of_request == number))),
            planned_ns=windows["planned"].astype(np.int64),
            ran_ns=windows["ran"].astype(np.int64),
            died=segment["load_problem"],
            failures=from_json(segment["failures"]),
            decisions=tuple(
                LiveDecision(*(d[name] for name in _DECISION)) for d in rows["decisions"] if d["segment"] == number
            ),
            scrapes=tuple(
                Scrape(s["at_ns"], s["running"], s["waiting"], s["client"])
                for s in rows["scrapes"]
                if s["segment"] == number
            ),
            seed=segment["block"],
            arm=arm,
            draw=draw,
            position=list(_LIVE_ARMS.values()).index((arm, draw)),
        )
        blocks.setdefault(segment["block"], []).append((segment, replay))
    return [_block(number, segments) for number, segments in sorted(blocks.items())]


def _block(number: int, segments: list[tuple[dict[str, Any], Replay]]) -> Evidence:
    first = segments[0][1].rows
    probes = tuple(
        Probe("determinism", None, described["replay_difference"]) for described, r in segments if r.arm == POLICY
    )
    return Evidence(
        regime="",
        seed=number,
        trace_digest=segments[0][0]["trace_digest"],
        n_requests=len(first),
        prompt_tokens=int(first.prompt_tokens.sum()),
        output_tokens=int(first.asked_tokens.sum()),
        forced=sum(d.merge and d.said is None for _, r in segments for d in r.decisions),
        corridor_violation=None,
        replay_difference=None,
        probes=probes,
        served=tuple(r for _, r in segments),
    )
