"""A file before anybody knows its format: its bytes, its kind of container, the names of its columns."""

from __future__ import annotations

import bz2
import csv
import gzip
import io
import json
import lzma
import re
import zlib
from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet

from protocol.errors import BadInput, ProtocolError

#: Larger files are refused: they would not fit beside their columns in the memory of a small machine.
MAX_BYTES = 4 << 30
#: A header, or a JSON document, longer than this is not looked at.
MAX_LINE = 1 << 20
MAX_DOCUMENT = 256 << 20
_CHUNK = 16 << 20
DELIMITERS = ",;\t|"
#: Containers with one row a request.
TABLES = ("csv", "jsonl", "json array", "parquet")

#: First bytes of packed files, what they are called, and what opens them.
_PACKED: dict[bytes, tuple[str, Callable[[io.BytesIO], Any]]] = {
    b"\x1f\x8b": ("gzip", gzip.open),
    b"\x28\xb5\x2f\xfd": ("Zstandard", lambda file: pa.CompressedInputStream(file, "zstd")),
    b"\xfd7zXZ\0": ("xz", lzma.open),
    **{b"BZh%d1AY&SY" % level: ("bzip2", bz2.open) for level in range(1, 10)},
}
_BOM = b"\xef\xbb\xbf"
_SOMETHING = re.compile(rb"\S")
LINE_END = re.compile(rb"\r\n|\n|\r")
_VALUE = re.compile(r"[+-]?(\d+([.,]\d*)?|[.,]\d+)([eE][+-]?\d+)?|\d{4}-\d\d-\d\d[ T].*|", re.ASCII)
#: Numbers stay text, so that no digit of a decimal is lost.
DECODER = json.JSONDecoder(parse_float=str, parse_constant=str)


@dataclass(frozen=True, eq=False)
class Sample:
    """One file, decompressed and without a byte order mark.

    container : "csv", "jsonl", "json array" (a list of objects, or one under `data`), "json" (another document),
    "parquet", "empty" or "binary".
    columns : names in order, stripped; of a CSV its first line, of JSON the keys of the first object.
    delimiter : of a CSV; "" otherwise.
    """

    path: Path
    data: bytes
    container: str
    columns: tuple[str, ...] = ()
    delimiter: str = ""

    def has(self, column: str) -> bool:
        """Whether there is such a column; of JSON also a dotted path into the first object."""
        if column in self.columns:
            return True
        return self.container in ("jsonl", "json array") and column.partition(".")[0] in self.columns

    @cached_property
    def document(self) -> object:
        """The JSON document, of a "json array" its rows, decimals as text; None when it is none or too large."""
        if self.container == "parquet" or len(self.data) > MAX_DOCUMENT:
            return None
        document = decoded(self.data)
        return _rows(document) if self.container == "json array" else document

    @cached_property
    def first_lines(self) -> list[list[str]]:
        """Fields of the first lines of a CSV, at most 20."""
        lines = LINE_END.split(self.data[:MAX_LINE], 20)[:20]
        return [_fields(line, self.delimiter) for line in lines if line.strip()]


def load(path: str | Path) -> Sample:
    """Read a regular file; one that is packed (gzip, Zstandard, bzip2, xz) is unpacked, by its first bytes.

    Raises BadInput when it cannot be opened, is no regular file, is larger than MAX_BYTES or breaks off.
    """
    path = Path(path)
    try:
        if path.is_dir():
            raise BadInput(str(path), "a folder", "a request trace file")
        if path.exists() and not path.is_file():
            raise BadInput(str(path), "a device, pipe or socket", "a regular file")
        if path.stat().st_size > MAX_BYTES:
            raise BadInput(str(path), f"{path.stat().st_size} bytes", f"at most {MAX_BYTES}: cut the trace first")
        data = path.read_bytes()
    except FileNotFoundError:
        raise BadInput(str(path), "no such file", "a request trace file") from None
    except (OSError, ValueError) as error:  # ValueError: a NUL in the name
        reason = getattr(error, "strerror", None) or str(error)
        raise BadInput(repr(str(path)) if "\0" in str(path) else str(path), reason, "a file that can be read") from None
    for magic, (kind, opened) in _PACKED.items():
        if data.startswith(magic):
            data = _unpacked(path, data, kind, opened)
            break
    return _sniffed(path, data.removeprefix(_BOM))


def _unpacked(path: Path, data: bytes, kind: str, opened: Callable[[io.BytesIO], Any]) -> bytes:
    chunks: list[bytes] = []
    size = 0
    try:
        with opened(io.BytesIO(data)) as file:
            while chunk := file.read(_CHUNK):
                chunks.append(chunk)
                size += len(chunk)
                if size > MAX_BYTES:
                    raise BadInput(str(path), f"more than {MAX_BYTES} bytes once unpacked", f"at most {MAX_BYTES}")
    except (OSError, EOFError, zlib.error, lzma.LZMAError, pa.ArrowException) as error:
        raise BadInput(str(path), f"a broken {kind} file ({first_line(error)})", f"a whole {kind} file") from None
    return b"".join(chunks)


def _sniffed(path: Path, data: bytes) -> Sample:
    if not data.strip():
        return Sample(path, b"", "empty")
    if data[:4] == b"PAR1":
        return _parquet(path, data)
    if b"\0" in data[:MAX_LINE]:
        return Sample(path, data, "binary")
    if data.lstrip()[:1] in (b"{", b"["):
        return _json(path, data)
    first = LINE_END.split(data[: MAX_LINE + 1], 1)[0]
    delimiter = max(DELIMITERS, key=lambda mark: first.count(mark.encode()))
    return Sample(path, data, "csv", tuple(name.strip() for name in _fields(first, delimiter)), delimiter)


