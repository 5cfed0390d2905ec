"""Hand-made observations."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import fields

import numpy as np
import pytest

from protocol.scheduler import IslandObservation, Observation

_ISLAND = {f.name for f in fields(IslandObservation)}


def _observe(**known: object) -> Observation:
    """One island, at rest, unless told otherwise; per_s gives the arrivals of each full second so far."""
    per_s = np.asarray(known.pop("per_s", np.full(20, 5.0)), float)
    values: dict[str, object] = {
        "steps_since_merge": 128, "loss": 3.0, "loss_reduction": 0.0, "tokens": 0, "staleness_s": 0.0,
        "network_pressure": 0.0, "serving_pressure": 0.0, "checkpoint_pressure": 0.0, "in_flight": 0, "queued": 0,
        "completed": 0, "recent_e2e_s": None, "recent_ttft_s": None,
    }  # fmt: skip
    rest: dict[str, object] = {
        "time_s": float(len(per_s)), "h_min": 128, "h_max": 512, "decision_steps": 8, "step_s": 0.0735, "merge_s": 8.0,
        "merges_so_far": 0,
    }  # fmt: skip
    for key, value in known.items():
        (values if key in _ISLAND else rest)[key] = value
    island = IslandObservation(**values)  # type: ignore[arg-type]
    return Observation(
        **values,
        **rest,
        arrivals_per_s=per_s,
        prompt_tokens_per_s=per_s * 100,
        islands=(island,),  # type: ignore[arg-type]
    )


@pytest.fixture(scope="session")
def observe() -> Callable[..., Observation]:
    return _observe
