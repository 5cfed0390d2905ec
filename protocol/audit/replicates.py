"""Which rows of a published table are independent: runs, not the pods of one run."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace

from protocol.audit.imported import Name, Run

#: Fewest seeds, in at least two groups of at least two, among which groups are looked for.
FEWEST_SEEDS = 6
#: Seeds of a group lie closer together than this share of the distance between groups, in every arm.
CLOSE = 0.25


def by_run(runs: Sequence[Run], of: Mapping[int, str]) -> list[Run]:
    """The runs with their clusters.

    of : position of a row to what its `run` or `cluster` column says.  Names that every arm has are the replicates
    themselves; else seeds that share a run, in whichever arm, are one replicate.
    """
    arms = {run.arm for run in runs}
    named = {name: {runs[i].arm for i, other in of.items() if other == name} for name in of.values()}
    if len(of) == len(runs) and len(arms) > 1 and all(have == arms for have in named.values()):
        return [replace(run, cluster=int(of[i]) if of[i].isdecimal() else of[i]) for i, run in enumerate(runs)]
    seeds = list(dict.fromkeys(run.seed for run in runs if run.seed is not None))
    head: dict[Name, Name] = {seed: seed for seed in seeds}

    def find(seed: Name) -> Name:
        while head[seed] != seed:
            seed = head[seed]
        return seed

    first: dict[tuple[str, str], Name] = {}
    for position, run in enumerate(runs):
        if run.seed is not None and position in of:
            other = first.setdefault((run.arm, of[position]), run.seed)
            head[find(run.seed)] = find(other)
    groups: dict[Name, list[Name]] = {}
    for seed in seeds:
        groups.setdefault(find(seed), []).append(seed)
    if all(len(group) == 1 for group in groups.values()):
        return list(runs)
    names = {seed: _named(group) for group in groups.values() for seed in group}
    return [run if run.seed is None else replace(run, cluster=names[run.seed]) for run in runs]


def by_likeness(runs: Sequence[Run]) -> tuple[list[Run], str]:
    """The runs with clusters where seeds come in tight groups of one leading number (11 to 14, 21 to 24), and what to
    tell the user; the same runs and "" where they do not.

    Independent seeds do not do so in every arm at once; pods, ranks or repeats of one run do.
    """
    seeds = list(dict.fromkeys(run.seed for run in runs if isinstance(run.seed, int) and run.seed >= 10))
    groups: dict[int, list[Name]] = {}
    for seed in seeds:
        groups.setdefault(seed // 10, []).append(seed)
    everyone = {run.seed for run in runs}
    if len(groups) < 2 or len(seeds) < FEWEST_SEEDS or set(seeds) != everyone:
        return list(runs), ""
    if min(len(group) for group in groups.values()) < 2 or any(run.cluster is not None for run in runs):
        return list(runs), ""
    for arm in dict.fromkeys(run.arm for run in runs):
        values = {run.seed: run.violation_pct for run in runs if run.arm == arm}
        if set(values) != everyone or not _tight(list(groups.values()), values):
            return list(runs), ""
    names = {seed: _named(group) for group in groups.values() for seed in group}
    told = "; ".join(_named(group) for group in groups.values())
    warning = (
        f"seeds of one leading number lie together in every arm ({told}), as pods of one run do: they are taken for "
        f"{len(groups)} replicates.  A column `run` that names the runs would say otherwise."
    )
    return [replace(run, cluster=names[run.seed]) for run in runs if run.seed is not None], warning


def _tight(groups: Sequence[Sequence[Name]], values: Mapping[Name | None, float | None]) -> bool:
    """Whether the values lie in groups that are narrow beside the distance from one to the next."""
    known: list[list[float]] = []
    for group in groups:
        inside = [value for value in (values[seed] for seed in group) if value is not None]
        if len(inside) < len(group) or not all(map(math.isfinite, inside)):
            return False
        known.append(inside)
    means = sorted(sum(inside) / len(inside) for inside in known)
    apart = min(b - a for a, b in zip(means, means[1:], strict=False))
    return max(max(inside) - min(inside) for inside in known) < CLOSE * apart


def _named(group: Sequence[Name]) -> str:
    return f"seed {group[0]}" if len(group) == 1 else f"seeds {group[0]} to {group[-1]}"
