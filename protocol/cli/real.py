"""The real part of `protocol certify --sidecar`: the server, the plan, and the replays on it."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from typing import Any

import numpy as np
from rich.console import Console

from adapters.merge_loads.runner import MergeLoad
from adapters.schedulers.log_fit import LogFit
from adapters.sidecars import identity
from adapters.sidecars.live import LiveServer
from adapters.sidecars.openai import Target, that_serves
from adapters.sidecars.probing import address_of, base_of, model_at, models_of
from adapters.sidecars.real import RealSidecar, client_priority
from protocol import seeds
from protocol.calibration.check import refuse_mismatch
from protocol.campaign import real as replaying
from protocol.campaign.plan import Plan, Setting
from protocol.campaign.run import run
from protocol.certificate.model import Head
from protocol.cli.groups import Server
from protocol.cli.settings import Chosen
from protocol.errors import BadInput, ProtocolError, SidecarError
from protocol.evidence.model import Evidence, attached
from protocol.evidence.partial import Partial
from protocol.gates.envelope import measure
from protocol.gates.integrity import integrity_gate
from protocol.gates.spec import Spec
from protocol.merging.schedule import Schedule
from protocol.replay.replay import Replay
from protocol.stats import power
from protocol.stats.gains import MIN_DRAWS, MIN_SEEDS, Gains
from protocol.stats.predicted import predicted_power
from protocol.workload.trace import NS_PER_S, RequestTrace

#: Seconds that a replay takes beside its trace: starting the merge load, a lead, the last answers, a pause.
OVERHEAD_S, PAUSE_S = 2.5, 0.2
#: The simulated pilot from which a budget is planned.
PILOT_SEEDS, PILOT_DRAWS = 8, 19
#: Gain in pp that is planned for when the pilot shows none, and how far a server's violations follow the simulator's:
#: within a seed they correlate .82 and .86 in the two certificates of docs/tier3.md.
ASSUMED_GAIN_PP, ASSUMED_CORRELATION = 1.5, 0.8
#: The power that is said to be enough; no plan has more seeds or draws than these.
ENOUGH, MOST_SEEDS, MOST_DRAWS = 0.8, 200, 99


@dataclass(frozen=True)
class Reached:
    """A server that answers, and what the certificate says of it."""

    url: str
    sidecar: RealSidecar
    described: dict[str, Any]


def reach(url: str, asked: Server, chosen: Chosen, log: LogFit | None = None) -> Reached:
    """Look at the server, and have it serve a few requests of the first seed's sizes.

    log : the merge log that is judged, if one is.

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
    refuse_practised("--sidecar", settings[0], log)
    load, target = MergeLoad.parse(asked.merge_load), target_of(url, asked)
    version = identity.server_version(url)
    found = regimes[0].sidecar.calibration
    if found is not None:
        refuse_mismatch(found, merge_s=settings[0].corridor.merge_ns / NS_PER_S, server=version)
        if found["merge_load"] != str(load):
            raise BadInput("--calibration", f"one of merge load {found['merge_load']}", f"{load}, as --merge-load says")
    sidecar = RealSidecar(that_serves(target, trace), load)
    return Reached(url, sidecar, described(sidecar, version, asked.server_name))


def target_of(url: str, asked: Server) -> Target:
    model = model_at(url, asked.model)
    return Target(url, model, chat=asked.chat, token_ids=not asked.text, vocabulary=asked.vocabulary)


def refuse_practised(option: str, setting: Setting, log: LogFit | None = None) -> None:
    """A merge load runs merges of one length.  log : the merge log that is judged.  Raises BadInput."""
    if not setting.practice.ordinary:
        expected = "a regime without [merge]; without a server such merges are judged in simulation"
        raise BadInput(f"{option}, {setting.name}", "merges that are not all alike ([merge])", expected)
    each_s = setting.corridor.merge_ns / NS_PER_S
    if log is not None and not log.alike(each_s):
        expected = (
            f"whole, committed merges of {each_s:g} s: a merge load runs one length; without a server they are judged "
            "in simulation"
        )
        raise BadInput(f"{option}, {log.name}", "merges that are not all alike", expected)


def described(sidecar: RealSidecar | LiveServer, version: str, name: str | None) -> dict[str, Any]:
    """What a certificate says of a server, the client's host, the merge load, and who ran on which cores."""
    target = sidecar.target
    # Of a model that is a folder, only its name: where it lies says nothing about the server.
    address, model = address_of(target.url), target.model.rstrip("/").rpartition("/")[2]
    return {
        "name": name or f"{version} at {address}, model {model}",
        "address": address,
        "version": version,
        "model": model,
        "date": datetime.now(UTC).strftime("%Y-%m-%d"),
        "api": "chat completions" if target.chat else "completions",
        "prompts": "text" if target.chat or not target.token_ids else "token ids",
        "request_fields": target.fields,
        "client_host": identity.host_facts(),
        "merge_load": str(sidecar.load),
        **sidecar.cores.describe(),
        "client_priority": client_priority(),
    }


