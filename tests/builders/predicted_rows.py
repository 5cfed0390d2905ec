"""Rows of a server, the simulation of the same seeds, and of a hundred more."""

from __future__ import annotations

from dataclasses import replace
from functools import cache

import numpy as np
import same_rows
from same_rows import BUDGET, SEEDS
from strategies import CORRIDOR, ToyLoaded, bursty

from protocol import seeds
from protocol.certificate.model import Head
from protocol.evidence.model import Evidence
from protocol.merging.schedule import Schedule
from protocol.replay.measurements import Measurements
from protocol.replay.replay import NO_SYNC, POLICY, UNIFORM

FURTHER = 100


def head(predicted: int = FURTHER) -> Head:
    plain = same_rows.head("real")
    return plain.model_copy(update={"settings": plain.settings.model_copy(update={"predicted": predicted})})


def noisy(m: Measurements, arm: str, draw: int, seed: int) -> Measurements:
    """As the server served it: now and then a request fails that the simulator served."""
    drawn = np.random.default_rng((5, seed, draw, len(arm))).random(len(m)) < 0.01
    return same_rows.unserved(m, drawn)


@cache
def rows(seed: int, arm: str, draw: int) -> Measurements:
    """As `rows_of`, but draws of a seed differ among themselves."""
    if arm != UNIFORM:
        return same_rows.rows_of(seed, arm, draw)
    gaps = CORRIDOR.sample(BUDGET, 8, seeds.generator(1, arm, seed))[draw]
    schedule = Schedule.all_islands(CORRIDOR.start_ns(gaps), CORRIDOR.merge_ns)
    return ToyLoaded(bursty(seed)).replay(schedule)


@cache
def replayed() -> tuple[Evidence, ...]:
    """Replayed seeds whose simulation says what `rows` does, and whose server failed some requests more."""
    pairs = zip(same_rows.evidence("real", noisy, rows), same_rows.evidence("simulated", None, rows), strict=True)
    return tuple(replace(e, placed=s.placed, simulated=s.simulated) for e, s in pairs)


@cache
def further() -> tuple[Evidence, ...]:
    made = [same_rows._seed("simulated", SEEDS + k, None, rows) for k in range(FURTHER)]
    return tuple(replace(e, placed={arm: e.placed[arm] for arm in (POLICY, NO_SYNC, UNIFORM)}) for e in made)
