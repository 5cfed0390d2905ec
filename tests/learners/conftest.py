"""Tests of real training need torch; without it they are skipped, saying how to get it."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest


@pytest.fixture(scope="session")
def torch() -> Any:
    found = pytest.importorskip("torch", reason="torch is not installed; to run this test: pip install -e '.[train]'")
    found.set_num_threads(1)
    return found


@pytest.fixture(scope="session")
def corpus() -> Any:
    """Text with structure, the same on every machine."""
    from adapters.learners.corpus import Corpus

    rng = np.random.default_rng(0)
    words = [bytes(rng.integers(97, 123, rng.integers(2, 7)).astype(np.uint8)) for _ in range(50)]
    text = b" ".join(words[k] for k in rng.integers(0, 50, 30_000))
    return Corpus.of("words", text[:-40_000], text[-40_000:])
