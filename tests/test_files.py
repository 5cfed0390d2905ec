"""Files that are whole or not there; text that is equal when the values are."""

from __future__ import annotations

import hashlib
import json
import os
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from protocol import files
from protocol.certificate import ledger
from protocol.certificate.preregistration import honour
from protocol.certificate.reading import read_json
from protocol.certificate.root import digest_in
from protocol.errors import BadInput

VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
    max_leaves=10,
)


@given(VALUES)
def test_canonical_json_round_trip(value: object) -> None:
    text = files.canonical_json(value)
    assert json.loads(text) == value and files.canonical_json(json.loads(text)) == text


@given(st.dictionaries(st.text(), st.integers(), min_size=2))
def test_order_of_keys_is_no_matter(value: dict[str, int]) -> None:
    assert files.canonical_json(dict(reversed(value.items()))) == files.canonical_json(value)


@pytest.mark.parametrize("value", [float("nan"), float("inf"), -float("inf")])
def test_no_certificate_holds_a_nan(value: float) -> None:
    with pytest.raises(ValueError):
        files.canonical_json({"p": [value]})


def test_an_interrupted_write_leaves_the_old_file_and_nothing_else(tmp_path: Path) -> None:
    path = tmp_path / "a.json"
    files.write_text(path, "old")
    with pytest.raises(RuntimeError), files.atomic(path) as temporary:
        temporary.write_text("half")
        raise RuntimeError
    assert path.read_text() == "old" and [p.name for p in tmp_path.iterdir()] == ["a.json"]
    files.write_text(path, "néw")
    assert path.read_bytes() == "néw".encode() and [p.name for p in tmp_path.iterdir()] == ["a.json"]


def test_sha256(tmp_path: Path) -> None:
    path = tmp_path / "b"
    path.write_bytes(bytes(range(256)) * 5000)
    assert files.sha256(path) == hashlib.sha256(path.read_bytes()).hexdigest()


@pytest.mark.parametrize("kind", ["pipe", "folder", "device", "large"])
def test_only_regular_files_of_a_size_are_read(tmp_path: Path, kind: str) -> None:
    """A pipe would never end, a device has no end."""
    path = tmp_path / "found"
    if kind == "pipe":
        os.mkfifo(path)
    elif kind == "folder":
        path.mkdir()
    elif kind == "device":
        path.symlink_to("/dev/zero")
    else:
        path.write_bytes(b"0123456789")
    with pytest.raises(BadInput, match="found: found (a device, pipe or socket|a folder|10 bytes); expected"):
        files.read_bytes(path, 9)
    (tmp_path / "plain").write_bytes(b"012345678")
    assert files.read_bytes(tmp_path / "plain", 9) == b"012345678"
    with pytest.raises(FileNotFoundError):
        files.read_bytes(tmp_path / "missing")


def test_a_run_folder_with_a_pipe_is_refused_before_it_is_read(tmp_path: Path) -> None:
    (tmp_path / "raw").mkdir()
    (tmp_path / "certificate.json").write_text("{}")
    os.mkfifo(tmp_path / "raw" / "requests.parquet")
    with pytest.raises(BadInput, match="requests.parquet: found a device, pipe or socket"):
        read_json(tmp_path)
    os.unlink(tmp_path / "raw" / "requests.parquet")
    (tmp_path / "certificate.json").unlink()
    (tmp_path / "certificate.json").symlink_to("/dev/zero")
    with pytest.raises(BadInput, match="certificate.json: found a device"):
        read_json(tmp_path)


def test_a_ledger_that_is_none_is_named(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / ledger.LEDGER)
    with pytest.raises(BadInput, match="ledger.jsonl: found a device, pipe or socket"):
        ledger.entries(tmp_path / ledger.LEDGER)
    for read in (lambda p: honour(None, p), digest_in):  # type: ignore[arg-type]
        with pytest.raises(BadInput, match="found a device"):
            read(Path("/dev/zero"))


def test_a_word_of_thousands_of_letters_is_cut_in_the_middle() -> None:
    said = str(BadInput("x" * 5000, "y" * 5000, "less"))
    assert len(said) < 900 and said.startswith("xxx") and " ... " in said and said.endswith("; expected less")
