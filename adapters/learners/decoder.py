"""A Llama-style decoder whose every copy is one row of a matrix of parameters.

RMSNorm before attention and MLP, rotary positions, SwiGLU, no biases, untied output.  Parameters of n islands are one
tensor of shape (n, P); a forward pass of all of them is a sequence of batched matrix products.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numpy as np

from adapters.learners.corpus import VOCABULARY
from adapters.learners.framework import torch
from protocol.errors import BadInput

F = torch.nn.functional


@dataclass(frozen=True)
class Shape:
    """width, layers, heads, hidden (of the MLP) and context (tokens) of one decoder."""

    width: int = 32
    layers: int = 2
    heads: int = 2
    hidden: int = 80
    context: int = 32

    def __post_init__(self) -> None:
        if min(self.width, self.layers, self.heads, self.hidden, self.context) < 1 or self.width % (2 * self.heads):
            raise BadInput("model", f"width {self.width} with {self.heads} heads", "an even width for every head")

    def parts(self) -> list[tuple[str, tuple[int, ...]]]:
        """Name and shape of every parameter, in the order in which they lie in a row."""
        d, f = self.width, self.hidden
        found: list[tuple[str, tuple[int, ...]]] = [("embedding", (VOCABULARY, d))]
        for _ in range(self.layers):
            found += [("norm", (d,)), ("qkv", (d, 3 * d)), ("out", (d, d))]
            found += [("norm", (d,)), ("gate_up", (d, 2 * f)), ("down", (f, d))]
        return [*found, ("norm", (d,)), ("head", (d, VOCABULARY))]

    @property
    def parameters(self) -> int:
        return sum(math.prod(shape) for _, shape in self.parts())


class Decoder:
    """Functions of a tensor of parameters, shape (n, P); holds only constants."""

    def __init__(self, shape: Shape, dtype: Any = torch.float32, device: str = "cpu") -> None:
        self.shape, self.dtype, self.device = shape, dtype, device
        self._parts = shape.parts()
        self._sizes = [math.prod(size) for _, size in self._parts]
        half = shape.width // shape.heads // 2
        turns = 10_000.0 ** (-torch.arange(half, dtype=torch.float64) / half)
        angle = torch.arange(shape.context, dtype=torch.float64)[:, None] * turns
        self._cos, self._sin = (t.to(dtype=dtype, device=device) for t in (angle.cos(), angle.sin()))
        decays = [
            torch.full((size,), float(name != "norm")) for (name, _), size in zip(self._parts, self._sizes, strict=True)
        ]
        #: 1 where weight decay applies (matrices), 0 where not (norms); shape (P,).
        self.decayed = torch.cat(decays).to(dtype=dtype, device=device)

    def initial(self, rng: np.random.Generator) -> Any:
        """One row, shape (1, P): normal with sd 1 / sqrt(inputs), smaller into the residual stream; norms at 1.

        The usual 0.02 suits widths of thousands; at these it starves the residual stream for the first rounds.
        """
        row = []
        for (name, shape), size in zip(self._parts, self._sizes, strict=True):
            inputs = self.shape.width if name == "embedding" else shape[0]
            scale = 1 / math.sqrt(inputs * (2 * self.shape.layers if name in ("out", "down") else 1))
            row.append(np.ones(size) if name == "norm" else scale * rng.standard_normal(size))
        return torch.from_numpy(np.concatenate(row)[None]).to(dtype=self.dtype, device=self.device)

    def losses(self, theta: Any, inputs: Any, targets: Any) -> Any:
        """Mean cross-entropy in nats a symbol of each island, shape (n,).

        inputs, targets : int64, shape (n, batch, context).
        """
        n, batch, context = inputs.shape
        d, heads = self.shape.width, self.shape.heads
        # One split has one backward; a slice for each part would write (n, P) zeros for every one of them.
        pieces = iter(
            piece.reshape(n, *size) for piece, (_, size) in zip(theta.split(self._sizes, 1), self._parts, strict=True)
        )
        offsets = torch.arange(n, device=inputs.device).mul_(VOCABULARY)[:, None]
        x = F.embedding(inputs.reshape(n, -1) + offsets, next(pieces).reshape(n * VOCABULARY, d))
        for _ in range(self.shape.layers):
            y = self._norm(x, next(pieces)) @ next(pieces)
            q, k, v = y.view(n * batch, context, 3, heads, d // heads).permute(2, 0, 3, 1, 4).unbind(0)
            y = F.scaled_dot_product_attention(self._rotated(q), self._rotated(k), v, is_causal=True)
            x = x + y.transpose(1, 2).reshape(n, batch * context, d) @ next(pieces)
            gate, up = (self._norm(x, next(pieces)) @ next(pieces)).chunk(2, -1)
            x = x + (F.silu(gate) * up) @ next(pieces)
        logits = self._norm(x, next(pieces)) @ next(pieces)
        each = F.cross_entropy(logits.reshape(-1, VOCABULARY), targets.reshape(-1), reduction="none")
        return each.view(n, -1).mean(1)

    def _norm(self, x: Any, weight: Any) -> Any:
        return F.rms_norm(x, (x.shape[-1],), eps=1e-5) * weight[:, None]

    def _rotated(self, x: Any) -> Any:
        first, second = x.chunk(2, -1)
        cos, sin = self._cos[: x.shape[-2]], self._sin[: x.shape[-2]]
        return torch.cat((first * cos - second * sin, first * sin + second * cos), -1)
