"""Raw files: nothing is lost, equal evidence gives equal bytes, broken files are named."""

from __future__ import annotations

from dataclasses import FrozenInstanceError, fields, replace
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from server_runs import sound
from strategies import changed, measurements, ran

from protocol.errors import BadInput
from protocol.evidence import store as raw
from protocol.evidence.model import Evidence, Probe, attached, attached_training
from protocol.evidence.trained import Trained
from protocol.merging.placements import Placements
from protocol.replay.measurements import Measurements
from protocol.replay.replay import NO_SYNC, POLICY, UNIFORM, Replay

TEXT = st.text(max_size=8)
#: Every table of a campaign in simulation.
SIMULATED = (raw.DECISIONS, raw.PLACEMENTS, raw.REQUESTS, raw.SEEDS)


@st.composite
def placements(draw: st.DrawFn, n_slos: int) -> Placements:
    lengths = draw(st.lists(st.integers(0, 4), min_size=1, max_size=4))
    gaps = draw(st.lists(st.integers(0, 99), min_size=sum(lengths), max_size=sum(lengths)))
    costs = draw(st.lists(st.integers(0, 2**40), min_size=len(lengths) * n_slos, max_size=len(lengths) * n_slos))
    return Placements(np.array(lengths), np.array(gaps), np.array(costs, np.int64).reshape(len(lengths), n_slos))


@st.composite
def one_seed(draw: st.DrawFn, regime: str, seed: int) -> Evidence:
    n = draw(st.integers(0, 5))
    n_slos = draw(st.integers(1, 2))
    probe = st.builds(Probe, TEXT, st.none() | st.integers(0, 2**62), st.none() | TEXT)
    return Evidence(
        regime=regime,
        seed=seed,
        trace_digest=draw(TEXT),
        n_requests=draw(st.integers(0, 2**40)),
        prompt_tokens=draw(st.integers(0, 2**60)),
        output_tokens=draw(st.integers(0, 2**60)),
        forced=draw(st.integers(0, 9)),
        corridor_violation=draw(st.none() | TEXT),
        replay_difference=draw(st.none() | TEXT),
        probes=tuple(draw(st.lists(probe, max_size=3))),
        decided_ns=np.array(draw(st.lists(st.integers(0, 2**60), min_size=n, max_size=n)), np.int64),
        merged=np.array(draw(st.lists(st.booleans(), min_size=n, max_size=n)), bool),
        simulated={
            arm: Replay(draw(measurements().filter(len)), regime=regime, seed=seed, arm=arm)
            for arm in (POLICY, NO_SYNC)
        },
        placed={arm: draw(placements(n_slos)) for arm in (POLICY, NO_SYNC, UNIFORM)},
    )


@st.composite
def campaigns(draw: st.DrawFn) -> list[Evidence]:
    names = draw(st.lists(TEXT.filter(len), min_size=1, max_size=2, unique=True))
    return [draw(one_seed(name, seed)) for name in names for seed in range(draw(st.integers(1, 2)))]


def same(a: object, b: object) -> bool:
    """Equal to the last bit, arrays and their types included, however deep they lie."""
    if type(a) is not type(b):
        return False
    if isinstance(a, np.ndarray) and isinstance(b, np.ndarray):
        return np.array_equal(a, b) and a.dtype == b.dtype and a.shape == b.shape
    if isinstance(a, dict) and isinstance(b, dict):
        return a.keys() == b.keys() and all(same(a[key], b[key]) for key in a)
    if isinstance(a, tuple) and isinstance(b, tuple):
        return len(a) == len(b) and all(map(same, a, b))
    if isinstance(a, Evidence | Replay | Placements | Measurements):
        return all(same(getattr(a, f.name), getattr(b, f.name)) for f in fields(a))
    return bool(a == b)


@settings(max_examples=40, suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large], deadline=None)
@given(campaigns())
def test_round_trip(tmp_path_factory: pytest.TempPathFactory, found: list[Evidence]) -> None:
    one, other = tmp_path_factory.mktemp("a"), tmp_path_factory.mktemp("b")
    names = raw.write(found, one)
    back = raw.read(one)
    assert len(back) == len(found) and all(same(a, b) for a, b in zip(found, back, strict=True))
    raw.write(back, other)
    assert set(names) <= set(SIMULATED)
    assert all((one / n).read_bytes() == (other / n).read_bytes() for n in names)


def test_a_campaign_survives_the_files(tmp_path: Path) -> None:
    found = list(ran())
    raw.write(found, tmp_path)
    assert all(same(a, b) for a, b in zip(found, raw.read(tmp_path), strict=True))
    assert sorted(p.name for p in tmp_path.iterdir()) == sorted(SIMULATED)  # and no temporary file


def test_an_arm_without_rows_is_not_there(tmp_path: Path) -> None:
    e = ran()[0]
    nothing = Placements.of(np.zeros((0, 3), np.int64), np.zeros((0, 1), np.int64))
    raw.write([changed(e, placed={**e.placed, "own-schedule-shifted": nothing})], tmp_path)
    assert raw.read(tmp_path)[0].placed.keys() == e.placed.keys() - {"own-schedule-shifted"}


def test_the_order_of_seeds_is_kept(tmp_path: Path) -> None:
    found = list(reversed(ran()))
    raw.write(found, tmp_path)
    assert [e.seed for e in raw.read(tmp_path)] == [e.seed for e in found]


