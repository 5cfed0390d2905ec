"""Peer schedulers through a whole campaign: gates, raw files, verification, and the comparison of two."""

from __future__ import annotations

import json
import shutil
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from fleets import at
from pairs import P, coin, evidence_of, head_of, pairs_of, peer_setting, quiet
from strategies import FunctionSource, PlanSource, changed, plan_of, ran, write_folder

from protocol import files
from protocol.campaign import run as campaign
from protocol.certificate.assess import assess
from protocol.certificate.compare import paired
from protocol.certificate.model import Certificate, plain
from protocol.certificate.reading import CERTIFICATE, RAW
from protocol.certificate.verify import verify
from protocol.errors import BadInput
from protocol.evidence import store as evidence
from protocol.evidence.model import CROSSED, PARTNERS, TIMING, Evidence
from protocol.gates.integrity import integrity_gate
from protocol.gates.peers import peer_progress_gate
from protocol.gates.result import GateResult
from protocol.merging.schedule import Schedule
from protocol.replay.replay import NO_SYNC, POLICY, UNIFORM
from protocol.scheduler import Decision, Observation


def certificate_of(function: Any, name: str = "toy-scheduler") -> Certificate:
    return assess(head_of(function, name), evidence_of(function))


def integrity(found: Sequence[Evidence]) -> GateResult:
    asked = head_of(quiet)
    return integrity_gate(found, replace(asked.spec(asked.regimes[0]), n_seeds=len(found)))


def test_a_load_aware_pair_scheduler_is_certified_and_a_blind_one_is_not() -> None:
    good, blind = certificate_of(quiet), certificate_of(coin)
    assert good.verdict == "PASS" and (good.claims[0].envelope.gain_pp or 0) > 1
    assert blind.verdict == "FAIL" and blind.claims[0].status("G3") == "failed"
    for certificate in (good, blind):
        assert [certificate.claims[0].status(g) for g in ("G0", "G2", "G4")] == ["passed"] * 3
    names = [c.name for c in good.claims[0].envelope.controls]
    assert names == [UNIFORM, TIMING, PARTNERS, "unrelated-trace", "placebo"]
    seed = plain(good)["regimes"][0]["seeds"][0]
    assert seed["bytes"] == sum(seed["by_island"]["bytes"]) == 200 * seed["merges"]
    assert seed["busy_s"] == 4 * seed["merges"] and sum(seed["by_island"]["merges"]) == 2 * seed["merges"]


def test_evidence_does_not_depend_on_how_draws_come() -> None:
    """Draws in rounds continue one walk's hub: the first round is the same, and all keep the budgets."""
    plan = plan_of(FunctionSource(coin), draws=60)
    early = campaign.run(replace(plan, sequential=True), [peer_setting(n_seeds=8)], jobs=1)
    whole = campaign.run(plan, [peer_setting(n_seeds=8)], jobs=1)
    for e, w in zip(early, whole, strict=True):
        first = P.read(e.placed[UNIFORM])[:49]
        assert [s.groups for s in first] == [s.groups for s in P.read(w.placed[UNIFORM])[:49]]
        budget = P.by_island(P.read(e.placed[POLICY])[0])["bytes"].tolist()
        assert all(P.by_island(s)["bytes"].tolist() == budget for s in P.read(e.placed[UNIFORM]))


def test_crossed_rows_are_the_schedules_of_every_trace() -> None:
    found = evidence_of(coin)
    own = [P.read(e.placed[POLICY])[0] for e in found]
    for e in found:
        assert [s.groups for s in P.read(e.placed[CROSSED])] == [s.groups for s in own]
        assert e.placed[CROSSED].violations[e.seed].tolist() == e.placed[POLICY].violations[0].tolist()


def test_a_scheduler_that_looks_ahead_at_partners_is_caught() -> None:
    """Same times, other partners: what a second run decides otherwise is named."""
    calls = {"n": 0}

    def fickle(obs: Observation, rng: np.random.Generator) -> Decision:
        calls["n"] += 1
        return pairs_of(obs, lambda i: hash((calls["n"] * 7919 + i) % 31)) if obs.time_s % 9 == 0 else Decision(False)

    found = campaign.run(plan_of(FunctionSource(fickle)), [peer_setting(n_seeds=2)], jobs=1)
    gate = integrity(found)
    assert gate.status == "failed" and "participants of merge" in gate.reason


