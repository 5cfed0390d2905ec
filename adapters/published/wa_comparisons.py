"""The comparisons that the WA-DiLoCo artifact makes, put together from its files."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from adapters.published import parsing
from adapters.published.wa_cells import four, mean_sd, scaled, stored
from adapters.published.wa_diloco import (
    STAGE_11_COLUMNS,
    MergeLog,
    RunSummary,
    label_windows,
    replay_of,
    startup_s,
)
from adapters.published.wa_findings import bursty_clock, offline_tests, pace_finding, plan_finding, steady_clock
from adapters.published.wa_schedules import FIXED, Pace, offline_starts, pace_of, random_starts, steps_per_s
from protocol.audit.imported import Aggregate, Claim, Comparison, Finding, Run, Transfer
from protocol.audit.windows import Replay, longest_gap_s
from protocol.errors import BadInput
from protocol.stats.randomization import sign_flip

INTRODUCTION = (
    "The WA-DiLoCo artifact (Not Every Sync Is Safe; github.com/maincodeMax/workload-aware-diloco, first release, "
    "2026-06-09) publishes its replay scripts and per-run summaries, which is what makes this audit possible, and "
    "states itself that WA-DiLoCo and its online variant tie with matched random deferral.  That conclusion stands "
    "here.  The audit asks what else the published numbers license under this project's gates, and recomputes them.  "
    "The artifact carries no licence file; its figures are cited, its files are not part of this project.",
    "Two things in the numbers are easily overlooked.  The replay clock starts before the server does, and a schedule "
    "shorter than the replay starts anew at its end, so arms that logged the same number of merges in training did not "
    "run the same number of merge windows in the replay.  And the client waits for each batch before it sends the "
    "next, so a slower server is asked less.",
)
#: Random draws a seed.
_DRAWS = 5
_ONLINE, _OFFLINE, _WA, _RANDOM = "online_calibrated_wa", "stage12_calibrated_replay", "wa_diloco", "random_matched"


@dataclass
class Artifact:
    """All files of the artifact that were given."""

    stage10: list[Mapping[str, Any]] = field(default_factory=list)
    stage11: list[tuple[str, Mapping[str, Any]]] = field(default_factory=list)
    stage13: list[tuple[str, Mapping[str, Any]]] = field(default_factory=list)
    stage14: list[Mapping[str, Any]] = field(default_factory=list)
    summaries: list[RunSummary] = field(default_factory=list)
    logs: list[MergeLog] = field(default_factory=list)
    printed: dict[str, dict[str, str]] = field(default_factory=dict)
    tests: dict[str, tuple[str, list[float]]] = field(default_factory=dict)

    def comparisons(self) -> list[Comparison]:
        steady = {regime: _steady_runs(self, regime) for regime in ("sync", "pressure")}
        pace = pace_of(steady["sync"] or steady["pressure"])
        found = [_transfer(self)] if self.stage10 or self.calibrations() else []
        found += [_steady(self, regime, runs, pace) for regime, runs in steady.items() if runs]
        bursty = [s for s in self.summaries if s.regime == "bursty" and s.arm is not None]
        if bursty or self.stage13:
            found.append(_bursty(self, bursty, steady["sync"] or steady["pressure"], pace))
        if self.stage14:
            found.append(_collectives(self))
        return found

    def calibrations(self) -> list[RunSummary]:
        return [s for s in self.summaries if s.seed is None]

    def starts(self, summary: RunSummary) -> tuple[float, ...] | None:
        """Merge starts of a run whose log was given too, matched by the path that its summary names."""
        if summary.log is None:
            return None
        tail = summary.log.split("/")
        matches = [log for log in self.logs if list(log.path.parts[-len(tail) :]) == tail]
        if not matches:
            return None
        if summary.merges is not None and len(matches[0].starts_s) != summary.merges:
            found = f"{len(matches[0].starts_s)} merges"
            raise BadInput(str(matches[0].path), found, f"{summary.merges}, as {summary.path.name} says")
        return matches[0].starts_s


# Stage 10 --------------------------------------------------------------------------------------------------------


def _transfer(artifact: Artifact) -> Comparison:
    rows = []
    for row in artifact.stage10:
        where = f"stage 10, {row['run']}"
        values = [parsing.maybe_number(where, row.get(n)) for n in ("real_sync_ratio", "real_high_low", "sim_high_low")]
        requests = row.get("real_requests")
        rows.append((str(row["run"]), values, None if requests is None else parsing.whole(where, requests)))
    named = {name for name, _, _ in rows}
    for s in artifact.calibrations():
        name = s.path.parent.name if s.path.stem == "summary" else s.path.stem
        if name not in named:
            rows.append((name, [s.sync_ratio, s.high_low, s.simulated_high_low], s.requests))
    transfers = tuple(Transfer(name, _group(name), v[0], v[1], v[2], n) for name, v, n in rows)
    cells = {"sync ratio": 0, "real high/low p95": 1, "sim high/low": 2}
    printed = [
        (f"{name}, {column}", artifact.printed[name][column], four(values[at]))
        for name, values, _ in rows
        if name in artifact.printed
        for column, at in cells.items()
        if column in artifact.printed[name]
    ]
    table = {
        "columns": ["run", *cells],
        "rows": [[name, *[four(values[at]) for at in cells.values()]] for name, values, _ in rows],
    }
    return Comparison(
        "stage 10",
        "Effect transfer on vLLM sidecars",
        claims=(
            Claim("Ordinary sidecars show no transfer of merge windows", "no transfer", "ordinary", "sync"),
            Claim("Ordinary sidecars show no transfer of pressure", "no transfer", "ordinary", "pressure"),
            Claim("Sync-heavy stress transfers to p95 in merge windows", "transfer", "sync-heavy", "sync"),
            Claim("Pressure-heavy stress transfers to p95 under pressure", "transfer", "pressure-heavy", "pressure"),
        ),
        transfers=transfers,
        printed=tuple(printed),
        table=table,
        notes=(
            "Ratios are p95 of requests that start in merge windows (or high pressure) over p95 of the others, one run "
            "a configuration: requests of one batch share one latency, so only repeated runs would give an interval.",
        ),
    )


def _group(name: str) -> str:
    return next((group for group in ("sync-heavy", "pressure-heavy") if group in name), "ordinary")


# Stage 11 --------------------------------------------------------------------------------------------------------


def _steady_runs(artifact: Artifact, regime: str) -> list[Run]:
    """Rows of the full table, completed by the runs' own summaries; what all given summaries share is taken to hold
    for the rest (replay length, window, repetition, tokens a request, load)."""
    mine = [s for s in artifact.summaries if s.arm is not None and s.seed is not None and s.regime == regime]
    by_run = {(s.arm, s.seed): s for s in mine}
    shared = _shared([s for s in artifact.summaries if s.regime in ("sync", "pressure") and s.seed is not None])
    runs = []
    for where, row in artifact.stage11:
        if row["regime"] != regime:
            continue
        seed = parsing.whole(f"{where}, seed", row["seed"])
        summary = by_run.pop((str(row["policy"]), seed), None)
        rate = parsing.maybe_number(f"{where}, slo_violation_rate", row["slo_violation_rate"])
        if summary is None:
            summary = _completed(where, row, regime, seed, rate, shared)
        elif rate is not None and abs(100 * rate - _number(summary.violation_pct)) > 1e-9:
            raise BadInput(where, f"{100 * rate} % violations", f"{summary.violation_pct} as in {summary.path.name}")
        runs.append(_run(artifact, summary))
    return runs + [_run(artifact, s) for s in by_run.values()]


def _number(value: float | None) -> float:
    return float("nan") if value is None else value


def _run(artifact: Artifact, s: RunSummary) -> Run:
    replay = replay_of(s, artifact.starts(s))
    return Run(
        regime=s.regime,
        arm=str(s.arm),
        seed=s.seed,
        violation_pct=s.violation_pct,
        requests=s.requests,
        draw=s.draw,
        replay=replay and replace(replay, even=FIXED.fullmatch(str(s.arm)) is not None),
        transfer=s.sync_ratio,
        simulated_transfer=s.simulated_sync_ratio,
        offered=s.offered or None,
        label_windows=label_windows(s),
        steps_per_s=None if s.draw is not None else steps_per_s(str(s.arm), s.merges or 0, s.schedule_s),
    )


def _shared(summaries: Sequence[RunSummary]) -> dict[str, Any]:
    names = ("run_s", "window_s", "repeat", "max_new_tokens", "concurrency", "offered")
    values = {name: {getattr(s, name) for s in summaries} for name in names}
    return {name: next(iter(found)) if len(found) == 1 else None for name, found in values.items()}


def _completed(
    where: str, row: Mapping[str, Any], regime: str, seed: int, rate: float | None, shared: Mapping[str, Any]
) -> RunSummary:
    def of(name: str) -> float | None:
        return parsing.maybe_number(f"{where}, {name}", row.get(name))

    requests = parsing.whole(f"{where}, requests", parsing.field(where, row, "requests"))
    per_request = shared["max_new_tokens"]
    return RunSummary(
        path=Path(where), regime=regime, arm=str(row["policy"]), draw=None, seed=seed,
        run_s=shared["run_s"] or 0.0, window_s=shared["window_s"] if shared["run_s"] else None,
        schedule_s=of("trace_duration_sec"), merges=parsing.whole(f"{where}, sync_events", row["sync_events"]),
        repeat=bool(shared["repeat"]), log=None, concurrency=shared["concurrency"], max_new_tokens=per_request,
        offered=shared["offered"] or "", requests=requests, violation_pct=None if rate is None else 100 * rate,
        output_tokens=requests * per_request if per_request else None, tokens_per_s=of("tokens_per_sec"),
        p50_ms=None, p95_ms=of("p95_ms"), p99_ms=of("p99_ms"), sync_ratio=of("sync_ratio"),
        simulated_sync_ratio=None, high_low=of("high_low_p95_ratio"), simulated_high_low=None,
        bursts=None, period_s=None, active=None, violations=None, active_p95_ms=None, slo_ms=None,
    )  # fmt: skip


def _steady(artifact: Artifact, regime: str, runs: list[Run], pace: Pace) -> Comparison:
    arms = list(dict.fromkeys(run.arm for run in runs))
    rivals = [arm for arm in arms if arm not in (_WA, _RANDOM)]
    claims = []
    if regime == "sync" and _WA in arms:
        claims = [Claim(f"WA-DiLoCo beats {arm} in steady sync-heavy replay", "better", _WA, arm) for arm in rivals]
    if _WA in arms and _RANDOM in arms:
        claims.append(
            Claim(
                "WA-DiLoCo is not shown better than matched random deferral",
                "not better",
                _WA,
                _RANDOM,
                _STEADY_P[regime],
            )
        )
    if regime == "pressure" and _WA in arms:
        claims += [Claim(f"WA-DiLoCo is not shown better than {arm}", "not better", _WA, arm) for arm in rivals]
    table, printed = _stage11_table(artifact, regime)
    return Comparison(
        f"stage 11 {regime}",
        f"Steady replay, {'sync' if regime == 'sync' else 'pressure'}-heavy stress",
        tuple(runs),
        tuple(claims),
        random_arm=_RANDOM if _RANDOM in arms else None,
        corridor_s=(pace.least, pace.longest),
        printed=printed,
        table=table,
        notes=tuple(n for n in (pace.text, _steady_note(runs)) if n),
        findings=(*pace_finding(runs, _WA), *steady_clock(artifact.summaries)) if regime == "sync" else (),
    )


#: The paper's own p of WA against random in steady sync-heavy load.
_STEADY_P = {"sync": "0.56", "pressure": None}


def _steady_note(runs: Sequence[Run]) -> str:
    repeated = [r for r in runs if r.replay and r.replay.schedule_s and r.replay.schedule_s < r.replay.run_s]
    if not repeated or not all(r.replay and r.replay.repeat for r in repeated):
        return ""
    return (
        f"{len(repeated)} of {len(runs)} schedules are shorter than the replay and were repeated from their end, so "
        "the merges logged in training are not the merges replayed.  Seeds differ in the training run that made the "
        "schedule; the offered load has no seed."
    )


def _stage11_table(artifact: Artifact, regime: str) -> tuple[dict[str, Any] | None, tuple[tuple[str, str, str], ...]]:
    rows = [row for _, row in artifact.stage11 if row["regime"] == regime]
    heads = ("p95 ms", "p99 ms", "SLO viol. %", "high/low p95", "sync p95 ratio", "tok/s", "sync events")
    if not rows:
        return None, ()
    table: dict[str, Any] = {"columns": ["policy", "n", *heads], "rows": []}
    printed = []
    for arm in dict.fromkeys(str(row["policy"]) for row in rows):
        mine = [row for row in rows if row["policy"] == arm]
        cells = [
            mean_sd([scaled(parsing.maybe_number(f"stage 11, {arm}, {name}", row.get(name)), scale) for row in mine])
            for name, scale in STAGE_11_COLUMNS.items()
        ]
        table["rows"].append([arm, str(len(mine)), *cells])
        claimed = artifact.printed.get(f"{regime} {arm}", {})
        printed += [(f"{arm}, {h}", claimed[h], cell) for h, cell in zip(heads, cells, strict=True) if h in claimed]
    return table, tuple(printed)


# Stages 12 and 13 ------------------------------------------------------------------------------------------------


def _bursty(artifact: Artifact, online: list[RunSummary], steady: Sequence[Run], pace: Pace) -> Comparison:
    runs = [_run(artifact, s) for s in online]
    own = {s.seed: s for s in online if s.arm == _ONLINE}
    derived = _derived(artifact, own, steady)
    runs += derived
    arms = {run.arm for run in runs}
    aggregates = _aggregates(artifact, arms, own, steady)
    printed, table = _stage13_printed(artifact, runs)
    claims = []
    for policy, versus, kind, text in (
        (_OFFLINE, _RANDOM, "better", "Offline calibrated placement beats matched random in bursty replay"),
        (_ONLINE, _WA, "not better", "Online calibrated WA against WA-DiLoCo is directional, not a win"),
        (_ONLINE, _RANDOM, "not better", "Online calibrated WA is not shown better than matched random"),
        (_ONLINE, _OFFLINE, "not better", "Online calibrated WA is not shown better than the offline plan"),
    ):
        test = artifact.tests.get(f"{policy} vs {versus}")
        if policy in arms and versus in arms:
            claims.append(Claim(text, kind, policy, versus, test[0] if test else None))  # type: ignore[arg-type]
    claims += [
        Claim(f"Online calibrated WA has fewer violations than {a.arm} in bursty replay", "better", _ONLINE, a.arm)
        for a in aggregates
        if a.replays and _ONLINE in arms
    ]
    return Comparison(
        "stage 13 bursty",
        "Bursty replay, sync-heavy stress",
        tuple(runs),
        tuple(claims),
        aggregates=aggregates,
        random_arm=_RANDOM if _RANDOM in arms else None,
        corridor_s=(pace.least, pace.longest),
        printed=printed,
        table=table,
        notes=tuple(n for n in (pace.text, *_bursty_notes(artifact, own, runs, pace)) if n),
        findings=_bursty_findings(artifact, own, runs, pace),
    )


def _bursty_findings(
    artifact: Artifact, own: Mapping[int | None, RunSummary], runs: Sequence[Run], pace: Pace
) -> tuple[Finding, ...]:
    table = _aggregates(artifact, set(), {}, ())
    found = (*offline_tests(runs, _OFFLINE, _RANDOM, table), *bursty_clock(own))
    for s in own.values():
        plan = _same_length(s)
        if plan is not None and s.bursts is not None and s.window_s is not None:
            return (*found, *plan_finding(plan.starts_s or (), s.run_s, s.window_s, s.bursts, pace))
    return found


def _derived(artifact: Artifact, own: Mapping[int | None, RunSummary], steady: Sequence[Run]) -> list[Run]:
    """Per-seed values of the other arms: the online arm's less the printed differences (rounded to 0.001 pp)."""
    seeds = sorted(seed for seed in own if seed is not None)
    runs = []
    for name, (_, differences) in artifact.tests.items():
        policy, versus = name.split(" vs ")
        if policy != _ONLINE or not seeds:
            continue
        if len(differences) != len(seeds):
            raise BadInput(f"printed test {name}", f"{len(differences)} differences", f"{len(seeds)}, one a seed")
        for seed, difference in zip(seeds, differences, strict=True):
            s = own[seed]
            logged = next((r.replay for r in steady if r.arm == versus and r.seed == seed), None)
            draws = _random_replays(s, seed) if versus == _RANDOM else ()
            plan = _same_length(s) if versus == _OFFLINE else None
            runs.append(
                Run("bursty", versus, seed, _number(s.violation_pct) - difference, offered=s.offered, draws=draws,
                    replay=plan or _moved(logged, s),
                    derived="per-seed values are the online arm's less the printed differences")
            )  # fmt: skip
    return runs


