"""The certificates that the documentation rests on verify under the rules of now."""

from __future__ import annotations

from pathlib import Path

import pytest
from judging import command

RESULTS = Path(__file__).parents[2] / "docs" / "results"


@pytest.mark.parametrize("kept", ["live-session", "tier3/fixed-h", "tier3/wa-calibrated-forecast"])
def test_a_kept_certificate_verifies(kept: str) -> None:
    said = command(RESULTS / kept, "verify", RESULTS / kept)
    assert said.code == 0, said.errors
