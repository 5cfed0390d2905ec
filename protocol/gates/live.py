"""The gates of a live session (SPEC 6 and 7, tier 4): each reads the raw segments and nothing else."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy import stats

from protocol.calibration.store import p95_ms
from protocol.evidence.live import AFTER, ARMS, BEFORE, CONTROL, POLICY, Segment, Session
from protocol.gates.result import Check, GateResult
from protocol.gates.transfer import transfer_gate
from protocol.merging.corridor import Corridor
from protocol.replay.measurements import SERVED
from protocol.replay.replay import MERGE_WITHIN_NS, SENT_SHARE, SENT_WITHIN_NS
from protocol.stats.envelope import MIN_SEEDS, detectable_gain, t_interval
from protocol.stats.equivalence import tost_rates
from protocol.stats.randomization import sign_flip
from protocol.stats.ratios import MIN_REQUESTS
from protocol.stats.result import RTOL, TestOutcome, undecidable
from protocol.workload.slo import Slo
from protocol.workload.trace import NS_PER_S

Block = Mapping[str, Segment]

#: A merge may begin or end this far from where the corridor has it: the load's own tolerance, twice.
TOLERANCE_NS = 2 * MERGE_WITHIN_NS
#: Share of blocks that may be left out because the control realised another number of merges.
MOST_EXCLUDED = 0.25
#: Share of decisions that must be answered before the next one is due.
ON_TIME_SHARE = 0.99
#: Fewer paired blocks than this decide nothing.
MIN_BLOCKS = MIN_SEEDS
#: Offered rate that must be achieved, as a fraction.
RATE_MARGIN = 0.01


def matched(blocks: Sequence[Block]) -> list[Block]:
    """Blocks that compare placements and nothing else: as many merges in both arms, executed as they were decided."""
    return [
        b
        for b in blocks
        if b[POLICY].served.n_merges == b[CONTROL].served.n_merges > 0
        and not b[POLICY].served.load_problem
        and not b[CONTROL].served.load_problem
    ]


# G0 --------------------------------------------------------------------------------------------------------------


def integrity(session: Session, planned_blocks: int, corridor: Corridor) -> GateResult:
    """Corridor, realised budget, decisions in time, causality, determinism, completeness, distinct traces."""
    blocks = session.blocks()
    if not blocks:
        reason = session.ended_early or "no block was finished"
        return GateResult("G0", "integrity", (Check("completeness", "undecidable", reason, n=0),))
    checks = (
        _corridor(blocks, corridor),
        _budget(blocks, corridor),
        _on_time(blocks, corridor),
        _causality(blocks),
        _determinism(blocks),
        _completeness(session, blocks, planned_blocks),
        _distinct(blocks),
    )
    return GateResult("G0", "integrity", checks)


def _corridor(blocks: Sequence[Block], corridor: Corridor) -> Check:
    kept = matched(blocks)
    windows = [(b[POLICY], "decided", b[POLICY].served.planned_ns) for b in blocks]
    windows += [(b[arm], "executed", b[arm].served.ran_ns) for b in kept for arm in (POLICY, CONTROL)]
    for segment, what, merges_ns in windows:
        problem = _outside(merges_ns, corridor)
        if problem:
            reason = f"block {segment.block + 1}, {segment.arm}, as {what}: {problem}"
            return Check("corridor", "failed", reason, n=len(blocks))
    merges = sum(len(b[POLICY].served.planned_ns) for b in blocks)
    forced = sum(d.merge and d.said is None for b in blocks for d in b[POLICY].served.decisions)
    reason = f"{merges} merges of the policy inside the corridor, {forced} of them forced by H_max"
    return Check("corridor", "passed", reason, n=len(blocks), details={"merges": merges, "forced": forced})


def _outside(merges_ns: NDArray[np.int64], corridor: Corridor) -> str | None:
    """Why merges are not what the control loop may do, to within what a real clock can keep."""
    least, most = corridor.gap_min * corridor.grid_ns, corridor.gap_max * corridor.grid_ns
    late = max(TOLERANCE_NS, corridor.grid_ns)
    waits = merges_ns[:, 0] - np.concatenate([[0], merges_ns[:-1, 1]])
    for k, wait in enumerate(waits.tolist(), start=1):
        if not least - TOLERANCE_NS <= wait <= most + late:
            return (
                f"merge {k} began {wait / NS_PER_S:.2f} s after {'time 0' if k == 1 else f'the end of merge {k - 1}'}; "
                f"the corridor is {least / NS_PER_S:.2f} to {most / NS_PER_S:.2f} s"
            )
    end = int(merges_ns[-1, 1]) if len(merges_ns) else 0
    if end > corridor.horizon_ns + TOLERANCE_NS:
        return (
            f"the last merge ended at {end / NS_PER_S:.2f} s, past the horizon of {corridor.horizon_ns / NS_PER_S:g} s"
        )
    if end + most + corridor.merge_ns + late <= corridor.horizon_ns:
        return f"nothing merged after {end / NS_PER_S:.2f} s, though H_max imposes a merge within the horizon"
    return None


def _budget(blocks: Sequence[Block], corridor: Corridor) -> Check:
    kept = matched(blocks)
    realised = [(b[POLICY].served.n_merges, b[CONTROL].served.n_merges) for b in blocks]
    busy = [(b[POLICY].served.busy_ns / NS_PER_S, b[CONTROL].served.busy_ns / NS_PER_S) for b in blocks]
    unequal = sum(one != other for one, other in realised)
    excluded = len(blocks) - len(kept)
    left_out = f"{excluded} of {len(blocks)} blocks left out, {unequal} of them for unequal merges"
    problems = {f"{b[a].block + 1} {a}": b[a].served.load_problem for b in blocks for a in (POLICY, CONTROL)}
    details: dict[str, object] = {
        "realised": [list(r) for r in realised],
        "busy_s": [list(b) for b in busy],
        "excluded": excluded,
        "off_schedule": {where: problem for where, problem in problems.items() if problem},
    }
    if any(b[arm].served.n_merges for b in blocks for arm in (BEFORE, AFTER)):
        return Check("budget", "failed", "a segment without merges had one", n=len(blocks), details=details)
    if not kept or excluded > MOST_EXCLUDED * len(blocks):
        first = next((f"; block {where}: {problem}" for where, problem in problems.items() if problem), "")
        return Check("budget", "undecidable", left_out + first, n=len(blocks), details=details)
    tolerance_s = TOLERANCE_NS / NS_PER_S
    for b in kept:
        one, other = b[POLICY].served, b[CONTROL].served
        if abs(one.busy_ns - other.busy_ns) > TOLERANCE_NS * one.n_merges:
            reason = (
                f"block {b[POLICY].block + 1}: {one.busy_ns / NS_PER_S:.2f} s of merges under the policy, "
                f"{other.busy_ns / NS_PER_S:.2f} s in its control; expected equal to {tolerance_s:g} s a merge"
            )
            return Check("budget", "failed", reason, n=len(blocks), details=details)
    reason = f"policy and control realised the same merges in {len(kept)} blocks; {left_out}"
    return Check("budget", "passed", reason, n=len(blocks), details=details)


def _on_time(blocks: Sequence[Block], corridor: Corridor) -> Check:
    asked = [d for b in blocks for d in b[POLICY].served.decisions if d.said is not None]
    if not asked:
        return Check("decisions in time", "undecidable", "the scheduler was never asked", n=0)
    late_s = np.array([d.answered_ns - d.due_ns for d in asked]) / NS_PER_S
    grid_s = corridor.grid_ns / NS_PER_S
    share = float((late_s <= grid_s).mean())
    reason = (
        f"{len(asked)} answers {1e3 * np.median(late_s):.1f} ms after they were due (median), {1e3 * late_s.max():.0f} "
        f"ms at most; {100 * share:.1f} % before the next was due"
    )
    status = "passed" if share >= ON_TIME_SHARE else "undecidable"
    return Check("decisions in time", status, reason, share, ON_TIME_SHARE, len(asked))  # type: ignore[arg-type]


def _causality(blocks: Sequence[Block]) -> Check:
    for b in blocks:
        for d in b[POLICY].served.decisions:
            if d.said is not None and d.asked_ns < d.due_ns:
                reason = (
                    f"block {b[POLICY].block + 1}: asked before the decision at {d.due_ns / NS_PER_S:.2f} s was due"
                )
                return Check("causality", "failed", reason, n=len(blocks))
    reason = "every answer came while its requests were being served, from a process that holds no trace"
    return Check("causality", "passed", reason, n=len(blocks))


def _determinism(blocks: Sequence[Block]) -> Check:
    for b in blocks:
        if b[POLICY].replay_difference:
            return Check("determinism", "failed", f"block {b[POLICY].block + 1}: {b[POLICY].replay_difference}")
    reason = "a fresh scheduler answered the logged observations the same"
    return Check("determinism", "passed", reason, n=len(blocks))


def _completeness(session: Session, blocks: Sequence[Block], planned: int) -> Check:
    total = sum(len(s.served.requests) for s in session.segments)
    missed = sum(int((s.served.requests.outcome != SERVED).sum()) for s in session.segments)
    details = {"not_served": missed, "blocks": len(blocks), "planned_blocks": planned}
    if len(blocks) < planned or session.ended_early:
        reason = f"{len(blocks)} of {planned} blocks: {session.ended_early or 'the others were not run'}"
        return Check("completeness", "undecidable", reason, n=total, details=details)
    reason = f"scheduled = served + failed + refused; {missed} of {total} not served, counted as violations"
    return Check("completeness", "passed", reason, n=total, details=details)


def _distinct(blocks: Sequence[Block]) -> Check:
    digests = [b[POLICY].trace_digest for b in blocks]
    if len(set(digests)) < len(digests):
        return Check("distinct traces", "failed", "two blocks have identical load: not independent replicates")
    return Check("distinct traces", "passed", "every block has its own trace", n=len(digests))


# G1 --------------------------------------------------------------------------------------------------------------


def own_calibration(blocks: Sequence[Block], server: str, date: str) -> dict[str, Any]:
    """p95 E2E of exposed and unexposed requests in each control segment: its merges were placed at random."""
    runs = []
    for b in blocks:
        m = b[CONTROL].served.requests
        served, exposed = m.outcome == SERVED, m.exposure_ns > 0
        run: dict[str, Any] = {}
        for name, mask in (("exposed", served & exposed), ("unexposed", served & ~exposed)):
            run[name] = int(mask.sum())
            for phase, column in (("", m.e2e_ns), ("ttft_", m.ttft_ns), ("max_itl_", m.max_itl_ns)):
                run[f"{name}_{phase}p95_ms"] = p95_ms(column[mask])
        runs.append(run)
    return {"server": server, "date": date, "runs": runs}


def transfer(calibration: Mapping[str, Any], alpha: float) -> GateResult:
    """Do requests that overlap a merge suffer on this server?  Nothing was simulated, so nothing has to agree.

    Runs with too few requests on either side for a 95th percentile are left out: a count, not a latency, decides that.
    """
    title, runs = "real-sidecar effect transfer", calibration.get("runs", ())
    enough = [r for r in runs if min(r.get("exposed") or 0, r.get("unexposed") or 0) >= MIN_REQUESTS]
    found = transfer_gate({**calibration, "runs": enough}, alpha).checks
    effects = [check for check in found if check.name.startswith("effect")]
    left_out = f"; {len(runs) - len(enough)} of {len(runs)} runs have fewer than {MIN_REQUESTS} requests on one side"
    pairs = [(r.get("exposed_p95_ms"), r.get("unexposed_p95_ms")) for r in enough]
    ratios = ", ".join(f"{top / bottom:.2f}" for top, bottom in pairs if top and bottom)
    seen = f"; p95 of exposed over unexposed requests by run: {ratios}" if ratios else ""
    told = []
    for check in effects:
        more = left_out if len(enough) < len(runs) else ""
        told.append(replace(check, reason=check.reason + more + (seen if check.status == "undecidable" else "")))
    return GateResult("G1", title, tuple(told))


# G2 --------------------------------------------------------------------------------------------------------------


def load_match(blocks: Sequence[Block], slo: Slo, margin_pp: float, alpha: float) -> GateResult:
    """Same requests in a block's arms, offered in time, on a server that did not drift meanwhile."""
    if not blocks:
        none = Check("offered load", "undecidable", "no block was finished", n=0)
        return GateResult("G2", "no-sync load match", (none,))
    checks = (_offered(blocks), _rate(blocks), _sent(blocks), _drift(blocks, slo, margin_pp, alpha), _idle(blocks, slo))
    return GateResult("G2", "no-sync load match", checks)


