"""Where the root of every random stream comes from.

The default is public, so its traces can be memorised.  A fresh root is drawn after the scheduler's digest (and the
registration's, where there is one) is fixed: it follows from them and a nonce, so it cannot be known before, and
whoever holds the certificate recomputes it.
"""

from __future__ import annotations

import hashlib
import json
import secrets
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from protocol.errors import BadInput
from protocol.files import from_json, read_bytes

_BITS = 48


@dataclass(frozen=True)
class Root:
    """seed : of every stream.  origin : who chose it.  nonce : of a fresh one."""

    seed: int
    origin: Literal["public", "given", "fresh"]
    nonce: str | None = None

    @property
    def secret(self) -> bytes:
        """What of a fresh root no scheduler can find by trying."""
        return secret_of(self.nonce)


def secret_of(nonce: str | None) -> bytes:
    return b"" if nonce is None else hashlib.sha256(f"scheduler's stream {nonce}".encode()).digest()


def derived(contender_digest: str, registration_digest: str | None, nonce: str) -> int:
    """A whole number below 2^48 from what was fixed before and a nonce."""
    parts = json.dumps([contender_digest, registration_digest, nonce]).encode()
    return int.from_bytes(hashlib.sha256(parts).digest()) % (1 << _BITS)


def fresh(contender_digest: str, registration_digest: str | None, nonce: str | None) -> Root:
    """A root that nobody could know before; `nonce` makes an earlier one again."""
    chosen = secrets.token_hex(16) if nonce is None else nonce
    return Root(derived(contender_digest, registration_digest, chosen), "fresh", chosen)


def digest_in(registration: Path | None) -> str | None:
    """The digest that a registration states.  Raises BadInput when the file is none."""
    if registration is None:
        return None
    try:
        return str(from_json(read_bytes(registration))["digest"])
    except OSError as error:
        raise BadInput(str(registration), error.strerror or "an error", "a preregistration") from None
    except (ValueError, KeyError, TypeError):
        raise BadInput(str(registration), "something else", "a preregistration written by --preregister") from None
