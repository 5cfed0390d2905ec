"""What is said where stderr is no terminal: the phase, what is done of it, and what is left."""

from __future__ import annotations

import io
import re
import time
from dataclasses import replace

import pytest
from rich.console import Console
from rich.text import Text
from strategies import FunctionSource, plan_of, quiet

from protocol.campaign.run import steps
from protocol.cli import progress
from protocol.cli.progress import Phase, progress_bar

PLAN = replace(plan_of(FunctionSource(quiet)), draws=200, sequential=True)


class Clock:
    now_s = 0.0

    def __call__(self) -> float:
        return self.now_s


def test_a_line_says_the_phase_and_what_is_left() -> None:
    clock = Clock()
    phase = Phase("replaying seeds", clock=clock)
    assert phase.line() == "replaying seeds, 0 s"
    phase.tell(completed=0, total=40)
    clock.now_s = 30.0
    phase.tell(completed=10)
    assert phase.line() == "replaying seeds, 10 of 40, 30 s, about 90 s left"
    phase.tell(description="training", completed=0)
    clock.now_s = 330.0
    phase.tell(completed=1, total=3)
    assert phase.line() == "training, 1 of 3, 5 min 30 s"  # another total: nothing is known of its pace yet
    clock.now_s = 930.0
    phase.tell(advance=1)
    assert phase.line() == "training, 2 of 3, 16 min, about 10 min left"


def test_what_an_interrupted_run_kept_took_no_time() -> None:
    clock = Clock()
    phase = Phase("replaying seeds", clock=clock)
    phase.tell(completed=90, total=100)
    clock.now_s = 60.0
    phase.tell(completed=95)
    assert phase.line() == "replaying seeds, 95 of 100, 60 s, about 60 s left"


def test_a_share_where_numbers_say_nothing() -> None:
    clock = Clock()
    phase = Phase("replaying", counted=False, clock=clock)
    phase.tell(total=600.0)
    clock.now_s = 7200.0
    phase.tell(advance=150.0)
    assert phase.line() == "replaying, 25 %, 2.0 h, about 6.0 h left"


def test_lines_without_a_terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(progress, "EVERY_S", 0.02)
    said = io.StringIO()
    with progress_bar(Console(file=said, width=40), "seeds", "replaying [seeds] of a name that is long") as tell:
        tell(step="replaying [seeds] of a name that is long", completed=3, total=9)
        until_s = time.monotonic() + 5
        while "3 of 9" not in said.getvalue() and time.monotonic() < until_s:
            time.sleep(0.01)
    lines = said.getvalue().splitlines()
    assert lines and lines[-1].startswith("replaying [seeds] of a name that is long (step 2 of 2), 3 of 9, ")
    time.sleep(0.1)
    assert said.getvalue().splitlines() == lines  # and nothing after the end


def test_a_bar_fits_eighty_columns() -> None:
    said = io.StringIO()
    with progress_bar(Console(file=said, width=80, force_terminal=True), *steps(PLAN), "training") as tell:
        for step in steps(PLAN):
            tell(step=step, completed=37, total=100)
            time.sleep(0.15)
    lines = [Text.from_ansi(line).plain for line in re.split(r"[\r\n]", said.getvalue())]
    assert max(map(len, lines)) <= 80
    assert any(f"{steps(PLAN)[-1]} (step 3 of 4)" in line and "37/100" in line for line in lines)