def _offered(blocks: Sequence[Block]) -> Check:
    for b in blocks:
        first = b[BEFORE].served.requests
        for arm in ARMS[1:]:
            m, where = b[arm].served.requests, f"block {b[arm].block + 1}, {arm}"
            if b[arm].trace_digest != b[BEFORE].trace_digest or len(m) != len(first):
                return Check("offered load", "failed", f"{where}: another trace than its block's")
            for column in ("arrival_ns", "prompt_tokens"):
                if not np.array_equal(getattr(m, column), getattr(first, column)):
                    return Check("offered load", "failed", f"{where}: {column} differs within the block")
            both = (m.outcome == SERVED) & (first.outcome == SERVED)
            shorter = np.flatnonzero(both & (m.output_tokens != first.output_tokens))
            if shorter.size:
                tokens = f"{m.output_tokens[shorter[0]]} output tokens, {first.output_tokens[shorter[0]]} in {BEFORE}"
                return Check("offered load", "failed", f"{where}: request {shorter[0]} was served with {tokens}")
    n = sum(len(b[BEFORE].served.requests) for b in blocks)
    return Check("offered load", "passed", f"the same {n} requests in each of {len(ARMS)} arms", n=n)


def _rate(blocks: Sequence[Block]) -> Check:
    """Requests really sent within the time in which they were scheduled, over those scheduled."""
    achieved = {}
    for arm in ARMS:
        asked = sum(len(b[arm].served.requests) for b in blocks)
        got = 0
        for b in blocks:
            m = b[arm].served.requests
            got += int(((m.sent_ns >= 0) & (m.sent_ns <= m.arrival_ns.max(initial=0) + SENT_WITHIN_NS)).sum())
        achieved[arm] = got / asked if asked else 0.0
    arm = min(achieved, key=lambda a: achieved[a])
    reason = f"achieved over offered rate {achieved[arm]:.4f} at least ({arm})"
    status = "passed" if achieved[arm] >= 1 - RATE_MARGIN else "undecidable"
    return Check("achieved rate", status, reason, achieved[arm], 1 - RATE_MARGIN, len(blocks), details=achieved)  # type: ignore[arg-type]


