"""Named random streams derived from one recorded seed."""

from __future__ import annotations

import hashlib
import hmac

import numpy as np


def generator(root_seed: int, *parts: str | int) -> np.random.Generator:
    """A generator that depends on the root seed and on the named parts, and on nothing else.

    Parts are length-prefixed before hashing, so ("a", "bc") and ("ab", "c") differ, and adding a new
    stream leaves every other stream's numbers alone.
    """
    digest = hashlib.sha256()
    for part in parts:
        encoded = f"{type(part).__name__}:{part}".encode()
        digest.update(len(encoded).to_bytes(4, "little") + encoded)
    key = np.frombuffer(digest.digest(), dtype="<u4").tolist()
    return np.random.Generator(np.random.PCG64(np.random.SeedSequence(root_seed, spawn_key=key)))


def words(root_seed: int, *parts: str | int, secret: bytes = b"") -> tuple[int, ...]:
    """Four 32-bit words for a stream that lives in another process; equal parts give equal words.

    secret : what nobody else knows yet, 16 bytes or more.  Whoever holds the words can see what they were made of: a
    root of 48 bits is found by trying each, unless a secret was mixed in.
    """
    if not secret:
        return tuple(int(word) for word in generator(root_seed, *parts).integers(0, 2**32, 4, dtype=np.uint32))
    text = repr((root_seed, *parts)).encode()
    keyed = hmac.digest(secret, b"scheduler-words/1\n" + text, "sha256")
    return tuple(int(word) for word in np.frombuffer(keyed[:16], "<u4"))
