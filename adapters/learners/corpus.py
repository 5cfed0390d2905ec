"""Text to train on: what every machine with Python has, a file of one's own, or a Hugging Face stream.

Symbols are printable ASCII, tab, newline, and one for every other byte: 98 in all, the same for every corpus, so that
losses (nats a byte) are comparable.
"""

from __future__ import annotations

import hashlib
import itertools
import sysconfig
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from protocol.errors import BadInput, ProtocolError

_KNOWN = bytes([9, 10, *range(32, 127)])
VOCABULARY = len(_KNOWN) + 1
_SYMBOL = np.full(256, len(_KNOWN), np.uint8)
_SYMBOL[list(_KNOWN)] = np.arange(len(_KNOWN))
#: One file (or block) in this many is held out.
_HELD_OUT = 20
_BLOCK = 1 << 15
#: Folders of the standard library that are no library code, or not the same everywhere.
_LEFT_OUT = {"__pycache__", "idlelib", "lib2to3", "site-packages", "dist-packages", "test", "tests", "ensurepip"}


@dataclass(frozen=True)
class Corpus:
    """name; train, validation : uint8 symbols, shape (k,); digest : sha256 of both."""

    name: str
    train: NDArray[np.uint8]
    validation: NDArray[np.uint8]
    digest: str

    @classmethod
    def of(cls, name: str, train: bytes, validation: bytes) -> Corpus:
        parts = [_SYMBOL[np.frombuffer(text, np.uint8)] for text in (train, validation)]
        if min(len(part) for part in parts) < _BLOCK:
            raise BadInput(name, f"{len(train) + len(validation)} bytes of text", "at least 1 MB")
        digest = hashlib.sha256(parts[0].tobytes() + b"\0held out\0" + parts[1].tobytes()).hexdigest()
        return cls(name, parts[0], parts[1], digest)


def standard_library() -> Corpus:
    """Sources of Python's own standard library (PSF licence), without its tests; every 20th file is held out.

    The text, and so the digest, is that of the running Python version.  Raises ProtocolError where Python was
    installed without its sources.
    """
    root = Path(sysconfig.get_paths()["stdlib"])
    files = sorted(
        (path.relative_to(root).as_posix(), path)
        for path in root.rglob("*.py")
        if not _LEFT_OUT.intersection(path.relative_to(root).parts)
        and not path.name.startswith("_sysconfigdata")
    )  # fmt: skip
    texts = [path.read_bytes() for _, path in files]
    if sum(map(len, texts)) < 1 << 20:
        raise ProtocolError(f"{root} has no sources of the standard library; give a text with --text")
    held_out = b"".join(texts[_HELD_OUT - 1 :: _HELD_OUT])
    kept = b"".join(text for k, text in enumerate(texts) if k % _HELD_OUT != _HELD_OUT - 1)
    return Corpus.of("Python standard library", kept, held_out)


def text_file(path: Path) -> Corpus:
    """Any text of 1 MB or more; every 20th block of 32 kB is held out."""
    try:
        return _blocks(path.name, path.read_bytes())
    except OSError as problem:
        raise BadInput(str(path), problem.strerror or "an unreadable file", "a text file") from None


def hugging_face(dataset: str, column: str = "text", megabytes: float = 20.0) -> Corpus:
    """The first part of a streamed dataset, `owner/name` or `owner/name:subset`.  Needs `datasets` and the internet."""
    try:
        from datasets import load_dataset  # type: ignore[import-not-found,unused-ignore]
    except ModuleNotFoundError:
        raise ProtocolError("streaming a dataset needs: pip install datasets") from None
    name, _, subset = dataset.partition(":")
    try:
        rows = load_dataset(name, subset or None, split="train", streaming=True)
        texts = (str(row[column]).encode() + b"\n" for row in rows)
        wanted = int(megabytes * 1e6)
        sizes = itertools.accumulate(texts, lambda total, text: (total[0] + len(text), text), initial=(0, b""))
        text = b"".join(piece for total, piece in itertools.takewhile(lambda item: item[0] <= wanted, sizes))
    except ProtocolError:
        raise
    except Exception as problem:  # the library raises many kinds; all of them mean that there is no text
        raise BadInput(f"dataset {dataset}", f"{type(problem).__name__}: {problem}", "a dataset to stream") from None
    return _blocks(dataset, text)


def _blocks(name: str, text: bytes) -> Corpus:
    blocks = [text[k : k + _BLOCK] for k in range(0, len(text), _BLOCK)]
    held_out = b"".join(blocks[_HELD_OUT - 1 :: _HELD_OUT])
    kept = b"".join(block for k, block in enumerate(blocks) if k % _HELD_OUT != _HELD_OUT - 1)
    return Corpus.of(name, kept, held_out)
