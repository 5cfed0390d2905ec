"""From command-line options to the settings of a campaign: where the four packages meet."""

from __future__ import annotations

import hashlib
import itertools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from adapters.schedulers.log_fit import LogFit
from adapters.schedulers.opening import open_scheduler
from adapters.schedulers.recorded import RecordedSource
from adapters.sidecars.agreement import shown_for
from adapters.sidecars.fitting import check_simulated
from adapters.sidecars.simulated import SidecarModel, SimulatedSidecar, shipped_calibrations
from adapters.traces.readers import Reading, ReadingReport, read_trace
from adapters.traces.systems import Taken, in_system
from adapters.traces.windows import Cut, cut
from adapters.traces.worlds import GeneratedWorlds, RecordedWorlds
from protocol import seeds
from protocol.calibration import store as calibration
from protocol.calibration.check import check, refuse_mismatch
from protocol.calibration.model import Calibration
from protocol.campaign.plan import Contender, Setting, Worlds
from protocol.certificate.ledger import LEDGER
from protocol.certificate.model import CorridorPart, RegimePart, SidecarPart, plain
from protocol.cli.learning import Attached
from protocol.errors import BadInput
from protocol.merging.schedule import Schedule
from protocol.regimes.regime import Regime
from protocol.replay.measurements import SERVED
from protocol.workload.slo import Slo
from protocol.workload.trace import NS_PER_S, RequestTrace, seconds_to_ns

#: The five regimes of the papers, in the order in which they are reported.
PUBLISHED = ("ordinary", "high-pressure", "sync-heavy-steady", "bursty-periodic", "bursty-aperiodic")
#: What a real trace borrows from `ordinary`: pace, corridor, learner and pressures.  Its prompts are up to a hundred
#: times longer than the papers', so its (uncalibrated) server is larger, and its merges slow it as the stressed one's.
RECORDED_SERVER = {
    "b_s": 5e-5, "c_s": 1e-5, "max_num_seqs": 64, "max_batched_tokens": 4096, "kv_tokens": 500_000,
    "prefill_slowdown": 1.7, "decode_slowdown": 1.7,
}  # fmt: skip
#: Requests that one campaign may replay: weeks of one core.
MOST_REPLAYED = 1e13
#: Windows of a real trace: long enough for a few merges, short enough for this many seeds where the trace allows.
SHORTEST_S, WANTED_SEEDS = 120.0, 20
#: Default limits on a real trace: this many times the p95 that the same requests have without any merge.
SLACK = 1.5


def contender_opener(
    scheduler: str, log: str, hidden: tuple[str, ...] = (), environment: tuple[tuple[str, str], ...] = ()
) -> Contender:
    """Open a scheduler; a function of plain values, so that every worker process can open its own.

    hidden : files and folders that it may not read: the traces and the output.  environment : declared variables.
    """
    return open_scheduler(
        scheduler, log_path=Path(log) if log else None, hidden=[Path(path) for path in hidden],
        environment=dict(environment),
    )  # fmt: skip


def outputs(folder: Path) -> list[Path]:
    """What no scheduler may read of an output folder, each by itself in case the scheduler lies in that folder."""
    own = (".partial", "raw", "certificate.json", "report.html", "tables")
    return [folder, *(folder / name for name in own), folder.parent / LEDGER]


def describe_contender(contender: Contender, settings: Sequence[Setting] = ()) -> dict[str, Any]:
    """What the certificate says about who was judged; of a merge log, also how each regime had to read it."""
    try:
        found: dict[str, Any] = {"name": contender.name, "kind": contender.kind, **contender.describe()}
        if isinstance(contender, RecordedSource) and settings:
            found["read_as"] = {s.name: contender.report(s) for s in settings}
        return found
    finally:
        contender.close()


@dataclass(frozen=True)
class Overrides:
    """What the command line changes of every regime; None leaves the regime's own.

    calibration : folder whose model serves every regime.  learner : a measured curve that schedulers watch.
    log : the merge log that is judged in a scheduler's place.
    """

    seeds: int | None = None
    slos: tuple[str, ...] | None = None
    decision_steps: int | None = None
    calibration: Path | None = None
    learner: Attached | None = None
    log: LogFit | None = None


Chosen = tuple[list[Setting], list[RegimePart]]


