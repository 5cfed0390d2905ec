"""Sessions that end when they suffice, on a server that drifts and on which merges leave something behind."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import numpy as np
import pytest
from scipy import stats
from server_runs import ToyServer, judged, server_spec, session, session_plan
from strategies import SLOW_NS, FunctionSource, coin, quiet

from protocol.campaign import live
from protocol.evidence.model import Evidence
from protocol.gates.envelope import measure
from protocol.gates.load_match import load_match_gate
from protocol.placement.rollout import ControlLoop
from protocol.replay.replay import Replay
from protocol.scheduler import SchedulerRun
from protocol.stats.anytime import WATCHED
from protocol.workload.trace import Workload

ALPHA = 0.05


@dataclass
class Leaving(ToyServer):
    """carryover_pp : more requests are late in a replay after one with merges.  drift_pp : more in each replay."""

    carryover_pp: float = 0.0
    drift_pp: float = 0.0
    session: int = 0
    merged: bool = False

    def serve(
        self, workload: Workload, loop: ControlLoop, span_ns: int, run: SchedulerRun | None, starts_ns: Sequence[int]
    ) -> Replay:
        made = super().serve(workload, loop, span_ns, run, starts_ns)
        late_pct = self.carryover_pp * self.merged + self.drift_pp * self.replays
        self.merged = bool(made.n_merges)
        stalled = np.random.default_rng([9, self.session, self.replays]).random(len(made.rows)) < late_pct / 100
        rows = replace(made.rows, e2e_ns=np.where(stalled, SLOW_NS, made.rows.e2e_ns))
        return replace(made, rows=rows)


def of(
    function: Callable[..., object], blocks: int, number: int, watched: bool, carryover_pp: float = 0.0,
    drift_pp: float = 0.0, min_effect_pp: float = 0.0,
) -> tuple[list[Evidence], float]:  # fmt: skip
    """The blocks of one simulated session, and G3's p at its end."""

    def p_of(found: Sequence[Evidence]) -> float:
        spec = server_spec("live", found, min_effect_pp=min_effect_pp, until_decided=watched)
        return measure(found, spec, 0).p or 1.0

    plan = replace(session_plan(blocks), root_seed=1000 + number)
    made = live.run(
        plan, Leaving(carryover_pp=carryover_pp, drift_pp=drift_pp, session=number), FunctionSource(function),
        decided=lambda found: watched and p_of(found) <= ALPHA,
    )  # fmt: skip
    return made, p_of(made)


def test_a_good_scheduler_is_decided_before_the_session_would_have_ended() -> None:
    found, p = of(quiet, 20, 0, watched=True)
    assert len(found) < 20 and p <= ALPHA
    certificate, checks = judged("live", found, n_seeds=20, until_decided=True)
    assert certificate.verdict == "PASS" and checks["G0", "completeness"] == "passed"
    (claim,) = certificate.claims
    assert WATCHED in [t.name for t in claim.envelope.tests] and claim.envelope.interval_pp is not None
    asked_for_all, checks = judged("live", found, n_seeds=20)
    assert asked_for_all.verdict == "INCONCLUSIVE" and checks["G0", "completeness"] == "undecidable"
    assert "The session was watched" in certificate.sentence and "watched" not in asked_for_all.sentence


def test_the_interval_of_a_watched_session_is_the_wider() -> None:
    found = session(quiet)
    fixed, watched = (
        measure(found, server_spec("live", found, until_decided=w), 0).gains.chance for w in (False, True)
    )
    assert fixed is not None and watched is not None and watched.t_interval is None
    assert watched.interval.lower <= fixed.interval.lower and watched.interval.upper >= fixed.interval.upper


def test_what_merges_leave_behind_is_measured_and_a_lot_of_it_is_no_pass() -> None:
    clean, left = (of(quiet, 12, 1, watched=False, carryover_pp=c)[0] for c in (0.0, 8.0))
    spec = server_spec("live", clean, margin_pp=2.0)
    (slo,) = spec.slos
    quietly, loudly = (
        next(c for c in load_match_gate(found, spec, slo, 0).checks if c.name == "carryover") for found in (clean, left)
    )
    assert quietly.status == "passed" and quietly.statistic == 0.0
    assert loudly.status == "failed" and loudly.statistic == pytest.approx(8.0, abs=2.0)
    assert loudly.interval is not None and loudly.interval[0] > 2.0 and "carries over" in loudly.reason
    assert judged("live", left, margin_pp=2.0)[0].verdict == "FAIL"


def test_one_block_has_no_spread_to_measure_a_carryover_by() -> None:
    found = session(quiet)[:1]
    spec = server_spec("live", found)
    check = next(c for c in load_match_gate(found, spec, spec.slos[0], 0).checks if c.name == "carryover")
    assert check.status == "undecidable" and "1 blocks" in check.reason


@pytest.mark.slow
@pytest.mark.parametrize("watched", [False, True], ids=["fixed length", "until decided"])
def test_blind_schedulers_on_a_server_with_carryover_and_drift(watched: bool) -> None:
    """200 sessions of 20 blocks, 1 pp carried over, and 0.02 pp more late requests with every replay."""
    ended = [of(coin, 20, number, watched, 1.0, 0.02) for number in range(200)]
    passed = sum(p <= ALPHA for _, p in ended)
    low, high = stats.binomtest(passed, 200).proportion_ci(method="exact")
    print(f"G3 passed in {passed} of 200 sessions: {passed / 2:.1f} % ({100 * low:.1f} to {100 * high:.1f})")
    assert passed <= 10


@pytest.mark.slow
def test_how_much_earlier_a_good_scheduler_is_decided() -> None:
    """40 sessions of at most 20 blocks on the same server."""
    lengths = [len(of(quiet, 20, number, True, 1.0, 0.02, 0.5)[0]) for number in range(40)]
    fixed = [of(quiet, 20, number, False, 1.0, 0.02, 0.5)[1] <= ALPHA for number in range(10)]
    print(f"decided after {np.mean(lengths):.1f} blocks (median {np.median(lengths):g}) instead of 20")
    assert np.mean(lengths) < 20 and all(fixed)
