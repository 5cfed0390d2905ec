"""Compile what planners call before any of them runs: a fork inherits it, and may not read the compiler's cache."""

from __future__ import annotations

import numpy as np

from protocol.merging.corridor import Corridor
from protocol.placement import planning  # noqa: F401  # imported for the forks


def warm() -> None:
    """One draw and one optimum of a tiny corridor."""
    corridor = Corridor(8, 16, 8, 1_000_000_000, 1_000_000_000, 40_000_000_000)
    budget = corridor.feasible_budgets()[-1]
    corridor.sample(budget, 1, np.random.default_rng(0))
    corridor.optimum(budget, np.zeros((budget, corridor.sum_range(budget)[1] + 1)))
