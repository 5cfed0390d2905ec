"""Certificates of version 1 are still verified, and their rows judged again under today's rules."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from judging import command
from server_runs import check_of
from typer.testing import CliRunner

from protocol import files
from protocol.certificate import version_1
from protocol.certificate.model import plain
from protocol.certificate.reading import CERTIFICATE, RAW, read_certificate, read_json
from protocol.certificate.verify import verify
from protocol.cli.main import build
from protocol.errors import BadInput

GOLDEN = Path(__file__).parents[1] / "golden" / "version_1"
KINDS = ("simulated", "live")


@pytest.fixture
def copy(request: pytest.FixtureRequest, tmp_path: Path) -> Path:
    shutil.copytree(GOLDEN / request.param, tmp_path / "old")
    return tmp_path / "old"


@pytest.mark.parametrize("kind", KINDS)
def test_an_old_certificate_verifies(kind: str) -> None:
    assert verify(GOLDEN / kind) == []


def test_what_it_stated_is_what_its_rows_still_give() -> None:
    stated = read_json(GOLDEN / "simulated")["claims"][0]["envelope"]
    _, _, now = version_1.rejudged(GOLDEN / "simulated")
    envelope = now.claims[0].envelope
    assert envelope.gain_pp == pytest.approx(stated["gain_pp"], rel=1e-9) and now.verdict == "PASS"
    # Told apart since then: what of the gain follows the load.
    assert envelope.load_gain_pp is not None and now.schema_version == 2
    assert now.settings.root == "given" and now.settings.root_seed == 1


def test_the_old_live_session_was_passed_by_counting_requests_as_independent() -> None:
    """Its A/A had p = 3e-6 by requests; over blocks it has too little to say, so nothing is licensed."""
    stated = read_json(GOLDEN / "live")
    head, found, now = version_1.rejudged(GOLDEN / "live")
    assert stated["verdict"] == "PASS" and now.verdict == "INCONCLUSIVE"
    aa = check_of(now, "G2", "A/A")
    assert aa.status == "undecidable" and aa.statistic is not None and aa.statistic > 0.05
    assert head.settings.idle == 2 and [r.arm for r in found[0].served] == ["no-sync", "policy", "uniform", "no-sync"]
    old, new = stated["claims"][0]["envelope"], now.claims[0].envelope
    assert new.gain_pp == pytest.approx(old["gain_pp"], rel=1e-9) and new.n_seeds == old["n_seeds"]
    assert [r.merges for r in new.per_seed] == [r["merges"] for r in old["per_seed"]]


def said(*words: object) -> tuple[int, str]:
    """The command in this process: its exit code, and what it printed."""
    found = CliRunner().invoke(build(), ["verify", *map(str, words)])
    if isinstance(found.exception, BadInput):
        return 2, str(found.exception)
    return found.exit_code, " ".join(found.output.split())


def test_the_command_says_what_stands_today() -> None:
    """A PASS that today's rules do not give is no verified PASS; the sentence is today's."""
    code, words = said(GOLDEN / "simulated")
    assert code == 0 and "under the rules of version 2: PASS." in words and "not shown: verdict, tier and sen" in words
    code, words = said(GOLDEN / "live")
    assert code == 1 and "differs: verdict: stated PASS, under the rules of version 2 INCONCLUSIVE" in words
    code, words = said(GOLDEN / "simulated", "--rerun", "fixed-h")
    assert code == 2 and "--rejudge NEW first" in words


def recomputed(folder: Path) -> None:
    """All that a forger recomputes who says that a folder is of version 1."""
    certificate = json.loads((folder / CERTIFICATE).read_text())
    now = plain(version_1.rejudged(folder)[2])
    certificate |= {key: now[key] for key in ("claims", "tier", "verdict", "sentence")}
    certificate["files"] = {name: files.sha256(folder / RAW / name) for name in certificate["files"]}
    certificate["schema_version"] = 1
    files.write_text(folder / CERTIFICATE, files.canonical_json(certificate))


@pytest.mark.parametrize("copy", ["simulated"], indirect=True)
def test_dearer_controls_are_found_with_every_number_made_anew(copy: Path) -> None:
    arms = pq.read_table(copy / RAW / "placements.parquet")["arm"].to_pylist()

    def dearer(rows: list[Any]) -> list[Any]:
        return [[c + 50 for c in row] if arm == "uniform" else row for row, arm in zip(rows, arms, strict=True)]

    edit(copy / RAW / "placements.parquet", "violations", dearer)
    recomputed(copy)
    code, words = said(copy)
    assert code == 1 and "uniform, placement" in words and "counted" in words
    code, words = said(copy, "--rejudge", copy.with_name("new"))
    assert code == 1 and not copy.with_name("new").exists()


@pytest.mark.parametrize("copy", ["simulated"], indirect=True)
def test_another_name_or_verdict_is_found(copy: Path) -> None:
    stated = json.loads((copy / CERTIFICATE).read_text())
    other = {**stated, "contender": {**stated["contender"], "name": "forged"}}
    files.write_text(copy / CERTIFICATE, files.canonical_json(other))
    code, words = said(copy)
    assert code == 1 and "contender: not as raw/asked.json has it" in words
    other = {**stated, "regimes": [{**r, "horizon_s": 1.0} for r in stated["regimes"]]}
    files.write_text(copy / CERTIFICATE, files.canonical_json(other))
    assert said(copy)[0] == 1


@pytest.mark.parametrize("kind", KINDS)
def test_it_is_not_read_as_one_of_today(kind: str) -> None:
    with pytest.raises(BadInput, match="found a certificate of version 1; expected version 2: `protocol verify"):
        read_certificate(GOLDEN / kind)


@pytest.mark.parametrize("kind", KINDS)
def test_the_same_rows_make_a_certificate_of_today(kind: str, tmp_path: Path) -> None:
    shutil.copytree(GOLDEN / kind, tmp_path / "old")
    made = command(tmp_path / "new", "verify", tmp_path / "old", "--rejudge", tmp_path / "new")
    assert made.code == 0 and made.certificate["schema_version"] == 2
    assert verify(tmp_path / "new") == [] and verify(tmp_path / "old") == []
    assert made.certificate["verdict"] == {"simulated": "PASS", "live": "INCONCLUSIVE"}[kind]
    again = command(tmp_path / "more", "verify", tmp_path / "new", "--rejudge", tmp_path / "more")
    assert again.code == 0 and again.certificate["claims"] == made.certificate["claims"]
    (tmp_path / "new" / RAW / "seeds.parquet").write_bytes(b"others")
    refused = command(tmp_path / "third", "verify", tmp_path / "new", "--rejudge", tmp_path / "third")
    assert refused.code == 2


def renew(folder: Path, name: str) -> None:
    certificate = json.loads((folder / CERTIFICATE).read_text())
    certificate["files"][name] = files.sha256(folder / RAW / name)
    files.write_text(folder / CERTIFICATE, files.canonical_json(certificate))


def edit(path: Path, column: str, change: Callable[[list[Any]], list[Any]]) -> None:
    table = pq.read_table(path)
    i = table.column_names.index(column)
    values = pa.array(change(table[column].to_pylist()), table[column].type)
    pq.write_table(table.set_column(i, table.schema.field(i), values), path)


@pytest.mark.parametrize("copy", KINDS, indirect=True)
def test_a_changed_file_is_found_by_its_digest(copy: Path) -> None:
    edit(copy / RAW / "requests.parquet", "e2e_ns", lambda v: [v[0] + 1, *v[1:]])
    assert any("requests.parquet: its SHA-256" in line for line in verify(copy))
    (copy / RAW / "requests.parquet").unlink()
    assert f"{RAW}/requests.parquet: missing" in verify(copy)


@pytest.mark.parametrize("copy", ["simulated"], indirect=True)
@pytest.mark.parametrize("arm", ["policy", "uniform", "no-sync"])
def test_edited_prices_are_found_with_their_digest_renewed(copy: Path, arm: str) -> None:
    path = copy / RAW / "placements.parquet"
    row = pq.read_table(path)["arm"].to_pylist().index(arm)
    edit(path, "violations", lambda v: [*v[:row], [v[row][0] + 3], *v[row + 1 :]])
    renew(copy, "placements.parquet")
    found = verify(copy)
    assert any(line.startswith("small, e2e<=1000ms, ") and ": stated " in line for line in found)
    assert not any("SHA-256" in line for line in found)


@pytest.mark.parametrize("copy", ["live"], indirect=True)
@pytest.mark.parametrize("segment", [1, 2])
def test_edited_requests_of_a_session_are_found_with_their_digest_renewed(copy: Path, segment: int) -> None:
    path = copy / RAW / "requests.parquet"
    mine = np.array(pq.read_table(path)["segment"].to_pylist()) == segment
    edit(path, "e2e_ns", lambda v: [10**11 if own and k > 0 else k for k, own in zip(v, mine, strict=True)])
    renew(copy, "requests.parquet")
    assert any("gain_pp: stated " in line for line in verify(copy))


@pytest.mark.parametrize("copy", ["live"], indirect=True)
def test_edited_merges_of_a_session_are_found_with_their_digest_renewed(copy: Path) -> None:
    """Without one of its merges a block is no comparison any more; that does not excuse what was stated of it."""
    path = copy / RAW / "merges.parquet"
    pq.write_table(pq.read_table(path).slice(2), path)
    renew(copy, "merges.parquet")
    assert any("decisions to merge" in line or "by the merges that ran" in line for line in verify(copy))
    certificate = json.loads((copy / CERTIFICATE).read_text())
    certificate["claims"][0]["envelope"]["gain_pp"] += 0.5
    files.write_text(copy / CERTIFICATE, files.canonical_json(certificate))
    assert any("gain_pp: stated " in line for line in verify(copy))


@pytest.mark.parametrize("copy", KINDS, indirect=True)
def test_an_edited_number_of_the_certificate_is_found(copy: Path) -> None:
    certificate = json.loads((copy / CERTIFICATE).read_text())
    certificate["claims"][0]["envelope"]["gain_pp"] += 0.5
    files.write_text(copy / CERTIFICATE, files.canonical_json(certificate))
    assert any("gain_pp: stated " in line for line in verify(copy))


@pytest.mark.parametrize("copy", KINDS, indirect=True)
@pytest.mark.parametrize("name", ["requests.parquet", "asked.json"])
def test_broken_files_are_one_line_each(copy: Path, name: str) -> None:
    (copy / RAW / name).write_bytes(b"PAR1 nothing")
    found = verify(copy)
    assert found and not any("\n" in line for line in found)