def _moved(replay: Replay | None, s: RunSummary) -> Replay | None:
    """The same schedule in a bursty run: its length, window and start-up are that run's."""
    if replay is None or s.window_s is None:
        return None
    return replace(replay, window_s=s.window_s, run_s=s.run_s, repeat=s.repeat, startup_s=startup_s(s))


def _same_length(s: RunSummary) -> Replay | None:
    """The offline plan made again by its rule: as long as the replay, so never repeated; its budget is the policy's."""
    if s.window_s is None or s.merges is None:
        return None
    starts = () if s.bursts is None else offline_starts(s.merges, s.run_s, s.window_s, s.bursts)
    if len(starts) != s.merges:
        return None
    return Replay(s.merges, s.run_s, s.window_s, s.run_s, s.repeat, startup_s(s), starts)


def _random_replays(s: RunSummary, seed: int) -> tuple[Replay, ...]:
    if s.window_s is None or s.merges is None:
        return ()
    return tuple(
        Replay(s.merges, s.run_s, s.window_s, s.run_s, s.repeat, startup_s(s),
               random_starts(seed, draw, s.merges, s.run_s, s.window_s))
        for draw in range(_DRAWS)
    )  # fmt: skip


def _aggregates(
    artifact: Artifact, arms: set[str], own: Mapping[int | None, RunSummary], steady: Sequence[Run]
) -> tuple[Aggregate, ...]:
    found = []
    for where, row in artifact.stage13:
        arm = str(row["policy"])
        pct = parsing.mapping(f"{where}, slo_pct", parsing.field(where, row, "slo_pct"))
        speed = parsing.mapping(f"{where}, tokens_per_sec", row.get("tokens_per_sec") or {})
        mean, sd = (parsing.maybe_number(f"{where}, slo_pct", pct.get(key)) for key in ("mean", "sd"))
        replays = tuple(
            moved
            for run in steady
            if run.arm == arm and isinstance(run.seed, int) and run.seed in own
            for moved in [_moved(run.replay, own[run.seed])]
            if moved is not None and moved.schedule_s is not None
        )
        found.append(
            Aggregate(arm, parsing.whole(f"{where}, n", row["n"]), _number(mean), _number(sd),
                      parsing.maybe_number(f"{where}, tokens_per_sec", speed.get("mean")),
                      replays if arm not in arms else ())
        )  # fmt: skip
    return tuple(found)


