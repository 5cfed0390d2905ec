"""Checks that a scheduler can be certified at all: no trace, no sidecar, a few seconds.

Plugin authors run them in their own tests:

    with open_scheduler("my_sched.py") as source:
        assert not [f for f in check_scheduler(source) if f.level == "error"]

May import: ``protocol`` and ``adapters.schedulers``.
"""

from __future__ import annotations

import ast
import os
import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Literal

import numpy as np

from adapters.schedulers.planner import PlannerSource
from adapters.schedulers.process import ProcessSource
from adapters.schedulers.recorded import RecordedSource
from adapters.schedulers.sources import parsed
from protocol.errors import ProtocolError
from protocol.scheduler import CLOCK_SHIFT_S, Decision, IslandObservation, Observation
from protocol.seeds import generator

#: Checks in the order in which they run, and what each one makes sure of.
CHECKS = {
    "starts": "its code loads and constructs",
    "answers": "every observation gets a decision in time",
    "groups": "it names groups of an even number of islands that may merge",
    "repeats": "the same seed gives the same decisions in a fresh process",
    "forgets": "an earlier run does not change a later one",
    "clock": "setting the clock ahead changes nothing",
    "decides": "it sometimes merges and sometimes waits",
    "looks": "the load on the server changes its decisions",
    "sources": "the digest covers every file of its own that it uses",
    "entropy": "its source names no clock and no generator but the one handed in",
    "confined": "nothing but what it is handed reaches it",
    "speed": "decisions are fast enough for thousands of them",
    "memory": "it stays well under its memory limit",
}
#: Slower than this at the 99th percentile, and a default certify waits minutes for the scheduler alone.
_SLOW_S = 0.010
_SUSPECT = {"time": "a clock", "datetime": "a clock", "random": "entropy", "secrets": "entropy", "uuid": "entropy"}


@dataclass(frozen=True)
class Finding:
    """One thing that a check found.  error: certification would refuse it.  warning: it would count against it."""

    check: str
    level: Literal["error", "warning"]
    message: str
    advice: str


