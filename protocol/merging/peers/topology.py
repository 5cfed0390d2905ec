"""Who mixes with whom: doubly stochastic matrices, how fast they contract, and when momentum makes them diverge.

A mixing matrix W of n islands is float64, shape (n, n), symmetric, non-negative, with unit row sums: island i leaves
an exchange with sum_j W_ij x_j, so the mean over islands never moves.  W = I - alpha Lambda in the notation of GASLoC
(arXiv 2606.11081).  Random graphs are drawn anew every round.
"""

from __future__ import annotations

import math
import warnings
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np
from numpy.typing import ArrayLike, NDArray

from protocol.errors import BadInput

Matrix = NDArray[np.float64]
Kind = Literal["pair", "ring", "complete", "graph"]
#: Where outer momentum acts: on what leaves the exchange, or on each island's own iterate before it.
Form = Literal["mixed", "literal"]
#: Row sums and symmetry may miss by this much: some hundred roundings.
_ATOL = 1e-12


class UnstableMixing(UserWarning):
    """A (topology, gamma, alpha, form) whose disagreement does not shrink."""


def averaging(n: int, groups: Iterable[Sequence[int]]) -> Matrix:
    """Each group of islands takes its own mean; islands in no group keep what they have.

    Raises BadInput on an island that does not exist or is in two groups.

    >>> averaging(3, [(0, 2)]).tolist()
    [[0.5, 0.0, 0.5], [0.0, 1.0, 0.0], [0.5, 0.0, 0.5]]
    """
    mixing = np.eye(n)
    seen: set[int] = set()
    for group in groups:
        for member in group:
            if not 0 <= member < n or member in seen:
                raise BadInput("groups", f"island {member}", f"each of 0 to {n - 1} at most once")
            seen.add(member)
        mixing[np.ix_(group, group)] = 1.0 / len(group)
    return mixing


def random_pairs(n: int, rng: np.random.Generator) -> Matrix:
    """1-peer: a uniformly random perfect matching, each pair averaged; with odd n one random island sits out."""
    order = rng.permutation(n).tolist()
    return averaging(n, [(order[k], order[k + 1]) for k in range(0, n - 1, 2)])


def random_ring(n: int, rng: np.random.Generator) -> Matrix:
    """2-peer: a uniformly random cycle, weight 1/3 on oneself and on each neighbour (the mean for n <= 3)."""
    if n <= 3:
        return complete(n)
    order = rng.permutation(n)
    mixing = np.eye(n) / 3.0
    following = np.roll(order, -1)
    mixing[order, following] = mixing[following, order] = 1.0 / 3.0
    return mixing


def complete(n: int) -> Matrix:
    """All islands take the mean: an all-reduce."""
    return np.full((n, n), 1.0 / n)


def from_edges(n: int, edges: Iterable[tuple[int, int]]) -> Matrix:
    """Any undirected graph with Metropolis weights 1 / (1 + max(degree_i, degree_j)).

    These are the usual local weights that make any graph doubly stochastic (Xiao & Boyd 2004).  On a ring they are
    1/3.  Raises BadInput on a loop, a repeated edge or an island that does not exist.
    """
    links: set[tuple[int, int]] = set()
    for i, j in edges:
        link = (min(i, j), max(i, j))
        if i == j or link[0] < 0 or link[1] >= n or link in links:
            raise BadInput("edges", f"({i}, {j})", f"distinct links between two of the islands 0 to {n - 1}")
        links.add(link)
    degree = np.zeros(n, int)
    for i, j in links:
        degree[[i, j]] += 1
    mixing = np.zeros((n, n))
    for i, j in links:
        mixing[i, j] = mixing[j, i] = 1.0 / (1 + max(degree[i], degree[j]))
    return mixing + np.diag(1.0 - mixing.sum(1))


def without(mixing: Matrix, absent: ArrayLike) -> Matrix:
    """The same exchange when some islands miss it: their links go, the weight stays with who is left.

    absent : bool, shape (n,).  Stays doubly stochastic.
    """
    gone = np.asarray(absent, bool)
    kept = np.where(gone[:, None] | gone[None, :], 0.0, mixing)
    np.fill_diagonal(kept, 0.0)
    return kept + np.diag(1.0 - kept.sum(1))


def damped(mixing: Matrix, alpha: float) -> Matrix:
    """(1 - alpha) I + alpha W: mixing strength alpha."""
    return (1.0 - alpha) * np.eye(len(mixing)) + alpha * mixing


