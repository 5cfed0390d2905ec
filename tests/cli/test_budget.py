"""What a budget of minutes buys."""

from __future__ import annotations

import io

from rich.console import Console
from strategies import FunctionSource, plan_of, quiet, setting

from protocol.cli import real


def afforded(minutes: float) -> tuple[int, int, str]:
    notes = io.StringIO()
    pilot = real.Pilot(setting(), plan_of(FunctionSource(quiet)), 0.05, 0.0, 1)
    n_seeds, draws = real.affordable(minutes, 45.0, pilot, Console(file=notes))
    return n_seeds, draws, " ".join(notes.getvalue().split())


def test_a_budget_is_spent_on_the_seeds_and_draws_that_find_most() -> None:
    n_seeds, draws, words = afforded(120)
    assert n_seeds >= 8 and draws >= 5 and 150 <= n_seeds * (draws + 3) <= 160
    assert "budget: 160 replays of 45 s fit 120 min" in words and f"chosen {n_seeds} seeds of {draws} draws" in words


def test_a_budget_that_is_too_small_says_what_is_missing() -> None:
    n_seeds, draws, words = afforded(45)
    assert (n_seeds, draws) == (7, 5) and n_seeds * (draws + 3) <= 60
    assert "8 seeds of 5 draws need 64 (48 min), so this run can only be undecidable" in words
