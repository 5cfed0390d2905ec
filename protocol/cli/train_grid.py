"""What `protocol train` runs: methods, sizes and networks, and one training run of each."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import numpy as np

from baselines import outer
from protocol.merging.peers.communication import Network, Round, plan_rounds
from protocol.merging.peers.topology import Form, Kind, Topology
from protocol.seeds import generator
from protocol.training.curves import Curve
from protocol.workload.trace import NS_PER_S

if TYPE_CHECKING:
    from adapters.learners.corpus import Corpus
    from adapters.learners.islands import Outer, Recipe

#: Outer optimisers by name.
OUTERS: dict[str, Callable[..., Any]] = {
    "all-reduce": outer.AllReduce, "combine": outer.AdaptThenCombine, "delayed": outer.Delayed,
    "diloco": outer.DiLoCo, "gasloc": outer.Gasloc, "noloco": outer.NoLoCo,
}  # fmt: skip


@dataclass(frozen=True)
class Method:
    """name, and h inner steps a round.  outer : key of OUTERS, with its arguments.  rate_scale : of the inner rate.
    adapted : islands cut their steps where an exchange is slow.
    """

    name: str
    h: int
    outer: str
    arguments: tuple[Any, ...]
    topology: Kind
    rate_scale: float = 1.0
    adapted: bool = False

    def optimiser(self) -> Outer:
        made: Outer = OUTERS[self.outer](*self.arguments)
        return made

    @property
    def momentum(self) -> tuple[float, Form, float] | None:
        """gamma, form and alpha where islands can drift apart by outer momentum."""
        made = self.optimiser()
        return (made.gamma, made.form, made.alpha) if isinstance(made, outer.Gasloc) else None


#: Outer rate and momentum, tuned on seed 100 alone (never reported): per H, one pair for DiLoCo and GASLoC.
LOCAL, EVERY_STEP = (0.7, 0.7), (1.0, 0.6)
_SCALE_LOCAL, _SCALE_EVERY = (outer.effective_rate(*pair) for pair in (LOCAL, EVERY_STEP))
METHODS = (
    Method("DiLoCo", 30, "diloco", LOCAL, "complete"),
    Method("GASLoC 2-peer", 30, "gasloc", LOCAL, "ring"),
    Method("GASLoC 1-peer", 30, "gasloc", LOCAL, "pair"),
    Method("GASLoC 1-peer literal", 30, "gasloc", (*LOCAL, 1.0, "literal"), "pair"),
    Method("NoLoCo", 30, "noloco", (0.7, 0.5), "pair"),
    Method("Local-DAdam 2-peer", 30, "combine", (), "ring"),
    Method("Local-DAdam 1-peer", 30, "combine", (), "pair"),
    Method("Local-DAdam 1-peer delayed", 30, "delayed", (), "pair"),
    Method("Local-DAdam 2-peer scaled rate", 30, "combine", (), "ring", _SCALE_LOCAL),
    Method("GASLoC 2-peer adapted", 30, "gasloc", LOCAL, "ring", adapted=True),
    Method("GASLoC 1-peer adapted", 30, "gasloc", LOCAL, "pair", adapted=True),
    Method("All-reduce AdamW", 1, "all-reduce", (), "complete"),
    Method("GASLoC 2-peer", 1, "gasloc", EVERY_STEP, "ring"),
    Method("GASLoC 1-peer", 1, "gasloc", EVERY_STEP, "pair"),
    Method("DAdam 2-peer", 1, "combine", (), "ring"),
    Method("DAdam 1-peer", 1, "combine", (), "pair"),
    Method("DAdam 2-peer delayed", 1, "delayed", (), "ring"),
    Method("DAdam 2-peer scaled rate", 1, "combine", (), "ring", _SCALE_EVERY),
)
#: What larger numbers of islands and the smoke run compare.
FEWER = (
    ("DiLoCo", 30), ("GASLoC 2-peer", 30), ("GASLoC 1-peer", 30), ("Local-DAdam 1-peer", 30),
    ("GASLoC 1-peer adapted", 30), ("All-reduce AdamW", 1), ("GASLoC 2-peer", 1), ("DAdam 2-peer", 1),
)  # fmt: skip
EQUAL = "equal"


@dataclass(frozen=True)
class Link:
    """The modelled network and machine: what the clock of a run is computed from, not what the run uses here."""

    parameters: float = 134e6
    bytes_each: int = 2
    bandwidth: float = 1.25e8
    latency_s: float = 5e-4
    step_s: float = 0.715
    slow: tuple[float, ...] = (0.2, 0.1)

    @property
    def payload_bytes(self) -> int:
        return round(self.parameters * self.bytes_each)

    def networks(self, n: int) -> dict[str, Network]:
        """By name: equal interfaces, and one island (the first) with a share of the bandwidth."""
        found = {EQUAL: Network.of(n, self.bandwidth, self.latency_s)}
        for share in self.slow:
            found[f"one at {100 * share:g} %"] = Network.of(n, self.bandwidth, self.latency_s, {0: share})
        return found


@dataclass(frozen=True)
class Cell:
    """One training run.  network : the one that an adapted method cuts its steps for."""

    method: Method
    islands: int
    seed: int
    recipe: Recipe
    link: Link
    network: str = EQUAL
    points: int = 25
    windows: int = 256

    @property
    def label(self) -> str:
        where = f", {self.network}" if self.method.adapted else ""
        return f"{self.method.name}, H={self.method.h}, {self.islands} islands, seed {self.seed}{where}"


def rounds_of(cell: Cell, network: str) -> list[Round]:
    """Equal matrices for every network and method of the same topology and seed."""
    topology = Topology(cell.method.topology, cell.islands)
    return list(
        plan_rounds(
            topology,
            cell.link.networks(cell.islands)[network],
            h=cell.method.h,
            rounds=cell.recipe.steps // cell.method.h,
            step_ns=round(cell.link.step_s * NS_PER_S),
            payload_bytes=cell.link.payload_bytes,
            rng=generator(cell.seed, "mixing", topology.kind, topology.n),
            adapt="partners" if cell.method.adapted else "none",
        )
    )


def train_cell(cell: Cell, corpus: Corpus) -> Curve:
    """Train it; for methods that adapt nothing, the loss is the same on every network and only the clock differs."""
    from adapters.learners.framework import torch
    from adapters.learners.stacked import StackedRun

    torch.set_num_threads(1)
    began = time.process_time()
    method = cell.method
    recipe = replace(cell.recipe, rate=cell.recipe.rate * method.rate_scale, seed=cell.seed)
    names = [cell.network] if method.adapted else list(cell.link.networks(cell.islands))
    plans = {name: rounds_of(cell, name) for name in names}
    planned = plans[cell.network if method.adapted else EQUAL]
    run = StackedRun(recipe, corpus, method.optimiser(), planned, cell.windows)
    points = list(run.points(max(1, len(planned) // cell.points)))
    at = [p.round - 1 for p in points]
    last = points[-1]
    return Curve(
        method=method.name,
        h=method.h,
        islands=cell.islands,
        seed=cell.seed,
        step=np.array([p.step for p in points]),
        tokens=np.array([p.tokens for p in points]),
        sent_bytes=np.array([p.sent_bytes for p in points]),
        loss=np.array([p.loss for p in points]),
        train_loss=np.array([p.train_loss for p in points]),
        consensus=np.array([p.consensus for p in points]),
        time_s={name: np.array([plan[r].end_ns.max() / NS_PER_S for r in at]) for name, plan in plans.items()},
        island_loss=last.island_loss,
        worst_loss=last.worst_loss,
        diverged=last.round < len(planned) or not np.isfinite(last.loss),
        cpu_s=time.process_time() - began,
    )


def cells(
    methods: Sequence[Method], islands: Sequence[int], seeds: Sequence[int], recipe: Recipe, link: Link,
    points: int, windows: int,
) -> Iterator[Cell]:  # fmt: skip
    """Every run of the comparison.  With more islands each takes a smaller batch, so that a step of all trains on the
    same tokens; beyond the first number, fewer methods and about half the steps."""
    for place, n in enumerate(islands):
        smaller = replace(
            recipe,
            batch=max(1, recipe.batch * islands[0] // n),
            steps=recipe.steps if place == 0 else max(1, round(0.5 * recipe.steps / 30)) * 30,
        )
        for method in methods if place == 0 else [m for m in methods if (m.name, m.h) in FEWER]:
            slow = [name for name in link.networks(n) if name != EQUAL]
            for network in (slow if place == 0 else slow[-1:]) if method.adapted else [EQUAL]:
                for seed in seeds:
                    yield Cell(method, n, seed, smaller, link, network, points, windows)
