"""G2: every arm was offered the same load through the same code path."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from protocol.evidence.store import NO_SYNC, POLICY, SeedEvidence
from protocol.gates.result import Check, GateResult
from protocol.replay.measurements import SERVED
from protocol.workload.slo import Slo


def load_match_gate(evidence: Sequence[SeedEvidence], slo: Slo, index: int) -> GateResult:
    """Identical requests in all arms (SPEC 6, G2); a simulated sidecar replays one trace, so equality is exact.

    index : which of the regime's SLOs `slo` is.
    """
    checks = (_offered(evidence), _counted(evidence, slo, index), _baseline(evidence, slo))
    return GateResult("G2", "no-sync load match", checks)


def _offered(evidence: Sequence[SeedEvidence]) -> Check:
    for e in evidence:
        policy, idle = e.requests.get(POLICY), e.requests.get(NO_SYNC)
        if policy is None or idle is None:
            missing = POLICY if policy is None else NO_SYNC
            return Check("offered load", "failed", f"seed {e.seed}: no requests of the {missing} arm")
        if len(policy) != len(idle):
            reason = f"seed {e.seed}: {len(policy)} requests under the policy, {len(idle)} without merges"
            return Check("offered load", "failed", reason)
        for column in ("arrival_ns", "prompt_tokens", "island"):
            if not np.array_equal(getattr(policy, column), getattr(idle, column)):
                reason = f"seed {e.seed}: {column} differs between the policy and the no-sync arm"
                return Check("offered load", "failed", reason)
        both = (policy.outcome == SERVED) & (idle.outcome == SERVED)
        shorter = np.flatnonzero(both & (policy.output_tokens != idle.output_tokens))
        if shorter.size:
            tokens = (
                f"{policy.output_tokens[shorter[0]]} output tokens, {idle.output_tokens[shorter[0]]} without merges"
            )
            return Check("offered load", "failed", f"seed {e.seed}: request {shorter[0]} was served with {tokens}")
        if int(policy.prompt_tokens.sum(dtype=np.int64)) != e.prompt_tokens:
            return Check("offered load", "failed", f"seed {e.seed}: prompt tokens differ from the trace")
    requests = sum(e.n_requests for e in evidence)
    return Check("offered load", "passed", f"the same {requests} requests in every arm, one code path", n=requests)


def _counted(evidence: Sequence[SeedEvidence], slo: Slo, index: int) -> Check:
    """The violations that the envelope compares are those of the stored requests."""
    for e in evidence:
        for arm in (POLICY, NO_SYNC):
            placed, rows = e.placed.get(arm), e.requests.get(arm)
            if placed is None or rows is None:
                return Check("counted rows", "failed", f"seed {e.seed}: no {arm} arm")
            counted, found = placed.violations[:, index].tolist(), int(rows.violates(slo).sum())
            if counted != [found]:
                reason = f"seed {e.seed}, arm {arm}: {counted} violations of {slo} counted, {found} in its requests"
                return Check("counted rows", "failed", reason)
    return Check("counted rows", "passed", "every count of violations is that of the stored requests", n=len(evidence))


def _baseline(evidence: Sequence[SeedEvidence], slo: Slo) -> Check:
    """Without any merge the SLO must be attainable, or there is nothing for a merge to spoil."""
    idle = [e.requests[NO_SYNC] for e in evidence if NO_SYNC in e.requests]
    missed, total = sum(int(m.violates(slo).sum()) for m in idle), sum(len(m) for m in idle)
    rate = missed / total if total else 1.0
    details = {"no_sync_violations": missed, "requests": total}
    if rate >= 1.0:
        reason = f"all {total} requests miss {slo} without any merge: no merge can be judged"
        return Check("no-sync baseline", "undecidable", reason, rate, 1.0, total, details=details)
    reason = f"{100 * rate:.3f} % of requests miss {slo} without any merge"
    return Check("no-sync baseline", "passed", reason, rate, 1.0, total, details=details)
