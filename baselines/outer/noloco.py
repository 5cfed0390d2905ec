"""NoLoCo (arXiv 2506.10911): outer steps inside small random groups, as its published code computes them.

m <- mu m + eta (mean_group(after) - before), theta <- before + m.  In that code the pull to the group's mean and the
outer rate share one coefficient, and the momentum is heavy-ball.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any


class NoLoCo:
    """eta, mu : outer rate and momentum.  Mix must average within the group."""

    averages = "parameters"

    def __init__(self, eta: float = 0.7, mu: float = 0.5) -> None:
        self.eta, self.mu = eta, mu
        self.state: dict[str, Any] = {}

    def step(self, before: Any, after: Any, mix: Callable[[Any], Any]) -> Any:
        pull = self.eta * (mix(after) - before)
        momentum = self.mu * self.state["momentum"] + pull if self.state else pull
        self.state = {"momentum": momentum}
        return before + momentum
