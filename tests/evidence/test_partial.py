"""An output folder under kill, corruption and competition."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pyarrow.parquet as pq
import pytest
from server_runs import session, sound
from strategies import FunctionSource, head_for, plan_of, quiet, ran, setting

from protocol import files
from protocol.campaign import run as campaign
from protocol.certificate.assess import assess
from protocol.certificate.model import plain
from protocol.errors import BadInput, ProtocolError
from protocol.evidence.partial import PLAN, Partial, locked
from protocol.evidence.store import DECISIONS, PLACEMENTS, REQUESTS, SEEDS

ASKED: dict[str, object] = {"contender": {"digest": "a"}, "settings": {"draws": 19, "root_seed": 7}}

HOLD = """
import sys, time
from pathlib import Path
from protocol.evidence.partial import locked
with locked(Path(sys.argv[1])):
    print("held", flush=True)
    time.sleep(60)
"""
TRY = """
import sys
from pathlib import Path
from protocol.errors import ProtocolError
from protocol.evidence.partial import locked
try:
    with locked(Path(sys.argv[1])):
        print("got it")
except ProtocolError as error:
    print(error)
"""


def attempt(folder: Path) -> str:
    done = subprocess.run([sys.executable, "-c", TRY, str(folder)], capture_output=True, text=True, timeout=60)
    assert done.returncode == 0 and not done.stderr
    return done.stdout.strip()


def test_a_second_process_is_kept_out_until_the_first_is_gone(tmp_path: Path) -> None:
    folder = tmp_path / "new" / "out"
    with locked(folder):
        assert "another run is writing there" in attempt(folder)
        with pytest.raises(ProtocolError, match="another run"), locked(folder):
            pass
        assert "another run" in attempt(folder)  # a refused attempt does not take the lock away
    assert attempt(folder) == "got it"


def test_a_killed_process_lets_go(tmp_path: Path) -> None:
    holder = subprocess.Popen([sys.executable, "-c", HOLD, str(tmp_path)], stdout=subprocess.PIPE, text=True)
    try:
        assert holder.stdout is not None and holder.stdout.readline() == "held\n"
        with pytest.raises(ProtocolError, match="another run"), locked(tmp_path):
            pass
        holder.send_signal(signal.SIGKILL)
        holder.wait(timeout=30)
    finally:
        holder.kill()
        holder.communicate()
    with locked(tmp_path):
        pass


def test_an_error_inside_lets_go(tmp_path: Path) -> None:
    with pytest.raises(RuntimeError), locked(tmp_path):
        raise RuntimeError
    with locked(tmp_path):
        pass


def test_a_folder_that_cannot_be_is_named(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("x")
    for folder in (tmp_path / "file", tmp_path / "file" / "below"):
        with pytest.raises(BadInput, match="a folder that can be written"), locked(folder):
            pass


def test_finished_seeds_stay_for_the_same_plan(tmp_path: Path) -> None:
    first = Partial(tmp_path, ASKED)
    assert first.started_afresh is None and first.finished() == {}
    for e in ran()[:3]:
        first.keep(e)
    again = Partial(tmp_path, json.loads(json.dumps(ASKED)))
    assert again.started_afresh is None and sorted(again.finished()) == [("toy", 0), ("toy", 1), ("toy", 2)]
    again.keep(ran()[1])  # kept twice is kept once
    assert len(again.finished()) == 3
    again.remove()
    assert not (tmp_path / ".partial").exists()
    again.remove()


@pytest.mark.parametrize(
    ("plan", "says"),
    [
        ({**ASKED, "settings": {"draws": 99, "root_seed": 7}}, "settings changed"),
        ({**ASKED, "contender": {"digest": "b"}}, "contender.digest changed"),
        ({**ASKED, "regimes": []}, "regimes changed"),
        ({"settings": ASKED["settings"]}, "contender.digest changed"),
        ({"contender": {"digest": "b"}, "settings": {}}, "contender.digest, settings changed"),
    ],
)
def test_another_plan_starts_afresh_and_says_why(tmp_path: Path, plan: dict[str, object], says: str) -> None:
    Partial(tmp_path, ASKED).keep(ran()[0])
    other = Partial(tmp_path, plan)
    assert other.started_afresh is not None and says in other.started_afresh
    assert other.finished() == {}
    assert Partial(tmp_path, plan).started_afresh is None


@pytest.mark.parametrize("content", [b"", b"{", b"[1, 2]", b"7", b"null", b"\xff\xfe", b'"text"', b"{}"])
def test_a_broken_plan_starts_afresh(tmp_path: Path, content: bytes) -> None:
    Partial(tmp_path, ASKED).keep(ran()[0])
    (tmp_path / ".partial" / PLAN).write_bytes(content)
    other = Partial(tmp_path, ASKED)
    assert other.started_afresh == "the plan of the interrupted run cannot be read" and other.finished() == {}


def test_seeds_without_a_plan_are_not_trusted(tmp_path: Path) -> None:
    Partial(tmp_path, ASKED).keep(ran()[0])
    (tmp_path / ".partial" / PLAN).unlink()
    assert Partial(tmp_path, ASKED).finished() == {}


@pytest.mark.parametrize("name", [DECISIONS, PLACEMENTS, REQUESTS, SEEDS])
@pytest.mark.parametrize("damage", ["gone", "empty", "cut", "flipped", "foreign", "column"])
def test_a_broken_seed_is_run_again(tmp_path: Path, name: str, damage: str) -> None:
    partial = Partial(tmp_path, ASKED)
    for e in ran()[:2]:
        partial.keep(e)
    path = next((tmp_path / ".partial").glob("seed-*-1")) / name
    whole = path.read_bytes()
    if damage == "gone":
        path.unlink()
    elif damage == "column":
        table = pq.read_table(path)
        pq.write_table(table.drop_columns(["seed"]), path)
    else:
        flipped = whole[:-9] + bytes([whole[-9] ^ 0xFF]) + whole[-8:]
        path.write_bytes({"empty": b"", "cut": whole[:-20], "flipped": flipped, "foreign": b"hello"}[damage])
    again = Partial(tmp_path, ASKED)
    assert list(again.finished()) == [("toy", 0)]
    again.keep(ran()[1])
    assert len(again.finished()) == 2


def test_names_that_no_file_can_have_are_kept_apart(tmp_path: Path) -> None:
    partial, names = Partial(tmp_path, ASKED), ("a/b", "a_b", "x" * 299)
    for name in names:
        partial.keep(replace(ran()[0], regime=name))
    assert {regime for regime, _ in Partial(tmp_path, ASKED).finished()} == {*names}


def test_half_written_seeds_are_ignored(tmp_path: Path) -> None:
    partial = Partial(tmp_path, ASKED)
    partial.keep(ran()[0])
    (kept,) = (tmp_path / ".partial").glob("seed-*-0")
    half = tmp_path / ".partial" / f".{kept.name[:-1]}1"
    half.mkdir()
    (half / "seeds.parquet").write_bytes(b"PAR1")
    assert list(Partial(tmp_path, ASKED).finished()) == [("toy", 0)]
    partial.keep(ran()[1])
    assert len(partial.finished()) == 2 and not half.exists()


KILLED = """
import os, signal, sys
from pathlib import Path
sys.path.insert(0, sys.argv[2])
from strategies import ran
from protocol import parquet
from protocol.evidence import partial as workplace
partial = workplace.Partial(Path(sys.argv[1]), {"a": 1})
found = ran(n_seeds=2)
partial.keep(found[0])
writer, left = parquet.pq.write_table, [int(sys.argv[3])]
def dying(table, path, **options):
    if left[0] == 0:
        Path(path).write_bytes(b"PAR1 half")
        os.kill(os.getpid(), signal.SIGKILL)
    left[0] -= 1
    writer(table, path, **options)