def replay_s(setting: Setting) -> float:
    """Seconds that one replay of a setting takes."""
    trace = setting.worlds.workload(0).trace
    span_ns = max(setting.corridor.horizon_ns, int(trace.arrival_ns[-1]) if len(trace) else 0)
    return span_ns / NS_PER_S + OVERHEAD_S


@dataclass(frozen=True)
class Pilot:
    """What a budget is planned from: a simulation of the same regime with traces of its own."""

    setting: Setting
    plan: Plan
    alpha: float
    min_effect_pp: float
    jobs: int

    def planned(self) -> Planned:
        found = self._gains()
        gains = found.draw_mean - found.policy
        spread = float(np.sqrt(np.mean(found.draw_sd**2))) if len(gains) else 0.0
        draw_sd = spread if spread > 0 else power.DRAW_SD
        variance = float(np.var(gains, ddof=1)) if len(gains) > 1 else power.POLICY_SD["online"] ** 2
        policy_sd = float(np.sqrt(max(variance - draw_sd**2 / PILOT_DRAWS, 0.0)))
        seen, delta = float(gains.mean()) if len(gains) else 0.0, self.min_effect_pp
        whose = "the pilot's" if seen > delta else "assumed, as the pilot shows none above it"
        gain = seen if seen > delta else max(ASSUMED_GAIN_PP, delta + 1)
        return Planned(gain, whose, power.Spread(policy_sd, draw_sd), self.alpha, delta)

    def _gains(self) -> Gains:
        setting = replace(self.setting, n_seeds=PILOT_SEEDS)
        root = self.plan.root_seed + 1
        modest = replace(self.plan, draws=PILOT_DRAWS, control_draws=1, probes=0, root_seed=root, sequential=False)
        spec = Spec(
            setting.name, "simulated", "scheduler", setting.corridor, setting.peers, 1, setting.slos, PILOT_SEEDS,
            PILOT_DRAWS, 1, False, 1, root, self.alpha, self.min_effect_pp,
        )  # fmt: skip
        return measure(run(modest, [setting], self.jobs), spec, 0).gains


@dataclass(frozen=True)
class Afforded:
    """Seeds and draws that fit, their power, and how many replays would have enough (None: none that is planned)."""

    seeds: int
    draws: int
    power: float
    enough: int | None


