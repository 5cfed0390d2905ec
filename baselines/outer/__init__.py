"""Outer optimisers of local-update training, as plain array maths.  May import: ``protocol``.

Every optimiser has one method, ``step(before, after, mix)``:

before, after : arrays of shape (n, P), or (1, P) on one island's own process: parameters when the round began, and
    after the inner steps.  numpy or torch, any float type; nothing here looks at which.
mix : x -> sum_j W_ij x_j for every row i.  In one process a matrix product, between processes the real exchange.
    Called exactly once a step, with the one payload that the method sends (AllReduce sends gradients instead).
returns the parameters that the next round starts from, same shape.

``state`` holds what must be checkpointed with the parameters (rows like theirs; empty before the first step).
``averages`` names what the exchange averages: "parameters", or "gradients" at every inner step.
"""

from baselines.outer.dadam import AdaptThenCombine, Delayed, effective_rate
from baselines.outer.diloco import AllReduce, DiLoCo
from baselines.outer.gasloc import Gasloc
from baselines.outer.noloco import NoLoCo

__all__ = ["AdaptThenCombine", "AllReduce", "Delayed", "DiLoCo", "Gasloc", "NoLoCo", "effective_rate"]
