"""Matched controls of peer schedules: other placements with every island's budget and every merge's size.

A walk over placements changes one thing at a time: it moves one merge to a uniformly chosen time that its members'
corridors leave it (*timing*), or lets two islands of two like merges trade places (*partner choice*).  Merges are
like when they have as many members and take as long, and only islands that the exchange occupies for equally long,
with interfaces equally fast, trade; so each island keeps its number of merges, its busy seconds, its bytes and its
inner steps.  Where there are merges of several kinds, *timing* also lets two of different kinds trade times, give or
take a few decisions, or nothing would change the order in which an island has them.  Each step is as likely as its
reverse, so the walk leaves the uniform distribution over the placements that it can reach as it is.

How far the walk mixes does not matter for the level of the test: one walk leads from the policy's schedule to a hub,
and every draw is another walk of the same length from there.  Walks run alike in both directions, so if the schedule
is itself uniform, given what is kept, it and its draws are exchangeable (Besag and Clifford 1989, Biometrika 76,
633-642, the parallel method).  Mixing is a matter of power.
"""

from __future__ import annotations

import numba
import numpy as np
from numpy.typing import NDArray

from protocol.merging.peers.schedules import GRAPH, Peers, PeerSchedule

#: Steps of a walk for every merge of the schedule.
SWEEPS = 100
#: Share of the steps in which merges of different kinds trade times, and by how many decisions each may miss the
#: other's: the wider, the fewer fit.
TRADES, NEAR = 0.25, 3

_Ints = NDArray[np.int64]


def draws(
    peers: Peers, own: PeerSchedule, n: int, hub_rng: np.random.Generator, rng: np.random.Generator,
    *, timing: bool = True, partners: bool = True, sweeps: int = SWEEPS,
) -> list[PeerSchedule]:  # fmt: skip
    """n placements like `own`, exchangeable with it when it is uniform over the placements that walks reach.

    timing, partners : which steps the walks take; without one of them its side of the schedule is kept as it is.
    Draws that are to count together need one hub: hand the same stream for `hub_rng`, and any others for `rng`.
    `own` must be inside the corridor.
    """
    if not len(own) or n == 0:
        return [own] * n
    if not (timing or partners):
        raise ValueError("a walk needs timing, partners or both")
    walk = _Walk(peers, own, timing, partners, sweeps)
    hub = walk.run(own.cells, walk.members, hub_rng)
    found = []
    for _ in range(n):
        cells, members = walk.run(*hub, rng)
        groups = [tuple(row[row >= 0].tolist()) for row in members]
        if peers.merging.exchange != GRAPH:
            groups = [g if len(g) > 2 else (min(g), max(g)) for g in groups]
        found.append(PeerSchedule.sorted(cells, groups))
    return found


class _Walk:
    """A schedule as arrays: members, int64, shape (K, largest group), -1 where there is none; busy likewise."""

    def __init__(self, peers: Peers, own: PeerSchedule, timing: bool, partners: bool, sweeps: int) -> None:
        size = max(len(g) for g in own.groups)
        self.members = np.full((len(own), size), -1, np.int64)
        self.busy = np.zeros((len(own), size), np.int64)
        for k, group in enumerate(own.groups):
            self.members[k, : len(group)] = group
            self.busy[k, : len(group)] = peers.busy_ns(group)[list(group)]
        self.steps = np.array([peers.steps(g) for g in own.groups], np.int64)
        sizes = np.array([len(g) for g in own.groups], np.int64)
        # Along a declared graph, who is in a group decides who exchanges with whom: larger groups stay as they are.
        fixed = (peers.merging.exchange == GRAPH) & (sizes > 2)
        self.sizes, self.fixed = sizes, fixed
        bandwidth = peers.merging.network("peer", peers.n).bandwidth
        self.speed = np.unique(bandwidth, return_inverse=True)[1].astype(np.int64)
        c = peers.corridor
        self.limits = np.array([c.h_min, c.h_max, c.decision_steps, peers.last_cell], np.int64)
        self.shares = (0.5 if partners else 1.0) if timing else 0.0
        self.length = sweeps * len(own)
        kinds = len(set(zip(self.sizes.tolist(), self.steps.tolist(), strict=True)))
        self.trades = TRADES if timing and kinds > 1 else 0.0

    def run(self, cells: _Ints, members: _Ints, rng: np.random.Generator) -> tuple[_Ints, _Ints]:
        cells, members = cells.copy(), members.copy()
        before, after = _links(cells, members, len(self.speed))
        _walk(
            cells, members, before, after, self.sizes, self.steps, self.busy, self.fixed, self.speed, self.limits,
            self.shares, self.trades, rng.random((self.length, 4 if self.trades == 0 else 6)),
        )  # fmt: skip
        return cells, members


def _links(cells: _Ints, members: _Ints, islands: int) -> tuple[_Ints, _Ints]:
    """For each place in a merge, the merges of that island before and after, -1 for none."""
    before, after = np.full_like(members, -1), np.full_like(members, -1)
    last = np.full((islands, 2), -1, np.int64)
    for k in np.argsort(cells, kind="stable"):
        for j, island in enumerate(members[k]):
            if island >= 0:
                at, place = last[island]
                before[k, j] = at
                if at >= 0:
                    after[at, place] = k
                last[island] = k, j
    return before, after


