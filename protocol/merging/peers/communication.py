"""How long an exchange occupies each island, what it sends, and how many inner steps fit beside it.

Full-duplex network interfaces of B_i bytes/s, M bytes of payload, latency l a hop:

ring all-reduce   2 (n - 1) / n M / min_i B_i + 2 (n - 1) l     (the slowest interface carries every chunk)
gossip, island i  max over i and its neighbours k of degree_k M / B_k, + l

so a pair takes M / min(B_i, B_j) + l, and an island of a random ring 2 M / B of the slowest of three.  All times leave
as integer nanoseconds.  What the model leaves out: congestion inside the network, overlap with compute, and the work
of adding what arrives.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Literal

import numpy as np
from numpy.typing import ArrayLike, NDArray

from protocol.errors import BadInput
from protocol.merging.peers.topology import Matrix, Topology, averaging, check_mixing, groups, neighbours
from protocol.merging.schedule import Schedule
from protocol.workload.trace import NS_PER_S

#: Who takes fewer inner steps when an exchange is slow: nobody, the islands with the slow interface, or those and
#: whoever must wait for them.
Adapt = Literal["none", "straggler", "partners"]


@dataclass(frozen=True)
class Network:
    """bandwidth : bytes/s of each island's interface, shape (n,), above 0.  latency_s : seconds a hop, from 0."""

    bandwidth: NDArray[np.float64]
    latency_s: float = 0.0

    def __post_init__(self) -> None:
        bandwidth = np.array(self.bandwidth, np.float64)
        if bandwidth.ndim != 1 or not len(bandwidth) or not (np.isfinite(bandwidth) & (bandwidth > 0)).all():
            raise BadInput("bandwidth", "a value that is not positive and finite", "bytes a second for every island")
        if not 0 <= self.latency_s < math.inf:
            raise BadInput("latency_s", f"{self.latency_s:g} s", "a number from 0 on")
        bandwidth.flags.writeable = False
        object.__setattr__(self, "bandwidth", bandwidth)

    @classmethod
    def of(cls, n: int, bandwidth: float, latency_s: float = 0.0, slow: dict[int, float] | None = None) -> Network:
        """n equal interfaces, except that island k of `slow` has that share of the bandwidth."""
        values = np.full(n, float(bandwidth))
        for island, share in (slow or {}).items():
            if not 0 <= island < n:
                raise BadInput("straggler", f"island {island}", f"one of 0 to {n - 1}")
            values[island] *= share
        return cls(values, latency_s)

    @property
    def n(self) -> int:
        return len(self.bandwidth)

    def all_reduce_ns(self, payload_bytes: int) -> int:
        """Ring all-reduce over every island; each of them is occupied throughout."""
        n = self.n
        seconds = 2 * (n - 1) / n * payload_bytes / float(self.bandwidth.min()) + 2 * (n - 1) * self.latency_s
        return round(seconds * NS_PER_S)

    def gossip_ns(self, payload_bytes: int, mixing: Matrix) -> NDArray[np.int64]:
        """Occupied time of each island, int64, shape (n,); 0 for islands without a neighbour."""
        near = neighbours(mixing)
        own = np.array([len(k) for k in near]) * payload_bytes / self.bandwidth
        slowest = [max(own[i], own[k].max()) + self.latency_s if len(k) else 0.0 for i, k in enumerate(near)]
        return np.rint(np.array(slowest) * NS_PER_S).astype(np.int64)

    def exchange_ns(self, payload_bytes: int, mixing: Matrix, collective: bool) -> NDArray[np.int64]:
        """Occupied time of each island when it takes part in one all-reduce (`collective`) or in gossip."""
        if collective:
            return np.full(self.n, self.all_reduce_ns(payload_bytes) if self.n > 1 else 0, np.int64)
        return self.gossip_ns(payload_bytes, mixing)


def sent_bytes(payload_bytes: int, mixing: Matrix, collective: bool) -> NDArray[np.float64]:
    """Bytes that each island sends in one exchange, float64, shape (n,)."""
    n = len(mixing)
    if collective:
        return np.full(n, 2 * (n - 1) / n * payload_bytes)
    return np.array([len(k) for k in neighbours(mixing)], np.float64) * payload_bytes


