"""Certificates of real replays (tier 3) and live sessions (tier 4) as a whole."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from server_runs import DRAWS, check_of, judged, replayed, seen, server_head, session, sound, with_replays
from strategies import busy, coin, write_folder

from protocol import files
from protocol.certificate.assess import assess
from protocol.certificate.reading import CERTIFICATE, RAW
from protocol.certificate.verify import verify
from protocol.errors import BadInput
from protocol.evidence import store
from protocol.evidence.model import Evidence
from protocol.merging.schedule import Schedule
from protocol.replay.measurements import SERVED, exposure_ns
from protocol.replay.replay import POLICY, UNIFORM, Replay
from protocol.workload.trace import RequestTrace


def found_at(back_end: str) -> tuple[Evidence, ...]:
    return sound() if back_end == "real" else session()


def test_a_sound_campaign_is_tier_three_and_says_where() -> None:
    made, checks = judged("real", sound())
    assert set(checks.values()) == {"passed"}, {k: v for k, v in checks.items() if v != "passed"}
    assert made.verdict == "PASS" and made.tier.model_dump() == {
        "number": 3, "name": "real replay", "upper_bound": False,
    }  # fmt: skip
    assert "beats matched random placement of the same number of merges in replay on toy 1.0" in made.sentence
    assert made.replays is not None and len(made.replays) == 10 * (DRAWS + 3)
    assert all(r["invalid"] is None for r in made.replays)
    assert [c.name for c in made.claims[0].envelope.controls] == ["uniform", "unrelated-trace"]
    # Schedules are not exchanged on the server: that gain is of the simulator, and the sentence says so.
    assert made.claims[0].envelope.load_gain_simulated and "from following the load in simulation" in made.sentence


def test_a_gain_in_ten_blocks_is_certified_live() -> None:
    made, checks = judged("live", session())
    assert set(checks.values()) == {"passed"}, {k: v for k, v in checks.items() if v != "passed"}
    assert made.verdict == "PASS" and made.tier.model_dump() == {"number": 4, "name": "live", "upper_bound": False}
    assert "improves sync-excess SLO violations on toy 1.0 in live operation" in made.sentence
    e = made.claims[0].envelope
    assert e.p == e.attainable_p == 2.0**-10 and [t.name for t in e.tests] == ["paired sign flip"]
    assert e.load_gain_pp is None and e.controls == () and (e.n_seeds, e.n_draws) == (10, 1)
    assert made.replays is not None and len(made.replays) == 50


@pytest.mark.parametrize("back_end", ["real", "live"])
def test_a_blind_scheduler_is_not_certified(back_end: str) -> None:
    found = session(coin) if back_end == "live" else replayed(function=busy)
    made, checks = judged(back_end, found)
    assert made.verdict == "FAIL" and checks["G3", "placement"] == "failed"
    assert made.tier.number == {"real": 3, "live": 4}[back_end] and "Nothing is licensed" in made.sentence
    where = {"real": "replay", "live": "live operation"}[back_end]
    assert made.sentence.endswith(f" in {where} on toy 1.0.")


def test_the_verdict_is_of_the_server_and_not_of_the_simulator() -> None:
    """A server on which merges do nothing: the simulated schedules are as good as ever, and nothing is licensed."""

    def unmoved(trace: RequestTrace, schedule: Schedule, rng: np.random.Generator) -> Replay:
        idle = seen(trace, Schedule.empty(), rng)
        planned = np.stack(schedule.windows_ns(0), axis=1)
        exposed = exposure_ns(trace, idle.rows.e2e_ns, schedule)
        return Replay(replace(idle.rows, exposure_ns=exposed), planned, planned)

    made, checks = judged("real", replayed(unmoved))
    assert made.verdict != "PASS" and made.tier.number == 3
    assert checks["G1", "effect"] == "failed" and checks["G3", "placement"] == "undecidable"


def test_few_seeds_and_few_blocks_are_undecidable() -> None:
    made, checks = judged("real", replayed(n_seeds=7))
    assert made.verdict == "INCONCLUSIVE" and checks["G3", "placement"] == "undecidable"
    made, checks = judged("live", session(blocks=3))
    assert made.verdict == "INCONCLUSIVE" and checks["G3", "placement"] == checks["G1", "effect"] == "undecidable"
    assert "3 seeds, fewer than 8" in check_of(made, "G3", "placement").reason


def test_a_dead_server_is_undecidable_and_says_where_it_died() -> None:
    whole = session()
    last = whole[8].served[1]
    down = replace(
        last.rows, outcome=np.ones(len(last.rows)), e2e_ns=np.full(len(last.rows), -1),
        ttft_ns=np.full(len(last.rows), -1), sent_ns=np.full(len(last.rows), -1),
    )  # fmt: skip
    died = [*whole[:8], with_replays(whole[8], [whole[8].served[0], replace(last, rows=down)])]
    made, _ = judged("live", died, n_seeds=10)
    reason = check_of(made, "G0", "completeness").reason
    assert made.verdict == "INCONCLUSIVE" and "9 of 10 seeds: seed 8, policy: no request was served" in reason
    nothing, _ = judged("live", [with_replays(whole[0], whole[0].served[:1])], n_seeds=10)
    assert nothing.verdict == "INCONCLUSIVE" and nothing.claims[0].envelope.n_seeds == 0
    assert SERVED not in down.outcome


def test_foreign_evidence_is_refused() -> None:
    with pytest.raises(BadInput, match="expected seeds 0 to at most 2"):
        assess(server_head("live", 3), session(blocks=10)[:4])
    for back_end in ("simulated", "live"):
        with pytest.raises(BadInput):
            assess(server_head(back_end), sound())
    with pytest.raises(BadInput, match=r"0 replays on a server"):
        assess(server_head("live"), [with_replays(e, ()) for e in session()])


@pytest.mark.parametrize("back_end", ["real", "live"])
def test_files_hold_everything(back_end: str, tmp_path: Path) -> None:
    found = found_at(back_end)
    write_folder(tmp_path, server_head(back_end), found)
    assert verify(tmp_path) == []
    again = store.read(tmp_path / RAW)
    assert assess(server_head(back_end), again) == assess(server_head(back_end), found)
    for e, stored in zip(found, again, strict=True):
        assert [plain(r) for r in e.served] == [plain(r) for r in stored.served]
    names = store.write(again, tmp_path / "again")
    # What an observation showed leaves no gate anything to read, so reading does not bring it back.
    for name in set(names) - {store.ANSWERS}:
        assert (tmp_path / RAW / name).read_bytes() == (tmp_path / "again" / name).read_bytes()


def plain(r: Replay) -> list[object]:
    own = [r.what, r.draw, r.position, r.attempt, r.started, r.wall_s, r.may_end_early, dict(r.failures), r.scrapes]
    decided = [(d.due_ns, d.asked_ns, d.answered_ns, d.merge, d.said) for d in r.decisions]
    return [*own, decided, r.planned_ns.tolist(), r.ran_ns.tolist(), r.rows.to_table().to_pydict()]


def edited(folder: Path, name: str, column: str, change: object) -> list[str]:
    """What verification says once one table was changed and its digest in the certificate renewed."""
    path = folder / RAW / name
    table = pq.read_table(path)
    i = table.column_names.index(column)
    values = change(table[column].to_pylist())  # type: ignore[operator]
    pq.write_table(table.set_column(i, table.schema.field(i), pa.array(values, table[column].type)), path)
    certificate = json.loads((folder / CERTIFICATE).read_text())
    certificate["files"][name] = files.sha256(path)
    files.write_text(folder / CERTIFICATE, files.canonical_json(certificate))
    return verify(folder)


def other_first(values: list[object]) -> list[object]:
    return [values[0] + (10**10 if values[0] > 10**6 else 1), *values[1:]]  # type: ignore[operator]


@pytest.mark.parametrize(
    ("name", "column"),
    [(store.SERVED, "e2e_ns"), (store.SERVED, "exposure_ns"), (store.REPLAYS, "draw"), (store.REPLAYS, "position"),
     (store.REPLAYS, "attempt"), (store.SEEDS, "n_requests")],
)  # fmt: skip
def test_edits_of_a_real_replay_are_found_with_their_digest_renewed(name: str, column: str, tmp_path: Path) -> None:
    write_folder(tmp_path, server_head("real", 2), replayed(n_seeds=2))
    found = edited(tmp_path, name, column, other_first)
    assert found and not any("SHA-256" in line for line in found)


@pytest.mark.parametrize("column", ["due_ns", "answered_ns", "merge", "said"])
def test_edits_of_live_answers_are_found_with_their_digest_renewed(column: str, tmp_path: Path) -> None:
    write_folder(tmp_path, server_head("live", 2), session(blocks=2))

    def change(values: list[object]) -> list[object]:
        merges = pq.read_table(tmp_path / RAW / store.ANSWERS)["merge"].to_pylist()
        said = pq.read_table(tmp_path / RAW / store.ANSWERS)["said"].to_pylist()
        k = next(k for k, (m, s) in enumerate(zip(merges, said, strict=True)) if m and s)
        later = values[k] + 10**9 if not isinstance(values[k], bool) else not values[k]  # type: ignore[operator]
        return [*values[:k], later, *values[k + 1 :]]

    found = edited(tmp_path, store.ANSWERS, column, change)
    assert found and not any("SHA-256" in line for line in found)


@pytest.mark.parametrize("name", [store.SERVED, store.REPLAYS])
def test_missing_tables_are_named(name: str, tmp_path: Path) -> None:
    write_folder(tmp_path, server_head("real", 2), replayed(n_seeds=2))
    (tmp_path / RAW / name).unlink()
    assert any(name in line for line in verify(tmp_path))


def test_replays_left_out_of_the_files_are_found(tmp_path: Path) -> None:
    found = replayed(n_seeds=2)
    write_folder(tmp_path, server_head("real", 2), found)
    fewer = [with_replays(e, [r for r in e.served if (r.arm, r.draw) != (UNIFORM, 3)]) for e in found]
    store.write(fewer, tmp_path / RAW)
    certificate = json.loads((tmp_path / CERTIFICATE).read_text())
    for name in (store.SERVED, store.REPLAYS):
        certificate["files"][name] = files.sha256(tmp_path / RAW / name)
    files.write_text(tmp_path / CERTIFICATE, files.canonical_json(certificate))
    assert any(line.startswith("replays: ") for line in verify(tmp_path))
    assert POLICY in {r.arm for e in fewer for r in e.served}
