"""Merges that are not all alike in length: by what exchanged schedules are counted, and when they cannot be."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from protocol.evidence.model import Evidence
from protocol.gates.spec import Spec
from protocol.merging.placements import Placements
from protocol.replay.replay import POLICY

#: Numbers of merges of several lengths may differ by this share, or by one merge, between traces.
MOST_APART = 0.1


def lengths_ns(placed: Placements, spec: Spec) -> list[list[int]] | None:
    """How long each merge of each schedule is busy, over its islands; None where all are alike by their kind."""
    if placed.merges is not None:
        found = []
        for row, merges in enumerate(placed.merges):
            own = spec.timing.lengths_ns(merges)
            found.append([] if own is None else [int(ns) for ns in own[: int(placed.lengths[row])]])
        return found
    peers, members = spec.peers, placed.members
    if peers is not None and members is not None and ((members >= 0) & (members < peers.n)).all():
        return [[int(peers.busy_ns(group).sum()) for group in s.groups] for s in peers.read(placed)]
    return None


def weights(placed: Placements, spec: Spec) -> NDArray[np.int64]:
    """What the cost of each schedule is counted by: its merges, or the time they are busy where they differ in that."""
    if placed.merges is not None:
        return np.array([spec.timing.busy_ns(m) for m in placed.merges], np.int64)
    busy = lengths_ns(placed, spec)
    if busy is not None and len({ns for merges in busy for ns in merges}) > 1:
        return np.array([sum(merges) for merges in busy], np.int64)
    return placed.lengths.astype(np.int64)


def uneven(evidence: Sequence[Evidence], spec: Spec) -> str | None:
    """Why schedules cannot be exchanged between traces: merges of several lengths whose number follows the trace.

    A short merge costs less a busy second than a long one.  Whoever adds short ones where a long one has done harm
    makes that trace's own schedule look cheap by the second, and would seem to follow the load; the same number
    everywhere leaves nothing to add.
    """
    own = [e.placed[POLICY] for e in evidence if POLICY in e.placed]
    kinds = {ns for p in own for merges in lengths_ns(p, spec) or () for ns in merges}
    numbers = [int(p.lengths[0]) for p in own if len(p)]
    if len(kinds) < 2 or not numbers:
        return None
    least, most = min(numbers), max(numbers)
    if most - least <= max(1, MOST_APART * least):
        return None
    return (
        f"{least} to {most} merges of several lengths a seed: exchanged between traces, they would compare how many, "
        "not when; a corridor or a rule is needed in which their number does not follow the load"
    )