def _sent(blocks: Sequence[Block]) -> Check:
    """The client must not be what is slow: each segment's share of requests sent on time."""
    worst, where, delays = 1.0, "every segment", {}
    for arm in ARMS:
        late: list[NDArray[np.int64]] = []
        for b in blocks:
            m = b[arm].served.requests
            delay = np.where(m.sent_ns >= 0, m.sent_ns - m.arrival_ns, np.iinfo(np.int64).max)
            late.append(delay)
            share = float((delay <= SENT_WITHIN_NS).mean()) if len(delay) else 1.0
            if share < worst:
                worst, where = share, f"block {b[arm].block + 1}, {arm}"
        sent = np.concatenate(late)
        sent = sent[sent < np.iinfo(np.int64).max]
        quantiles = np.quantile(sent, (0.5, 0.99, 1.0)) / 1e6 if len(sent) else np.full(3, -1.0)
        delays[arm] = {name: float(v) for name, v in zip(("p50_ms", "p99_ms", "max_ms"), quantiles, strict=True)}
    reason = (
        f"{100 * worst:.2f} % of requests sent within {SENT_WITHIN_NS / 1e6:g} ms of schedule at least ({where}); p99 "
        + ", ".join(f"{arm} {d['p99_ms']:.1f} ms" for arm, d in delays.items())
    )
    status = "passed" if worst >= SENT_SHARE else "undecidable"
    return Check("send delay", status, reason, worst, SENT_SHARE, len(blocks), details=delays)  # type: ignore[arg-type]