def check_mixing(mixing: ArrayLike, where: str = "mixing matrix") -> Matrix:
    """The matrix as float64.  Raises BadInput unless it is square, non-negative, symmetric, with unit row sums."""
    w = np.asarray(mixing, np.float64)
    if w.ndim != 2 or w.shape[0] != w.shape[1] or not len(w):
        raise BadInput(where, f"shape {w.shape}", "a square matrix")
    if not np.isfinite(w).all() or (w < 0).any():
        raise BadInput(where, "a negative entry or one that is no number", "weights from 0 on")
    if not np.allclose(w, w.T, rtol=0, atol=_ATOL):
        raise BadInput(where, "an asymmetric matrix", "equal weights in both directions")
    worst = float(np.abs(w.sum(1) - 1.0).max())
    if worst > _ATOL * max(1, len(w)):
        raise BadInput(where, f"a row that misses a sum of 1 by {worst:.3g}", "doubly stochastic weights")
    return w


def neighbours(mixing: Matrix) -> list[NDArray[np.int64]]:
    """For every island, the others whose parameters it receives, ascending."""
    links = mixing != 0
    return [np.flatnonzero(row & (np.arange(len(row)) != i)) for i, row in enumerate(links)]


def groups(mixing: Matrix) -> list[NDArray[np.int64]]:
    """Connected components of two or more islands, each the participants of one merge, by their first island."""
    left, found = set(range(len(mixing))), []
    near = neighbours(mixing)
    while left:
        members, stack = set[int](), [min(left)]
        while stack:
            i = stack.pop()
            if i not in members:
                members.add(i)
                stack.extend(near[i].tolist())
        left -= members
        if len(members) > 1:
            found.append(np.array(sorted(members), dtype=np.int64))
    return found


@dataclass(frozen=True)
class Topology:
    """A rule that draws one mixing matrix a round.

    kind : pair (1-peer), ring (2-peer) and complete need only n; graph is one fixed graph of `edges`.

    >>> Topology("ring", 8).contraction()
    0.23809523809523808
    """

    kind: Kind
    n: int
    edges: tuple[tuple[int, int], ...] = ()

    def __post_init__(self) -> None:
        if self.kind not in ("pair", "ring", "complete", "graph"):
            raise BadInput("topology", repr(self.kind), "complete, graph, pair or ring")
        if self.n < 1:
            raise BadInput("topology", f"{self.n} islands", "at least 1")
        if self.edges and self.kind != "graph":
            raise BadInput("topology", f"edges with {self.kind}", "edges only with kind graph")
        if self.kind == "graph":
            from_edges(self.n, self.edges)

    @property
    def fixed(self) -> bool:
        """Whether every round draws the same matrix."""
        return self.kind in ("complete", "graph")

    def draw(self, rng: np.random.Generator) -> Matrix:
        if self.kind == "pair":
            return random_pairs(self.n, rng)
        if self.kind == "ring":
            return random_ring(self.n, rng)
        return complete(self.n) if self.kind == "complete" else from_edges(self.n, self.edges)

    def moments(self) -> tuple[float, float]:
        """(rho_1, rho_2): factors of E[W] and E[W^2] on vectors without a mean.  Only of pair, ring and complete.

        A random relabelling leaves pair and ring unchanged in law, so both expectations are multiples of the
        identity there.  With q the expected diagonal of W (or W^2), exchangeability gives every off-diagonal
        (1 - q) / (n - 1) and the factor (n q - 1) / (n - 1).
        """
        n = self.n
        if n == 1 or self.kind == "complete" or (self.kind == "ring" and n <= 3):
            return 0.0, 0.0
        if self.kind == "graph":
            raise BadInput("topology", "a fixed graph", "pair, ring or complete, which are the same in every direction")
        if self.kind == "ring":
            factor = (n / 3 - 1) / (n - 1)  # q = 1/3 for W, and (1 + 1 + 1) / 9 for W^2
            return factor, factor
        # Averaging a pair is a projection, W^2 = W; an odd island out has probability 1/n.
        q = 0.5 if n % 2 == 0 else (n + 1) / (2 * n)
        factor = (n * q - 1) / (n - 1)
        return factor, factor

    def contraction(self) -> float:
        """E||W x||^2 / ||x||^2 off the mean for gamma = 0: (n - 2) / (2 (n - 1)) for even 1-peer, and
        (n / 3 - 1) / (n - 1) for 2-peer; for a fixed graph the worst direction, lambda_2^2."""
        if self.kind == "graph":
            return float(_disagreement_spectrum(from_edges(self.n, self.edges)).max(initial=0.0) ** 2)
        return self.moments()[1]

    def stability(self, gamma: float, form: Form = "mixed", alpha: float = 1.0) -> float:
        """Amplitude factor a round of the disagreement between islands, without gradients; below 1 it dies out.

        mixed:    v' = W ((1 + gamma) v - gamma v_previous)
        literal:  x' = W x + gamma (x - x_previous)

        Random graphs: square root of the spectral radius of the exact linear map of the second moments
        E||x||^2, E<x, x_previous>, E||x_previous||^2.  Fixed graphs: largest root over the eigenvalues of W.
        """
        if not 0 <= gamma < math.inf or not 0 < alpha < math.inf:
            raise BadInput("gamma, alpha", f"{gamma:g}, {alpha:g}", "gamma from 0 on and alpha above 0")
        if form not in ("mixed", "literal"):
            raise BadInput("form", repr(form), "literal or mixed")
        if self.n == 1:
            return 0.0
        if self.kind == "graph":
            spectrum = _disagreement_spectrum(from_edges(self.n, self.edges), absolute=False)
            return _root(1 - alpha + alpha * spectrum, gamma, form)
        one, two = self.moments()
        rho_1 = 1 - alpha + alpha * one
        rho_2 = (1 - alpha) ** 2 + 2 * alpha * (1 - alpha) * one + alpha**2 * two
        return _moment_factor(rho_1, rho_2, gamma, form)


