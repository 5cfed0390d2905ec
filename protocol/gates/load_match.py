"""G2: every arm was offered the same load through the same code path, by a client and a server that stayed the same."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import scipy

from protocol.evidence.model import Evidence
from protocol.evidence.order import BALANCED
from protocol.gates.result import Check, GateResult, Status
from protocol.gates.spec import Spec
from protocol.gates.units import compared, judged
from protocol.replay.measurements import SERVED
from protocol.replay.replay import NO_SYNC, POLICY, SENT_SHARE, SENT_WITHIN_NS, Replay
from protocol.stats.equivalence import rate_limit, tost_paired
from protocol.workload.slo import Slo
from protocol.workload.trace import NS_PER_S

#: Offered rate that every replay must achieve, as a fraction.
RATE_MARGIN = 0.01


def load_match_gate(evidence: Sequence[Evidence], spec: Spec, slo: Slo, index: int) -> GateResult:
    """Identical requests in all arms and, on a real server, a client in time and two idle replays alike.

    index : which of the regime's SLOs `slo` is.
    """
    title = "no-sync load match"
    kept = compared(evidence, spec)
    if not kept:
        return GateResult("G2", title, (Check("offered load", "undecidable", "no seed has every replay", n=0),))
    checks = [_offered(kept), _tokens(kept), _counted(kept, slo, index), _baseline(kept, slo)]
    if spec.on_server:
        made = judged(kept)
        checks += [_sent(made), _rate(made), _again(kept, spec, slo)]
        checks += (
            [_carryover(kept, spec, slo)] if spec.back_end == "live" and spec.idle == len(BALANCED) // 2 + 1 else []
        )
    return GateResult("G2", title, tuple(checks))


def _offered(evidence: Sequence[Evidence]) -> Check:
    """Every replay of a seed had the same requests at the same scheduled times."""
    for e in evidence:
        for arm in (POLICY, NO_SYNC):
            if e.replay(arm) is None:
                return Check("offered load", "failed", f"seed {e.seed}: no requests of the {arm} arm")
        first = e.judged[POLICY, 0].rows
        for r in judged([e]):
            if len(r.rows) != len(first):
                reason = f"{r.what}: {len(r.rows)} requests, {len(first)} under the policy"
                return Check("offered load", "failed", reason)
            for column in ("arrival_ns", "prompt_tokens", "asked_tokens", "island"):
                if not np.array_equal(getattr(r.rows, column), getattr(first, column)):
                    return Check("offered load", "failed", f"{r.what}: {column} differs from the policy's")
        if int(first.prompt_tokens.sum(dtype=np.int64)) != e.prompt_tokens:
            return Check("offered load", "failed", f"seed {e.seed}: prompt tokens differ from the trace")
        if int(first.asked_tokens.sum(dtype=np.int64)) != e.output_tokens:
            return Check("offered load", "failed", f"seed {e.seed}: output tokens differ from the trace")
    requests = sum(e.n_requests for e in evidence)
    return Check("offered load", "passed", f"the same {requests} requests in every arm, one code path", n=requests)


def _tokens(evidence: Sequence[Evidence]) -> Check:
    """Served requests gave the tokens that were asked for; a shorter answer is another, easier request."""
    n = 0
    for r in judged(evidence):
        other = np.flatnonzero((r.rows.outcome == SERVED) & (r.rows.output_tokens != r.rows.asked_tokens))
        if other.size:
            got, asked = r.rows.output_tokens[other[0]], r.rows.asked_tokens[other[0]]
            reason = f"{r.what}: request {other[0]} gave {got} tokens of {asked} asked for ({other.size} such requests)"
            return Check("tokens served", "failed", reason, float(other.size), 0.0)
        n += int((r.rows.outcome == SERVED).sum())
    return Check("tokens served", "passed", "every served request gave the tokens that were asked for", n=n)


def _counted(evidence: Sequence[Evidence], slo: Slo, index: int) -> Check:
    """The prices that the envelope compares are those of the stored requests, where both are there."""
    for e in evidence:
        for arm, r in e.simulated.items():
            counted, found = e.priced(arm, index).astype(int).tolist(), int(r.rows.violates(slo).sum())
            if counted != [found]:
                reason = f"seed {e.seed}, arm {arm}: {counted} violations of {slo} counted, {found} in its requests"
                return Check("counted rows", "failed", reason)
    return Check("counted rows", "passed", "every count of violations is that of the stored requests", n=len(evidence))


def _baseline(evidence: Sequence[Evidence], slo: Slo) -> Check:
    """Without any merge the SLO must be attainable, or there is nothing for a merge to spoil."""
    idle = [r.rows for e in evidence for r in e.replays(NO_SYNC)]
    missed, total = sum(int(m.violates(slo).sum()) for m in idle), sum(len(m) for m in idle)
    rate = missed / total if total else 1.0
    details = {"no_sync_violations": missed, "requests": total}
    if rate >= 1.0:
        reason = f"all {total} requests miss {slo} without any merge: no merge can be judged"
        return Check("no-sync baseline", "undecidable", reason, rate, 1.0, total, details=details)
    reason = f"{100 * rate:.3f} % of requests miss {slo} without any merge"
    return Check("no-sync baseline", "passed", reason, rate, 1.0, total, details=details)


def _sent(made: Sequence[Replay]) -> Check:
    """The client was not what was slow.  A late replay measures nothing, so it is no verdict either way."""
    worst = min(made, key=lambda r: r.sent_share)
    delays = np.concatenate([r.send_delay_ns for r in made]) / 1e6
    found = {f"p{q:g}_ms": float(np.quantile(delays, q / 100)) for q in (50, 99, 99.9, 100)} if len(delays) else {}
    reason = (
        f"at least {100 * worst.sent_share:.2f} % of every replay was sent within {SENT_WITHIN_NS / 1e6:g} ms of "
        f"schedule; delays of all: median {found.get('p50_ms', 0):.2f} ms, p99 {found.get('p99_ms', 0):.2f} ms"
    )
    status: Status = "passed" if worst.sent_share >= SENT_SHARE else "undecidable"
    return Check("send delay", status, reason, worst.sent_share, SENT_SHARE, len(delays), details=found)


def _rate(made: Sequence[Replay]) -> Check:
    worst = min(made, key=lambda r: r.achieved_rate)
    least = worst.achieved_rate
    reason = f"achieved over offered rate {least:.4f} at least ({worst.what}), expected {1 - RATE_MARGIN:g} or more"
    status: Status = "passed" if least >= 1 - RATE_MARGIN else "undecidable"
    return Check("achieved rate", status, reason, least, 1 - RATE_MARGIN, len(made))


def _again(evidence: Sequence[Evidence], spec: Spec, slo: Slo) -> Check:
    """A/A: the first and the last replay of a seed without merges have equivalent violation rates, t over seeds.

    Where every seed has equal counts in both nothing varies, and t has no measure.  The rates then differ by no more
    than the share of requests on which the two disagree.  Requests of one second may share a stall, so the seconds
    with arrivals are the units of that share, never the requests.
    """
    margin, alpha = spec.aa_margin_pp, spec.alpha
    pairs = [(e.judged[NO_SYNC, 0].rows, e.judged[NO_SYNC, spec.idle - 1].rows) for e in evidence]
    missed = np.array([[m.violates(slo).sum() for m in pair] for pair in pairs]).T
    pct = 100 * missed / np.array([e.n_requests for e in evidence])
    found = tost_paired(pct[1], pct[0], margin, alpha)
    p, interval = found.outcome.pvalue, (found.interval.lower, found.interval.upper) if found.interval else None
    how = "t over seeds"
    if p is None and len(evidence) > 1 and np.array_equal(missed[0], missed[1]):
        units = sum(len(np.unique(first.arrival_ns // NS_PER_S)) for first, _ in pairs)
        apart_n = sum(int((a.violates(slo) != b.violates(slo)).sum()) for a, b in pairs)
        p = float(scipy.stats.binom.cdf(apart_n, units, min(margin / 100, 0.5)))
        limit = 100 * rate_limit(min(apart_n, units), units, alpha)
        how = f"equal counts in every seed, {apart_n} requests judged otherwise; Clopper-Pearson on {units} seconds"
        interval = (-limit, limit)
    details = {"margin_pp": margin, "no_sync_pct": pct[0].tolist(), "no_sync_again_pct": pct[1].tolist()}
    if p is None or interval is None:
        reason = found.outcome.reason or "no p-value"
        return Check("A/A", "undecidable", reason, None, alpha, len(evidence), details=details)
    apart = interval[0] > margin or interval[1] < -margin
    status: Status = "passed" if p <= alpha else "failed" if apart else "undecidable"
    reason = (
        f"first and last no-sync replay of each seed differ by {float((pct[1] - pct[0]).mean()):.3f} pp, "
        f"{interval[0]:.3f} to {interval[1]:.3f}, margin {margin:g} pp: TOST p = {p:.3g} ({how})"
    )
    return Check("A/A", status, reason, p, alpha, len(evidence), interval, details)


def _carryover(evidence: Sequence[Evidence], spec: Spec, slo: Slo) -> Check:
    """What a replay with merges leaves to the one after it: idle replays after one, against the block's first.

    Its own drift within a block counts as well.  The balanced order meets both arms with it, so it is no bias unless
    it is large enough to change what a merge costs; shown to exceed the margin, the session is no PASS.
    """
    margin = spec.aa_margin_pp
    idle = np.array([[e.judged[NO_SYNC, k].rows.violates(slo).sum() for k in range(spec.idle)] for e in evidence])
    left = 100 * (idle[:, 1:].mean(axis=1) - idle[:, 0]) / np.array([e.n_requests for e in evidence])
    if len(left) < 2:
        return Check("carryover", "undecidable", f"{len(left)} blocks: no spread to measure it by", n=len(left))
    mean, reach = (
        float(left.mean()),
        float(scipy.stats.t.ppf(1 - spec.alpha / 2, len(left) - 1) * scipy.stats.sem(left)),
    )
    interval = (mean - reach, mean + reach)
    shown = interval[0] > margin or interval[1] < -margin
    reason = (
        f"after a replay with merges {mean:+.3f} pp of requests more miss the SLO than before, {interval[0]:.3f} to "
        f"{interval[1]:.3f}, margin {margin:g} pp{': it carries over' if shown else ''}"
    )
    return Check("carryover", "failed" if shown else "passed", reason, mean, margin, len(left), interval)
