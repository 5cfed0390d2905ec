"""All islands in one process: what experiments run on."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from adapters.learners.corpus import Corpus
from adapters.learners.islands import Examiner, Islands, Outer, Recipe, check_rounds, gossip
from protocol.merging.peers.communication import Round
from protocol.workload.trace import NS_PER_S


@dataclass(frozen=True)
class Point:
    """Where a run stands after one outer round.

    step : nominal inner steps.  tokens : trained on, all islands.  sent_bytes : sent, all islands.  time_s : modelled,
    when the last island leaves its exchange.  loss : validation loss of the averaged model.  island_loss, worst_loss :
    mean and largest over islands of their own, None where not evaluated.  consensus : root mean square distance of
    islands from their mean, over the mean's norm.
    """

    round: int
    step: int
    tokens: int
    sent_bytes: float
    time_s: float
    loss: float
    train_loss: float
    consensus: float
    island_loss: float | None = None
    worst_loss: float | None = None


class StackedRun:
    """Train islands through given rounds; `theta` holds their parameters, shape (n, P)."""

    def __init__(
        self, recipe: Recipe, corpus: Corpus, outer: Outer, rounds: Sequence[Round], windows: int = 256
    ) -> None:
        check_rounds(rounds, recipe)
        self.rounds, self.recipe, self.outer_optimiser = rounds, recipe, outer
        self.islands = Islands(recipe, corpus, range(len(rounds[0].mixing)))
        self._examiner = Examiner(self.islands.decoder, corpus, windows)

    @property
    def theta(self) -> NDArray[np.float64]:
        return np.asarray(self.islands.theta.numpy(), np.float64)

    def points(self, every: int = 1) -> Iterator[Point]:
        """Train, and evaluate after every `every`-th round and the last.  Stops early when the loss is not finite."""
        islands, outer = self.islands, self.outer_optimiser
        tokens, sent, losses = 0, 0.0, list[float]()
        for r, one in enumerate(self.rounds):
            before = islands.theta.clone()
            mix = gossip(one.mixing, before)
            by_gradient = outer.averages == "gradients"
            train = islands.inner(one.steps, one.first_step, mix if by_gradient else None)
            islands.outer(before, outer, mix, one.exchanging)
            tokens += int(one.steps.sum()) * self.recipe.tokens_per_step
            sent += float(one.sent.sum())
            losses.append(float(train.nanmean()))
            final = r == len(self.rounds) - 1
            if (r + 1) % every and not final:
                continue
            mean = islands.theta.mean(0, keepdim=True)
            loss = float(self._examiner.losses(mean)[0])
            spread = (islands.theta - mean).square().sum(1).mean().sqrt() / mean.norm()
            own = self._examiner.losses(islands.theta) if final else None
            yield Point(
                round=r + 1,
                step=int((one.first_step + one.steps).max()),
                tokens=tokens,
                sent_bytes=sent,
                time_s=float(one.end_ns.max()) / NS_PER_S,
                loss=loss,
                train_loss=float(np.mean(losses)),
                consensus=float(spread),
                island_loss=None if own is None else float(own.mean()),
                worst_loss=None if own is None else float(own.max()),
            )
            losses.clear()
            if not np.isfinite(loss):
                return