def _drift(blocks: Sequence[Block], slo: Slo, margin_pp: float, alpha: float) -> Check:
    """A/A: the two segments without merges of each block, which have the same requests."""
    counts = [[int(b[arm].served.requests.violates(slo).sum()) for b in blocks] for arm in (AFTER, BEFORE)]
    totals = [len(b[BEFORE].served.requests) for b in blocks]
    found = tost_rates(counts[0], counts[1], totals, totals, margin_pp / 100, alpha)
    shift = 100 * (sum(counts[0]) - sum(counts[1])) / max(sum(totals), 1)
    seen = f"{shift:+.2f} pp of violations without merges from before to after, over {len(blocks)} blocks"
    if found.outcome.pvalue is None:
        return Check("A/A", "undecidable", f"{seen}: {found.outcome.reason}", shift, margin_pp, len(blocks))
    limits = None if found.interval is None else (100 * found.interval.lower, 100 * found.interval.upper)
    reason = f"{seen}, equivalent within {margin_pp:g} pp when TOST p <= {alpha:g}: p = {found.outcome.pvalue:.3g}"
    status = "passed" if found.outcome.pvalue <= alpha else "undecidable"
    return Check("A/A", status, reason, found.outcome.pvalue, alpha, len(blocks), limits)  # type: ignore[arg-type]


