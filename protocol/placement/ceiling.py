"""The exact causal optimum under a known load model: what a scheduler that knows the state, not the future, can gain.

The load at a decision is a state of a Markov chain.  Merging costs what its state says, on average, and the question is
when to stop waiting.  Backward induction over (decision, decisions since the merge, state) answers it exactly
(Puterman, Markov Decision Processes, 1994, chapter 4): no policy of a scheduler that sees at most the state does
better in that model.  `baselines/optimum.py` knows each request to come; between the two lies the price of not knowing.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy import sparse

from protocol.errors import BadInput
from protocol.merging.corridor import Corridor


@dataclass(frozen=True, eq=False)
class LoadChain:
    """A Markov chain on the decision grid, and what a merge costs in it.

    price : float64, shape (S,), expected violations that a merge started in each state adds.
    share : float64, shape (S,), share of all moments that each state has.
    step : (S, S), rows sum to 1: the state one decision later.
    after : (S, S), rows sum to 1: the state at the first decision after a merge that starts in each.
    """

    price: NDArray[np.float64]
    share: NDArray[np.float64]
    step: sparse.csr_array
    after: sparse.csr_array

    @classmethod
    def counted(cls, now: ArrayLike, price: ArrayLike, next_: ArrayLike, later: ArrayLike, n_states: int) -> LoadChain:
        """The chain that frequencies estimate; all of shape (n,), one row a moment.

        now, next_, later : states at the moment, a decision later, and at the first decision after a merge there.
        A state that no moment has stays where it is at the mean price, and has no share.

        Raises BadInput for a state outside 0 .. n_states - 1 or a wrong shape.
        """
        states = [np.asarray(x, np.int64).ravel() for x in (now, next_, later)]
        paid = np.asarray(price, np.float64).ravel()
        if not len(paid) or any(len(x) != len(paid) for x in states):
            raise BadInput("load chain", f"{[len(x) for x in (*states, paid)]} rows", "as many of each, and some")
        if any(x.min() < 0 or x.max() >= n_states for x in states):
            raise BadInput("load chain, state", "one out of range", f"0 to {n_states - 1}")
        seen = np.bincount(states[0], minlength=n_states)
        total = np.bincount(states[0], paid, minlength=n_states)
        mean = np.where(seen > 0, total / np.maximum(seen, 1), paid.mean())
        step, after = (_transitions(states[0], x, seen) for x in states[1:])
        return cls(mean, seen / seen.sum(), step, after)

    @property
    def mean_price(self) -> float:
        """What a merge at a moment drawn blindly costs."""
        return float(self.share @ self.price)


def _transitions(now: NDArray[np.int64], then: NDArray[np.int64], seen: NDArray[np.int64]) -> sparse.csr_array:
    n = len(seen)
    never = np.flatnonzero(seen == 0)
    rows, columns = np.append(now, never), np.append(then, never)
    weights = np.append(1.0 / seen[now], np.ones(len(never)))
    return sparse.csr_array(sparse.coo_array((weights, (rows, columns)), shape=(n, n)))


@dataclass(frozen=True, eq=False)
class CausalOptimum:
    """merge : bool, shape (decisions, gap_max - gap_min, S), whether the best policy merges; axis 0 counts decisions
    from the start of the horizon, axis 1 from H_min on.  gain : violations that it is expected to save over as many
    merges placed blindly.
    """

    merge: NDArray[np.bool_]
    gain: float


def causal_optimum(chain: LoadChain, corridor: Corridor) -> CausalOptimum:
    """The best causal policy in the corridor, by backward induction; the number of its merges is its own.

    A merge is taken to last whole decisions (the nearest number), which only moves the end of the horizon: where the
    load is afterwards, `chain.after` says.
    """
    merge_decisions = round(corridor.merge_ns / corridor.grid_ns)
    last = corridor.horizon_ns // corridor.grid_ns - merge_decisions  # decision of the latest merge that ends in time
    choices, n = corridor.gap_max - corridor.gap_min, len(chain.price)
    saved = chain.mean_price - chain.price
    fresh = np.zeros((max(last, 0) + merge_decisions + corridor.gap_min + 1, n))  # values at H_min after a merge
    merge = np.zeros((max(last + 1, 0), choices, n), np.bool_)
    ahead = np.zeros((choices + 1, n))  # values at the next decision, by decisions since H_min
    for decision in range(last, -1, -1):
        stop = saved + chain.after @ fresh[decision + merge_decisions + corridor.gap_min]
        wait = (chain.step @ ahead[1:].T).T
        merge[decision] = stop >= wait
        ahead = np.vstack([np.maximum(stop, wait), stop[None, :]])
        fresh[decision] = ahead[0]
    start = fresh[corridor.gap_min] if last >= corridor.gap_min else np.zeros(n)
    return CausalOptimum(merge, float(chain.share @ start))