def settings_for(
    regimes: Sequence[str],
    traces: Sequence[Path],
    reading: Reading,
    root_seed: int,
    overrides: Overrides,
) -> Chosen:
    """Settings, and their descriptions for the certificate, of every regime and trace that was asked for.

    Of traces and regimes together: each trace in each of these systems, one claim each (and no generated load).

    Raises BadInput on anything unknown, and on one name given twice.
    """
    systems = [
        _overridden(Regime.load(name), overrides, whole=not traces) for name in regimes or ([] if traces else PUBLISHED)
    ]
    if not traces:
        pairs = [generated(system, root_seed, overrides) for system in systems]
    elif systems:
        pairs = [_in_system(path, system, reading, root_seed, overrides) for path in traces for system in systems]
    else:
        pairs = [_recorded(path, reading, overrides) for path in traces]
    names = [setting.name for setting, _ in pairs]
    for name in names:
        if names.count(name) > 1:
            raise BadInput("--regime, --trace", f"{name} twice", "each once")
    _refuse_copies([(s.name, d["trace"]) for s, d in pairs if "trace" in d])
    fitted = None
    if overrides.calibration is not None:
        fitted = SimulatedSidecar(SidecarModel.from_calibration(sound(overrides.calibration)))
    if overrides.learner is not None:
        pairs = [watching(overrides.learner, *pair) for pair in pairs]
    served = [replace(s, sidecar=fitted) if fitted else s for s, _ in pairs]
    return served, [
        described(s, d, overrides.calibration, _alike(s, overrides)) for s, (_, d) in zip(served, pairs, strict=True)
    ]


def _alike(setting: Setting, overrides: Overrides) -> bool:
    log = overrides.log
    return setting.practice.ordinary and (log is None or log.alike(setting.transfer_ns / NS_PER_S))


def _refuse_copies(read: Sequence[tuple[str, Mapping[str, Any]]]) -> None:
    """One trace under two names is one claim, not two.  Raises BadInput naming both."""
    seen: dict[tuple[str, Any], str] = {}
    for name, trace in read:
        key = trace["sha256"], trace.get("system")
        if key in seen:
            raise BadInput("--trace", f"{name}, byte for byte {seen[key]}", "each trace once")
        seen[key] = name


def generated(regime: Regime, root_seed: int, overrides: Overrides) -> tuple[Setting, dict[str, Any]]:
    setting = setting_of(regime, GeneratedWorlds(regime, root_seed), overrides.slos)
    return setting, {**regime.describe(), "digest": regime.digest}


