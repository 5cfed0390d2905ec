"""Where the root of every stream comes from: a fresh one follows from what was fixed before it, and a nonce."""

from __future__ import annotations

import hashlib
from pathlib import Path

import pytest
from strategies import FunctionSource, head_for, quiet, setting

from protocol.certificate import preregistration
from protocol.certificate.root import derived, digest_in, fresh
from protocol.errors import BadInput

SCHEDULER, OTHER = "a" * 64, "b" * 64


def by_hand(scheduler: str, registration: str, nonce: str) -> int:
    """SHA-256 of the three as a JSON list, its last 48 bits."""
    text = f'["{scheduler}", {registration}, "{nonce}"]'
    return int(hashlib.sha256(text.encode()).hexdigest()[-12:], 16)


def test_a_fresh_root_is_recomputed_from_the_digests_and_the_nonce() -> None:
    root = fresh(SCHEDULER, None, None)
    assert (root.origin, root.seed) == ("fresh", by_hand(SCHEDULER, "null", str(root.nonce)))
    assert fresh(SCHEDULER, None, root.nonce) == root and 0 <= root.seed < 2**48
    registered = fresh(SCHEDULER, OTHER, "n")
    assert registered.seed == by_hand(SCHEDULER, f'"{OTHER}"', "n") == derived(SCHEDULER, OTHER, "n")


def test_whatever_was_fixed_otherwise_gives_another_root() -> None:
    made = [derived(*parts) for parts in ((SCHEDULER, None, "n"), (OTHER, None, "n"), (SCHEDULER, OTHER, "n"),
                                          (SCHEDULER, "null", "n"), (SCHEDULER, None, "m"))]  # fmt: skip
    assert len(set(made)) == 5


def test_nobody_knows_a_nonce_before_it_is_drawn() -> None:
    drawn = [fresh(SCHEDULER, None, None) for _ in range(50)]
    assert len({root.nonce for root in drawn}) == len({root.seed for root in drawn}) == 50
    assert all(len(str(root.nonce)) == 32 for root in drawn)


def test_the_digest_is_the_one_that_a_registration_states(tmp_path: Path) -> None:
    path = tmp_path / "registered.json"
    head = head_for(FunctionSource(quiet), [setting()])
    digest = preregistration.register(head, path)
    assert digest_in(path) == digest and digest_in(None) is None
    for text in ("", "[]", "{}"):
        path.write_text(text)
        with pytest.raises(BadInput, match="registered.json: found something else"):
            digest_in(path)
    with pytest.raises(BadInput, match="absent.json"):
        digest_in(tmp_path / "absent.json")
