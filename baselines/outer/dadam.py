"""Decentralised AdamW without outer momentum: DAdam with one local step, Local-DAdam with more.

adapt then combine  theta <- W after
delayed             theta <- W before + (after - before): the exchange can run behind the inner steps

Moments stay on their island.  Which of the two GASLoC compares itself with is not known, so both are here.
Related: LoDAdaC (arXiv 2604.09970), LD-SGD (arXiv 1910.09126).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from protocol.errors import BadInput


class AdaptThenCombine:
    averages = "parameters"

    def __init__(self) -> None:
        self.state: dict[str, Any] = {}

    def step(self, before: Any, after: Any, mix: Callable[[Any], Any]) -> Any:
        return mix(after)


class Delayed:
    averages = "parameters"

    def __init__(self) -> None:
        self.state: dict[str, Any] = {}

    def step(self, before: Any, after: Any, mix: Callable[[Any], Any]) -> Any:
        return mix(before) + (after - before)


def effective_rate(eta: float, gamma: float) -> float:
    """How far outer rate and momentum stretch a constant update in the long run: eta / (1 - gamma).

    A method without outer momentum is compared fairly only after its inner rate is multiplied by this.

    >>> round(effective_rate(1.0, 0.3), 4)
    1.4286
    """
    if not 0 <= gamma < 1:
        raise BadInput("gamma", f"{gamma:g}", "a number from 0 up to, not including, 1")
    return eta / (1.0 - gamma)
