"""Peer merging: groups of islands merge on their own, each island in a corridor of its own.

Time is counted in whole inner steps.  Decisions fall on one grid, every `decision_steps` steps from time 0.  A merge
occupies its group for as long as the exchange takes, rounded up to whole steps; from the end of its group's merge an
island may merge again after H_min steps and must by H_max.  No merge is decided after the last decision whose
longest possible merge, that of all islands, still ends within the horizon.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Annotated, Final, Literal

import numpy as np
from numpy.typing import NDArray

from protocol.errors import BadInput
from protocol.merging.corridor import Corridor
from protocol.merging.peers.communication import Network
from protocol.merging.peers.topology import averaging, from_edges
from protocol.merging.placements import Placements
from protocol.merging.schedule import Schedule
from protocol.reading import Listed, Model, Range
from protocol.workload.trace import NS_PER_S

#: How a group of three or more exchanges: one ring all-reduce, gossip with two neighbours in the order in which the
#: group is named, or gossip along the edges of a declared graph.  A pair always exchanges directly.
ALL_REDUCE: Final = "all-reduce"
RING: Final = "ring"
GRAPH: Final = "graph"
#: Whose spells a sidecar's load follows.
OWN: Final = "own"
COMMON: Final = "common"

Group = tuple[int, ...]


class Merging(Model):
    """The table [peer] of a regime: what a merge sends over which network.

    payload_bytes : the model, once.  bandwidth : bytes/s of each island's interface, one for all or one each.
    latency_s : seconds a hop.  exchange : of groups of three or more.  graph : edges such as "0-3", for `graph`.
    bursts : `own`, each sidecar has spells of its own, at its own phase; `common`, all have the same.
    """

    payload_bytes: Annotated[int, Range(1, 10**15)]
    bandwidth: Listed[Annotated[float, Range(0, 1e15, above=True)]]
    latency_s: Annotated[float, Range(0, 1e4)] = 0.0
    exchange: Literal["all-reduce", "ring", "graph"] = ALL_REDUCE
    graph: Listed[str] = ()
    bursts: Literal["own", "common"] = COMMON

    def check(self, where: str, islands: int) -> None:
        """What depends on the number of islands.  Raises BadInput."""
        if islands < 2 or islands % 2:
            raise BadInput(f"{where}, islands", f"{islands} islands", "an even number of islands that merge as peers")
        if len(self.bandwidth) not in (1, islands):
            raise BadInput(f"{where}, bandwidth", f"{len(self.bandwidth)} values", f"one, or {islands}, one an island")
        if bool(self.graph) != (self.exchange == GRAPH):
            raise BadInput(f"{where}, graph", f"{len(self.graph)} edges", "edges exactly where exchange is 'graph'")
        self.network(where, islands)
        self.edges(where, islands)

    def network(self, where: str, islands: int) -> Network:
        try:
            return Network(np.resize(np.array(self.bandwidth, np.float64), islands), self.latency_s)
        except BadInput as error:
            raise BadInput(f"{where}, {error.where}", error.found, error.expected) from None

    def edges(self, where: str, islands: int) -> frozenset[tuple[int, int]]:
        """Edges of the graph, each in both directions."""
        found: set[tuple[int, int]] = set()
        for text in self.graph:
            ends = text.split("-")
            if len(ends) != 2 or not all(e.isdecimal() and int(e) < islands for e in ends) or ends[0] == ends[1]:
                raise BadInput(f"{where}, graph", repr(text), f'two of islands 0 to {islands - 1}, such as "0-1"')
            i, j = int(ends[0]), int(ends[1])
            found |= {(i, j), (j, i)}
        return frozenset(found)

    def longest_ns(self, islands: int) -> int:
        """The longest that any group can take: an all-reduce of all, or everybody's gossip at the slowest interface."""
        network = self.network("peer", islands)
        slowest = float(network.bandwidth.min())
        links = 1 if islands == 2 else 2
        if self.exchange == GRAPH:
            edges = self.edges("peer", islands)
            links = max(1, max(sum(i == k for i, _ in edges) for k in range(islands)))
        gossip = round((links * self.payload_bytes / slowest + network.latency_s) * NS_PER_S)
        pair = round((self.payload_bytes / slowest + network.latency_s) * NS_PER_S)
        return max(pair, network.all_reduce_ns(self.payload_bytes) if self.exchange == ALL_REDUCE else gossip)


