"""What the training side looks like to a scheduler: its loss and its tokens, as functions of inner steps."""

from __future__ import annotations

from typing import Annotated, Protocol

from protocol.reading import Model, Range


class Learner(Protocol):
    """One island's training run, the same for every island.

    tokens_per_step : tokens that one inner step trains on.
    """

    @property
    def tokens_per_step(self) -> int: ...

    def loss(self, inner_steps: int) -> float:
        """Training loss after this many inner steps since time 0."""


class ModelledLearner(Model):
    """A model, not a training run: loss = floor + scale * (1 + steps / offset_steps) ** -exponent.

    Plain and deterministic, so that the loss and token terms of the published scores have something of the
    right size to read.  It says nothing about what merging does to a loss.

    >>> ModelledLearner(floor=2.0, scale=1.0, offset_steps=100.0, exponent=1.0, tokens_per_step=2048).loss(100)
    2.5
    """

    floor: Annotated[float, Range()]
    scale: Annotated[float, Range(0, 1e6)]
    offset_steps: Annotated[float, Range(0, 1e12, above=True)]
    exponent: Annotated[float, Range(0, 10)]
    tokens_per_step: Annotated[int, Range(1, 1_000_000_000)]

    def loss(self, inner_steps: int) -> float:
        return self.floor + self.scale * (1.0 + inner_steps / self.offset_steps) ** -self.exponent
