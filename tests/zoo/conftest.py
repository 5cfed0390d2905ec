"""The small world of the end-to-end tests, and a way to judge a scheduler in it within a second."""

from __future__ import annotations

import importlib.util
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from judging import Judge, Judged, command

_spec = importlib.util.spec_from_file_location("small_world", Path(__file__).parents[1] / "end_to_end" / "conftest.py")
assert _spec is not None and _spec.loader is not None
small_world = importlib.util.module_from_spec(_spec)
_spec.loader.exec_module(small_world)

small, protocol = small_world.small, small_world.protocol
Command = Callable[..., Judged]


@pytest.fixture
def judge(small: Path, tmp_path: Path) -> Iterator[Judge]:
    judging = Judge(small, tmp_path)
    yield judging
    judging.close()


@pytest.fixture
def certify(small: Path) -> Command:
    """`protocol certify` with the command line's own entry point, in the small regime unless a trace is given."""

    def run(scheduler: object, out: Path, *options: object) -> Judged:
        world = () if "--trace" in options else ("--regime", small)
        return command(out, "certify", scheduler, *world, "--out", out, *options)

    return run
