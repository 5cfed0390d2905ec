"""The examples are schedulers, and decide what their docstrings say."""

from __future__ import annotations

import importlib.util
from collections.abc import Callable
from pathlib import Path
from types import ModuleType

import pytest

from protocol.scheduler import Observation, Scheduler

EXAMPLES = Path(__file__).resolve().parents[2] / "examples"
#: But for the training loop, which a scheduler drives: tests/adapters/test_torchft_loop.py.
FILES = sorted(path for path in EXAMPLES.glob("*.py") if path.stem != "torchft_loop")


def load(path: Path) -> ModuleType:
    spec = importlib.util.spec_from_file_location(f"example_{path.stem}", path)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_there_are_examples() -> None:
    assert {"clock_only", "ewma", "ten_line"} <= {path.stem for path in FILES}


@pytest.mark.parametrize("path", FILES, ids=lambda p: p.stem)
def test_an_example_holds_one_scheduler_and_says_what_to_expect(path: Path) -> None:
    module = load(path)
    kinds = [value for value in vars(module).values() if isinstance(value, type)]
    assert len(kinds) == 1 and isinstance(kinds[0](), Scheduler)
    assert "Expected: " in (module.__doc__ or "")


@pytest.mark.parametrize("name", ["ewma", "ten_line"])
def test_load_aware_examples_wait_for_a_burst_to_end(name: str, observe: Callable[..., Observation]) -> None:
    module = load(EXAMPLES / f"{name}.py")
    scheduler = next(value for value in vars(module).values() if isinstance(value, type))()
    calm, burst = [4.0] * 100, [4.0] * 80 + [14.0] * 20
    assert scheduler.decide(observe(per_s=calm))
    assert not scheduler.decide(observe(per_s=burst))
    assert scheduler.decide(observe(per_s=burst + [4.0] * 20))


def test_the_clock_example_sees_only_the_clock(observe: Callable[..., Observation]) -> None:
    scheduler = load(EXAMPLES / "clock_only.py").MergeOnTheHalfMinute()
    assert scheduler.decide(observe(time_s=60.5)) and scheduler.decide(observe(time_s=60.5, in_flight=500))
    assert not scheduler.decide(observe(time_s=62.0))
