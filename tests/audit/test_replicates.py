"""Rows of a table that are one replicate."""

from __future__ import annotations

import numpy as np
import pytest

from protocol.audit.imported import Claim, Comparison, Run
from protocol.audit.judge import audit
from protocol.audit.pairs import pair
from protocol.audit.replicates import by_likeness, by_run


def pods(level: dict[int, float], spread: float = 0.05, arms: tuple[str, ...] = ("mine", "random")) -> list[Run]:
    """Four pods a run, seeds 11 to 14 for run 1 and so on; `random` one point above."""
    rng = np.random.default_rng(2)
    return [
        Run("", arm, 10 * run + pod, value + i + spread * rng.random())
        for i, arm in enumerate(arms)
        for run, value in level.items()
        for pod in range(1, 5)
    ]


def units(runs: list[Run]) -> set[object]:
    return {run.unit for run in runs}


def test_pods_of_a_run_are_one_replicate() -> None:
    found, warning = by_likeness(pods({1: 9.0, 2: 13.0}))
    assert units(found) == {"seeds 11 to 14", "seeds 21 to 24"} and "2 replicates" in warning
    pair_ = pair(Comparison("c", "c", tuple(found)), "mine", "random")
    assert pair_["p_sign_flip"] == pair_["p_floor"] == 0.25
    d = [np.mean([r.violation_pct for r in found if r.arm == "mine" and r.unit == u])
         - np.mean([r.violation_pct for r in found if r.arm == "random" and r.unit == u])
         for u in ("seeds 11 to 14", "seeds 21 to 24")]  # fmt: skip
    assert pair_["raw_pp"]["by_seed"] == pytest.approx(d)


def test_independent_seeds_stay_apart() -> None:
    """The same seeds, with values that are not tight: 200 tables, none is grouped."""
    rng = np.random.default_rng(7)
    for _ in range(200):
        runs = [Run("", arm, s, 10 + rng.normal()) for arm in ("a", "b") for s in (11, 12, 13, 14, 21, 22, 23, 24)]
        assert by_likeness(runs) == (runs, "")
    for seeds in ([1, 2, 3, 4, 5, 6], [11, 12, 13, 14, 15, 16], [11, 12, 21, 22], [11, 12, 13, 21, 22, 30]):
        runs = [Run("", arm, s, 5.0 * (s // 10) + s / 1000) for arm in ("a", "b") for s in seeds]
        assert by_likeness(runs)[1] == ""


def test_one_arm_that_is_not_tight_is_enough_to_stay_apart() -> None:
    runs = pods({1: 9.0, 2: 13.0})
    loose = [Run(r.regime, r.arm, r.seed, 3.0 * (int(r.seed or 0) % 10) if r.arm == "random" else r.violation_pct)
             for r in runs]  # fmt: skip
    assert by_likeness(loose)[1] == ""
    nan = [Run(r.regime, r.arm, r.seed, float("nan") if r.seed == 11 else r.violation_pct) for r in runs]
    assert by_likeness(nan)[1] == ""


def test_a_run_column_decides() -> None:
    runs = pods({1: 9.0, 2: 13.0})
    shared = by_run(runs, {i: str(int(r.seed or 0) // 10) for i, r in enumerate(runs)})
    assert units(shared) == {1, 2}
    # Each row a run of its own, with names that no other arm has: every seed is a replicate.
    assert units(by_run(runs, {i: f"r{i}" for i in range(len(runs))})) == {r.seed for r in runs}
    # Names of one arm alone: the seeds that share one are together in both arms.
    own = by_run(runs, {i: f"{r.arm}-{int(r.seed or 0) // 10}" for i, r in enumerate(runs)})
    assert units(own) == {"seeds 11 to 14", "seeds 21 to 24"}
    # One seed for everything: the run is the replicate.
    same = [Run("", arm, 0, v, 1000) for arm in ("a", "b") for v in (1.0, 2.0, 3.0)]
    assert units(by_run(same, {i: str(i % 3) for i in range(6)})) == {0, 1, 2}


def test_intervals_and_gates_count_replicates() -> None:
    runs, _ = by_likeness(pods({1: 9.0, 2: 13.0, 3: 17.0}))
    comparison = Comparison("c", "c", tuple(runs), (Claim("t", "better", "mine", "random"),), random_arm="random")
    found = audit(comparison)
    arm = found["arms"][0]
    assert (arm["runs"], arm["replicates"], arm["violation_pct"]["n"]) == (12, 3, 3)
    (claim,) = found["claims"]
    assert claim["checks"][0]["status"] == "undecidable"  # three replicates cannot reach .05
    envelope = next(c for c in claim["checks"] if c["name"].startswith("G3"))
    assert envelope["n"] == 3 and "3 seeds, 8 needed" in envelope["reason"]


def test_draws_of_a_cluster_are_not_called_exchangeable() -> None:
    runs = [Run("", "mine", s, 1.0 + s) for s in (1, 2, 3, 4)]
    runs += [Run("", "random", s, 2.0 + s + d / 10, draw=d) for s in (1, 2, 3, 4) for d in range(5)]
    clustered = by_run(runs, {i: "x" if r.seed in (1, 2) else "y" for i, r in enumerate(runs)})
    assert pair(Comparison("c", "c", tuple(clustered)), "mine", "random")["p_stratified"] is None
    assert pair(Comparison("c", "c", tuple(runs)), "mine", "random")["p_stratified"] is not None