@numba.njit(cache=True, nogil=True)
def _range(k: int, before: int, after: int, cells: _Ints, steps: _Ints, limits: _Ints) -> tuple[int, int]:
    """Decisions at which merge k may start for one island between two others of its merges."""
    h_min, h_max, grid, last = limits
    free = 0 if before < 0 else cells[before] * grid + steps[before]
    low, high = -(-(free + h_min) // grid), (free + h_max) // grid
    if after >= 0:
        start = cells[after] * grid - steps[k]
        return max(low, -(-(start - h_max) // grid)), min(high, (start - h_min) // grid)
    # Nothing may be due after it before the last decision.
    return max(low, -(-((last + 1) * grid - h_max - steps[k]) // grid)), min(high, last)


@numba.njit(cache=True, nogil=True)
def _replace(members: _Ints, links: _Ints, at: int, island: int, new: int) -> None:
    """Have the entry of an island in merge `at` point to merge `new`."""
    if at >= 0:
        for j in range(members.shape[1]):
            if members[at, j] == island:
                links[at, j] = new


@numba.njit(cache=True, nogil=True)
def _relinked(island: int, cells: _Ints, members: _Ints, before: _Ints, after: _Ints, order: _Ints) -> None:
    """Links of one island's merges, whatever they were; order : the merges by time."""
    last, place = -1, -1
    for k in order:
        for j in range(members.shape[1]):
            if members[k, j] == island:
                before[k, j], after[k, j] = last, -1
                if last >= 0:
                    after[last, place] = k
                last, place = k, j


@numba.njit(cache=True, nogil=True)
def _fits(k: int, cells: _Ints, before: _Ints, after: _Ints, sizes: _Ints, steps: _Ints, limits: _Ints) -> bool:
    """Whether merge k lies where its members' corridors leave it room between their other merges."""
    for j in range(sizes[k]):
        low, high = _range(k, before[k, j], after[k, j], cells, steps, limits)
        if not low <= cells[k] <= high:
            return False
        # The first merge of an island is nobody's next; the one after it must be in reach, too.
        late = after[k, j]
        if late >= 0 and cells[late] <= cells[k]:
            return False
    return True


@numba.njit(cache=True, nogil=True)
def _trade(
    k: int, m: int, shift: int, other: int, cells: _Ints, members: _Ints, before: _Ints, after: _Ints, sizes: _Ints,
    steps: _Ints, limits: _Ints,
) -> None:  # fmt: skip
    """Have merges k and m trade times, give or take `shift` and `other` decisions, if all corridors allow it."""
    was_k, was_m = cells[k], cells[m]
    cells[k], cells[m] = was_m + shift, was_k + other
    fine = 0 <= cells[k] <= limits[3] and 0 <= cells[m] <= limits[3]
    for attempt in range(2):
        order = np.argsort(cells, kind="mergesort")
        for j in range(sizes[k]):
            _relinked(members[k, j], cells, members, before, after, order)
        for j in range(sizes[m]):
            _relinked(members[m, j], cells, members, before, after, order)
        if attempt == 0:
            if fine:
                # Every merge of an island that moved: between two others the corridor may have opened or closed.
                for q in range(cells.size):
                    touched = False
                    for i in range(sizes[q]):
                        for j in range(sizes[k]):
                            touched |= members[q, i] == members[k, j]
                        for j in range(sizes[m]):
                            touched |= members[q, i] == members[m, j]
                    if touched and not _fits(q, cells, before, after, sizes, steps, limits):
                        fine = False
                        break
            if fine:
                return
            cells[k], cells[m] = was_k, was_m


@numba.njit(cache=True, nogil=True)
def _walk(
    cells: _Ints, members: _Ints, before: _Ints, after: _Ints, sizes: _Ints, steps: _Ints, busy: _Ints,
    fixed: NDArray[np.bool_], speed: _Ints, limits: _Ints, timing: float, trades: float, u: NDArray[np.float64],
) -> None:  # fmt: skip
    n = cells.size
    for t in range(u.shape[0]):
        k = int(u[t, 1] * n)
        if trades > 0 and u[t, 4] < trades:
            m = int(u[t, 2] * n)
            if sizes[m] != sizes[k] or steps[m] != steps[k]:
                shift, other = int(u[t, 3] * (2 * NEAR + 1)) - NEAR, int(u[t, 5] * (2 * NEAR + 1)) - NEAR
                _trade(k, m, shift, other, cells, members, before, after, sizes, steps, limits)
            continue
        if u[t, 0] < timing:
            low, high = 0, limits[3]
            for j in range(sizes[k]):
                a, b = _range(k, before[k, j], after[k, j], cells, steps, limits)
                low, high = max(low, a), min(high, b)
            cells[k] = low + int(u[t, 2] * (high - low + 1))
            continue
        m = int(u[t, 2] * n)
        if m == k or sizes[m] != sizes[k] or steps[m] != steps[k] or fixed[m] or fixed[k]:
            continue
        places = int(u[t, 3] * sizes[k] * sizes[k])
        i, j = places // sizes[k], places % sizes[k]
        one, two = members[k, i], members[m, j]
        if one == two or speed[one] != speed[two] or busy[k, i] != busy[m, j]:
            continue
        # Neither may be in both merges, and each must fit between its own other merges at the other's time.
        double = False
        for p in range(sizes[k]):
            double |= members[k, p] == two or members[m, p] == one
        if double:
            continue
        a, b = _range(m, before[k, i], after[k, i], cells, steps, limits)
        c, d = _range(k, before[m, j], after[m, j], cells, steps, limits)
        if not (a <= cells[m] <= b and c <= cells[k] <= d):
            continue
        before[k, i], before[m, j] = before[m, j], before[k, i]
        after[k, i], after[m, j] = after[m, j], after[k, i]
        _replace(members, after, before[m, j], one, m)
        _replace(members, before, after[m, j], one, m)
        _replace(members, after, before[k, i], two, k)
        _replace(members, before, after[k, i], two, k)
        members[k, i], members[m, j] = two, one