def _idle(blocks: Sequence[Block], slo: Slo) -> Check:
    idle = [b[arm].served.requests for b in blocks for arm in (BEFORE, AFTER)]
    missed, total = sum(int(m.violates(slo).sum()) for m in idle), sum(len(m) for m in idle)
    rate = missed / total if total else 1.0
    if rate >= 1.0:
        reason = f"all {total} requests miss {slo} without any merge: no merge can be judged"
        return Check("no-sync baseline", "undecidable", reason, rate, 1.0, total)
    reason = f"{100 * rate:.3f} % of requests miss {slo} without any merge"
    return Check("no-sync baseline", "passed", reason, rate, 1.0, total)


# G3 --------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, eq=False)
class Paired:
    """Blocks as pairs: sync-excess violations in percentage points of the policy and of its control.

    The baseline of each is the block's two no-sync rates, interpolated to its place between them, so that a steady
    drift within the block cancels.  p : of the sign flip, None when there are too few blocks, with `reason`.
    """

    blocks: tuple[int, ...]
    merges: NDArray[np.int64]
    policy: NDArray[np.float64]
    control: NDArray[np.float64]
    idle: NDArray[np.float64]
    requests: NDArray[np.int64]
    test: TestOutcome
    lower_bound: float | None

    @property
    def gains(self) -> NDArray[np.float64]:
        """Control minus policy, by block; rounding noise is exactly zero."""
        gains = self.control - self.policy
        return np.where(np.abs(gains) <= RTOL * 100, 0.0, gains)

    @property
    def p(self) -> float | None:
        return self.test.pvalue

    def to_json(self, p_holm: float | None, alpha: float, span_s: float) -> dict[str, Any]:
        """Plain values under the names that a certificate's envelope has; what does not exist here is None."""
        gains, n = self.gains, len(self.blocks)
        interval = t_interval(gains, 0.95)
        limits = None if interval is None else [interval.lower, interval.upper]
        floor = 2.0**-n if n else None
        total = int(self.merges.sum())

        def mean(values: NDArray[np.float64]) -> float | None:
            return float(values.mean()) if n else None

        def per_merge(excess: NDArray[np.float64]) -> float | None:
            return float((excess * self.requests).sum() / 100 / total) if total else None

        return {
            "gain_pp": mean(gains),
            "interval_pp": limits,
            "lower_bound_pp": self.lower_bound,
            "t_interval_pp": limits,
            "p_stratified": None,
            "p_sign_flip": self.p,
            "p_rank": None,
            "p_crossed": None,
            "p_sequential": None,
            "p": self.p,
            "p_holm": p_holm,
            "attainable_p": floor,
            "n_seeds": n,
            "n_draws": 1,
            "mde_pp": detectable_gain(gains, alpha, 0.9) if n and floor is not None and floor <= alpha else None,
            "policy_excess_pp": mean(self.policy),
            "control_excess_pp": mean(self.control),
            "no_sync_violation_pct": mean(self.idle),
            "policy_violations_per_merge": per_merge(self.policy),
            "control_violations_per_merge": per_merge(self.control),
            "optimum_gain_pp": None,
            "gain_captured": None,
            "requests_saved_per_sidecar_per_10_min": mean(gains * self.requests / 100 * 600 / span_s),
            "per_seed": [
                {
                    "seed": self.blocks[i],
                    "merges": int(self.merges[i]),
                    "policy": float(self.policy[i]),
                    "draw_mean": float(self.control[i]),
                    "draw_sd": 0.0,
                    "rank": 1 if gains[i] > 0 else 2,
                    "of": 2,
                    "no_sync_pct": float(self.idle[i]),
                    "optimum": None,
                }
                for i in range(n)
            ],
            "controls": [],
        }


