"""Tier 3, predicted: further simulated seeds decide with the replays, and are asked what a simulation is asked."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import same_rows
from predicted_rows import FURTHER, further, head, replayed
from same_rows import SEEDS, SLO

from protocol.certificate.assess import assess
from protocol.certificate.model import Certificate, Head
from protocol.errors import BadInput
from protocol.evidence.model import Evidence, Probe
from protocol.replay.replay import NO_SYNC, POLICY, UNIFORM
from protocol.stats.predicted import PREDICTED, predicted_gain


def certified(changed: list[Evidence] | None = None, asked: Head | None = None) -> Certificate:
    return assess(asked or head(), [*replayed(), *(further() if changed is None else changed)])


def test_the_prediction_decides_and_the_replays_own_tests_stand_beside() -> None:
    made, plain = certified().claims[0].envelope, assess(same_rows.head("real"), replayed()).claims[0].envelope
    assert made.predicted is not None and plain.predicted is None
    assert [t.name for t in made.tests if t.about == "chance"] == [PREDICTED]
    beside = [(t.name, t.p) for t in made.predicted.plain_tests]
    assert beside == [(t.name, t.p) for t in plain.tests if t.about == "chance"]
    assert (made.predicted.plain_gain_pp, made.predicted.plain_interval_pp) == (plain.gain_pp, plain.interval_pp)
    assert made.predicted.further == FURTHER and made.predicted.noise_left is not None
    assert made.p == max(t.p for t in made.tests if t.p is not None) and made.n_seeds == SEEDS
    assert (made.load_gain_pp, made.per_seed) == (plain.load_gain_pp, plain.per_seed)


def test_its_numbers_from_the_rows() -> None:
    """Costs counted from rows here, estimated by `predicted_gain`."""

    def real(e: Evidence, arm: str) -> np.ndarray:
        idle = np.mean([r.rows.violates(SLO).sum() for r in e.replays(NO_SYNC)])
        return np.array([100 * (r.rows.violates(SLO).sum() - idle) / e.n_requests for r in e.replays(arm)])

    def priced(e: Evidence, arm: str) -> np.ndarray:
        counts = e.placed[arm].violations[:, 0] - e.placed[NO_SYNC].violations[0, 0]
        return 100 * counts / e.n_requests

    found = predicted_gain(
        [real(e, POLICY)[0] for e in replayed()], [real(e, UNIFORM) for e in replayed()],
        [priced(e, POLICY)[0] for e in replayed()], [priced(e, UNIFORM) for e in replayed()],
        [priced(e, UNIFORM).mean() - priced(e, POLICY)[0] for e in further()],
    )  # fmt: skip
    assert not isinstance(found, str)
    made = certified().claims[0].envelope
    assert made.gain_pp == pytest.approx(found.estimate) and made.interval_pp is not None
    assert made.interval_pp == pytest.approx((found.lower(0.025), found.upper(0.025)))
    assert next(t.p for t in made.tests if t.about == "chance") == pytest.approx(found.pvalue(0.5))
    assert made.predicted is not None and made.predicted.further_gain_pp == pytest.approx(found.elsewhere)


def test_further_seeds_are_asked_what_a_simulation_is_asked() -> None:
    """One whose future changed a decision, one that is missing, one that another seed's trace was given to."""
    cheat = replace(further()[7], probes=(Probe("determinism", None, None), Probe("causality", 1, "decided otherwise")))
    for changed, status, words in (
        ([*further()[:7], cheat, *further()[8:]], "failed", f"seed {SEEDS + 7}: with only the future"),
        (list(further()[:-1]), "undecidable", f"{FURTHER - 1} of {FURTHER} seeds"),
        ([], "undecidable", "no seed was run"),
        ([*further()[:-1], replace(further()[-1], trace_digest=replayed()[0].trace_digest)], "failed", "identical"),
    ):
        claim = certified(changed).claims[0]
        gate = next(g for g in claim.gates if g.gate == "G0")
        assert gate.status == status and words in gate.reason


def test_a_further_seed_is_only_simulated() -> None:
    served = replace(further()[0], served=replayed()[0].served)
    with pytest.raises(BadInput, match="a further seed is only simulated"):
        certified([served, *further()[1:]])
    with pytest.raises(BadInput, match=f"at most {SEEDS - 1}"):
        certified(asked=head(0))
