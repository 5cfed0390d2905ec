"""The real part of `protocol certify --sidecar`: the server, the plan, and the replays on it."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
from rich.console import Console

from adapters.merge_loads.runner import MergeLoad
from adapters.sidecars import identity
from adapters.sidecars.openai import Target, that_serves
from adapters.sidecars.probing import address_of, base_of, model_at, models_of
from adapters.sidecars.real import RealSidecar
from protocol import seeds
from protocol.calibration import store as calibration
from protocol.campaign import arms as campaign
from protocol.campaign import real
from protocol.campaign.arms import Plan, Setting
from protocol.errors import BadInput, ProtocolError, SidecarError
from protocol.evidence.partial import Partial
from protocol.evidence.store import SeedEvidence
from protocol.gates.envelope import measure
from protocol.gates.integrity import integrity_gate
from protocol.merging.schedule import Schedule
from protocol.replay.replay import Observed, Replayed
from protocol.stats import power
from protocol.stats.envelope import MIN_DRAWS, MIN_SEEDS
from protocol.workload.trace import NS_PER_S, RequestTrace

#: Draws a seed where neither --draws nor a budget says otherwise: each is a replay in real time.
DRAWS = 9
#: Seconds that a replay takes beside its trace: starting the merge load, a lead, the last answers, a pause.
OVERHEAD_S, PAUSE_S = 2.5, 0.2
#: The simulated pilot from which a budget is planned.
PILOT_SEEDS, PILOT_DRAWS = 8, 19
#: Gain in pp that is planned for when the pilot shows none.
ASSUMED_GAIN_PP = 1.5

Chosen = tuple[list[Setting], list[dict[str, Any]]]


@dataclass(frozen=True)
class Server:
    """A server that answers, and what the certificate says of it."""

    url: str
    sidecar: RealSidecar
    described: dict[str, Any]


def drop_foreign(chosen: Chosen, given: Path | None) -> None:
    """A shipped calibration is another server's: here its model places merges, and it shows nothing."""
    if given is None:
        for regime in chosen[1]:
            regime["sidecar"].pop("calibration", None)


def reach(url: str, model: str | None, chat: bool, merge_load: str, chosen: Chosen) -> Server:
    """Look at the server, and have it serve a few requests of the first seed's sizes.

    Raises BadInput on a wrong model, load or regime, SidecarError when it does not serve.
    """
    url = base_of(url)
    settings, regimes = chosen
    if len(settings) != 1:
        raise BadInput("--sidecar", f"{len(settings)} regimes", "exactly one --regime or --trace")
    trace = settings[0].worlds.workload(0).trace
    if not len(trace):
        raise BadInput(f"{settings[0].name}, seed 0", "no requests", "a trace with at least one request")
    if trace.n_islands != 1:
        raise BadInput(f"--sidecar, {settings[0].name}", f"{trace.n_islands} islands", "1: one server, one island")
    load = MergeLoad.parse(merge_load)
    model = model_at(url, model)
    version = identity.server_version(url)
    found = regimes[0]["sidecar"].get("calibration")
    if found is not None:
        calibration.refuse_mismatch(found, merge_s=settings[0].corridor.merge_ns / NS_PER_S, server=version)
        if found["merge_load"] != str(load):
            raise BadInput("--calibration", f"one of merge load {found['merge_load']}", f"{load}, as --merge-load says")
    sidecar = RealSidecar(that_serves(Target(url, model, chat), trace), load)
    short = model.rstrip("/").rpartition("/")[2]
    described = {
        "server": {
            "name": f"{version} at {address_of(url)}, model {short}", "address": address_of(url), "version": version,
            "model": short, "api": "chat completions" if chat else "completions",
            "request_fields": dict(sidecar.target.extra),
        },
        "client_host": identity.host_facts(),
        "merge_load": str(load),
        "attempts": real.ATTEMPTS,
    }  # fmt: skip
    return Server(url, sidecar, described)


def replay_s(setting: Setting) -> float:
    """Seconds that one replay of a setting takes."""
    trace = setting.worlds.workload(0).trace
    span_ns = max(setting.corridor.horizon_ns, int(trace.arrival_ns[-1]) if len(trace) else 0)
    return span_ns / NS_PER_S + OVERHEAD_S