def _disagreement_spectrum(mixing: Matrix, absolute: bool = True) -> NDArray[np.float64]:
    """Eigenvalues of W on vectors without a mean."""
    n = len(mixing)
    values = np.linalg.eigvalsh(mixing - complete(n))
    # Taking the mean out moved exactly one eigenvalue from 1 to 0.
    values = np.delete(values, np.argmin(np.abs(values))) if n > 1 else values
    return np.asarray(np.abs(values) if absolute else values, np.float64)


def _root(lam: NDArray[np.float64], gamma: float, form: Form) -> float:
    """Largest |z| over z^2 - b z + c = 0 of every eigenvalue."""
    b, c = ((1 + gamma) * lam, gamma * lam) if form == "mixed" else (lam + gamma, np.full_like(lam, gamma))
    split = np.sqrt((b * b - 4 * c).astype(np.complex128))
    return float(np.maximum(np.abs(b + split), np.abs(b - split)).max() / 2)


def _moment_factor(rho_1: float, rho_2: float, gamma: float, form: Form) -> float:
    g = gamma
    if form == "mixed":
        first = [rho_2 * (1 + g) ** 2, -2 * g * (1 + g) * rho_2, g**2 * rho_2]
        second = [rho_1 * (1 + g), -g * rho_1, 0.0]
    else:
        first = [rho_2 + 2 * g * rho_1 + g**2, -2 * g * rho_1 - 2 * g**2, g**2]
        second = [rho_1 + g, -g, 0.0]
    radius = np.abs(np.linalg.eigvals(np.array([first, second, [1.0, 0.0, 0.0]]))).max()
    return math.sqrt(float(radius))


def warn_if_unstable(topology: Topology, gamma: float, form: Form = "mixed", alpha: float = 1.0) -> float:
    """The stability factor; warns with it when it is 1 or more."""
    factor = topology.stability(gamma, form, alpha)
    if factor >= 1.0:
        warnings.warn(
            f"{topology.kind} mixing of {topology.n} islands with gamma {gamma:g}, alpha {alpha:g}, form {form}: "
            f"disagreement grows by {factor:.3f} a round (mean square); gamma of 0.7 or less is the safe range",
            UnstableMixing,
            stacklevel=2,
        )
    return factor


def measured_contraction(topology: Topology, rounds: int, rng: np.random.Generator) -> tuple[float, float]:
    """Mean of ||W x||^2 / ||x||^2 over `rounds` fresh draws of W and of Gaussian x without a mean, and its
    standard error."""
    x = rng.standard_normal((rounds, topology.n))
    x -= x.mean(1, keepdims=True)
    shares = np.array([np.sum((topology.draw(rng) @ row) ** 2) / np.sum(row**2) for row in x])
    return float(shares.mean()), float(shares.std(ddof=1) / math.sqrt(rounds))


def measured_disagreement(
    topology: Topology, gamma: float, form: Form, alpha: float, rounds: int, copies: int, rng: np.random.Generator
) -> NDArray[np.float64]:
    """Root mean square disagreement before every round and after the last, over `copies` runs from Gaussian starts,
    relative to the start.

    Returns float64, shape (rounds + 1,).  No gradients: what is left is mixing and outer momentum alone.
    """
    total = np.zeros(rounds + 1)
    same = damped(topology.draw(rng), alpha) if topology.fixed else None
    for _ in range(copies):
        x = rng.standard_normal(topology.n)
        x -= x.mean()
        start = float(x @ x)
        previous = x
        total[0] += 1.0
        for t in range(rounds):
            mixed = (damped(topology.draw(rng), alpha) if same is None else same) @ x
            if form == "mixed":
                x, previous = mixed + gamma * (mixed - previous), mixed
            else:
                x, previous = mixed + gamma * (x - previous), x
            total[t + 1] += float(x @ x) / start
    return np.sqrt(total / copies).astype(np.float64)
