"""Named random streams."""

from __future__ import annotations

import hashlib

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from protocol import seeds

PARTS = st.lists(st.text(max_size=3) | st.integers(-5, 5), max_size=3)


@given(st.integers(0, 2**40), PARTS, PARTS)
def test_equal_names_equal_streams(root: int, a: list[str | int], b: list[str | int]) -> None:
    one, other = seeds.words(root, *a), seeds.words(root, *b)
    same = [(type(p), p) for p in a] == [(type(p), p) for p in b]
    assert (one == other) == same
    assert seeds.words(root, *a) == one and seeds.words(root + 1, *a) != one


def test_joins_are_unambiguous() -> None:
    streams = [("a", "bc"), ("ab", "c"), ("abc",), ("a", "b", "c"), (1,), ("1",), (1, 1), (11,), (), ("",)]
    assert len({seeds.words(3, *parts) for parts in streams}) == len(streams)


def test_the_documented_derivation() -> None:
    """Length-prefixed parts, SHA-256, eight words as the spawn key: recomputed here by hand."""
    sha = hashlib.sha256()
    for text in (b"str:draws", b"int:4"):
        sha.update(len(text).to_bytes(4, "little") + text)
    key = [int.from_bytes(sha.digest()[i : i + 4], "little") for i in range(0, 32, 4)]
    expected = np.random.Generator(np.random.PCG64(np.random.SeedSequence(9, spawn_key=key))).random(5)
    assert np.array_equal(seeds.generator(9, "draws", 4).random(5), expected)


def test_words_are_32_bit_and_spread() -> None:
    words = np.array([seeds.words(0, "stream", i) for i in range(500)], np.uint64)
    assert words.max() < 2**32 and len(np.unique(words)) > 1990
    share = np.unpackbits(words.astype("<u4").view(np.uint8)).mean()
    assert abs(share - 0.5) < 4 * 0.5 / np.sqrt(words.size * 32)
