"""A trained curve as a scheduler's learner; needs no torch."""

from __future__ import annotations

from pathlib import Path

import pytest
from curves import TABLE

from adapters.learners.measured import MeasuredLearner
from protocol.errors import BadInput
from protocol.workload.learner import Learner


def test_mean_over_seeds_and_interpolation(tmp_path: Path) -> None:
    path = tmp_path / "curves.csv"
    path.write_text(TABLE)
    learner: Learner = MeasuredLearner.read(path, "DiLoCo", 4)
    assert learner.tokens_per_step == 128
    assert [learner.loss(k) for k in (0, 30, 45, 60, 999)] == pytest.approx([3.1, 3.1, 2.65, 2.2, 2.2])


@pytest.mark.parametrize(
    ("method", "text", "what"),
    [
        ("GASLoC", TABLE, r"one of Broken \(4\), DiLoCo \(4\)"),
        ("Broken", TABLE, "not finite"),
        ("DiLoCo", "a,b\n1,2\n", "KeyError"),
        ("DiLoCo", TABLE.replace("3.0", "x"), "ValueError"),
    ],
)
def test_what_is_wrong_is_named(tmp_path: Path, method: str, text: str, what: str) -> None:
    path = tmp_path / "curves.csv"
    path.write_text(text)
    with pytest.raises(BadInput, match=what):
        MeasuredLearner.read(path, method, 4)
    with pytest.raises(BadInput, match="absent"):
        MeasuredLearner.read(tmp_path / "absent.csv", method, 4)
