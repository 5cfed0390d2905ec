"""One set of rows as evidence of each tier: simulated, replayed on a server, live."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import cache
from typing import Any

import numpy as np
from strategies import CORRIDOR, FunctionSource, S, ToyLoaded, bursty, described, quiet, setting

from protocol import seeds
from protocol.certificate.model import Head, versions
from protocol.evidence.model import CROSSED, Evidence, Probe
from protocol.evidence.order import BALANCED, random_order
from protocol.gates.units import judged as judged_replays
from protocol.merging.placements import Placements
from protocol.merging.schedule import Schedule
from protocol.replay.measurements import FAILED, Measurements
from protocol.replay.replay import NO_SYNC, POLICY, UNIFORM, Replay
from protocol.workload.slo import Slo
from protocol.workload.trace import RequestTrace

BACK_ENDS = ("simulated", "real", "live")
SEEDS, DRAWS, IDLE, BUDGET = 10, 5, 3, 10
SLO = Slo.parse("e2e<=1s")
Change = Callable[[Measurements, str, int, int], Measurements]


def head(back_end: str, seeds: int = SEEDS, min_effect_pp: float = 0.5) -> Head:
    source = FunctionSource(quiet)
    server = {"name": "stub", "version": "1", "merge_load": "none"}
    return Head.model_validate({
        "contender": {"name": source.name, "kind": source.kind, **source.describe()},
        "settings": {
            "back_end": back_end, "root_seed": 7, "alpha": 0.05, "min_effect_pp": min_effect_pp,
            "draws": 1 if back_end == "live" else DRAWS, "idle": 1 if back_end == "simulated" else IDLE,
            "margin_pp": 1.0,
        },
        "versions": versions(),
        "regimes": [described(setting(n_seeds=seeds))],
        **({} if back_end == "simulated" else {"server": server}),
    })  # fmt: skip


@cache
def _trace(seed: int) -> RequestTrace:
    return bursty(seed)


@cache
def _gaps(seed: int, arm: str, draw: int) -> tuple[int, ...]:
    if arm == NO_SYNC:
        return ()
    # Every draw of a seed is the same, so that one of them says what five do.
    rng = seeds.generator(1, arm, seed)
    tried = CORRIDOR.sample(BUDGET, 8, rng)
    costs = ToyLoaded(_trace(seed)).violations(
        [Schedule.all_islands(CORRIDOR.start_ns(g), CORRIDOR.merge_ns) for g in tried], SLO
    )
    return tuple(tried[np.argmin(costs) if arm == POLICY else 0].tolist())


@cache
def rows_of(seed: int, arm: str, draw: int) -> Measurements:
    gaps = np.array(_gaps(seed, arm, draw), np.int64)
    schedule = Schedule.all_islands(CORRIDOR.start_ns(gaps), CORRIDOR.merge_ns)
    return ToyLoaded(_trace(seed)).replay(schedule)


def unserved(m: Measurements, rows: Any) -> Measurements:
    """The same rows with some that failed."""
    changed = {
        name: getattr(m, name).copy() for name in ("outcome", "ttft_ns", "e2e_ns", "max_itl_ns", "output_tokens")
    }
    changed["outcome"][rows] = FAILED
    changed["output_tokens"][rows] = 0
    for name in ("ttft_ns", "e2e_ns", "max_itl_ns"):
        changed[name][rows] = -1
    return replace(m, **changed)


def late(m: Measurements) -> Measurements:
    """The same rows from a client that sent every tenth request half a second late."""
    return replace(m, sent_ns=m.sent_ns + np.where(np.arange(len(m)) % 10 == 0, S // 2, 0))


def evidence(
    back_end: str, change: Change | None = None, made: Callable[..., Measurements] = rows_of
) -> list[Evidence]:
    """Every seed of a tier, from the rows of `made`, each changed by `change` where there is one."""
    return [_seed(back_end, seed, change, made) for seed in range(SEEDS)]


def _seed(back_end: str, seed: int, change: Change | None, made: Callable[..., Measurements]) -> Evidence:
    def rows(arm: str, draw: int) -> Measurements:
        found = made(seed, arm, draw)
        return found if change is None else change(found, arm, draw, seed)

    trace = _trace(seed) if made is rows_of else made(seed, NO_SYNC, 0).offered()
    probes = [Probe("determinism", None, None), *([] if back_end == "live" else [Probe("causality", S, None)])]
    found = Evidence(
        "toy", seed, trace.digest, len(trace), int(trace.prompt_tokens.sum()), int(trace.output_tokens.sum()), 0, None,
        None, tuple(probes), np.array([S]), np.array([True]),
    )  # fmt: skip
    found = replace(found, placed=_placed(back_end, seed, rows))
    if back_end == "simulated":
        arms = {arm: Replay(rows(arm, 0), regime="toy", seed=seed, arm=arm) for arm in (POLICY, NO_SYNC)}
        return replace(found, simulated=arms)
    order = BALANCED if back_end == "live" else random_order(7, "toy", seed, IDLE, DRAWS)
    return replace(found, served=tuple(_served(seed, k, arm, draw, rows) for k, (arm, draw) in enumerate(order)))


def _served(seed: int, position: int, arm: str, draw: int, rows: Callable[[str, int], Measurements]) -> Replay:
    starts = CORRIDOR.start_ns(np.array(_gaps(seed, arm, draw), np.int64))
    windows = np.stack([starts, starts + CORRIDOR.merge_ns], axis=1)
    return Replay(
        rows(arm, draw), windows, windows, regime="toy", seed=seed, arm=arm, draw=draw, position=position,
        started=f"2026-01-01T00:{seed:02}:{position:02}.000+00:00",
    )  # fmt: skip


def _placed(back_end: str, seed: int, rows: Callable[[str, int], Measurements]) -> dict[str, Placements]:
    if back_end == "live":
        return {UNIFORM: Placements.of(np.array([_gaps(seed, UNIFORM, 0)]), np.empty((1, 0), np.int64))}

    def priced(arm: str, draws: int) -> Placements:
        gaps = np.array([_gaps(seed, arm, draw) for draw in range(draws)], np.int64).reshape(draws, -1)
        return Placements.of(gaps, np.array([[rows(arm, draw).violates(SLO).sum()] for draw in range(draws)]))

    made = [np.array(_gaps(t, POLICY, 0)) for t in range(SEEDS)]
    everywhere = ToyLoaded(_trace(seed)).violations(
        [Schedule.all_islands(CORRIDOR.start_ns(g), CORRIDOR.merge_ns) for g in made], SLO
    )
    crossed = Placements(np.array([len(g) for g in made]), np.concatenate(made), everywhere[:, None])
    return {POLICY: priced(POLICY, 1), NO_SYNC: priced(NO_SYNC, 1), UNIFORM: priced(UNIFORM, DRAWS), CROSSED: crossed}


def blocks(back_end: str, seeds: int = 8) -> list[Evidence]:
    """Seeds of 100 requests that all arrive within one second, none of them late."""

    def second(seed: int, arm: str, draw: int) -> Measurements:
        m = rows_of(seed, arm, draw)
        arrival = 30 * S + seed + np.arange(100) * 1_000_000
        kept = {name: getattr(m, name)[:100] for name in ("prompt_tokens", "output_tokens", "asked_tokens", "island")}
        quick = np.full(100, 400_000_000)
        return Measurements(
            arrival_ns=arrival, sent_ns=arrival, ttft_ns=quick // 2, e2e_ns=quick, max_itl_ns=quick // 4,
            outcome=np.zeros(100), exposure_ns=np.zeros(100), **kept,
        )  # fmt: skip

    return evidence(back_end, made=second)[:seeds]


def judged(e: Evidence) -> Sequence[Replay]:
    return judged_replays([e])
