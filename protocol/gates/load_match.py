"""G2: every arm was offered the same load through the same code path."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from protocol.evidence import NO_SYNC, POLICY, SeedEvidence
from protocol.gates.result import Check, GateResult
from protocol.slo import Slo


def load_match_gate(evidence: Sequence[SeedEvidence], slo: Slo) -> GateResult:
    """Identical requests in all arms (SPEC 6, G2); a simulated sidecar replays one trace, so equality is exact."""
    return GateResult("G2", "no-sync load match", (_offered(evidence), _baseline(evidence, slo)))


def _offered(evidence: Sequence[SeedEvidence]) -> Check:
    for e in evidence:
        policy, idle = e.requests[POLICY], e.requests[NO_SYNC]
        if len(policy) != len(idle):
            reason = f"seed {e.seed}: {len(policy)} requests under the policy, {len(idle)} without merges"
            return Check("offered load", "failed", reason)
        for column in ("arrival_ns", "prompt_tokens", "island"):
            if not np.array_equal(getattr(policy, column), getattr(idle, column)):
                reason = f"seed {e.seed}: {column} differs between the policy and the no-sync arm"
                return Check("offered load", "failed", reason)
        if int(policy.prompt_tokens.sum(dtype=np.int64)) != e.prompt_tokens:
            return Check("offered load", "failed", f"seed {e.seed}: prompt tokens differ from the trace")
    requests = sum(e.n_requests for e in evidence)
    return Check("offered load", "passed", f"the same {requests} requests in every arm, one code path", n=requests)


def _baseline(evidence: Sequence[SeedEvidence], slo: Slo) -> Check:
    """Without any merge the SLO must be attainable, or there is nothing for a merge to spoil."""
    missed = sum(int(e.requests[NO_SYNC].violates(slo).sum()) for e in evidence)
    total = sum(e.n_requests for e in evidence)
    rate = missed / total if total else 1.0
    details = {"no_sync_violations": missed, "requests": total}
    if rate >= 1.0:
        reason = f"all {total} requests miss {slo} without any merge: no merge can be judged"
        return Check("no-sync baseline", "undecidable", reason, rate, 1.0, total, details=details)
    reason = f"{100 * rate:.3f} % of requests miss {slo} without any merge"
    return Check("no-sync baseline", "passed", reason, rate, 1.0, total, details=details)
