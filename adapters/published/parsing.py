"""Reading foreign result files: every wrong thing is one `BadInput` that names file, row and field."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from protocol.errors import BadInput
from protocol.workload.trace import NS_PER_S

#: Later than any time that int64 nanoseconds since 1970 can hold a difference of (about 292 years).
MOST_NS = 2**63 - 1
#: Result files are read whole; the largest that a benchmark of this kind writes is far smaller.
MOST_BYTES = 2**31


@dataclass(frozen=True)
class Document:
    """A file's content.  kind : "json" (one value), "jsonl" (value is a list, one a line) or "text"."""

    path: Path
    kind: str
    value: Any

    @property
    def where(self) -> str:
        return str(self.path)


def read_document(path: Path) -> Document:
    """Parse a file as JSON, JSON lines or text (.csv, .md).  Raises BadInput."""
    if not path.is_file():
        found = "a folder" if path.is_dir() else "a device, pipe or socket" if path.exists() else "no such file"
        raise BadInput(str(path), found, "a result file")
    if path.stat().st_size > MOST_BYTES:
        raise BadInput(str(path), f"{path.stat().st_size} bytes", f"at most {MOST_BYTES}")
    try:
        text = path.read_text(encoding="utf-8-sig")
    except UnicodeDecodeError as error:
        raise BadInput(f"{path}, byte {error.start + 1}", "bytes that are not UTF-8", "a text file") from None
    if not text.strip():
        raise BadInput(str(path), "an empty file", "a result file")
    if path.suffix.lower() in (".csv", ".md"):
        return Document(path, "text", text)
    if path.suffix.lower() in (".yaml", ".yml"):
        return Document(path, "json", _yaml(path, text))
    if path.suffix.lower() == ".jsonl":
        return Document(path, "jsonl", _lines(path, text))
    try:
        return Document(path, "json", json.loads(text))
    except (ValueError, RecursionError) as error:
        # Several tools append one object a line to a file named .json.
        if isinstance(error, json.JSONDecodeError) and error.msg == "Extra data" and text.lstrip()[:1] == "{":
            return Document(path, "jsonl", _lines(path, text))
        raise BadInput(_spot(path, error), _complaint(error), "JSON") from None


def _yaml(path: Path, text: str) -> Any:
    try:
        import yaml
    except ImportError:
        raise BadInput(
            str(path), "YAML, and no package that reads it", "`pip install pyyaml`, or the file as JSON"
        ) from None
    try:
        return yaml.safe_load(text)
    except (yaml.YAMLError, ValueError, RecursionError) as error:
        mark = getattr(error, "problem_mark", None)
        where = str(path) if mark is None else f"{path}, line {mark.line + 1}"
        raise BadInput(
            where, f"broken YAML ({getattr(error, 'problem', None) or type(error).__name__})", "YAML"
        ) from None


def _lines(path: Path, text: str) -> list[Any]:
    rows = []
    for number, line in enumerate(text.splitlines(), 1):
        if line.strip():
            try:
                rows.append(json.loads(line))
            except (ValueError, RecursionError) as error:
                raise BadInput(f"{path}, line {number}", _complaint(error), "one JSON object a line") from None
    return rows


def _spot(path: Path, error: Exception) -> str:
    return f"{path}, line {error.lineno}" if isinstance(error, json.JSONDecodeError) else str(path)


def _complaint(error: Exception) -> str:
    if isinstance(error, json.JSONDecodeError):
        return f"text that is not JSON ({error.msg.lower()})"
    return "JSON nested too deeply" if isinstance(error, RecursionError) else "a number too long to read"


def mapping(where: str, value: object) -> Mapping[str, Any]:
    if not isinstance(value, Mapping):
        raise BadInput(where, shown(value), "a JSON object")
    return value


def sequence(where: str, value: object) -> Sequence[Any]:
    if not isinstance(value, list):
        raise BadInput(where, shown(value), "a list")
    return value


def field(where: str, row: Mapping[str, Any], name: str) -> Any:
    if name not in row:
        beside = ", ".join(key if key.isprintable() else repr(key) for key in sorted(map(str, row))[:6])
        raise BadInput(where, f"no field {name!r}", f"{name!r} beside {beside}" if beside else f"{name!r}")
    return row[name]


def number(where: str, value: object, low: float = -math.inf) -> float:
    """A finite number of at least `low`."""
    known = maybe_number(where, value)
    if known is None or not math.isfinite(known) or known < low:
        raise BadInput(where, shown(value), "a number" if low == -math.inf else f"a number of at least {low:g}")
    return known


def maybe_number(where: str, value: object) -> float | None:
    """A number, NaN included, or None where the file has none."""
    if value is None:
        return None
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise BadInput(where, shown(value), "a number")
    try:
        return float(value)
    except OverflowError:
        raise BadInput(where, "a number too large", "a number") from None


def whole(where: str, value: object, low: int = 0, high: int = 2**31 - 1) -> int:
    """A whole number; 3.0 counts, 3.5 does not."""
    known = number(where, value)
    if known != int(known) or not low <= known <= high:
        raise BadInput(where, shown(value), f"a whole number from {low} to {high}")
    return int(value) if isinstance(value, int) else int(known)


def nanoseconds(where: str, seconds: object, low: float = -math.inf) -> int:
    """Seconds to whole nanoseconds.  Raises BadInput beyond what int64 holds."""
    ns = number(where, seconds, low) * NS_PER_S
    if not abs(ns) < MOST_NS:
        raise BadInput(where, shown(seconds), "seconds that fit 64-bit nanoseconds")
    return round(ns)


def shown(value: object) -> str:
    """A short one-line rendering of a foreign value."""
    text = repr(value)
    return text if len(text) <= 60 else text[:57] + "..."
