"""The runner of benchmarks: what it fits, what it holds to a bar, what it says of two commits."""

from __future__ import annotations

import importlib
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest


@pytest.fixture
def bench(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    monkeypatch.syspath_prepend(str(Path(__file__).resolve().parents[1] / "benchmarks"))
    return importlib.import_module("bench")


def test_a_line_is_found_and_a_curve_is_told_from_it(bench: ModuleType) -> None:
    line = bench.campaign.Fit.of([1, 2, 4], [5.0, 7.0, 11.0])
    assert (line.fixed, line.per, line.r2) == pytest.approx((3, 2, 1))
    assert bench.campaign.Fit.of([1, 2, 4, 8], [1.0, 4.0, 16.0, 64.0]).r2 < bench.campaign.LINEAR


def test_a_bar_is_held_from_its_own_side(bench: ModuleType) -> None:
    assert bench.Row("speed", 6, "", 5, "higher").holds and not bench.Row("speed", 4, "", 5, "higher").holds
    assert bench.Row("time", 1, "s", 1).holds and not bench.Row("time", 1.1, "s", 1).holds
    assert bench.Row("time", 1, "s").holds is None


def kept(bench: ModuleType, *rows: Any) -> dict[str, Any]:
    return {
        "commit": "abc", "date": "now", "quick": True, "machine": {}, "load_average": [1, 2],
        "rows": [bench.asdict(row) for row in rows],
    }  # fmt: skip


def test_two_commits_are_compared_row_by_row(bench: ModuleType) -> None:
    old = kept(bench, bench.Row("a", 2, "s"), bench.Row("gone", 1, "s"))
    new = kept(bench, bench.Row("a", 3, "s"), bench.Row("fresh", 1, "s"))
    said = list(bench.compared(old, new))[5:]
    assert said[0].split() == ["a", "2", "3", "s", "x", "1.50"]
    assert said[1].split() == ["gone", "only", "in", "old"] and said[2].split() == ["fresh", "only", "in", "new"]