def _bursty_notes(
    artifact: Artifact, own: Mapping[int | None, RunSummary], runs: Sequence[Run], pace: Pace
) -> list[str]:
    notes = []
    lengths = sorted(s.schedule_s for s in own.values() if s.schedule_s is not None)
    run_s = {s.run_s for s in own.values()}
    if lengths and len(run_s) == 1 and lengths[0] < max(run_s):
        notes.append(
            f"The online arm's schedules are {lengths[0]:.1f} to {lengths[-1]:.1f} s long and were repeated into "
            f"{max(run_s):.0f} s; the random and offline schedules were made {max(run_s):.0f} s long and were not."
        )
    offered = {s.offered for s in own.values()}
    if len(own) > 1 and len(offered) == 1:
        notes.append(f"One load under {len(own)} seed names: {next(iter(offered))}.")
    draws = [replay for run in runs for replay in run.draws]
    if draws and pace.longest is not None:
        gaps = sorted(longest_gap_s(replay.starts_s or (), replay.run_s) for replay in draws)
        over = sum(gap > pace.longest for gap in gaps)
        notes.append(
            f"The {len(draws)} random draws, made again by the public script's rule and seeds: {over} leave the "
            f"corridor with a gap longer than {pace.longest:.1f} s (longest gaps {gaps[0]:.0f} to {gaps[-1]:.0f} s)."
        )
    if artifact.stage13:
        notes.append(
            "Published table: violations of arms with a value for every run are recomputed from them; everything else "
            "is the stored mean and standard deviation at printed precision, since those runs were not published."
        )
    speeds = [(a.arm, a.tokens_per_s) for a in _aggregates(artifact, set(), {}, ()) if a.tokens_per_s]
    if len(speeds) > 1:
        (low, slow), (high, fast) = min(speeds, key=lambda x: x[1]), max(speeds, key=lambda x: x[1])
        notes.append(
            f"Served load drifts: {slow:.0f} tokens/s in {low}, {fast:.0f} in {high} "
            f"({100 * (slow / fast - 1):+.1f} %); request counts of the other arms were not published."
        )
    return notes


