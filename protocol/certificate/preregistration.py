"""A small file, written before any run, that fixes what will be judged and how.

Whoever picks seeds, draws, limits or a lucky version of the scheduler afterwards no longer matches it.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from protocol.certificate.model import Head
from protocol.errors import BadInput, ProtocolError
from protocol.files import canonical_json, from_json, read_bytes, write_text

SCHEMA = "diloco-protocol/preregistration"
#: 1: what is fixed.  2: also when it was fixed and a note, both under the digest; the root where it was not fresh.
SCHEMA_VERSION = 2


def fixed_part(head: Head) -> dict[str, Any]:
    """What a registration fixes: everything that was asked, less the versions of libraries.

    A fresh root is drawn from the registration's digest, so it is not part of it; nor is the day of a session.
    """
    plain = {key: value for key, value in head.plain(dated=False).items() if key not in ("preregistration", "versions")}
    # What confines it is the machine's, not the scheduler's.
    plain["contender"] = {key: value for key, value in plain["contender"].items() if key != "confinement"}
    if head.settings.root == "fresh":
        plain["settings"] = {k: v for k, v in plain["settings"].items() if k not in ("root_seed", "nonce")}
    return plain


def digest_of(registration: Mapping[str, Any]) -> str:
    """SHA-256 of what a registration holds but its digest, in canonical JSON."""
    held = {key: value for key, value in registration.items() if key != "digest"}
    return hashlib.sha256(canonical_json(held).encode()).hexdigest()


def register(head: Head, path: Path, note: str | None = None) -> str:
    """Write the registration; returns its digest.  Raises BadInput when the file is already there.

    note : anything that dates it from outside: a timestamp token, a beacon's value, an address where it was published.
    """
    if path.exists():
        raise BadInput(
            str(path), "a file", "a new name: a registration is written once, then given with --preregistered"
        )
    held = {
        "schema": SCHEMA,
        "schema_version": SCHEMA_VERSION,
        "fixed": fixed_part(head),
        "registered": datetime.now(UTC).isoformat(timespec="seconds"),
        "note": note,
    }
    digest = digest_of(held)
    try:
        write_text(path, canonical_json({**held, "digest": digest}))
    except OSError as error:
        raise BadInput(str(path), error.strerror or "an error", "a file that can be written") from None
    return digest


def honour(head: Head, path: Path) -> str:
    """The digest of a registration that `head` keeps to.

    Raises BadInput when the file is none or was edited, ProtocolError naming each part that departs from it.
    """
    try:
        stored = from_json(read_bytes(path))
        fixed, digest, version = dict(stored["fixed"]), str(stored["digest"]), stored.get("schema_version")
    except OSError as error:
        raise BadInput(str(path), error.strerror or "an error", "a preregistration") from None
    except (ValueError, KeyError, TypeError, AttributeError):
        raise BadInput(str(path), "something else", "a preregistration written by --preregister") from None
    if version != SCHEMA_VERSION:
        raise BadInput(f"{path}, schema_version", f"{version}", f"{SCHEMA_VERSION}: register again")
    if digest_of(stored) != digest:
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