def synthetic_observations(seed: int, n: int, n_islands: int = 1, load: float = 1.0) -> list[Observation]:
    """Plausible observations of one horizon: bursty arrivals, merges, idle and saturated moments.

    They are consistent in time but not served by any sidecar.  `load` scales arrivals, queues, serving and
    network pressure and leaves everything else alone.
    """
    traffic, rng = generator(seed, "conformance", "traffic"), generator(seed, "conformance", n_islands)
    decision_steps, step_s, merge_s, h_min, h_max = 8, 0.0735, 8.0, 128, 512
    horizon_s = int(n * (merge_s + h_min * step_s)) + 60
    burst = np.repeat(traffic.random(horizon_s // 30 + 1) < 0.4, 30)[:horizon_s]
    arrivals = np.floor(traffic.poisson(np.where(burst, 12.0, 2.0)) * load)
    tokens = arrivals * traffic.integers(64, 512, horizon_s)
    for series in (arrivals, tokens):
        series.flags.writeable = False
    seen: list[Observation] = []
    time_s, since, merges, trained = h_min * step_s, h_min, 0, h_min
    for _ in range(n):
        second = int(time_s)
        islands = []
        for _ in range(n_islands):
            busy = min(1.0, load * (0.95 if burst[second] else 0.08) * rng.uniform(0.5, 1.05))
            recent = None if rng.random() < 0.1 else float(rng.uniform(0.2, 2.0))
            islands.append(
                IslandObservation(
                    steps_since_merge=since,
                    loss=3.0 / (1.0 + trained / 4000),
                    loss_reduction=0.05 * since / h_max,
                    tokens=since * 4096,
                    staleness_s=since * step_s,
                    network_pressure=load * (0.7 if burst[second] else 0.2),
                    serving_pressure=busy,
                    checkpoint_pressure=float(rng.random() < 0.1),
                    in_flight=int(busy * 16),
                    queued=int(load * rng.integers(0, 20)) if burst[second] else 0,
                    completed=int(arrivals[:second].sum()),
                    recent_e2e_s=recent,
                    recent_ttft_s=None if recent is None else recent / 4,
                )
            )
        seen.append(_fleet(islands, time_s, merges, (h_min, h_max, decision_steps, step_s, merge_s), arrivals, tokens))
        if since + decision_steps >= h_max or rng.random() < 0.05:
            merges, trained, since, time_s = merges + 1, trained + h_min, h_min, time_s + merge_s + h_min * step_s
        else:
            since, time_s, trained = since + decision_steps, time_s + decision_steps * step_s, trained + decision_steps
    return seen


def _fleet(
    islands: list[IslandObservation],
    time_s: float,
    merges: int,
    corridor: tuple[int, int, int, float, float],
    arrivals: np.ndarray[tuple[int], np.dtype[np.float64]],
    tokens: np.ndarray[tuple[int], np.dtype[np.float64]],
) -> Observation:
    def mean(field: str) -> float:
        return float(sum(getattr(i, field) for i in islands) / len(islands))

    def mean_known(field: str) -> float | None:
        known = [getattr(i, field) for i in islands if getattr(i, field) is not None]
        return float(sum(known) / len(known)) if known else None

    return Observation(
        time_s,
        islands[0].steps_since_merge,
        *corridor,
        merges,
        mean("loss"),
        mean("loss_reduction"),
        int(mean("tokens")),
        max(i.staleness_s for i in islands),
        mean("network_pressure"),
        mean("serving_pressure"),
        mean("checkpoint_pressure"),
        sum(i.in_flight for i in islands),
        sum(i.queued for i in islands),
        sum(i.completed for i in islands),
        mean_known("recent_e2e_s"),
        mean_known("recent_ttft_s"),
        arrivals[: int(time_s)],
        tokens[: int(time_s)],
        tuple(islands),
    )


def check_scheduler(
    source: ProcessSource | PlannerSource | RecordedSource, n_decisions: int = 300, seed: int = 1, n_islands: int = 8
) -> list[Finding]:
    """What stands in the way of certifying this scheduler; empty when nothing does.

    Eight runs of `n_decisions` synthetic observations each.  A scheduler that names groups when each of `n_islands`
    has a clock of its own is checked on that fleet, any other on one island.
    """
    if isinstance(source, RecordedSource):
        notes = source.schedule(source.share_s(8.0)).report
        return [Finding("starts", "warning", f"{source.name}: {note}", "see docs/schedulers.md") for note in notes]
    if isinstance(source, PlannerSource):  # a ProcessSource as well
        advice = "give it a causal decide(self, obs) to claim more"
        return [Finding("starts", "warning", f"{source.name}: a planner, so an upper bound at any tier", advice)]
    runs = _Runs(source)
    peers = [_staggered(o) for o in synthetic_observations(seed, n_decisions, n_islands)]
    try:
        named = runs.run(peers, seed)
    except ProtocolError:
        named = []  # what it makes of one island says whether that matters
    grouping = any(decision.groups is not None for decision in named)
    fleet = peers if grouping else synthetic_observations(seed, n_decisions)
    quiet = synthetic_observations(seed, n_decisions, len(fleet[0].islands), load=0.0)
    if grouping:
        quiet = [_staggered(o) for o in quiet]
    advice = "print the observation in decide (prints go to --log), at the time that is named here"
    try:
        first = runs.run(fleet, seed)
    except ProtocolError as error:
        check = "answers" if ", at the decision at " in str(error) else "starts"
        return [Finding(check, "error", str(error), advice)]
    findings: list[Finding] = []
    try:
        if not grouping:
            runs.run(synthetic_observations(seed, n_decisions, n_islands=4), seed)
        source.restart()
        again = runs.run(fleet, seed)
        runs.run(quiet, seed + 1)
        after_another = runs.run(fleet, seed)
        source.clock_shift_s = CLOCK_SHIFT_S
        later = runs.run(fleet, seed)
        source.clock_shift_s = 0.0
        idle = runs.run(quiet, seed)
    except ProtocolError as error:
        return [Finding("answers", "error", str(error), advice)]
    finally:
        source.clock_shift_s = 0.0
    findings += _differs(first, again, fleet, "repeats", "in a second, fresh process", _ENTROPY)
    if not findings:
        findings += _differs(first, after_another, fleet, "forgets", "after a run with another seed", _MEMORY)
        findings += _differs(first, later, fleet, "clock", "when the clock is set ahead", _CLOCK)
    findings += _unmergeable(named, peers) if grouping else []
    findings += _judge(first, idle)
    findings += _inspect(source)
    findings += _costly(source, runs.seconds)
    order = list(CHECKS)
    return sorted(findings, key=lambda finding: order.index(finding.check))


_ENTROPY = "draw from the `rng` that __init__(self, rng) is handed, read no clock, iterate over no set of objects"
_MEMORY = "keep state in the object, not in files or other processes"
_CLOCK = "use obs.time_s; wall-clock time means nothing in a replay"


class _Runs:
    """Runs a scheduler over observations and keeps the time that each decision took."""

    def __init__(self, source: ProcessSource) -> None:
        self.source, self.seconds = source, [0.0]
        self.seconds.clear()

    def run(self, observations: Sequence[Observation], seed: int) -> list[Decision]:
        run = self.source.start((seed, 0))
        decisions = []
        try:
            for observation in observations:
                before = time.perf_counter()
                decisions.append(replace(run.decide(observation), reason=""))
                self.seconds.append(time.perf_counter() - before)
        finally:
            run.close()
        return decisions


def _differs(
    first: list[Decision], other: list[Decision], fleet: list[Observation], check: str, when: str, advice: str
) -> list[Finding]:
    differing = [i for i, (a, b) in enumerate(zip(first, other, strict=True)) if a != b]
    if not differing:
        return []
    at = fleet[differing[0]].time_s
    message = f"{len(differing)} of {len(first)} decisions differ {when}, the first at {at:g} s"
    return [Finding(check, "error", message, advice)]


def _staggered(observation: Observation) -> Observation:
    """The same moment with a clock for each island, so that some are ready to merge and others are not."""
    span = observation.h_max // len(observation.islands)
    steps = [(observation.steps_since_merge + i * span) % observation.h_max for i in range(len(observation.islands))]
    islands = tuple(replace(o, steps_since_merge=s) for o, s in zip(observation.islands, steps, strict=True))
    return replace(observation, islands=islands, steps_since_merge=min(steps))


def _unmergeable(named: list[Decision], fleet: list[Observation]) -> list[Finding]:
    """The first group that the control loop of peer merging would refuse."""
    advice = "pair islands whose steps_since_merge is at least h_min"
    for decision, seen in zip(named, fleet, strict=False):
        for group in decision.groups or ():
            where = f"decision at {seen.time_s:g} s"
            if len(group) % 2:
                return [
                    Finding("groups", "error", f"{where}: a group of {len(group)}; expected an even number", advice)
                ]
            for i in group:
                steps = seen.islands[i].steps_since_merge
                if steps < seen.h_min:
                    found = f"{where}: island {i}, {steps} inner steps after its merge; H_min is {seen.h_min}"
                    return [Finding("groups", "error", found, advice)]
    return []


def _judge(first: list[Decision], idle: list[Decision]) -> list[Finding]:
    findings = []
    merges = sum(d.merge for d in first)
    if merges == 0:
        advice = "without a merge of its own, H_max places every one and nothing is left to certify"
        findings.append(Finding("decides", "warning", f"never merges in {len(first)} decisions", advice))
    elif merges == len(first):
        advice = "it merges at H_min every time, whatever happens"
        findings.append(Finding("decides", "warning", f"merges at each of {len(first)} decisions", advice))
    elif first == idle:
        advice = "read arrivals_per_s, in_flight, queued or serving_pressure: a load-blind policy gains only by luck"
        findings.append(Finding("looks", "warning", "the same decisions with and without load", advice))
    return findings


def _costly(source: ProcessSource, seconds: Sequence[float]) -> list[Finding]:
    findings = []
    slow = float(np.quantile(seconds, 0.99))
    if slow > _SLOW_S:
        message = f"{slow * 1e3:.1f} ms at the 99th percentile of {len(seconds)} decisions"
        findings.append(Finding("speed", "warning", message, "move work that does not change into __init__"))
    if source.peak_mb is not None and source.peak_mb > source.memory_limit_mb / 2:
        message = f"{source.peak_mb:.0f} MB at its peak; the limit is {source.memory_limit_mb} MB"
        findings.append(Finding("memory", "warning", message, "keep summaries, not every observation"))
    return findings


def _inspect(source: ProcessSource) -> list[Finding]:
    findings = []
    if source.undigested:
        files = ", ".join(sorted(source.undigested))
        advice = "put what it reads in its own folder, or import it when it starts"
        findings.append(Finding("sources", "error", f"uses {files}, which the digest does not cover", advice))
    for path in source.files:
        if path.suffix == ".py":
            findings += [Finding("entropy", "warning", m, _ENTROPY) for m in _suspects(path, source.target.folder)]
    for gap in source.confinement.gaps if source.confinement else ():
        findings.append(Finding("confined", "warning", gap, "see docs/security.md; protocol doctor says what is there"))
    return findings


def _suspects(path: Path, folder: Path) -> list[str]:
    """Lines that import a clock or a source of entropy, or use NumPy's global generator."""
    found = []
    tree = parsed(path)
    for node in ast.walk(tree) if tree else ():
        line = f"{os.path.relpath(path, folder)}:{getattr(node, 'lineno', 0)}"
        names: list[str] = []
        if isinstance(node, ast.Import):
            names = [alias.name.partition(".")[0] for alias in node.names]
        elif isinstance(node, ast.ImportFrom) and node.level == 0 and node.module:
            names = [node.module.partition(".")[0]]
        elif isinstance(node, ast.Call) and ast.unparse(node.func) in ("np.random.default_rng", "os.urandom"):
            if not node.args:
                found.append(f"{line} calls {ast.unparse(node)}")
        for name in names:
            if name in _SUSPECT:
                found.append(f"{line} imports {name}, {_SUSPECT[name]}")
    return found