def affordable(
    minutes: float, each_s: float, plan: Plan, pilot: Setting, alpha: float, jobs: int, notes: Console
) -> tuple[int, int]:
    """Seeds and draws with the best power among those that fit, by a simulated pilot; says what they can attain.

    pilot : the setting with traces of its own.
    """
    replays = int(minutes * 60 / each_s)
    fixed = len(real.FIXED)
    least = MIN_SEEDS * (MIN_DRAWS + fixed)
    if replays < least:
        n_seeds = max(1, replays // (MIN_DRAWS + fixed))
        notes.print(
            f"budget: {replays} replays of {each_s:.0f} s fit {minutes:g} min; {MIN_SEEDS} seeds of {MIN_DRAWS} draws "
            f"need {least} ({least * each_s / 60:.0f} min), so this run can only be undecidable",
            soft_wrap=True,
        )
        return n_seeds, MIN_DRAWS
    setting = replace(pilot, n_seeds=PILOT_SEEDS)
    modest = replace(plan, draws=PILOT_DRAWS, control_draws=1, probes=0, root_seed=plan.root_seed + 1)
    found = campaign.run(modest, [setting], jobs)
    tests = measure(found, 0, setting.corridor, 1, modest.root_seed, alpha).tests
    gains = tests.draw_mean - tests.policy
    spread = float(np.sqrt(np.mean(tests.draw_sd**2))) if len(gains) else 0.0
    draw_sd = spread if spread > 0 else power.DRAW_SD
    variance = float(np.var(gains, ddof=1)) if len(gains) > 1 else power.POLICY_SD["online"] ** 2
    policy_sd = float(np.sqrt(max(variance - draw_sd**2 / PILOT_DRAWS, 0.0)))
    gain = tests.gain if tests.gain is not None and tests.gain > 0 else ASSUMED_GAIN_PP
    rng = seeds.generator(plan.root_seed, "budget", setting.name)
    best = power.best_design(
        replays, fixed, gain=gain, policy_sd=policy_sd, draw_sd=draw_sd, alpha=alpha, rng=rng,
        fewest_seeds=MIN_SEEDS, fewest_draws=MIN_DRAWS,
    )  # fmt: skip
    n_seeds, n_draws = best.design.seeds, best.design.draws
    whose = "the pilot's" if gain == tests.gain else "assumed, as the pilot shows none"
    notes.print(
        f"budget: {replays} replays of {each_s:.0f} s fit {minutes:g} min; chosen {n_seeds} seeds of {n_draws} draws, "
        f"power {best.power:.2f} at a gain of {gain:.2f} pp ({whose}; simulated pilot: policy sd {policy_sd:.2f}, draw "
        f"sd {draw_sd:.2f} pp; a real server adds its own spread)",
        soft_wrap=True,
    )
    return n_seeds, n_draws


def announce(server: Server, setting: Setting, draws: int, alpha: float, notes: Console) -> None:
    """What will be replayed, how long that takes, and which p-values it can give."""
    n, each_s = setting.n_seeds * (draws + len(real.FIXED)), replay_s(setting)
    floors = real.attainable(setting.n_seeds, draws)
    attained = ", ".join(f"{name} {p:.3g}" for name, p in floors.items())
    notes.print(
        f"{server.described['server']['name']}: {setting.n_seeds} seeds x ({draws} draws + {len(real.FIXED)}) = {n} "
        f"replays of about {each_s:.0f} s, about {n * each_s / 60:.0f} min; attainable p: {attained}",
        soft_wrap=True,
    )
    if setting.n_seeds < MIN_SEEDS or draws < MIN_DRAWS or max(floors.values()) > alpha:
        notes.print(
            f"undecidable by design: fewer than {MIN_SEEDS} seeds or {MIN_DRAWS} draws, or no attainable p below "
            f"{alpha:g}",
            soft_wrap=True,
        )


def replay_all(
    server: Server,
    setting: Setting,
    plan: Plan,
    evidence: Sequence[SeedEvidence],
    kind: str,
    partial: Partial,
    notes: Console,
) -> None:
    """Add the replays that are missing; each is kept as it comes.

    Raises SidecarError when the server goes away; what is finished stays, and the same command goes on.
    """
    integrity = integrity_gate(evidence, setting.corridor, planner=kind == "planner", recorded=kind == "recorded")
    if integrity.status != "passed":
        notes.print(f"nothing is replayed: G0 integrity: {integrity.reason}", soft_wrap=True)
        return
    total = setting.n_seeds * (plan.draws + len(real.FIXED))
    done = total - real.outstanding(evidence, plan.root_seed, plan.draws)
    if done:
        notes.print(f"going on: {done} replays of the interrupted run are kept")

    def tell(made: Replayed) -> None:
        nonlocal done
        left = real.outstanding(evidence, plan.root_seed, plan.draws)
        done = total - left
        notes.print(
            f"replay {done}/{total}: {made.what}: {made.invalid or 'valid'}; "
            f"about {left * replay_s(setting) / 60:.0f} min left",
            soft_wrap=True,
        )

    def replay(trace: RequestTrace, schedule: Schedule) -> Observed:
        try:
            seen = observed(server.sidecar, trace, schedule)
            models_of(server.url)
        except SidecarError as error:
            raise ProtocolError(
                f"{error}; {done} of {total} replays are kept, the same command goes on from there"
            ) from None
        time.sleep(PAUSE_S)
        return seen

    real.run(evidence, setting, plan.root_seed, plan.draws, replay, partial.keep_replay, tell)


def observed(sidecar: RealSidecar, trace: RequestTrace, schedule: Schedule) -> Observed:
    """One replay, its merges in ns since the trace began."""
    done = sidecar.replay(trace, schedule)
    planned, ran = (np.array(w, np.int64).reshape(-1, 2) for w in (done.executed.planned_ns, done.executed.ran_ns))
    origin_ns = int(planned[0, 0] - schedule.start_ns[0]) if len(planned) else 0
    return Observed(
        done.run.measurements, planned - origin_ns, ran - origin_ns, done.executed.may_end_early, done.run.failures
    )
