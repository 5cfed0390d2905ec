"""A small file, written before any run, that fixes what will be judged and how.

Whoever picks seeds, draws, limits or a lucky version of the scheduler afterwards no longer matches it.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from protocol.certificate.model import Head
from protocol.errors import BadInput, ProtocolError
from protocol.files import canonical_json, write_text

SCHEMA = "diloco-protocol/preregistration"


def fixed_part(head: Head) -> dict[str, Any]:
    """What a registration fixes: everything that was asked, less the versions of libraries."""
    return {key: value for key, value in head.plain().items() if key not in ("preregistration", "versions")}


def digest_of(fixed: Mapping[str, Any]) -> str:
    """SHA-256 of what is fixed, in canonical JSON."""
    return hashlib.sha256(canonical_json(fixed).encode()).hexdigest()


def register(head: Head, path: Path) -> str:
    """Write the registration; returns its digest.  Raises BadInput when the file is already there."""
    if path.exists():
        raise BadInput(
            str(path), "a file", "a new name: a registration is written once, then given with --preregistered"
        )
    fixed = fixed_part(head)
    digest = digest_of(fixed)
    try:
        write_text(path, canonical_json({"schema": SCHEMA, "fixed": fixed, "digest": digest}))
    except OSError as error:
        raise BadInput(str(path), error.strerror or "an error", "a file that can be written") from None
    return digest


def honour(head: Head, path: Path) -> str:
    """The digest of a registration that `head` keeps to.

    Raises BadInput when the file is none or was edited, ProtocolError naming each part that departs from it.
    """
    try:
        stored = json.loads(path.read_text("utf-8"))
        fixed, digest = dict(stored["fixed"]), str(stored["digest"])
    except OSError as error:
        raise BadInput(str(path), error.strerror or "an error", "a preregistration") from None
    except (ValueError, KeyError, TypeError):
        raise BadInput(str(path), "something else", "a preregistration written by --preregister") from None
    if digest_of(fixed) != digest:
        raise BadInput(str(path), "contents that do not match its digest", "the file as --preregister wrote it")
    now = json.loads(canonical_json(fixed_part(head)))
    changed = sorted(_departures(fixed, now, ""))
    if changed:
        raise ProtocolError(f"{path}: this run departs from what was registered in {', '.join(changed[:5])}")
    return digest


def _departures(registered: Any, now: Any, where: str) -> list[str]:
    if isinstance(registered, dict) and isinstance(now, dict):
        keys = {*registered, *now}
        return [d for k in keys for d in _departures(registered.get(k), now.get(k), f"{where}.{k}".lstrip("."))]
    return [] if registered == now else [where]