def paired(blocks: Sequence[Block], slo: Slo, rng: np.random.Generator, alpha: float) -> Paired:
    """Compare the matched blocks; the rest are no comparison of placements.

    With one control a block, both tests of SPEC 6 come to the same: policy and control exchange their labels in each
    block independently.  Under H0 they are exchangeable, so their difference is symmetric whatever the costs are.
    """
    kept = matched(blocks)
    rate = {arm: np.array([_percent(b[arm], slo) for b in kept]) for arm in ARMS}
    slope = (rate[AFTER] - rate[BEFORE]) / (len(ARMS) - 1)
    baseline = {arm: rate[BEFORE] + ARMS.index(arm) * slope for arm in (POLICY, CONTROL)}
    found = Paired(
        blocks=tuple(b[POLICY].block for b in kept),
        merges=np.array([b[POLICY].served.n_merges for b in kept], np.int64),
        policy=rate[POLICY] - baseline[POLICY],
        control=rate[CONTROL] - baseline[CONTROL],
        idle=(rate[BEFORE] + rate[AFTER]) / 2,
        requests=np.array([len(b[POLICY].served.requests) for b in kept], np.int64),
        test=undecidable("paired sign flip", len(kept), f"{len(kept)} paired blocks, fewer than {MIN_BLOCKS}"),
        lower_bound=None,
    )
    if len(kept) < MIN_BLOCKS:
        return found
    gains = found.gains
    sem = float(stats.sem(gains))
    lower = float(gains.mean() - stats.t.ppf(1 - alpha, len(gains) - 1) * sem)
    return Paired(**{**vars(found), "test": sign_flip(-gains, rng), "lower_bound": lower})


def _percent(segment: Segment, slo: Slo) -> float:
    m = segment.served.requests
    return 100 * float(m.violates(slo).mean()) if len(m) else 0.0


def placement(found: Paired, p_holm: float | None, alpha: float, min_effect_pp: float) -> GateResult:
    """Passes when the Holm-adjusted p is at most alpha and the gain's lower bound exceeds the minimum effect."""
    title, n = "matched random control, live", len(found.blocks)
    gains = found.gains
    seen = f"gain {gains.mean():.2f} pp over {n} paired blocks" if n else "no paired block"
    interval = t_interval(gains, 0.95)
    limits = None if interval is None else (interval.lower, interval.upper)
    floor = 2.0**-n
    if found.p is None or p_holm is None or found.lower_bound is None or floor > alpha:
        why = found.test.reason or f"no p below {floor:.3g} is attainable"
        reason = f"{seen}: {why}; the smallest p that {n} blocks could give is {floor:.3g}"
        estimate = float(gains.mean()) if n else None
        return GateResult("G3", title, (Check("placement", "undecidable", reason, estimate, None, n, limits),))
    status = "passed" if p_holm <= alpha else "failed"
    reason = f"{seen}, Holm p = {p_holm:.3g} by sign flip (smallest attainable {floor:.3g})"
    better = Check("placement", status, reason, p_holm, alpha, n, limits)  # type: ignore[arg-type]
    bound = f"lower bound of the gain {found.lower_bound:.3f} pp, minimum effect {min_effect_pp:g} pp"
    enough = "passed" if found.lower_bound > min_effect_pp else "failed"
    effect = Check("effect", enough, bound, found.lower_bound, min_effect_pp, n, limits)  # type: ignore[arg-type]
    return GateResult("G3", title, (better, effect))


# G4 --------------------------------------------------------------------------------------------------------------


def progress(blocks: Sequence[Block], corridor: Corridor, tokens_per_step: int) -> GateResult:
    """Inner steps, tokens and merges of the policy equal its control's; training stops while a merge runs."""
    kept = matched(blocks)
    title = "training progress"
    if not kept:
        return GateResult("G4", title, (Check("inner steps", "undecidable", "no matched block", n=0),))
    steps = {
        arm: [(corridor.horizon_ns - b[arm].served.n_merges * corridor.merge_ns) // corridor.step_ns for b in kept]
        for arm in (POLICY, CONTROL)
    }
    lost = max(abs(b[POLICY].served.busy_ns - b[CONTROL].served.busy_ns) for b in kept) / corridor.step_ns
    tokens = [s * tokens_per_step for s in steps[POLICY]]
    reason = (
        f"{min(steps[POLICY])} to {max(steps[POLICY])} inner steps a segment in both arms; executed merges differ by "
        f"{lost:.1f} steps at most"
    )
    details = {"inner_steps": steps[POLICY], "tokens": tokens}
    equal = "passed" if steps[POLICY] == steps[CONTROL] else "failed"
    return GateResult("G4", title, (Check("inner steps", equal, reason, lost, None, len(kept), details=details),))  # type: ignore[arg-type]
