"""What a budget of minutes buys."""

from __future__ import annotations

import io
import math
import re

import pytest
from rich.console import Console
from scipy import stats
from strategies import FunctionSource, plan_of, quiet, setting

from protocol.cli import real
from protocol.stats.power import Spread


def afforded(minutes: float, predicted: bool = False) -> tuple[int, int, str]:
    notes = io.StringIO()
    pilot = real.Pilot(setting(), plan_of(FunctionSource(quiet)), 0.05, 0.0, 1)
    n_seeds, draws = real.affordable(minutes, 45.0, pilot, predicted, Console(file=notes))
    return n_seeds, draws, " ".join(notes.getvalue().split())


def test_a_budget_is_spent_on_the_seeds_and_draws_that_find_most() -> None:
    n_seeds, draws, words = afforded(120)
    assert n_seeds >= 8 and draws >= 5 and 150 <= n_seeds * (draws + 3) <= 160
    assert "budget: 160 replays of 45 s fit 120 min" in words and f"chosen {n_seeds} seeds of {draws} draws" in words


def test_both_designs_are_told_and_the_declared_one_is_taken() -> None:
    """With the simulator's prediction removed, fewer replays have the power of more without."""
    n_seeds, draws, words = afforded(120, predicted=True)
    assert f"with it: {n_seeds} seeds of {draws} draws" in words and n_seeds * (draws + 3) <= 160
    powers = [float(p) for p in re.findall(r"have power ([0-9.]+);", words)]
    needed = [int(n) for n in re.findall(r"needs (\d+) \(", words)]
    assert len(powers) == 2 and powers[1] >= powers[0] and (len(needed) < 2 or needed[1] <= needed[0]), words


def test_a_plan_by_hand() -> None:
    """Predicted: a seed's error is the simulated spread times sqrt(1 / .64 - 1) = .75; t with 15 degrees of freedom."""
    plan = real.Planned(2.0, "the pilot's", Spread(1.0, 0.0001), 0.05, 0.5)
    found = plan.predicted(16 * 8)
    at = stats.nct.sf(stats.t.ppf(0.95, found.seeds - 1), found.seeds - 1, 1.5 / 0.75 * math.sqrt(found.seeds))
    assert found.seeds == 16 and found.power == pytest.approx(at, rel=1e-4) and found.enough == 64


def test_a_budget_that_is_too_small_says_what_is_missing() -> None:
    n_seeds, draws, words = afforded(45)
    assert (n_seeds, draws) == (7, 5) and n_seeds * (draws + 3) <= 60
    assert "8 seeds of 5 draws need 64 (48 min), so this run can only be undecidable" in words
