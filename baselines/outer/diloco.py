"""DiLoCo (arXiv 2311.08105) and the all-reduce that it saves.

DiLoCo: Delta = mean_i(before - after_i), m <- mu m + Delta, theta <- before - eta (Delta + mu m): Nesterov momentum as
``torch.optim.SGD(nesterov=True)`` has it.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any


class DiLoCo:
    """eta : outer learning rate.  mu : outer momentum.  Mix must be an average over all participants."""

    averages = "parameters"

    def __init__(self, eta: float = 0.7, mu: float = 0.7) -> None:
        self.eta, self.mu = eta, mu
        self.state: dict[str, Any] = {}

    def step(self, before: Any, after: Any, mix: Callable[[Any], Any]) -> Any:
        delta = mix(before - after)
        momentum = self.mu * self.state["momentum"] + delta if self.state else delta
        self.state = {"momentum": momentum}
        return before - self.eta * (delta + self.mu * momentum)


class AllReduce:
    """Data-parallel training: gradients are averaged before every inner step, so there is nothing left to do."""

    averages = "gradients"

    def __init__(self) -> None:
        self.state: dict[str, Any] = {}

    def step(self, before: Any, after: Any, mix: Callable[[Any], Any]) -> Any:
        return after