def _stage13_printed(
    artifact: Artifact, runs: Sequence[Run]
) -> tuple[tuple[tuple[str, str, str], ...], dict[str, Any] | None]:
    columns = {
        "raw SLO %": "slo_pct", "sync-excess SLO %": "sync_excess_slo_pct", "p95 ms": "p95_ms", "p99 ms": "p99_ms",
        "tok/s": "tokens_per_sec", "sync active reqs": "sync_active_count", "sync events": "sync_events",
    }  # fmt: skip
    printed, rows = [], []
    for where, row in artifact.stage13:
        arm = str(row["policy"])
        cells = {head: stored(where, row.get(name)) for head, name in columns.items()}
        own = [run.violation_pct for run in runs if run.arm == arm and not run.draws]
        if len(own) == row["n"]:
            cells["raw SLO %"] = mean_sd(own)
        rows.append([arm, str(row["n"]), *cells.values()])
        claimed = artifact.printed.get(arm, {})
        printed += [(f"{arm}, {head}", claimed[head], cell) for head, cell in cells.items() if head in claimed]
    for name, (p, differences) in artifact.tests.items():
        found = sign_flip(differences).pvalue
        printed.append((f"{name}, p", p, "–" if found is None else f"{found:.3f}"))
    table = {"columns": ["policy", "n", *columns], "rows": rows} if rows else None
    return tuple(printed), table


# Stage 14 --------------------------------------------------------------------------------------------------------


def _collectives(artifact: Artifact) -> Comparison:
    rows = []
    for row in artifact.stage14:
        where = f"stage 14, {row['run']}"
        size = parsing.whole(f"{where}, size_mib", row["size_mib"])
        values = [parsing.maybe_number(where, row.get(n)) for n in ("avg_ms", "algbw_gbps", "busbw_gbps")]
        rows.append(
            [str(row["run"]), str(row["nodes"]), str(size), *["–" if v is None else f"{v:.3f}" for v in values]]
        )
    return Comparison(
        "stage 14",
        "Collective bandwidth across nodes",
        claims=(Claim("Collectives of an outer merge's size run on a real fabric", "measured", "collectives"),),
        table={"columns": ["run", "nodes", "MiB a rank", "avg ms", "algbw GB/s", "busbw GB/s"], "rows": rows},
        notes=(
            "The slowest listed collective takes milliseconds; the replays' merge window is seconds.  The stage says "
            "nothing about what else the window stands for (state copies, waiting, checkpoint).",
        ),
    )