def tampered(arm: str, schedules: Any) -> list[Evidence]:
    first, *rest = evidence_of(quiet)
    n = len(first.placed[arm])
    stored = P.stored(schedules, first.placed[arm].violations[: len(schedules)])
    assert len(schedules) == n
    return [changed(first, placed={**first.placed, arm: stored}), *rest]


@pytest.mark.parametrize("arm", [UNIFORM, TIMING, PARTNERS])
def test_a_control_with_another_budget_fails_integrity(arm: str) -> None:
    own = P.read(evidence_of(quiet)[0].placed[arm])
    other = P.read(evidence_of(coin)[1].placed[POLICY])[0]
    gate = integrity(tampered(arm, [*own[:-1], other]))
    assert gate.status == "failed" and f"seed 0, {arm} {len(own) - 1}" in gate.reason


def test_a_schedule_outside_an_islands_corridor_fails_integrity() -> None:
    gate = integrity(tampered(POLICY, [at((1, (0, 1)))]))
    assert gate.status == "failed" and "H_min is 8" in gate.reason


def test_progress_compares_islands_and_not_sums() -> None:
    found = evidence_of(quiet)
    own = P.read(found[0].placed[UNIFORM])
    # Pairs (0, 1) become (0, 2) and so on: the same merges in all, on other islands.
    islands = [0, 2, 3, 3]
    swapped = replace(own[0], groups=tuple(tuple(sorted({islands[i] for i in g}))[:2] for g in own[0].groups))
    swapped = replace(swapped, groups=tuple(g if len(g) == 2 else (0, 3) for g in swapped.groups))
    gate = peer_progress_gate(tampered(UNIFORM, [swapped, *own[1:]]), P, 2048)
    assert gate.status == "failed" and "seed 0, draw 0: island" in gate.reason
    fine = peer_progress_gate(found, P, 2048)
    assert fine.status == "passed" and "each island's equal to every control's" in fine.checks[0].reason
    missing = changed(found[0], placed={k: v for k, v in found[0].placed.items() if k != UNIFORM})
    assert peer_progress_gate([missing], P, 2048).status == "undecidable"


def test_planners_and_logs_are_refused_in_one_line() -> None:
    source = PlanSource(lambda trace, corridor, budget: Schedule.empty(trace.n_islands))
    with pytest.raises(BadInput, match="found a planner schedule; expected a scheduler") as caught:
        campaign.run(plan_of(source), [peer_setting(n_seeds=1)], jobs=1)
    assert "\n" not in str(caught.value)


# Raw files ---------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    made = tmp_path_factory.mktemp("peers")
    write_folder(made, head_of(quiet), list(evidence_of(quiet)))
    return made


def test_raw_files_recompute_the_certificate(folder: Path) -> None:
    assert verify(folder) == []
    again = evidence.read(folder / RAW)
    for one, other in zip(evidence_of(quiet), again, strict=True):
        for arm in (POLICY, NO_SYNC, UNIFORM, TIMING, PARTNERS, CROSSED):
            assert [s.groups for s in P.read(one.placed[arm])] == [s.groups for s in P.read(other.placed[arm])]


@pytest.mark.parametrize("arm", [POLICY, UNIFORM, TIMING, PARTNERS])
@pytest.mark.parametrize("change", ["partner", "drop", "lone", "other island"])
def test_an_edited_group_is_found_even_with_its_digest_renewed(
    folder: Path, tmp_path: Path, arm: str, change: str
) -> None:
    shutil.copytree(folder, tmp_path, dirs_exist_ok=True)
    path = tmp_path / RAW / "placements.parquet"
    table = pq.read_table(path)
    groups = table["groups"].to_pylist()
    row = table["arm"].to_pylist().index(arm)
    first = groups[row][0]
    left = [i for i in range(4) if i not in first]
    groups[row] = {
        "partner": [[first[0], left[0]], *groups[row][1:]],
        "drop": groups[row][:-1],
        "lone": [first[:1], *groups[row][1:]],
        "other island": [[first[0], 4], *groups[row][1:]],
    }[change]
    i = table.column_names.index("groups")
    table = table.set_column(i, table.schema.field(i), pa.array(groups, table["groups"].type))
    pq.write_table(table, path, compression="zstd", row_group_size=1 << 20)
    assert any("SHA-256" in line for line in verify(tmp_path))
    certificate = json.loads((tmp_path / CERTIFICATE).read_text())
    certificate["files"]["placements.parquet"] = files.sha256(path)
    files.write_text(tmp_path / CERTIFICATE, files.canonical_json(certificate))
    found = verify(tmp_path)
    assert found and not any("SHA-256" in line for line in found)


