"""Raw rows that cannot all be true."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np

from protocol.evidence.model import Evidence
from protocol.merging.schedule import Schedule
from protocol.replay.measurements import exposure_ns
from protocol.replay.replay import MERGE_WITHIN_NS, POLICY, Replay


def contradictions(evidence: Sequence[Evidence]) -> Iterator[str]:
    """Of replays on a server: exposure against the merges that ran, merges against the decisions behind them.

    What an observation showed the scheduler leaves no other trace, so only the files' digests speak for it.
    """
    for e in evidence:
        for r in e.served:
            begin_ns = np.maximum(r.ran_ns[:, 0], 0)
            merges = Schedule(begin_ns, (r.ran_ns[:, 1] - begin_ns)[:, None])
            again = exposure_ns(r.rows.offered(), r.rows.e2e_ns, merges)
            for row in np.flatnonzero(again != r.rows.exposure_ns):
                stated = r.rows.exposure_ns[row]
                yield f"{r.what}, request {row}: exposure {stated} ns, by the merges that ran {again[row]} ns"
            if r.decisions or r.scrapes:
                yield from _decided(r)


def _decided(r: Replay) -> Iterator[str]:
    for decision in r.decisions:
        if decision.merge and decision.said is False:
            yield f"{r.what}: a merge at {decision.due_ns} ns, which the scheduler had declined"
    if r.arm != POLICY:
        return
    decided = [d.answered_ns for d in r.decisions if d.merge]
    if len(decided) != len(r.planned_ns):
        yield f"{r.what}: {len(r.planned_ns)} merges, {len(decided)} decisions to merge"
        return
    for at_ns, planned_ns in zip(decided, r.planned_ns[:, 0].tolist(), strict=True):
        if not at_ns <= planned_ns <= at_ns + MERGE_WITHIN_NS:
            yield f"{r.what}: a merge at {planned_ns} ns, decided at {at_ns} ns"