def _json(path: Path, data: bytes) -> Sample:
    """JSON lines, an array of objects (also under `data`, as an API gives one page), or another document."""
    # The first line may be one object of many, or the beginning of one document, or all of it.
    end = LINE_END.search(data)
    first = data if end is None else data[: end.start()]
    alone = end is None or _SOMETHING.search(data, end.end()) is None
    value = decoded(first) if len(first) <= MAX_DOCUMENT else None
    if isinstance(value, dict) and not (alone and _rows(value)):
        return Sample(path, data, "jsonl", tuple(str(key) for key in value))
    if len(data) > MAX_DOCUMENT:
        found = f"a JSON document of {len(data)} bytes"
        raise BadInput(str(path), found, f"one object a line (JSON lines), or at most {MAX_DOCUMENT} bytes")
    document = value if alone else decoded(data)
    if document is None and first.lstrip().startswith(b"{"):
        return Sample(path, data, "jsonl")
    rows = _rows(document)
    if rows:
        pages = document.get("total_pages") if isinstance(document, dict) else None
        if isinstance(pages, int) and pages > 1:
            raise BadInput(str(path), f"one of {pages} pages of a log", "the rows of all pages in one file")
        return Sample(path, data, "json array", tuple(str(key) for key in rows[0]))
    return Sample(path, data, "json", tuple(document) if isinstance(document, dict) else ())


def _rows(document: object) -> list[dict[str, Any]]:
    """The objects of an array, or of the array under `data`; empty when it is anything else."""
    if isinstance(document, dict):
        document = document.get("data")
    if isinstance(document, list) and all(isinstance(row, dict) for row in document):
        return document
    return []


def _parquet(path: Path, data: bytes) -> Sample:
    try:
        names = pyarrow.parquet.read_schema(io.BytesIO(data)).names
    except (pa.ArrowException, OSError, ValueError) as error:
        raise BadInput(str(path), f"a broken Parquet file ({first_line(error)})", "a whole Parquet file") from None
    return Sample(path, data, "parquet", tuple(names))


def decoded(text: bytes) -> object:
    """The JSON value, decimals as text; None when it is no JSON (or null)."""
    try:
        return DECODER.decode(text.decode("utf-8"))
    except (ValueError, RecursionError):
        return None


def first_line(error: Exception) -> str:
    """The first line of a library's message."""
    lines = str(error).splitlines()
    return lines[0][:200] if lines else type(error).__name__


def _fields(line: bytes, delimiter: str) -> list[str]:
    try:
        return next(csv.reader([line.decode("utf-8", "replace")], delimiter=delimiter), [])
    except csv.Error:
        return []


def refusal(sample: Sample) -> ProtocolError:
    """Why no reader takes this file."""
    path = str(sample.path)
    if sample.container == "empty":
        return BadInput(path, "an empty file", "a header and one row a request")
    if sample.container == "binary":
        kind = "UTF-16 text" if sample.data[:2] in (b"\xff\xfe", b"\xfe\xff") else "a binary file"
        return BadInput(path, kind, "UTF-8 text (CSV or JSON lines) or Parquet")
    if "requests" in sample.columns and sample.container in ("json", "jsonl", "json array"):
        return BadInput(
            path,
            "a closed-loop session (a list of requests, each sent after the answer to the one before)",
            "an open-loop arrival trace: times here follow from the service times of the server recorded",
        )
    if sample.container == "json":
        return BadInput(path, "one JSON document", "JSON lines or a JSON array, one object a request")
    if sample.container == "jsonl" and not sample.columns:
        return BadInput(f"{path}, line 1", "no whole JSON object", "one JSON object a line, with its keys")
    if sample.container == "csv":
        rows = sample.first_lines
        if not sample.columns:
            return BadInput(f"{path}, line 1", "no header that can be read", "the names of the columns")
        if _rate_table(rows):
            return BadInput(
                path,
                "a table of rates, one row per 600 s of one client",
                "an open-loop arrival trace, one row a request",
            )
        if rows and all(_VALUE.fullmatch(field.strip()) for field in rows[0]) and any(rows[0]):
            header = "arrival_s,prompt_tokens,output_tokens or the header of a known format"
            return BadInput(f"{path}, line 1", f"values and no header ({_shown(sample.columns)})", header)
    known = "the columns of a known format (`protocol traces formats`), or --columns time=NAME,... to name them"
    return BadInput(path, f"columns {_shown(sample.columns)}", known)


def _shown(columns: tuple[str, ...]) -> str:
    shown = ", ".join(repr(name[:40]) for name in columns[:8])
    return shown + (f" and {len(columns) - 8} more" if len(columns) > 8 else "")


def _rate_table(rows: list[list[str]]) -> bool:
    """ServeGen client chunks: time, rate, coefficient of variation, distribution, two parameters; every 600 s."""
    if not rows or any(len(row) != 6 for row in rows[:10]):
        return False
    times, names = [row[0] for row in rows[:10]], [row[3] for row in rows[:10]]
    return all(re.fullmatch(r"\d+00", t) or t == "0" for t in times) and all(n.isalpha() or not n for n in names)
