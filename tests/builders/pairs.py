"""Campaigns of schedulers that merge pairs of islands."""

from __future__ import annotations

from functools import cache
from typing import Any

import numpy as np
from fleets import peers
from strategies import FunctionSource, ToyWorlds, head_for, plan_of, setting
from strategies import quiet as quiet_fleet

from protocol.campaign.plan import Setting
from protocol.campaign.run import run
from protocol.certificate.model import Head
from protocol.evidence.model import Evidence
from protocol.scheduler import Decision, Observation

P = peers(horizon_s=120)


def peer_setting(**changes: Any) -> Setting:
    return setting(corridor=P.corridor, worlds=ToyWorlds(4), peers=P, **changes)


def pairs_of(obs: Observation, key: Any) -> Decision:
    ready = sorted((i for i, o in enumerate(obs.islands) if o.steps_since_merge >= obs.h_min), key=key)
    return Decision(True, tuple(zip(ready[::2], ready[1::2], strict=True)))


def quiet(obs: Observation, rng: np.random.Generator) -> Decision:
    """Pairs when the fleet is quiet."""
    return pairs_of(obs, lambda i: (obs.islands[i].in_flight, i)) if quiet_fleet(obs, rng) else Decision(False)


def coin(obs: Observation, rng: np.random.Generator) -> Decision:
    return pairs_of(obs, lambda i: i) if rng.random() < 0.2 else Decision(False)


@cache
def evidence_of(function: Any) -> tuple[Evidence, ...]:
    return tuple(run(plan_of(FunctionSource(function)), [peer_setting()], jobs=1))


def head_of(function: Any, name: str = "toy-scheduler") -> Head:
    asked = head_for(FunctionSource(function, name), [peer_setting()]).plain()
    table = {"payload_bytes": 100, "bandwidth": [50.0], "latency_s": 0.0, "exchange": "all-reduce", "graph": [],
             "bursts": "common"}  # fmt: skip
    regimes = [{**asked["regimes"][0], "islands": 4, "peer": table}]
    return Head.model_validate({**asked, "regimes": regimes})