def watching(curve: Attached, s: Setting, described: dict[str, Any]) -> tuple[Setting, dict[str, Any]]:
    """The setting with a measured learner in the modelled one's place."""
    learner, text = curve.over(s.corridor.horizon_ns // s.corridor.step_ns)
    return replace(s, learner=learner), {**described, "learner": {**text, "modelled": described.get("learner")}}


def _overridden(regime: Regime, overrides: Overrides, whole: bool = False) -> Regime:
    """whole : a merge log is judged from its beginning to its end, not by windows of a trace."""
    wanted = {"seeds": overrides.seeds, "decision_steps": overrides.decision_steps}
    changes = {key: value for key, value in wanted.items() if value is not None}
    changed = regime.replace(**changes) if changes else regime
    return changed if overrides.log is None else overrides.log.applied(changed, whole)


def setting_of(regime: Regime, worlds: Worlds, slos: Sequence[str] | None) -> Setting:
    return Setting(
        name=regime.name,
        corridor=regime.corridor(),
        worlds=worlds,
        sidecar=SimulatedSidecar(model_of(regime)),
        learner=regime.learner,
        slos=tuple(dict.fromkeys(Slo.parse(text) for text in slos or (regime.slo,))),
        n_seeds=regime.seeds,
        planner_budget=regime.planner_budget,
        peers=regime.peers(),
        practice=regime.merge,
        transfer_ns=seconds_to_ns(regime.merge_s),
    )


def model_of(regime: Regime) -> SidecarModel:
    """The regime's sidecar; the one for real traces is another server and has its own name."""
    try:
        model = SidecarModel.shipped(regime.sidecar).changed(regime.sidecar_overrides)
    except BadInput as problem:
        raise BadInput(f"regime {regime.name}, {problem.where}", problem.found, problem.expected) from None
    return model.named(f"{model.name}-enlarged") if regime.name.startswith("trace:") else model


def _recorded(path: Path, reading: Reading, overrides: Overrides) -> tuple[Setting, dict[str, Any]]:
    """A real trace: windows are the strata, each a seed of its own."""
    trace, report = read_trace(path, reading)
    base = _overridden(Regime.load("ordinary"), overrides).replace(
        summary="windows of a real trace", sidecar="reference", sidecar_overrides=RECORDED_SERVER
    )
    span_s = float(trace.arrival_ns[-1] - trace.arrival_ns[0]) / NS_PER_S
    wanted = overrides.seeds or WANTED_SEEDS
    horizon_s = min(base.horizon_s, max(SHORTEST_S, span_s // wanted - base.cooldown_s))
    begins_ns = None if overrides.log is None else overrides.log.ends_ns(base, horizon_s)
    found = cut(trace, base.seeds, horizon_s, base.cooldown_s, begins_ns)
    budgets = base.replace(horizon_s=horizon_s).corridor().feasible_budgets()
    regime = base.replace(
        name=f"trace:{path.name}",
        horizon_s=horizon_s,
        seeds=len(found.windows),
        planner_budget=max(1, (budgets[0] + budgets[-1]) // 2),
        slo=_own_slo(trace, base),
    )
    worlds = RecordedWorlds(found.windows, regime.network.low, regime.checkpoint.low)
    slo_from = "the command line" if overrides.slos else f"{SLACK:g} x p95 without merges"
    limits = "; ".join(overrides.slos or (regime.slo,))
    length = f"{horizon_s:g} s and {base.cooldown_s:g} s to settle"
    taken = (
        Taken("arrivals and tokens", f"{report.rows_kept} requests over {report.span_s:.0f} s", path.name),
        Taken("windows", found.report, path.name),
        Taken("window length", length, f"the default: {wanted} windows of at least {SHORTEST_S:g} s where they fit"),
        Taken("SLO", limits, slo_from if overrides.slos else f"the default: {slo_from}"),
        Taken("pace, corridor, learner, pressure", "the papers'", "regime ordinary; --regime FILE.toml for your own"),
        Taken("sidecar", "an uncalibrated reference model, enlarged", "the default; --calibration for a measured one"),
    )
    text = _trace_text(path, reading, report, found, taken, overrides)
    return _of_trace(regime, worlds, text, overrides)


def _in_system(
    path: Path, system: Regime, reading: Reading, root_seed: int, overrides: Overrides
) -> tuple[Setting, dict[str, Any]]:
    """A real trace in somebody's own system."""
    trace, report = read_trace(path, reading, absent_ok=True)
    sidecar = None if overrides.calibration is None else f"the calibration {overrides.calibration.name}"
    begins_ns = None if overrides.log is None else overrides.log.ends_ns(system, system.horizon_s)
    placed = in_system(
        trace, report, system, root_seed, file=path.name, slos=overrides.slos, sidecar=sidecar, begins_ns=begins_ns
    )
    text = _trace_text(path, reading, report, placed.cut, placed.taken, overrides)
    text["trace"] |= {"system": system.name, "system_digest": system.digest}
    return _of_trace(placed.regime, placed.worlds, text, overrides)


def _of_trace(
    regime: Regime, worlds: Worlds, text: dict[str, Any], overrides: Overrides
) -> tuple[Setting, dict[str, Any]]:
    own = {k: v for k, v in regime.describe().items() if k not in ("arrivals", "prompt", "output")}
    setting = setting_of(regime, worlds, overrides.slos)
    if overrides.log is not None:
        setting = replace(setting, begins_ns=tuple(text["trace"]["log"]["begins_ns"]))
        text["trace"]["log"]["alike"] = _alike(setting, overrides)
        pace = ("h_min", "h_max", "merge_s", "merge")
        text["trace"]["log"]["pace"] = {k: v for k, v in regime.describe().items() if k in pace}
    return setting, {**own, **text, "digest": regime.digest}


def _trace_text(
    path: Path, reading: Reading, report: ReadingReport, found: Cut, taken: Sequence[Taken], overrides: Overrides
) -> dict[str, Any]:
    """What a certificate says of the file, how it was read, and what was taken from where."""
    return {
        "trace": {
            "file": path.name,
            "sha256": hashlib.sha256(path.read_bytes()).hexdigest(),
            "format": report.format,
            "read_as": reading.describe(),
            "rows_read": report.rows_read,
            "rows_kept": report.rows_kept,
            "dropped": dict(report.dropped),
            "unread": list(report.unread),
            "tokens": report.tokens,
            "notes": list(report.notes),
            "resolution_s": None if report.resolution_ns is None else report.resolution_ns / NS_PER_S,
            "windows": found.report,
            "taken": [str(one) for one in taken],
            **({} if overrides.seeds is None else {"seeds_asked": overrides.seeds}),
            **({} if overrides.log is None else {"log": {"begins_ns": list(found.begins_ns)}}),
        }
    }


def told(regimes: Sequence[RegimePart]) -> list[str]:
    """Lines for the user: of every claim on a real trace, what was taken from where, and what was not read."""
    lines = []
    for regime in regimes:
        trace = regime.described("trace")
        if trace:
            lines += [f"{regime.name}:", *(f"  {one}" for one in trace["taken"])]
            lines += [f"  note: {one}" for one in trace.get("notes", ())]
            lines += [f"  not read: columns {', '.join(trace['unread'])}"] if trace["unread"] else []
    return lines


def refuse_endless(settings: Sequence[Setting], draws: int) -> None:
    """Refuse before any work what no machine ends.  Raises BadInput with the number of requests to replay."""
    total = 0.0
    for s in settings:
        if isinstance(s.worlds, GeneratedWorlds):
            regime = s.worlds.regime
            a_seed = regime.arrivals.mean_rate_per_s * (regime.horizon_s + regime.cooldown_s) * regime.islands
        else:
            a_seed = max(len(s.worlds.workload(seed).trace) for seed in range(s.n_seeds))
        total += s.n_seeds * a_seed * draws * len(s.slos)
    if total > MOST_REPLAYED:
        found = f"{total:.2g} requests to replay, at some million a second"
        raise BadInput("--seeds, --draws", found, f"at most {MOST_REPLAYED:.2g}: fewer seeds, draws or regimes")


def _own_slo(trace: RequestTrace, regime: Regime) -> str:
    """Limits on TTFT and TPOT that the trace itself meets without merges: SLACK times their p95, two digits."""
    # Of no root: the limits are fixed before one is drawn.
    sidecar = SimulatedSidecar(model_of(regime)).load(trace, seeds.generator(0, "sidecar", "own-slo"))
    idle = sidecar.replay(Schedule.empty(trace.n_islands))
    served = idle.outcome == SERVED
    if not served.any():
        raise BadInput(trace.name, "no request that the sidecar could serve", "requests within its KV memory")
    limits = ((name, SLACK * np.nanquantile(getattr(idle, f"{name}_ns")[served], 0.95)) for name in ("ttft", "tpot"))
    return ",".join(f"{name}<={float(format(max(limit / 1e6, 0.01), '.2g')):g}ms" for name, limit in limits)


def sound(folder: Path) -> Calibration:
    """A calibration that somebody gave, once everything in it that can be recomputed is.

    Raises BadInput with the first difference otherwise.
    """
    for line in itertools.chain(check(folder), check_simulated(folder)):
        raise BadInput(str(folder), f"a calibration that its own rows do not bear out ({line})", "one as measured")
    return calibration.read(folder)


def without_calibration(regimes: Sequence[RegimePart]) -> list[RegimePart]:
    """On a real server a shipped calibration is another server's: its model places merges, and it shows nothing."""
    return [r.model_copy(update={"sidecar": _bare(r.sidecar)}) for r in regimes]


def _bare(sidecar: SidecarPart) -> SidecarPart:
    return SidecarPart.model_validate(
        {k: v for k, v in plain(sidecar).items() if k not in ("calibration", "support", "agreement")}
    )


def calibrations_of(regimes: Sequence[RegimePart], given: Path | None) -> list[Path]:
    """Folders of the calibrations that described regimes state, each once."""
    names = dict.fromkeys(r.sidecar.name for r in regimes if r.sidecar.calibration is not None)
    return [given or shipped_calibrations()[name] for name in names]


def described(setting: Setting, regime: Mapping[str, Any], given: Path | None = None, alike: bool = True) -> RegimePart:
    """A regime as the certificate states it; a calibrated sidecar with what its server showed, for G1.

    alike : merges are as a calibration's: of one length.  Of others, no calibration shows anything.

    Raises BadInput when the calibration is one of merges of another length.
    """
    corridor = setting.corridor
    sidecar = {**setting.sidecar.describe(), "calibrated": setting.sidecar.calibrated}
    if setting.sidecar.calibrated and alike:
        folder = given or shipped_calibrations()[str(sidecar["name"])]
        found = calibration.read(folder).stated()
        refuse_mismatch(found, merge_s=corridor.merge_ns / NS_PER_S)
        sidecar |= {"calibration": found, **shown_for(folder, setting.slos)}
    own = CorridorPart.model_fields
    return RegimePart.model_validate(
        {
            **{key: value for key, value in regime.items() if key not in own and key != "seeds"},
            # The corridor is a turn's where the model has fragments.
            **({} if setting.practice.ordinary else {"pace": {key: regime[key] for key in ("h_min", "h_max")}}),
            "corridor": {key: getattr(corridor, key) for key in own},
            "n_seeds": setting.n_seeds,
            "slos": [str(slo) for slo in setting.slos],
            "sidecar": sidecar,
            "tokens_per_step": setting.learner.tokens_per_step,
        }
    )