parquet.pq.write_table = dying
partial.keep(found[1])
"""


@pytest.mark.parametrize("tables_written", [0, 2])
def test_kill_in_the_middle_of_a_seed(tmp_path: Path, tables_written: int) -> None:
    here = str(Path(__file__).parents[1] / "builders")
    command = [sys.executable, "-c", KILLED, str(tmp_path), here, str(tables_written)]
    done = subprocess.run(command, capture_output=True, timeout=120)
    assert done.returncode == -signal.SIGKILL, done.stderr
    partial = Partial(tmp_path, {"a": 1})
    assert list(partial.finished()) == [("toy", 0)]
    partial.keep(ran()[1])
    assert len(partial.finished()) == 2


def test_names_of_regimes_are_no_paths(tmp_path: Path) -> None:
    from strategies import changed

    partial = Partial(tmp_path, ASKED)
    for name in ("trace:a/b.csv", "../up", "a b"):
        partial.keep(changed(ran()[0], regime=name))
    assert sorted(regime for regime, _ in partial.finished()) == ["../up", "a b", "trace:a/b.csv"]
    assert sorted(os.listdir(tmp_path)) == [".partial"]


def test_an_interrupted_campaign_ends_in_the_same_certificate(tmp_path: Path) -> None:
    source = FunctionSource(quiet)
    plan, settings = plan_of(source), [setting()]
    whole = files.canonical_json(plain(assess(head_for(source, settings), list(ran()))))
    partial = Partial(tmp_path, ASKED)
    for e in ran()[2:7]:
        partial.keep(e)
    kept: list[int] = []
    finished = Partial(tmp_path, ASKED).finished()
    found = campaign.run(plan, settings, 1, finished, lambda e: kept.append(e.seed))
    assert kept == [0, 1, 7, 8, 9]
    assert files.canonical_json(plain(assess(head_for(source, settings), found))) == whole


def test_a_plan_holds_digests_and_not_what_was_asked(tmp_path: Path) -> None:
    """A scheduler that could read it would know the root of a run that is still going on."""
    Partial(tmp_path, {**ASKED, "settings": {"root_seed": 987654321, "draws": 19}})
    text = (tmp_path / ".partial" / PLAN).read_text()
    assert "987654321" not in text and set(json.loads(text)) == {"contender.digest", "settings"}
    assert all(len(value) == 64 for value in json.loads(text).values())


def test_replays_on_a_server_are_kept_and_never_thrown_away_by_another_plan(tmp_path: Path) -> None:
    partial = Partial(tmp_path, ASKED)
    made = [*sound()[0].served[:2], *sound()[1].served[:1]]
    for r in made:
        partial.keep_replay(r)
    kept = Partial(tmp_path, ASKED).replays()
    assert {(r.seed, r.arm, r.draw, r.attempt) for r in kept} == {(r.seed, r.arm, r.draw, r.attempt) for r in made}
    assert all(len(r.rows) for r in kept)
    with pytest.raises(ProtocolError, match=r"holds 3 replays of another run \(settings changed") as caught:
        Partial(tmp_path, {**ASKED, "settings": {"draws": 99}})
    assert "\n" not in str(caught.value) and len(Partial(tmp_path, ASKED).replays()) == 3
    (tmp_path / ".partial" / f"replay-1-{made[2].arm}-{made[2].draw}-1" / "served.parquet").write_bytes(b"PAR1")
    assert len(Partial(tmp_path, ASKED).replays()) == 2


def test_blocks_of_a_live_session_are_kept_whole(tmp_path: Path) -> None:
    partial = Partial(tmp_path, ASKED)
    for e in session()[:2]:
        partial.keep(e)
    again = Partial(tmp_path, ASKED).finished()
    assert [len(again["toy", number].served) for number in (0, 1)] == [5, 5]
    with pytest.raises(ProtocolError, match="holds 2 replays of another run"):
        Partial(tmp_path, {**ASKED, "contender": {"digest": "b"}})
