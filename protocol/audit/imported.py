"""What published results come to once read: runs, calibration runs, claims, and what a file format can support."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

from protocol.audit.windows import Replay
from protocol.replay.measurements import Measurements

#: A seed or a cluster as the file names it.
Name = int | str
Kind = Literal["better", "not better", "transfer", "no transfer", "measured"]


@dataclass(frozen=True)
class Support:
    """What a format can support.  rows : "per-request", "per-run" or "summary".  start : which start times it holds.

    undecidable : gate to the reason why files of this format alone cannot decide it.
    """

    format: str
    rows: str
    clock: str
    units: str
    start: str
    undecidable: Mapping[str, str]


@dataclass(frozen=True)
class Run:
    """One run of one arm, as published; None is unknown.

    violation_pct : share of requests that missed the SLO, percent; may be NaN as published.
    replay : what is known of the merges that ran; draws : the same of every draw when the run is a mean over draws.
    merges : realised merges where the file states them.  label_windows : least and most windows that the requests'
    own in-window labels suggest.  offered : what load was offered, in words or as "sha256:..." of arrivals and
    tokens; equal texts on two seeds mean one and the same load.  derived : how a value was obtained that was not
    printed itself.  unjudged : why there is no violation rate, where the file lacks what the SLO limits.
    cluster : what the run shares with others of one comparison (one run of several pods); runs of one cluster are one
    replicate.  steps_per_s : least and most inner training steps a second behind the schedule.
    achieved : achieved over offered rate.  late_ms : how late the client sent, the 99th percentile.
    """

    regime: str
    arm: str
    seed: Name | None
    violation_pct: float | None
    requests: int | None = None
    draw: int | None = None
    replay: Replay | None = None
    draws: tuple[Replay, ...] = ()
    merges: float | None = None
    transfer: float | None = None
    simulated_transfer: float | None = None
    offered: str | None = None
    label_windows: tuple[float, float] | None = None
    derived: str = ""
    unjudged: str = ""
    cluster: Name | None = None
    steps_per_s: tuple[float, float] | None = None
    achieved: float | None = None
    late_ms: float | None = None

    @property
    def unit(self) -> Name | None:
        """The replicate that the run belongs to: its cluster, else its seed."""
        return self.seed if self.cluster is None else self.cluster


@dataclass(frozen=True)
class Aggregate:
    """An arm published as mean and standard deviation over n runs; replays : schedules known to be its own."""

    arm: str
    n: int
    mean_pct: float
    sd_pct: float
    tokens_per_s: float | None = None
    replays: tuple[Replay, ...] = ()


@dataclass(frozen=True)
class Transfer:
    """One calibration run: p95 in windows over p95 outside, for merge windows and for high pressure."""

    name: str
    group: str
    sync: float | None
    pressure: float | None
    simulated_pressure: float | None
    requests: int | None


@dataclass(frozen=True)
class Claim:
    """A published claim.  policy, versus : arms, or for transfers the group.  printed_p : None where none is given."""

    text: str
    kind: Kind
    policy: str
    versus: str = ""
    printed_p: str | None = None


@dataclass(frozen=True)
class Finding:
    """Something that the numbers say beside the claims.  value : what it is, in short; text : what it means."""

    name: str
    value: str
    text: str


@dataclass(frozen=True)
class Comparison:
    """Runs that were compared with each other.

    corridor_s : least and greatest seconds between merge starts that the claimed corridor allows, as far as known.
    random_arm : the matched random control; None, with `control_reason`, where no arm is called so or several are.
    printed : published numbers and what they come to when recomputed.
    """

    name: str
    title: str
    runs: tuple[Run, ...] = ()
    claims: tuple[Claim, ...] = ()
    transfers: tuple[Transfer, ...] = ()
    aggregates: tuple[Aggregate, ...] = ()
    random_arm: str | None = None
    control_reason: str = ""
    corridor_s: tuple[float | None, float | None] = (None, None)
    notes: tuple[str, ...] = ()
    printed: tuple[tuple[str, str, str], ...] = ()
    table: Mapping[str, Any] | None = None
    findings: tuple[Finding, ...] = ()


@dataclass(frozen=True)
class Imported:
    """What one file gave."""

    path: Path
    support: Support
    log: Measurements | None = None
    name: str = ""
    facts: Mapping[str, Any] = field(default_factory=dict)
