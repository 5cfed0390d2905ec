"""Every field of what a scheduler sees stands, with unit and meaning, in `help` and on its page."""

from __future__ import annotations

import dataclasses
import re
from pathlib import Path

import pytest

from protocol.scheduler import IslandObservation, Observation

PAGE = Path(__file__).parents[1] / "docs" / "schedulers.md"


@pytest.mark.parametrize("kind", [Observation, IslandObservation])
def test_every_field_is_documented(kind: type) -> None:
    said = re.findall(r"^    (\w+) : (.+?); (.+)$", kind.__doc__ or "", re.M)
    assert [name for name, _, _ in said] == [field.name for field in dataclasses.fields(kind)]
    page = PAGE.read_text("utf-8")
    assert "\n".join(f"| `{name}` | {unit} | {meaning} |" for name, unit, meaning in said) in page
