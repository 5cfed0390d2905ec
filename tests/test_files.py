"""Files that are whole or not there; text that is equal when the values are."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from protocol import files

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