@dataclass(frozen=True, eq=False)
class PeerSchedule:
    """Merges in order of time.

    cells : int64, shape (K,), the decision (counted from time 0) at which each merge starts.  groups : its
    participants, K tuples; their order matters for a ring alone.
    """

    cells: NDArray[np.int64]
    groups: tuple[Group, ...]

    def __len__(self) -> int:
        return len(self.cells)

    @classmethod
    def sorted(cls, cells: NDArray[np.int64], groups: Sequence[Group]) -> PeerSchedule:
        """In order of time, merges of one moment in order of their first islands."""
        order = sorted(range(len(cells)), key=lambda k: (int(cells[k]), groups[k]))
        return cls(np.array([cells[k] for k in order], np.int64), tuple(groups[k] for k in order))


@dataclass(frozen=True)
class Peers:
    """Everything that decides which peer schedules are possible, how long merges take and what they send."""

    corridor: Corridor
    merging: Merging
    n: int

    @property
    def last_cell(self) -> int:
        """The last decision at which a merge may start."""
        return (self.corridor.horizon_ns - self.corridor.merge_ns) // self.corridor.grid_ns

    @property
    def horizon_steps(self) -> int:
        return self.corridor.horizon_ns // self.corridor.step_ns

    def busy_ns(self, group: Group) -> NDArray[np.int64]:
        """How long a merge of this group occupies each island, int64, shape (n,), 0 outside the group."""
        return _costs(self, group)[0]

    def steps(self, group: Group) -> int:
        """Inner steps that its slowest member loses to a merge of this group."""
        return -(-int(self.busy_ns(group).max()) // self.corridor.step_ns)

    def sent(self, group: Group) -> NDArray[np.int64]:
        """Bytes that each island sends in a merge of this group, int64, shape (n,)."""
        return _costs(self, group)[1]

    def mixing_of(self, group: Group) -> NDArray[np.float64]:
        """W of a merge of this group: the mean of a pair or an all-reduce, else gossip with Metropolis weights."""
        if len(group) == 2 or self.merging.exchange == ALL_REDUCE:
            return averaging(self.n, [group])
        return from_edges(self.n, {(min(i, j), max(i, j)) for i, j in _links(self, group)})

    def group_problem(self, group: Group) -> str | None:
        """Why no merge of this group can be, or None.  Even sizes leave no island without a partner at H_max."""
        if len(group) < 2 or len(group) % 2:
            return f"a group of {len(group)} ({', '.join(map(str, group))}); expected an even number of islands"
        if len(set(group)) < len(group) or not all(0 <= i < self.n for i in group):
            return f"group {group}; expected different islands of 0 to {self.n - 1}"
        if self.merging.exchange == GRAPH and len(group) > 2 and not self._connected(group):
            return f"group {group}, which the declared graph does not connect"
        return None

    def _connected(self, group: Group) -> bool:
        edges = self.merging.edges("peer", self.n)
        reached, stack = set[int](), [group[0]]
        while stack:
            i = stack.pop()
            if i not in reached:
                reached.add(i)
                stack += [j for j in group if (i, j) in edges]
        return len(reached) == len(group)

    def schedule(self, merges: PeerSchedule) -> Schedule:
        busy = np.array([self.busy_ns(g) for g in merges.groups], np.int64).reshape(len(merges), self.n)
        return Schedule(merges.cells * self.corridor.grid_ns, busy)

    def by_island(self, merges: PeerSchedule) -> dict[str, NDArray[np.int64]]:
        """Merges, busy nanoseconds, bytes sent and inner steps of each island, int64, shape (n,)."""
        busy = np.array([self.busy_ns(g) for g in merges.groups], np.int64).reshape(len(merges), self.n)
        sent = np.array([self.sent(g) for g in merges.groups], np.int64).reshape(len(merges), self.n)
        lost = -(-busy // self.corridor.step_ns)
        return {
            "merges": (busy > 0).sum(axis=0),
            "busy_ns": busy.sum(axis=0),
            "bytes": sent.sum(axis=0),
            "inner_steps": self.horizon_steps - lost.sum(axis=0),
        }

    def gaps(self, merges: PeerSchedule) -> list[list[int]]:
        """Inner steps before each merge of each island, since the end of its group's last one."""
        free = [0] * self.n
        found: list[list[int]] = [[] for _ in range(self.n)]
        for cell, group in zip(merges.cells.tolist(), merges.groups, strict=True):
            start = cell * self.corridor.decision_steps
            end = start + self.steps(group)
            for i in group:
                found[i].append(start - free[i])
                free[i] = end
        return found

    def violation(self, merges: PeerSchedule) -> str | None:
        """Why the control loop cannot have produced this schedule, in one line; None when it can."""
        corridor, free = self.corridor, [0] * self.n
        before = 0
        for k, (cell, group) in enumerate(zip(merges.cells.tolist(), merges.groups, strict=True), start=1):
            problem = self.group_problem(group)
            if problem:
                return f"merge {k}: found {problem}"
            if cell < before:
                return f"merge {k} starts before merge {k - 1}"
            if cell > self.last_cell:
                return f"merge {k} starts at decision {cell}; the last that ends in time is {self.last_cell}"
            before, start = cell, cell * corridor.decision_steps
            end = start + self.steps(group)
            for i in group:
                if start - free[i] < corridor.h_min:
                    return f"merge {k}: island {i} did {start - free[i]} inner steps before; H_min is {corridor.h_min}"
                if start - free[i] > corridor.h_max:
                    return f"merge {k}: island {i} did {start - free[i]} inner steps before; H_max is {corridor.h_max}"
                free[i] = end
        for i in range(self.n):
            due = (free[i] + corridor.h_max) // corridor.decision_steps
            if due <= self.last_cell:
                when = due * corridor.grid_ns / NS_PER_S
                return f"island {i} does not merge again, though H_max forces it to at {when:g} s"
        return None

    # Raw files -------------------------------------------------------------------------------------------------------

    def stored(self, schedules: Sequence[PeerSchedule], violations: NDArray[np.int64]) -> Placements:
        """As they are kept: gaps in decisions between the starts of successive merges, sizes and members."""
        groups = [g for s in schedules for g in s.groups]
        gaps = [np.diff(s.cells, prepend=0) for s in schedules]
        return Placements(
            np.array([len(s) for s in schedules], np.int32),
            np.concatenate([*gaps, np.empty(0, np.int64)]).astype(np.int32),
            violations,
            np.array([len(g) for g in groups], np.int32),
            np.array([i for g in groups for i in g], np.int32),
        )

    def read(self, placements: Placements) -> list[PeerSchedule]:
        """Raises BadInput when the placements name no participants."""
        if placements.sizes is None or placements.members is None:
            raise BadInput("placements", "no participants", "the groups of every merge")
        flat, at = placements.members.tolist(), 0
        groups: list[Group] = []
        for size in placements.sizes.tolist():
            groups.append(tuple(flat[at : at + size]))
            at += size
        found, first = [], 0
        for gaps in placements.rows():
            found.append(PeerSchedule(np.cumsum(gaps, dtype=np.int64), tuple(groups[first : first + len(gaps)])))
            first += len(gaps)
        return found


def _links(peers: Peers, group: Group) -> list[tuple[int, int]]:
    """Who exchanges with whom in a group of three or more that gossips."""
    if peers.merging.exchange == RING:
        return [(group[k], group[(k + 1) % len(group)]) for k in range(len(group))]
    return [(i, j) for i, j in peers.merging.edges("peer", peers.n) if i in group and j in group]


@lru_cache(maxsize=65536)
def _costs(peers: Peers, group: Group) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    merging, size = peers.merging, len(group)
    network = merging.network("peer", peers.n)
    payload = merging.payload_bytes
    busy, sent = np.zeros(peers.n, np.int64), np.zeros(peers.n, np.int64)
    mine = list(group)
    if size == 2 or merging.exchange == ALL_REDUCE:
        # A pair is one direct exchange, which the model of gossip states, too: both send the payload once.
        if size == 2:
            busy = network.gossip_ns(payload, averaging(peers.n, [group]))
            sent[mine] = payload
        else:
            busy[mine] = Network(network.bandwidth[mine], network.latency_s).all_reduce_ns(payload)
            sent[mine] = round(2 * (size - 1) / size * payload)
    else:
        mixing = np.eye(peers.n)
        for i, j in _links(peers, group):
            mixing[i, j] = mixing[j, i] = 1.0
        busy = network.gossip_ns(payload, mixing)
        sent[mine] = (mixing[mine] > 0).sum(axis=1) * payload - payload
    busy.flags.writeable = sent.flags.writeable = False
    return busy, sent
