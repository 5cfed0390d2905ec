"""The gates of a live session on sessions made by hand: what certifies, and what each fault does."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from protocol.certificate.live_certificate import assess, head_of
from protocol.evidence.live import AFTER, ARMS, BEFORE, CONTROL, POLICY, Decision, Scrape, Segment, Served, Session
from strategies import S

from protocol.errors import BadInput
from protocol.evidence import live
from protocol.gates import live as gates
from protocol.merging.corridor import Corridor
from protocol.replay.measurements import SERVED, Measurements
from protocol.workload.slo import Slo

MS = 1_000_000
CORRIDOR = Corridor(h_min=40, h_max=160, decision_steps=8, step_ns=50 * MS, merge_ns=3 * S, horizon_ns=27 * S)
SLO = Slo.parse("e2e<=500ms")
N = 300
#: Three merges of 3 s in 27 s, each 4 s after the one before.
STARTS = np.array([4, 11, 18]) * S


def measured(slow: int, seed: int, starts_ns: np.ndarray, token: int = 32) -> Measurements:
    """N requests in 30 s of which `slow` miss the SLO; those near a merge take longer."""
    rng = np.random.default_rng([7, seed, slow])
    arrival = (np.arange(N) * 100 * MS) + seed
    ends = arrival[:, None] - starts_ns[None, :]
    exposed = ((ends >= 0) & (ends < 3 * S)).any(axis=1)
    e2e = np.where(exposed, 400 * MS, 200 * MS) + rng.integers(0, 50 * MS, N)
    e2e[np.argsort(~exposed, kind="stable")[:slow]] = 900 * MS
    return Measurements(
        arrival_ns=arrival, sent_ns=arrival + MS, ttft_ns=np.full(N, 50 * MS), e2e_ns=e2e, max_itl_ns=np.full(N, MS),
        prompt_tokens=np.full(N, 64), output_tokens=np.full(N, token), outcome=np.full(N, SERVED),
        island=np.zeros(N), exposure_ns=np.where(exposed, e2e, 0),
    )  # fmt: skip


def segment(block: int, arm: str, slow: int, **changes: Any) -> Segment:
    merging = arm in (POLICY, CONTROL)
    starts = STARTS + (0 if arm == POLICY else 2 * S) if merging else np.zeros(0, np.int64)
    windows = np.stack([starts, starts + 3 * S], axis=1)
    decisions = (Decision(4 * S, 4 * S + MS, 4 * S + 2 * MS, True, True),) if arm == POLICY else ()
    served = Served(
        requests=measured(slow, block, starts),
        planned_ns=windows,
        ran_ns=windows + 5 * MS if merging else windows,
        load_problem=None,
        failures={},
        decisions=decisions,
        scrapes=(Scrape(0, 3, 0, 3), Scrape(500 * MS, None, None, 2)),
    )
    own = {name: changes.pop(name) for name in ("trace_digest", "replay_difference") if name in changes}
    plain = Segment(block, arm, 130.0 * block + 30 * ARMS.index(arm), f"{block:064x}", replace(served, **changes))
    return replace(plain, budget=3 if arm == CONTROL else None, **own)


def session(n_blocks: int = 10, policy: Callable[[int], int] = lambda b: 20 + b % 3, control: int = 40) -> Session:
    """The policy has about 21 slow requests a segment, the control 40 and a few, without merges 1 or 2."""
    slow = {BEFORE: lambda b: 1 + b % 2, POLICY: policy, CONTROL: lambda b: control + b % 4, AFTER: lambda b: 2 - b % 2}
    return Session(tuple(segment(b, arm, slow[arm](b)) for b in range(n_blocks) for arm in ARMS))


def changed(found: Session, block: int, arm: str, **changes: Any) -> Session:
    own = {name: changes.pop(name) for name in ("trace_digest", "replay_difference", "began_s") if name in changes}
    return replace(
        found,
        segments=tuple(
            replace(s, served=replace(s.served, **changes), **own) if (s.block, s.arm) == (block, arm) else s
            for s in found.segments
        ),
    )


def head(blocks: int = 10) -> dict[str, Any]:
    corridor = {
        k: getattr(CORRIDOR, k) for k in ("h_min", "h_max", "decision_steps", "step_ns", "merge_ns", "horizon_ns")
    }
    return {
        "contender": {"name": "mine.py", "kind": "scheduler", "digest": "0" * 64},
        "preregistration": None,
        "settings": {"alpha": 0.05, "min_effect_pp": 0.0, "margin_pp": 2.0, "root_seed": 1, "blocks": blocks,
                     "segment_s": 30.0},
        "versions": {},
        "server": {"name": "tiny at 127.0.0.1:8000", "date": "2026-01-01"},
        "calibration": None,
        "regimes": [{"name": "tiny", "corridor": corridor, "slos": [str(SLO)], "tokens_per_step": 2048}],
    }  # fmt: skip


def statuses(certificate: dict[str, Any]) -> dict[str, str]:
    return {g["gate"]: g["status"] for g in certificate["claims"][0]["gates"]}


def check(certificate: dict[str, Any], gate: str, name: str) -> dict[str, Any]:
    found = next(g for g in certificate["claims"][0]["gates"] if g["gate"] == gate)
    return next(c for c in found["checks"] if c["name"] == name)


def test_a_gain_in_ten_blocks_is_certified() -> None:
    found = assess(head(), session())
    assert found["verdict"] == "PASS" and set(statuses(found).values()) == {"passed"}
    assert found["tier"] == {"number": 4, "name": "live", "upper_bound": False}
    assert (
        "mine.py improves sync-excess SLO violations on tiny at 127.0.0.1:8000 in live operation" in found["sentence"]
    )
    e = found["claims"][0]["envelope"]
    by_hand = [100 * ((40 + b % 4) - (20 + b % 3) - ((2 - b % 2) - (1 + b % 2)) / 3) / N for b in range(10)]
    assert np.isclose(e["gain_pp"], np.mean(by_hand)) and e["p"] == e["attainable_p"] == 2.0**-10
    assert [row["merges"] for row in e["per_seed"]] == [3] * 10


def test_a_steady_drift_cancels() -> None:
    """Five more slow requests in each later segment: the baseline of either arm rises along with it."""
    drifting = [segment(b, arm, 2 + 5 * i + (30 if arm in (POLICY, CONTROL) else 0) + b)
                for b in range(8) for i, arm in enumerate(ARMS)]  # fmt: skip
    found = gates.paired(Session(tuple(drifting)).blocks(), SLO, np.random.default_rng(0), 0.05)
    assert np.allclose(found.policy, 10.0) and np.allclose(found.control, 10.0) and (found.gains == 0).all()
    assert found.p == 1.0


def test_no_gain_fails_and_few_blocks_are_undecidable() -> None:
    lost = assess(head(), session(policy=lambda b: 40 + (b * 7) % 5))
    assert lost["verdict"] == "FAIL" and statuses(lost)["G3"] == "failed" and "Nothing is licensed" in lost["sentence"]
    few = assess(head(3), session(3))
    assert few["verdict"] == "INCONCLUSIVE" and statuses(few)["G3"] == statuses(few)["G1"] == "undecidable"
    assert "3 paired blocks, fewer than 8" in check(few, "G3", "placement")["reason"]
    assert "smallest p that so many could give is 0.125, and 8 blocks are needed" in few["sentence"]


def failed_requests(m: Measurements) -> Measurements:
    return replace(m, outcome=np.full(N, 1), e2e_ns=np.full(N, -1), ttft_ns=np.full(N, -1))


RAN = np.stack([STARTS, STARTS + 3 * S], axis=1)


@pytest.mark.parametrize(
    ("arm", "changes", "gate", "name", "status"),
    [
        (POLICY, {"planned_ns": RAN - 3 * S}, "G0", "corridor", "failed"),
        (POLICY, {"planned_ns": RAN + np.array([[0], [0], [9 * S]])}, "G0", "corridor", "failed"),
        (POLICY, {"planned_ns": RAN[:1]}, "G0", "corridor", "failed"),
        (CONTROL, {"ran_ns": RAN - 3 * S}, "G0", "corridor", "failed"),
        (POLICY, {"ran_ns": RAN - np.array([[0, S]])}, "G0", "budget", "failed"),
        (BEFORE, {"ran_ns": RAN}, "G0", "budget", "failed"),
        (POLICY, {"replay_difference": "decision 1 differs"}, "G0", "determinism", "failed"),
        (POLICY, {"decisions": (Decision(4 * S, 3 * S, 4 * S, True, True),)}, "G0", "causality", "failed"),
        (POLICY, {"decisions": (Decision(4 * S, 4 * S, 5 * S, True, True),) * 2}, "G0", "decisions in time",
         "undecidable"),
        (CONTROL, {"trace_digest": "f" * 64}, "G2", "offered load", "failed"),
        (AFTER, {"requests": measured(1, 0, STARTS, token=31)}, "G2", "offered load", "failed"),
    ],
)  # fmt: skip
def test_a_fault_is_named(arm: str, changes: dict[str, Any], gate: str, name: str, status: str) -> None:
    found = assess(head(), changed(session(), 0, arm, **changes))
    assert check(found, gate, name)["status"] == status
    assert found["verdict"] == {"failed": "FAIL", "undecidable": "INCONCLUSIVE"}[status]
    if gate == "G0" and status == "failed":
        assert found["tier"]["number"] == 0


def test_unequal_blocks_are_left_out_and_counted() -> None:
    one = changed(session(), 0, CONTROL, ran_ns=RAN[:2])
    found = assess(head(), one)
    assert found["verdict"] == "PASS" and found["claims"][0]["envelope"]["n_seeds"] == 9
    assert check(found, "G0", "budget")["details"]["excluded"] == 1
    off = one
    for block in (1, 2):
        off = changed(off, block, POLICY, load_problem="merge 1 began +80 ms")
    found = assess(head(), off)
    assert found["verdict"] == "INCONCLUSIVE"
    assert "3 of 10 blocks left out, 1 of them for unequal merges" in check(found, "G0", "budget")["reason"]


def test_late_clients_dead_servers_and_same_traces() -> None:
    good = session()
    late = good.segments[5].served.requests
    late = replace(late, sent_ns=np.where(np.arange(N) < 5, late.arrival_ns + 30 * MS, late.sent_ns))
    found = assess(head(), changed(good, 1, POLICY, requests=late))
    assert check(found, "G2", "send delay")["status"] == "undecidable" and found["verdict"] == "INCONCLUSIVE"
    unsent = replace(failed_requests(late), sent_ns=np.full(N, -1))
    found = assess(head(), changed(good, 1, POLICY, requests=unsent))
    assert check(found, "G2", "achieved rate")["status"] == "undecidable"
    assert check(found, "G0", "completeness")["details"]["not_served"] == N
    short = assess(head(), replace(good, segments=good.segments[:38], ended_early="block 10, policy: dead"))
    assert check(short, "G0", "completeness")["reason"] == "9 of 10 blocks: block 10, policy: dead"
    assert short["verdict"] == "INCONCLUSIVE"
    twin = good
    for arm in ARMS:
        twin = changed(twin, 1, arm, trace_digest=good.segments[0].trace_digest)
    assert check(assess(head(), twin), "G0", "distinct traces")["status"] == "failed"
    nothing = assess(head(), Session(good.segments[:2], "block 1, policy: dead"))
    assert nothing["verdict"] == "INCONCLUSIVE" and "block 1, policy: dead" in nothing["sentence"]


def test_a_server_without_the_effect_licenses_nothing() -> None:
    """The same violations, but exposed requests as fast as the others: merges are not what hurts."""
    flat = session()
    for s in flat.segments:
        if s.arm == CONTROL:
            m = s.served.requests
            rng = np.random.default_rng(s.block)
            e2e = np.where(m.e2e_ns < 500 * MS, 200 * MS, 900 * MS) + rng.integers(0, 50 * MS, N)
            slow = rng.permutation(e2e)
            flat = changed(flat, s.block, CONTROL, requests=replace(m, e2e_ns=slow))
    found = assess(head(), flat)
    assert statuses(found)["G1"] == "failed" and found["verdict"] == "FAIL"
    told = {
        "server": "x",
        "date": "2026-01-01",
        "runs": [
            {"exposed_p95_ms": 900.0 + r, "unexposed_p95_ms": 300.0, "exposed": 50, "unexposed": 50} for r in range(5)
        ],
    }
    assert statuses(assess({**head(), "calibration": told}, flat))["G1"] == "passed"


def test_files_hold_the_session(tmp_path: Path) -> None:
    stored = replace(session(2), ended_early="block 3: dead")
    names = live.write(stored, tmp_path)
    assert names == sorted(live.TABLES)
    again = live.read(tmp_path)
    assert assess(head(3), again) == assess(head(3), stored)
    assert again.segments[1].served.scrapes == stored.segments[1].served.scrapes
    live.write(again, tmp_path / "again")
    for name in names:
        assert (tmp_path / name).read_bytes() == (tmp_path / "again" / name).read_bytes()
    (tmp_path / "merges.parquet").unlink()
    with pytest.raises(BadInput, match=r"merges\.parquet"):
        live.read(tmp_path)


def test_the_head_comes_back_and_foreign_arms_are_refused() -> None:
    assert head_of(assess(head(), session())) == head()
    with pytest.raises(BadInput, match="not planned"):
        assess(head(3), session(4))
    stray = session()
    stray = replace(stray, segments=(replace(stray.segments[0], arm="mine"), *stray.segments[1:]))
    with pytest.raises(BadInput, match="mine"):
        assess(head(), stray)


def test_runs_with_too_few_exposed_requests_are_left_out() -> None:
    runs = [{"exposed_p95_ms": 900.0 + r, "unexposed_p95_ms": 300.0, "exposed": 50, "unexposed": 50} for r in range(5)]
    few = {"exposed_p95_ms": 1.0, "unexposed_p95_ms": 300.0, "exposed": 19, "unexposed": 50}
    gate = gates.transfer({"server": "x", "runs": [*runs, few]}, 0.05)
    assert (
        gate.status == "passed" and gate.checks[0].n == 5 and "1 of 6 runs have fewer than 20" in gate.checks[0].reason
    )
    gate = gates.transfer({"server": "x", "runs": [*runs[:4], few]}, 0.05)
    assert gate.status == "undecidable" and "3.00, 3.00, 3.01, 3.01" in gate.reason