@pytest.fixture(scope="module")
def written(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("raw")
    raw.write(list(ran())[:2], folder)
    return folder


def damaged(written: Path, folder: Path, name: str, table: pa.Table | bytes | None) -> Path:
    for table_name in SIMULATED:
        (folder / table_name).write_bytes((written / table_name).read_bytes())
    if isinstance(table, pa.Table):
        pq.write_table(table, folder / name)
    elif table is None:
        (folder / name).unlink()
    else:
        (folder / name).write_bytes(table)
    return folder


@pytest.mark.parametrize("name", SIMULATED)
def test_missing_empty_cut_and_foreign_files_are_named(written: Path, tmp_path: Path, name: str) -> None:
    whole = (written / name).read_bytes()
    for content in (None, b"", whole[: len(whole) // 2], b"PAR1" + bytes(100) + b"PAR1", b"not parquet at all"):
        with pytest.raises(BadInput) as caught:
            raw.read(damaged(written, tmp_path, name, content))
        assert name in str(caught.value) and "\n" not in str(caught.value)


@pytest.mark.parametrize("name", SIMULATED)
def test_every_column_is_needed(written: Path, tmp_path: Path, name: str) -> None:
    table = pq.read_table(written / name)
    # The order of rows says the first; files of version 1 do without the others.
    spare = {"draw", "asked_tokens", "tables"}
    for column in set(table.column_names) - spare:
        with pytest.raises(BadInput):
            raw.read(damaged(written, tmp_path, name, table.drop_columns([column])))


@pytest.mark.parametrize("name", SIMULATED)
def test_no_cell_may_be_empty(written: Path, tmp_path: Path, name: str) -> None:
    table = pq.read_table(written / name)
    may = {"corridor_violation", "replay_difference"}
    for i, column in enumerate(table.column_names):
        if column in may:
            continue
        values = table[column].to_pylist()
        for hole in (None, [None]) if isinstance(values[0], list) else (None,):
            holed = table.set_column(i, column, pa.array([hole, *values[1:]], table[column].type))
            with pytest.raises(BadInput, match=f"{column}: found an empty cell"):
                raw.read(damaged(written, tmp_path, name, holed))


def test_an_arm_in_two_places_is_refused(written: Path, tmp_path: Path) -> None:
    table = pq.read_table(written / "requests.parquet")
    doubled = pa.concat_tables([table, table.slice(0, 3)])
    with pytest.raises(BadInput, match="in two places"):
        raw.read(damaged(written, tmp_path, "requests.parquet", doubled))


def test_broken_probes_are_refused(written: Path, tmp_path: Path) -> None:
    table = pq.read_table(written / "seeds.parquet")
    i = table.column_names.index("probes")
    for text in ("[", "3", '[{"kind": 1}]', '[{"kind": "x", "at_ns": 1, "difference": null, "more": 2}]', "[[]]"):
        broken = table.set_column(i, "probes", pa.array([text] * len(table)))
        with pytest.raises(BadInput, match="broken raw files"):
            raw.read(damaged(written, tmp_path, "seeds.parquet", broken))


def test_placements() -> None:
    p = Placements(np.array([2, 0, 1]), np.array([4, 5, 6]), np.array([[1], [2], [3]]))
    assert [r.tolist() for r in p.rows()] == [[4, 5], [], [6]] and len(p) == 3
    assert Placements.of(np.zeros((0, 2), np.int64), np.zeros((0, 1), np.int64)).rows() == []
    with pytest.raises(BadInput, match="placements"):
        replace(p, gaps=np.array([4, 5]))
    with pytest.raises(BadInput, match="placements"):
        replace(p, violations=np.array([[1], [2]]))
    with pytest.raises(BadInput, match="row 2, violations"):
        replace(p, violations=np.array([[1], [np.nan], [3]]))


def test_evidence_cannot_be_changed() -> None:
    """Whoever judges it cannot alter it on the way; a change is a new object."""
    e = ran()[0]
    for name in ("seed", "placed", "simulated", "served", "probes"):
        with pytest.raises(FrozenInstanceError):
            setattr(e, name, getattr(e, name))
    with pytest.raises(FrozenInstanceError):
        e.simulated[POLICY].rows = e.simulated[NO_SYNC].rows  # type: ignore[misc]
    for values in (e.simulated[POLICY].rows.e2e_ns, e.simulated[POLICY].planned_ns, e.placed[POLICY].gaps):
        with pytest.raises(ValueError, match="read-only"):
            values[...] = 0
    more = e.with_placed("mine", e.placed[POLICY])
    assert "mine" in more.placed and "mine" not in e.placed and more.seed == e.seed


def test_the_first_valid_attempt_is_the_one_that_counts() -> None:
    found = sound()[3]
    first = found.replay(UNIFORM, 2)
    assert first is not None
    late = replace(first, rows=replace(first.rows, sent_ns=first.rows.sent_ns + 6_000_000))
    slow = replace(first, attempt=2, rows=replace(first.rows, e2e_ns=first.rows.e2e_ns * 2))
    others = [r for r in found.served if r is not first]
    assert replace(found, served=(*others, late, slow)).replay(UNIFORM, 2) is slow
    assert replace(found, served=(*others, first, slow)).replay(UNIFORM, 2) is first
    assert replace(found, served=(*others, late)).replay(UNIFORM, 2) is None


def test_replays_and_training_of_other_seeds_are_refused() -> None:
    e = sound()[0]
    with pytest.raises(BadInput, match="served rows: found toy, seed 9"):
        attached([e], [replace(e.served[0], seed=9)])
    with pytest.raises(BadInput, match="seed 0 policy, seed 0 policy"):
        run = Trained("toy", 0, POLICY, 1, 1, 1.0)
        attached_training([e], [run, run])
    assert attached([replace(e, served=())], e.served)[0].served == e.served