def test_an_edited_network_is_found(folder: Path, tmp_path: Path) -> None:
    shutil.copytree(folder, tmp_path, dirs_exist_ok=True)
    certificate = json.loads((tmp_path / CERTIFICATE).read_text())
    certificate["regimes"][0]["peer"]["bandwidth"] = [25.0]
    files.write_text(tmp_path / CERTIFICATE, files.canonical_json(certificate))
    assert any(line.startswith("regimes[0].peer.bandwidth[0]: stated 25.0") for line in verify(tmp_path))


def test_both_kinds_of_regime_share_the_raw_files(tmp_path: Path) -> None:
    both = [*ran(coin_fleet, n_seeds=8), *(replace(e, regime="peers") for e in evidence_of(quiet))]
    evidence.write(both, tmp_path)
    again = evidence.read(tmp_path)
    for one, other in zip(both, again, strict=True):
        for arm, placed in one.placed.items():
            assert placed.gaps.tolist() == other.placed[arm].gaps.tolist()
            if one.regime == "peers":
                assert placed.members.tolist() == other.placed[arm].members.tolist()  # type: ignore[union-attr]
            elif len(placed.gaps):
                assert other.placed[arm].sizes is None


def coin_fleet(obs: Observation, rng: np.random.Generator) -> bool:
    return bool(rng.random() < 0.2)


# Two schedulers ----------------------------------------------------------------------------------------------------


def test_the_paired_gain_by_hand() -> None:
    one, other = certificate_of(quiet, "quiet"), certificate_of(coin, "coin")
    row = paired({"a": one, "b": other})[0]
    mine, its = ([s.draw_mean - s.policy for s in c.claims[0].envelope.per_seed] for c in (one, other))
    d = np.array(mine) - np.array(its)
    assert row.gain_pp == pytest.approx(d.mean()) and row.n_seeds == 10
    half = 2.262157 * d.std(ddof=1) / np.sqrt(10)  # t table, 9 degrees of freedom
    assert row.interval_pp == pytest.approx((d.mean() - half, d.mean() + half), rel=1e-6)
    # Every sign flip enumerated: at most as large a sum.
    signs = 1 - 2 * ((np.arange(1024)[:, None] >> np.arange(10)) & 1)
    assert row.p == pytest.approx(np.mean(signs @ d >= d.sum() - 1e-9))
    total = sum(s.described("bytes") for s in one.regimes[0].seeds)
    assert row.exchanged["bytes"][0] == total and set(row.exchanged) == {"merges", "bytes", "busy_s", "inner_steps"}
    assert row.verdicts == tuple(c.claims[0].verdict for c in (one, other))
    assert row.matched == all(a == b for a, b in row.exchanged.values())
    assert paired({"a": one, "b": one})[0].matched
    assert paired({"b": other, "a": one})[0].gain_pp == pytest.approx(-row.gain_pp)


def test_a_pair_is_two_of_one_world() -> None:
    one = certificate_of(quiet)
    with pytest.raises(BadInput, match="3 certificates; expected two"):
        paired({"a": one, "b": one, "c": one})
    elsewhere = one.model_copy(update={"settings": one.settings.model_copy(update={"root_seed": 8})})
    with pytest.raises(BadInput, match="root_seed"):
        paired({"a": one, "b": elsewhere})
    values = plain(one)
    values["claims"][0]["envelope"]["per_seed"] = []
    with pytest.raises(BadInput, match="no values by seed"):
        paired({"a": one, "b": Certificate.model_validate(values)})