@dataclass(frozen=True)
class Planned:
    """The gain that is planned for, and the simulated costs' spreads."""

    gain: float
    whose: str
    spread: power.Spread
    alpha: float
    delta: float

    def alone(self, replays: int, rng: np.random.Generator) -> Afforded:
        """By the replays' own tests: what they measure is the simulated cost and the server's error."""
        wide = power.Spread(self.spread.policy_sd / ASSUMED_CORRELATION, self.spread.draw_sd / ASSUMED_CORRELATION)
        best = power.best_design(
            replays, replaying.FIXED, gain=self.gain, spread=wide, alpha=self.alpha, delta=self.delta, rng=rng,
            fewest_seeds=MIN_SEEDS, fewest_draws=MIN_DRAWS,
        )  # fmt: skip
        seeds, draws = best.design.seeds, best.design.draws
        needed = power.required_seeds(
            gain=self.gain, spread=wide, rng=rng, draws=draws, power=ENOUGH, alpha=self.alpha, delta=self.delta,
            fewest=MIN_SEEDS,
        )  # fmt: skip
        enough = None if needed is None else needed.design.seeds * (draws + replaying.FIXED)
        return Afforded(seeds, draws, best.power, enough)

    def predicted(self, replays: int) -> Afforded:
        """With the simulator's prediction removed."""
        found = [(self._predicted(n, replays // n - replaying.FIXED), n) for n in self._seeds(replays)]
        at, seeds = max(found)
        sizes = [(n * (m + replaying.FIXED), n, m) for n in range(MIN_SEEDS, MOST_SEEDS + 1) for m in (5, 9, 19, 39)]
        enough = next((r for r, n, m in sorted(sizes) if self._predicted(n, m) >= ENOUGH), None)
        return Afforded(seeds, min(replays // seeds - replaying.FIXED, MOST_DRAWS), at, enough)

    def _seeds(self, replays: int) -> range:
        return range(MIN_SEEDS, replays // (MIN_DRAWS + replaying.FIXED) + 1)

    def _predicted(self, seeds: int, draws: int) -> float:
        return predicted_power(
            seeds, min(draws, MOST_DRAWS), gain=self.gain, spread=self.spread, correlation=ASSUMED_CORRELATION,
            delta=self.delta, alpha=self.alpha,
        )  # fmt: skip


def affordable(minutes: float, each_s: float, pilot: Pilot, predicted: bool, notes: Console) -> tuple[int, int]:
    """Seeds and draws with the best power among those that fit, by a simulated pilot; says what they can attain.

    predicted : whether the simulator's prediction will decide; both designs are told, with what each would need.
    """
    replays, fixed = int(minutes * 60 / each_s), replaying.FIXED
    least = MIN_SEEDS * (MIN_DRAWS + fixed)
    if replays < least:
        n_seeds = max(1, replays // (MIN_DRAWS + fixed))
        notes.print(
            f"budget: {replays} replays of {each_s:.0f} s fit {minutes:g} min; {MIN_SEEDS} seeds of {MIN_DRAWS} draws "
            f"need {least} ({least * each_s / 60:.0f} min), so this run can only be undecidable",
            soft_wrap=True,
        )
        return n_seeds, MIN_DRAWS
    plan = pilot.planned()
    rng = seeds.generator(pilot.plan.root_seed, "budget", pilot.setting.name)
    told = {"without --predicted": plan.alone(replays, rng), "with it": plan.predicted(replays)}
    chosen = told["with it" if predicted else "without --predicted"]
    notes.print(
        f"budget: {replays} replays of {each_s:.0f} s fit {minutes:g} min; chosen {chosen.seeds} seeds of "
        f"{chosen.draws} draws for a gain of {plan.gain:.2f} pp ({plan.whose}) above {plan.delta:g} pp; simulated "
        f"pilot: policy sd {plan.spread.policy_sd:.2f}, draw sd {plan.spread.draw_sd:.2f} pp; violations assumed to "
        f"correlate {ASSUMED_CORRELATION:g} with the simulator's within a seed",
        soft_wrap=True,
    )
    for how, design in told.items():
        minutes_needed = None if design.enough is None else design.enough * each_s / 60
        enough = "more than is planned" if minutes_needed is None else f"{design.enough} ({minutes_needed:.0f} min)"
        notes.print(
            f"  {how}: {design.seeds} seeds of {design.draws} draws have power {design.power:.2f}; power {ENOUGH:g} "
            f"needs {enough} replays",
            soft_wrap=True,
        )
    return chosen.seeds, chosen.draws


def announce(server: Reached, setting: Setting, draws: int, alpha: float, notes: Console) -> None:
    """What will be replayed, how long that takes, and which p-values it can give."""
    n, each_s = setting.n_seeds * (draws + replaying.FIXED), replay_s(setting)
    floors = replaying.attainable(setting.n_seeds, draws)
    attained = ", ".join(f"{name} {p:.3g}" for name, p in floors.items())
    notes.print(
        f"{server.described['name']}: {setting.n_seeds} seeds x ({draws} draws + {replaying.FIXED}) = {n} "
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
    server: Reached, head: Head, setting: Setting, evidence: Sequence[Evidence], kept: Partial, notes: Console
) -> list[Evidence]:
    """The seeds with the replays that are missing; each is kept as it comes.

    Raises SidecarError when the server goes away; what is finished stays, and the same command goes on.
    """
    spec = replace(head.spec(head.regimes[0]), back_end="simulated", n_seeds=len(evidence))
    integrity = integrity_gate(evidence, spec)
    if integrity.status != "passed":
        notes.print(f"nothing is replayed: G0 integrity: {integrity.reason}", soft_wrap=True)
        return list(evidence)
    evidence = attached(evidence, kept.replays())
    evidence, further = evidence[: setting.n_seeds], evidence[setting.n_seeds :]
    root, draws = head.settings.root_seed, head.settings.draws
    total = setting.n_seeds * (draws + replaying.FIXED)
    done = total - replaying.outstanding(evidence, root, draws)
    if done:
        notes.print(f"going on: {done} replays of the interrupted run are kept")

    def tell(made: Replay, left: int) -> None:
        nonlocal done
        done = total - left
        notes.print(
            f"replay {done}/{total}: {made.what}: {made.invalid or 'valid'}; "
            f"about {left * replay_s(setting) / 60:.0f} min left",
            soft_wrap=True,
        )

    def replay(trace: RequestTrace, schedule: Schedule) -> Replay:
        try:
            seen = server.sidecar.replay(trace, schedule)
            models_of(server.url)
        except SidecarError as error:
            raise ProtocolError(
                f"{error}; {done} of {total} replays are kept, the same command goes on from there"
            ) from None
        time.sleep(PAUSE_S)
        return seen

    return [*replaying.run(evidence, setting, root, draws, replay, kept.keep_replay, tell), *further]
