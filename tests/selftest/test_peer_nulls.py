"""Load-blind peer schedulers are certified in at most 5 % of worlds, by the code that certifies users' schedulers."""

from __future__ import annotations

import os

import joblib
import numpy as np
import pytest
from scipy import stats

from benchmarks.peer_nulls import AWARE, FAMILIES, MIXED, REGIME, TESTS, certification
from protocol.gates.spec import Spec
from protocol.gates.unlike import weights
from protocol.merging.peers.schedules import PeerSchedule
from protocol.workload.slo import Slo

ROOT = 31
#: Of a slow test of mixed kinds; the others make 2,000.
WORLDS = int(os.environ.get("PROTOCOL_NULLS", "2000"))


def hits(family: str, n: int, test: str = "certified", jobs: int = 1) -> int:
    found = joblib.Parallel(n_jobs=jobs)(joblib.delayed(certification)(family, ROOT, k) for k in range(n))
    return sum(hit[test] for hit in found)


def test_blind_pairs_are_rarely_certified_and_load_aware_ones_always() -> None:
    # Of 20 nulls at 5 %, 5 or more pass once in 400 times; the seed is fixed.
    assert hits("pairs at a random rate", 20) < 5
    assert hits(next(iter(AWARE)), 3) == 3


@pytest.mark.slow
@pytest.mark.parametrize("family", MIXED)
def test_merges_of_mixed_kinds_hold_their_level(family: str) -> None:
    """Certified, and by each test that decides: the exchange counts merges of several kinds by the time they take."""
    found = [certification(family, ROOT, k) for k in range(WORLDS)]
    for test in TESTS:
        count = sum(hit[test] for hit in found)
        assert stats.binomtest(count, WORLDS, 0.05, "greater").pvalue > 0.001, (test, count)


@pytest.mark.slow
@pytest.mark.parametrize("family", FAMILIES)
def test_false_certification_stays_within_five_percent(family: str) -> None:
    """2,000 worlds a family: rate at most 5 %, and its exact upper limit at most 6.5 %."""
    count = hits(family, 2000, jobs=2)
    assert count / 2000 <= 0.05
    assert stats.binomtest(count, 2000).proportion_ci(0.95, "exact").high <= 0.065


@pytest.mark.slow
@pytest.mark.parametrize("test", ["stratified", "load_aware"])
def test_each_deciding_test_holds_its_level_on_its_own_null(test: str) -> None:
    """Uniform placements are the null of the draws, and any blind scheduler that of the exchange between traces."""
    count = hits("a matched draw", 2000, test, jobs=2)
    assert stats.binomtest(count, 2000, 0.05, "greater").pvalue > 0.001


def test_merges_of_several_kinds_are_exchanged_by_the_time_they_take() -> None:
    """In islands-offset a pair occupies two islands for 4.409 s, all four of four for 6.618 s."""
    peers = REGIME.peers()
    assert peers is not None
    pairs = PeerSchedule(np.array([10, 50]), ((0, 1), (2, 3)))
    mixed = PeerSchedule(np.array([10, 50]), ((0, 1, 2, 3), (0, 1)))
    spec = Spec(
        "fleet", "simulated", "scheduler", peers.corridor, peers, 4, (Slo.parse("e2e<=1s"),), 2, 9, 1, False, 1, 1,
        0.05, 0.0,
    )  # fmt: skip
    none = np.zeros((2, 1), np.int64)
    pair, four = (int(peers.busy_ns(g).sum()) for g in ((0, 1), (0, 1, 2, 3)))
    assert four > 2.9 * pair
    assert weights(peers.stored([pairs, mixed], none), spec).tolist() == [2 * pair, four + pair]
    assert weights(peers.stored([pairs, pairs], none), spec).tolist() == [2, 2]  # as it always was
