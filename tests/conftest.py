"""Fixtures shared by all tests."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
DATA = Path(os.environ.get("PROTOCOL_TEST_DATA", ROOT / ".." / "shared" / "data")).resolve()


@pytest.fixture(scope="session")
def shared_data() -> Path:
    """Real traces and published results; not part of the project."""
    if not DATA.is_dir():
        pytest.skip(f"no real data at {DATA}: set PROTOCOL_TEST_DATA to run this test")
    return DATA


@pytest.fixture(scope="session")
def shared_cases() -> Path:
    """Small inputs that broke other tools; they lie beside the data."""
    cases = DATA.parent / "cases"
    if not cases.is_dir():
        pytest.skip(f"no cases at {cases}: set PROTOCOL_TEST_DATA to run this test")
    return cases