def adapted_steps(
    h: int, exchange_ns: NDArray[np.int64], usual_ns: NDArray[np.int64], mixing: Matrix, step_ns: int,
    network: Network, adapt: Adapt = "partners",
) -> NDArray[np.int64]:  # fmt: skip
    """Inner steps of each island, int64, shape (n,): H minus those that fit into the exchange's extra time.

    H_i = max(1, H - ceil((T_i - T_usual) / t_step)): an island whose exchange takes longer starts it that much
    earlier, and so finishes its round with everybody else.  `straggler` lets only islands with less than the largest
    bandwidth cut; then their partners still wait.
    """
    if adapt == "none":
        return np.full(len(mixing), h, np.int64)
    extra = np.maximum(exchange_ns - usual_ns, 0)
    steps = np.maximum(1, h - -(-extra // step_ns))
    if adapt == "straggler":
        steps = np.where(network.bandwidth < network.bandwidth.max(), steps, h)
    return steps.astype(np.int64)


@dataclass(frozen=True)
class Round:
    """One outer round.

    mixing : W.  collective : one all-reduce instead of gossip.  steps, first_step : int64, shape (n,), inner steps of
    each island and the index of the first one in its data order and learning-rate schedule.
    start_ns, end_ns : int64, shape (n,), each island's own exchange window; empty where it exchanges nothing.
    sent : float64, shape (n,), bytes.

    Raises BadInput unless W is doubly stochastic: with any other, training would move the mean of the islands.
    """

    mixing: Matrix
    collective: bool
    steps: NDArray[np.int64]
    first_step: NDArray[np.int64]
    start_ns: NDArray[np.int64]
    end_ns: NDArray[np.int64]
    sent: NDArray[np.float64]

    def __post_init__(self) -> None:
        object.__setattr__(self, "mixing", check_mixing(self.mixing, "round, mixing"))

    @property
    def members(self) -> list[NDArray[np.int64]]:
        """Participants of each merge of this round."""
        return groups(self.mixing)

    @property
    def exchanging(self) -> NDArray[np.bool_]:
        n = len(self.mixing)
        return np.full(n, n > 1) if self.collective else np.array([len(k) > 0 for k in neighbours(self.mixing)])


def plan_rounds(
    topology: Topology,
    network: Network,
    *,
    h: int,
    rounds: int,
    step_ns: int,
    payload_bytes: int,
    rng: np.random.Generator,
    collective: bool | None = None,
    adapt: Adapt = "none",
) -> Iterator[Round]:
    """Rounds of barrier-free rendezvous: an island enters its exchange when it and its neighbours are there.

    collective : whether the exchange is an all-reduce; by default, on the complete graph.
    Partners are drawn before the round begins, from a seed that all islands share, so adapting steps needs no message.
    """
    n = topology.n
    if network.n != n:
        raise BadInput("network", f"{network.n} interfaces", f"{n}, one an island")
    for name, value in (("inner steps", h), ("rounds", rounds), ("step time", step_ns)):
        if value < 1:
            raise BadInput(name, str(value), "at least 1")
    one = topology.kind == "complete" if collective is None else collective
    fast = Network(np.full(n, network.bandwidth.max()), network.latency_s)
    ready = np.zeros(n, np.int64)
    for r in range(rounds):
        mixing = topology.draw(rng)
        near = neighbours(mixing)
        took = network.exchange_ns(payload_bytes, mixing, one)
        usual = fast.exchange_ns(payload_bytes, mixing, one)
        steps = adapted_steps(h, took, usual, mixing, step_ns, network, adapt)
        there = ready + steps * step_ns
        if one:
            start = np.full(n, there.max())
        else:
            start = np.array([there[np.append(near[i], i)].max() for i in range(n)])
        ready = start + took
        first = np.full(n, r * h, np.int64)
        yield Round(mixing, one, steps, first, start, ready, sent_bytes(payload_bytes, mixing, one))


def rounds_of_schedule(
    schedule: Schedule, step_ns: int, horizon_ns: int, payload_bytes: int,
    exchanges: Sequence[tuple[Matrix, NDArray[np.int64]]] | None = None,
) -> list[Round]:  # fmt: skip
    """What islands train and exchange under any schedule of merges, so that it can be trained for real.

    Each merge averages its participants, those that it occupies, unless `exchanges` has its W and the bytes that each
    island sends; an island takes whole inner steps whenever it is not merging, and drops a step that a merge cuts off.
    Islands outside a merge train on later, in their own next round;
    a last round without an exchange holds the steps up to `horizon_ns`.
    """
    if step_ns < 1 or horizon_ns < 1:
        raise BadInput("step and horizon", f"{step_ns} and {horizon_ns} ns", "at least 1 ns")
    n = schedule.n_islands
    free, done = np.zeros(n, np.int64), np.zeros(n, np.int64)
    found = []
    for k, (start, busy) in enumerate(zip(schedule.start_ns.tolist(), schedule.busy_ns, strict=True)):
        members = busy > 0
        steps = np.where(members, (start - free) // step_ns, 0)
        end = np.where(members, start + busy, free)
        size = int(members.sum())
        mean = averaging(n, [np.flatnonzero(members).tolist()])
        mixing, sent = mean, np.where(members, 2 * (size - 1) / size * payload_bytes, 0.0)
        if exchanges is not None:
            mixing, sent = exchanges[k][0], exchanges[k][1].astype(np.float64)
        begin = np.where(members, start, free)
        collective = bool(members.all()) and n > 1 and np.array_equal(mixing, mean)
        found.append(Round(mixing, collective, steps, done.copy(), begin, end, sent))
        free, done = end, done + steps
    rest = np.maximum(horizon_ns - free, 0) // step_ns
    alone = np.maximum(free, horizon_ns)
    return [*found, Round(np.eye(n), False, rest, done, alone, alone, np.zeros(n))]


def coarser(rounds: Sequence[Round], factor: int) -> list[Round]:
    """The same rounds when only every `factor`-th inner step of an island is trained.

    Fractions are carried from round to round, so that equal inner steps stay equal trained steps.
    """
    return [
        replace(r, first_step=r.first_step // factor, steps=(r.first_step + r.steps) // factor - r.first_step // factor)
        for r in rounds
    ]


@dataclass(frozen=True)
class LinkFit:
    """Bandwidth (bytes/s) and latency (s) that explain measured transfers, and how badly.

    relative_error : float64, shape (k,), predicted over measured time minus 1.
    """

    bandwidth: float
    latency_s: float
    relative_error: NDArray[np.float64]

    def seconds(self, sent: ArrayLike) -> NDArray[np.float64]:
        return np.asarray(sent, np.float64) / self.bandwidth + self.latency_s


def fit_link(sent: Sequence[float], seconds: Sequence[float]) -> LinkFit:
    """Least squares of seconds = bytes / B + l on relative errors, latency not below 0.

    Raises BadInput with fewer than three transfers, or when time does not grow with size.
    """
    size, took = np.asarray(sent, np.float64), np.asarray(seconds, np.float64)
    if len(size) != len(took) or len(size) < 3 or not ((size > 0) & (took > 0)).all():
        raise BadInput("transfers", f"{len(size)} sizes and {len(took)} times", "three or more, all positive")
    columns = np.stack([size, np.ones_like(size)], 1) / took[:, None]
    slope, latency = np.linalg.lstsq(columns, np.ones_like(size), rcond=None)[0]
    if latency < 0:
        ratio = size / took
        slope, latency = ratio.sum() / (ratio**2).sum(), 0.0
    if not slope > 0:
        raise BadInput("transfers", "times that do not grow with size", "larger transfers that take longer")
    fit = LinkFit(float(1 / slope), float(latency), np.empty(0))
    return LinkFit(fit.bandwidth, fit.latency_s, fit.seconds(size) / took - 1)
