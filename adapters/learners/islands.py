"""Inner training of some islands: AdamW on rows of a parameter matrix.  Both engines run this same code."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from adapters.learners.corpus import Corpus
from adapters.learners.decoder import Decoder, Shape
from adapters.learners.framework import torch
from protocol.errors import BadInput
from protocol.merging.peers.communication import Round
from protocol.seeds import generator

Mix = Callable[[Any], Any]


class Outer(Protocol):
    """An outer optimiser; those of `baselines.outer` fit.

    averages : "parameters" or "gradients".  state : arrays with a row an island, changed by `step`.
    """

    averages: str
    state: dict[str, Any]

    def step(self, before: Any, after: Any, mix: Mix) -> Any: ...


@dataclass(frozen=True)
class Recipe:
    """Everything about inner training that all methods share.

    rate : peak inner learning rate, warmed up linearly over `warm_up` steps, then a cosine to `last_share` of it at
    `steps`.  batch : sequences an island and step.  clip : largest norm of an island's gradient.
    """

    shape: Shape = field(default_factory=Shape)
    steps: int = 600
    batch: int = 4
    rate: float = 6e-3
    warm_up: int = 40
    last_share: float = 0.1
    betas: tuple[float, float] = (0.9, 0.95)
    eps: float = 1e-8
    decay: float = 0.1
    clip: float = 1.0
    seed: int = 0
    precision: str = "float32"

    def __post_init__(self) -> None:
        if min(self.steps, self.batch) < 1 or not self.rate > 0:
            raise BadInput("recipe", f"{self.steps} steps, batch {self.batch}, rate {self.rate:g}", "positive values")
        if self.precision not in ("float32", "float64"):
            raise BadInput("precision", self.precision, "float32 or float64")

    @property
    def tokens_per_step(self) -> int:
        """Of one island."""
        return self.batch * self.shape.context

    def rate_at(self, step: int) -> float:
        if step < self.warm_up:
            return self.rate * (step + 1) / self.warm_up
        done = min(1.0, (step - self.warm_up) / max(1, self.steps - self.warm_up))
        return self.rate * (self.last_share + (1 - self.last_share) * 0.5 * (1 + math.cos(math.pi * done)))


class Islands:
    """Parameters and moments of the islands in `ids`, one row each, on one device.

    theta : (k, P).  An island's batches depend on the seed and its id alone, not on who else is here.
    """

    def __init__(self, recipe: Recipe, corpus: Corpus, ids: Sequence[int], device: str = "cpu") -> None:
        self.recipe, self.ids = recipe, tuple(ids)
        self.decoder = Decoder(recipe.shape, getattr(torch, recipe.precision), device)
        start = self.decoder.initial(generator(recipe.seed, "initial parameters"))
        self.theta = start.repeat(len(self.ids), 1)
        self._moments = torch.zeros_like(self.theta), torch.zeros_like(self.theta)
        self._done = torch.zeros(len(self.ids), 1, dtype=self.theta.dtype, device=device)
        # A corpus that came through shared memory is read-only, which torch refuses to promise.
        self._text = torch.from_numpy(np.require(corpus.train, requirements="W"))
        last = len(corpus.train) - recipe.shape.context - 1
        draws = [generator(recipe.seed, "batches", i).integers(0, last, (recipe.steps, recipe.batch)) for i in self.ids]
        self._starts = torch.from_numpy(np.stack(draws, 1))
        self._ahead = torch.arange(recipe.shape.context + 1)

    def inner(self, steps: NDArray[np.int64], first_step: NDArray[np.int64], mix_gradients: Mix | None = None) -> Any:
        """Take `steps[k]` inner steps on row k, from index `first_step[k]` of its data and learning-rate schedule.

        Returns the mean training loss of each row, shape (k,); NaN for a row without a step.
        """
        total = torch.zeros(len(self.ids), dtype=self.theta.dtype, device=self.theta.device)
        for h in range(int(steps.max(initial=0))):
            active = torch.from_numpy(np.flatnonzero(steps > h))
            whole = len(active) == len(self.ids)
            at = first_step[active.numpy()] + h
            starts = self._starts[torch.from_numpy(at % self.recipe.steps), active]
            text = self._text[starts[:, :, None] + self._ahead].to(device=self.theta.device, dtype=torch.int64)
            theta = (self.theta if whole else self.theta[active]).detach().requires_grad_()
            losses = self.decoder.losses(theta, text[..., :-1], text[..., 1:])
            (gradient,) = torch.autograd.grad(losses.sum(), theta)
            if mix_gradients is not None:
                gradient = mix_gradients(gradient)
            self._adamw(None if whole else active, gradient, at)
            total[active] += losses.detach()
        return total / torch.from_numpy(np.where(steps > 0, steps, np.nan)).to(total)

    def _adamw(self, rows: Any, gradient: Any, at: NDArray[np.int64]) -> None:
        """AdamW (Loshchilov & Hutter 2019) with each row's own step count, after clipping each row's norm."""
        r = self.recipe
        own = (self.theta, *self._moments, self._done)
        theta, first, second, done = own if rows is None else (t[rows] for t in own)
        norm = gradient.norm(dim=1, keepdim=True)
        gradient = gradient * (r.clip / (norm + 1e-6)).clamp_(max=1.0)
        done += 1
        first.mul_(r.betas[0]).add_(gradient, alpha=1 - r.betas[0])
        second.mul_(r.betas[1]).addcmul_(gradient, gradient, value=1 - r.betas[1])
        rate = torch.tensor([r.rate_at(int(k)) for k in at], dtype=theta.dtype, device=theta.device)[:, None]
        theta.mul_(1 - (rate * r.decay) * self.decoder.decayed)
        size = (second / (1 - r.betas[1] ** done)).sqrt_().add_(r.eps)
        theta.sub_(rate / (1 - r.betas[0] ** done) * first / size)
        if rows is not None:
            for whole, part in zip(own, (theta, first, second, done), strict=True):
                whole[rows] = part

    def outer(self, before: Any, outer: Outer, mix: Mix, exchanging: NDArray[np.bool_]) -> None:
        """Apply the outer step; rows that exchange nothing this round keep what they have, momentum included."""
        old = dict(outer.state)
        new = outer.step(before, self.theta, mix)
        if not exchanging.all():
            keep = torch.from_numpy(exchanging).to(self.theta.device)[:, None]
            new = torch.where(keep, new, self.theta)
            for name, value in outer.state.items():
                outer.state[name] = torch.where(keep, value, old.get(name, _unstarted(name, before)))
        self.theta = new.detach()


def _unstarted(name: str, before: Any) -> Any:
    """State of a row that has not exchanged yet: no momentum, and a previous iterate where it began."""
    return torch.zeros_like(before) if name == "momentum" else before


def gossip(mixing: NDArray[np.float64], like: Any) -> Mix:
    """x -> W x in one process."""
    w = torch.from_numpy(mixing).to(like)
    return lambda x: w @ x


class Examiner:
    """Validation loss on fixed windows, evenly spaced over the held-out text."""

    def __init__(self, decoder: Decoder, corpus: Corpus, windows: int = 256, at_once: int = 64) -> None:
        context = decoder.shape.context
        starts = np.linspace(0, len(corpus.validation) - context - 2, windows).astype(np.int64)
        text = torch.from_numpy(corpus.validation.astype(np.int64)[starts[:, None] + np.arange(context + 1)])
        self._decoder, self._text, self._at_once = decoder, text.to(decoder.device), at_once

    def losses(self, theta: Any) -> NDArray[np.float64]:
        """Nats a symbol of each row, float64, shape (k,)."""
        found = []
        with torch.no_grad():
            for row in theta:
                parts = self._text.split(self._at_once)
                sums = [float(self._decoder.losses(row[None], p[None, :, :-1], p[None, :, 1:])) * len(p) for p in parts]
                found.append(sum(sums) / len(self._text))
        return np.array(found)


def check_rounds(rounds: Sequence[Round], recipe: Recipe) -> None:
    """Raises BadInput when the rounds are not of one number of islands."""
    sizes = {len(r.mixing) for r in rounds}
    if len(sizes) != 1:
        raise BadInput("rounds", f"{sorted(sizes)} islands", "at least one round, all of the same islands")
