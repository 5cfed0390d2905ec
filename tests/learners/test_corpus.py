"""Corpora need no torch."""

from __future__ import annotations

import builtins
import sys
import types
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from adapters.learners import corpus as cp
from protocol.errors import BadInput, ProtocolError


def test_standard_library_is_read_the_same_way_twice() -> None:
    first, second = cp.standard_library(), cp.standard_library()
    assert first.digest == second.digest
    assert len(first.train) > 1_000_000 and len(first.validation) > 30_000
    assert first.train.max() < cp.VOCABULARY
    # Unknown bytes are rare in source text.
    assert (first.train == cp.VOCABULARY - 1).mean() < 0.01


def test_symbols_are_printable_ascii_tab_newline_and_one_for_the_rest() -> None:
    text = (b"\t\n ~" + bytes([0, 200])) * 40_000
    made = cp.Corpus.of("x", text, text)
    assert made.train[:6].tolist() == [0, 1, 2, 96, 97, 97]
    assert cp.VOCABULARY == 98


def test_a_text_file_is_split_in_blocks(tmp_path: Path) -> None:
    path = tmp_path / "text.txt"
    path.write_bytes(b"".join(bytes([97 + k % 26]) * (1 << 15) for k in range(40)))
    made = cp.text_file(path)
    assert len(made.train) == 38 << 15 and len(made.validation) == 2 << 15
    letters = np.unique(made.validation).tolist()
    assert letters == sorted({97 + 19 - 30, 97 + 39 % 26 - 30})  # blocks 20 and 40, as symbols


def test_too_little_text_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "short.txt"
    path.write_bytes(b"abc")
    with pytest.raises(BadInput, match="at least 1 MB"):
        cp.text_file(path)
    with pytest.raises(BadInput, match="a text file"):
        cp.text_file(tmp_path / "absent.txt")


def test_a_python_without_sources(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cp.sysconfig, "get_paths", lambda: {"stdlib": str(tmp_path)})
    with pytest.raises(ProtocolError, match="--text"):
        cp.standard_library()


def test_a_streamed_dataset(monkeypatch: pytest.MonkeyPatch) -> None:
    """The library's interface as documented: load_dataset(name, subset, split=, streaming=) yields dicts."""
    asked: list[Any] = []

    def load_dataset(name: str, subset: str | None, *, split: str, streaming: bool) -> Any:
        asked.append((name, subset, split, streaming))
        return ({"text": "abcdefg " * 1000} for _ in range(10_000))

    monkeypatch.setitem(sys.modules, "datasets", types.SimpleNamespace(load_dataset=load_dataset))
    made = cp.hugging_face("someone/texts:small", megabytes=3)
    assert asked == [("someone/texts", "small", "train", True)]
    assert 2_900_000 < len(made.train) + len(made.validation) <= 3_000_000


def test_dataset_problems_are_one_line(monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(*_: Any, **__: Any) -> Any:
        raise ConnectionError("no route")

    monkeypatch.setitem(sys.modules, "datasets", types.SimpleNamespace(load_dataset=broken))
    with pytest.raises(BadInput, match="ConnectionError: no route"):
        cp.hugging_face("a/b")
    monkeypatch.setitem(sys.modules, "datasets", None)
    with pytest.raises(ProtocolError, match="pip install datasets"):
        cp.hugging_face("a/b")


def test_without_torch_the_error_says_how_to_get_it(monkeypatch: pytest.MonkeyPatch) -> None:
    real = builtins.__import__

    def none(name: str, *args: Any, **kwargs: Any) -> Any:
        if name == "torch":
            raise ModuleNotFoundError("No module named 'torch'", name="torch")
        return real(name, *args, **kwargs)

    monkeypatch.setattr(builtins, "__import__", none)
    monkeypatch.delitem(sys.modules, "adapters.learners.framework", raising=False)
    with pytest.raises(ProtocolError, match=r"pip install 'diloco-protocol\[train\]'"):
        __import__("adapters.learners.framework")
