"""Tier 3, predicted: what further simulated seeds say of the replayed ones, and that they ran as they should."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from protocol.evidence.model import Evidence
from protocol.gates.integrity import integrity_gate
from protocol.gates.result import Check
from protocol.gates.spec import Spec
from protocol.stats.gains import Gains, GateTest
from protocol.stats.predicted import PredictedGain, predicted_gain

Costs = NDArray[np.float64]


def predict(
    simulated: Sequence[Sequence[Costs]], policy: Sequence[float], draws: Sequence[Costs],
    further: Sequence[Sequence[Costs]],
) -> PredictedGain | str:  # fmt: skip
    """The real gain less what the simulator says is special about the replayed seeds, or why there is none.

    simulated, further : by seed the simulated costs of the policy, shape (1,), and of its draws, (m,); of the replayed
    seeds and of the others.  policy, draws : the replayed seeds' real costs.
    """
    own, drawn = ([row[k] for row in simulated] for k in (0, 1))
    elsewhere = [float(d.mean() - p[0]) if len(p) and len(d) else math.nan for p, d in further]
    return predicted_gain(policy, draws, [float(p[0]) if len(p) else math.nan for p in own], drawn, elsewhere)


def quieter(
    policy: Sequence[float], draws: Sequence[Costs], found: PredictedGain | None
) -> tuple[list[float], list[Costs]]:
    """Costs with the noise that a prediction leaves, for the power curve; as they are without one.

    The curve then makes the replays' own tests at that noise, which find a little less than t does.
    """
    if found is None or found.noise_left is None:
        return list(policy), list(draws)
    left, means = math.sqrt(found.noise_left), [float(d.mean()) for d in draws]
    own = [mean - gain for mean, gain in zip(means, found.by_seed.tolist(), strict=True)]
    return own, [mean + left * (d - mean) for mean, d in zip(means, draws, strict=True)]


def further_check(further: Sequence[Evidence], spec: Spec) -> Check:
    """G0 of the seeds that were only simulated: everything that is asked of a simulation."""
    alone = replace(spec, back_end="simulated", n_seeds=spec.predicted, predicted=0)
    gate = integrity_gate(further, alone)
    reason = f"{len(further)} simulated seeds beside the replayed ones"
    return Check("further seeds", gate.status, f"{reason}: {gate.reason}", n=len(further))


def stated(found: PredictedGain, plain: Gains | None) -> dict[str, Any]:
    """As the certificate states it, the replays' own gain and tests beside it."""
    chance = None if plain is None else plain.chance
    assert plain is not None and chance is not None
    return {
        "further": found.further,
        "simulated_gain_pp": found.simulated,
        "further_gain_pp": found.elsewhere,
        "correlation": found.correlation,
        "slope": float(found.slopes.mean()),
        "noise_left": found.noise_left,
        "plain_gain_pp": found.plain,
        "plain_interval_pp": [v if math.isfinite(v) else None for v in (chance.interval.lower, chance.interval.upper)],
        "plain_tests": stated_tests([t for t in plain.tests if t.concerns == "chance"]),
    }


def stated_tests(tests: Sequence[GateTest]) -> list[dict[str, Any]]:
    """Tests as a certificate states them."""
    return [
        {
            "name": t.name,
            "about": t.concerns,
            "p": t.outcome.pvalue,
            "p_at_zero": t.at_zero,
            "smallest_p": t.outcome.floor,
        }
        for t in tests
    ]
