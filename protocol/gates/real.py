"""What the gates ask of replays on a real server, beside or instead of what they ask of a simulation."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy import stats

from protocol.campaign import real
from protocol.evidence.store import NO_SYNC, POLICY, UNIFORM, SeedEvidence
from protocol.gates.load_match import load_match_gate
from protocol.gates.result import Check, GateResult, Status
from protocol.gates.transfer import MIN_RATIO, transfer_gate
from protocol.merging.corridor import Corridor
from protocol.replay.measurements import FAILED, REFUSED, SERVED, Measurements
from protocol.replay.replay import MERGE_WITHIN_NS, NO_SYNC_AGAIN, SENT_SHARE, SENT_WITHIN_NS, Replayed
from protocol.stats.equivalence import rate_limit, tost_paired
from protocol.stats.ratios import transfer_ratio
from protocol.workload.slo import Slo
from protocol.workload.trace import NS_PER_S

#: Margin in pp of the A/A comparison when the declared minimum effect is 0; otherwise it is half of that effect.
AA_MARGIN_PP = 1.0
#: Requests sent a second over those scheduled a second, in every replay.
RATE_WITHIN = 0.01


def replay_checks(
    evidence: Sequence[SeedEvidence], corridor: Corridor, root_seed: int, draws: int, attempts: int
) -> tuple[Check, ...]:
    """G0 of the replays: all there, in the order drawn beforehand, complete, and with equal realised merges."""
    return _replays(evidence, corridor, root_seed, draws, attempts), _realised(evidence, corridor, draws)


def _replays(evidence: Sequence[SeedEvidence], corridor: Corridor, root_seed: int, draws: int, attempts: int) -> Check:
    name, total, repeated, missing = "replays", 0, 0, None
    for e in evidence:
        expected = {(u.arm, u.draw): u.position for u in real.units(root_seed, e.regime, e.seed, draws)}
        found = real.valid(e)
        for (arm, draw), position in expected.items():
            tries = sorted((r for r in e.replays if (r.arm, r.draw) == (arm, draw)), key=lambda r: r.attempt)
            what = f"seed {e.seed}, {arm}" + (f" {draw}" if arm == UNIFORM else "")
            if [r.attempt for r in tries] != list(range(1, len(tries) + 1)) or len(tries) > attempts:
                reason = f"{what}: attempts {[r.attempt for r in tries]}, expected 1 to at most {attempts}"
                return Check(name, "failed", reason)
            if any(r.invalid is None for r in tries[:-1]):
                return Check(name, "failed", f"{what}: replayed again although an attempt was valid")
            if any(r.position != position for r in tries):
                return Check(name, "failed", f"{what}: not at the place in the order that was drawn for it")
            if (arm, draw) not in found and missing is None:
                why = f"{len(tries)} attempts, the last invalid: {tries[-1].invalid}" if tries else "not replayed"
                missing = f"{what}: {why}"
            repeated += max(len(tries) - 1, 0)
        if len(e.replays) != sum((r.arm, r.draw) in expected for r in e.replays):
            return Check(name, "failed", f"seed {e.seed}: a replay that nobody asked for")
        begun = [r.started for r in sorted(e.replays, key=lambda r: (r.position, r.attempt))]
        if begun != sorted(begun):
            return Check(name, "undecidable", f"seed {e.seed}: replays did not start in the order that was drawn")
        for r in e.replays:
            wrong = _unlike(e, r, corridor)
            if wrong:
                return Check(name, "failed", f"{r.what}: {wrong}")
        total += len(found)
    if missing:
        return Check(name, "undecidable", missing, n=total)
    reason = f"{total} valid replays, in random order within each seed, every request accounted for"
    return Check(
        name, "passed", f"{reason}; {repeated} invalid attempts repeated", n=total, details={"repeated": repeated}
    )


def _unlike(e: SeedEvidence, r: Replayed, corridor: Corridor) -> str | None:
    """Rows or merges that are not those asked for."""
    if len(r.measurements) != e.n_requests:
        return f"{len(r.measurements)} rows for {e.n_requests} scheduled requests"
    if not np.isin(r.measurements.outcome, (SERVED, FAILED, REFUSED)).all():
        return "a request without an outcome"
    asked = corridor.start_ns(real.gaps_of(e, r.arm, r.draw))
    if not np.array_equal(r.planned_ns, np.stack([asked, asked + corridor.merge_ns], axis=1)):
        return "its merges are not those of the stored schedule"
    return None


def _realised(evidence: Sequence[SeedEvidence], corridor: Corridor, draws: int) -> Check:
    """Merges and busy seconds counted from the execution log inside the horizon, policy against every draw."""
    name, spread_s, realised = "realised merges", 0.0, []
    for e in evidence:
        found = real.valid(e)
        arms = [(POLICY, 0), *((UNIFORM, draw) for draw in range(draws))]
        if any(arm not in found for arm in arms):
            return Check(name, "undecidable", f"seed {e.seed}: not every arm was replayed")
        merges, busy_s = zip(*(_inside(found[arm], corridor) for arm in arms), strict=True)
        for (arm, draw), count, busy in zip(arms, merges, busy_s, strict=True):
            if count != merges[0] or abs(busy - busy_s[0]) > 2 * merges[0] * MERGE_WITHIN_NS / NS_PER_S:
                reason = (
                    f"seed {e.seed}, {arm} {draw}: {count} merges and {busy:.2f} busy seconds inside the horizon, "
                    f"the policy {merges[0]} and {busy_s[0]:.2f}"
                )
                return Check(name, "failed", reason)
        spread_s = max(spread_s, max(busy_s) - min(busy_s))
        realised.append(merges[0])
    reason = (
        f"by the execution log, policy and every draw ran the same merges inside the horizon "
        f"({min(realised)} to {max(realised)} a seed), busy for the same time to within {spread_s:.3f} s"
    )
    return Check(name, "passed", reason, spread_s, n=len(realised), details={"realised": realised})


def _inside(r: Replayed, corridor: Corridor) -> tuple[int, float]:
    begin = np.clip(r.ran_ns[:, 0], 0, corridor.horizon_ns)
    end = np.clip(r.ran_ns[:, 1], 0, corridor.horizon_ns)
    return int(np.count_nonzero(end > begin)), float((end - begin).sum()) / NS_PER_S


def transfer_in_replay(
    evidence: Sequence[SeedEvidence], server: str, calibration: Mapping[str, Any] | None, alpha: float
) -> GateResult:
    """G1 from the replays: p95 of exposed over unexposed requests under the uniform draws, one ratio a seed.

    The policy's own merges follow the load, so they say nothing about the effect of a merge; the draws do not.  The
    draws of a seed share its traffic, so the seed is the run.  A request that was not served took infinitely long.
    Agreement with the simulator is asked for only when a calibration is given: nothing else rests on the simulator.
    """
    sides = np.array([_sides([r for (arm, _), r in real.valid(e).items() if arm == UNIFORM]) for e in evidence])
    top, bottom, exposed, unexposed = sides.reshape(-1, 4).T
    found = transfer_ratio(top, bottom, exposed.astype(int), unexposed.astype(int), threshold=MIN_RATIO, alpha=alpha)
    if found.outcome.pvalue is None or found.lower_bound is None or found.interval is None:
        effect = Check("effect", "undecidable", found.outcome.reason or "no p-value", n=found.outcome.n)
    else:
        own = np.array([_sides([r for (arm, _), r in real.valid(e).items() if arm == POLICY]) for e in evidence])
        reason = (
            f"p95 of exposed over unexposed requests {found.ratio:.3f} under random merges on {server}, "
            f"{found.outcome.n} seeds, lower bound {found.lower_bound:.3f}, minimum {MIN_RATIO:g}"
        )
        details = {"lower_bound": found.lower_bound, "run_ratios": np.exp(found.log_ratios).tolist()}
        with np.errstate(invalid="ignore", divide="ignore"):
            ratios = own[:, 0] / own[:, 1]
        details["policy_ratios"] = [float(x) if np.isfinite(x) else None for x in ratios]
        effect = Check(
            "effect", "passed" if found.lower_bound > MIN_RATIO else "failed", reason, found.ratio, MIN_RATIO,
            found.outcome.n, (found.interval.lower, found.interval.upper), details,
        )  # fmt: skip
    checks = [effect]
    if calibration is not None:
        checks += [c for c in transfer_gate(calibration, alpha).checks if c.name.startswith("agreement")]
    return GateResult("G1", "real-sidecar effect transfer", tuple(checks))


def _sides(made: Sequence[Replayed]) -> tuple[float, float, int, int]:
    """p95 in ms of exposed and unexposed requests of some replays together, and how many there are of each."""
    if not made:
        return np.nan, np.nan, 0, 0
    latency = np.concatenate([_latency_ms(r.measurements) for r in made])
    exposed = np.concatenate([r.measurements.exposure_ns > 0 for r in made])
    return _p95(latency[exposed]), _p95(latency[~exposed]), int(exposed.sum()), int((~exposed).sum())


def _latency_ms(m: Measurements) -> NDArray[np.float64]:
    return np.where(m.outcome == SERVED, m.e2e_ns / 1e6, np.inf)


def _p95(values: NDArray[np.float64]) -> float:
    return float(np.quantile(values, 0.95, method="higher")) if len(values) else np.nan


def load_match_in_replay(
    evidence: Sequence[SeedEvidence],
    served: Sequence[SeedEvidence],
    slo: Slo,
    index: int,
    alpha: float,
    min_effect_pp: float,
) -> GateResult:
    """G2 of the replays.  evidence : with the replays.  served : the same seeds as `real.as_served` gives them."""
    title = "no-sync load match"
    arms = (POLICY, NO_SYNC, UNIFORM)
    for e, s in zip(evidence, served, strict=True):
        gone = [arm for arm in arms if arm not in s.placed]
        if (NO_SYNC_AGAIN, 0) not in real.valid(e):
            gone.append(NO_SYNC_AGAIN)
        if gone:
            reason = f"seed {e.seed}: not every replay of {gone[0]} is there"
            return GateResult("G2", title, (Check("offered load", "undecidable", reason),))
    made = [r for e in evidence for r in real.valid(e).values()]
    checks = [*load_match_gate(served, slo, index).checks, _every_arm(evidence), _sent(made), _rate(made)]
    return GateResult("G2", title, (*checks, _again(evidence, slo, alpha, min_effect_pp)))


def _every_arm(evidence: Sequence[SeedEvidence]) -> Check:
    """Every replay was offered the seed's trace, and its served requests gave the tokens that were asked for."""
    for e in evidence:
        trace = e.requests[POLICY]
        for r in real.valid(e).values():
            for column in ("arrival_ns", "prompt_tokens", "island"):
                if not np.array_equal(getattr(r.measurements, column), getattr(trace, column)):
                    return Check("every arm", "failed", f"{r.what}: {column} is not that of the seed's trace")
            both = (r.measurements.outcome == SERVED) & (trace.outcome == SERVED)
            other = np.flatnonzero(both & (r.measurements.output_tokens != trace.output_tokens))
            if other.size:
                k = other[0]
                got, asked = r.measurements.output_tokens[k], trace.output_tokens[k]
                return Check("every arm", "failed", f"{r.what}: request {k} gave {got} tokens of {asked} asked for")
    n = sum(len(real.valid(e)) for e in evidence)
    return Check("every arm", "passed", f"{n} replays were offered their seed's trace and gave its tokens", n=n)


def _sent(made: Sequence[Replayed]) -> Check:
    worst = min(made, key=lambda r: r.sent_share)
    delays = np.concatenate([r.send_delay_ns for r in made]) / 1e6
    found = {f"p{q:g}_ms": float(np.quantile(delays, q / 100)) for q in (50, 99, 99.9, 100)} if len(delays) else {}
    reason = (
        f"at least {100 * worst.sent_share:.2f} % of every replay was sent within {SENT_WITHIN_NS / 1e6:g} ms of "
        f"schedule; delays of all: median {found.get('p50_ms', 0):.2f} ms, p99 {found.get('p99_ms', 0):.2f} ms"
    )
    status: Status = "passed" if worst.sent_share >= SENT_SHARE else "failed"
    return Check("send delay", status, reason, worst.sent_share, SENT_SHARE, len(delays), details=found)


def _rate(made: Sequence[Replayed]) -> Check:
    ratios = []
    for r in made:
        m = r.measurements
        sent = m.sent_ns >= 0
        if np.count_nonzero(sent) > 1 and np.ptp(m.arrival_ns) > 0:
            offered = (len(m) - 1) / np.ptp(m.arrival_ns)
            ratios.append(float((np.count_nonzero(sent) - 1) / np.ptp(m.sent_ns[sent]) / offered))
    if not ratios:
        return Check("achieved rate", "undecidable", "no replay sent two requests")
    worst = max(ratios, key=lambda ratio: abs(ratio - 1))
    reason = f"achieved over offered rate {min(ratios):.4f} to {max(ratios):.4f}, expected within {RATE_WITHIN:g} of 1"
    status: Status = "passed" if abs(worst - 1) <= RATE_WITHIN else "failed"
    return Check("achieved rate", status, reason, worst, RATE_WITHIN, len(ratios))


def _again(evidence: Sequence[SeedEvidence], slo: Slo, alpha: float, min_effect_pp: float) -> Check:
    """A/A: two replays of a seed without merges have equivalent violation rates."""
    margin_pp = min_effect_pp / 2 if min_effect_pp > 0 else AA_MARGIN_PP
    said = "half the minimum effect" if min_effect_pp > 0 else "declared, as the minimum effect is 0"
    pairs = [[real.valid(e)[arm, 0].measurements for e in evidence] for arm in (NO_SYNC, NO_SYNC_AGAIN)]
    missed = np.array([[m.violates(slo).sum() for m in arm] for arm in pairs])
    pct = 100 * missed / np.array([e.n_requests for e in evidence])
    found = tost_paired(pct[0], pct[1], margin_pp, alpha)
    p, interval = found.outcome.pvalue, (found.interval.lower, found.interval.upper) if found.interval else None
    how = "t over seeds"
    if p is None and len(evidence) > 1 and np.array_equal(missed[0], missed[1]):
        # Nothing varies, so t has no measure.  The rates differ by no more than the share of requests on which the two
        # replays disagree.  Requests of one second may share a stall, so the seconds with arrivals are the units.
        units = sum(len(np.unique(m.arrival_ns // NS_PER_S)) for m in pairs[0])
        apart_n = sum(int((a.violates(slo) != b.violates(slo)).sum()) for a, b in zip(*pairs, strict=True))
        p = float(stats.binom.cdf(apart_n, units, min(margin_pp / 100, 0.5)))
        limit = 100 * rate_limit(min(apart_n, units), units, alpha)
        how = f"equal counts in every seed, {apart_n} requests judged otherwise; Clopper-Pearson on {units} seconds"
        interval = (-limit, limit)
    details = {"margin_pp": margin_pp, "no_sync_pct": pct[0].tolist(), "no_sync_again_pct": pct[1].tolist()}
    if p is None or interval is None:
        reason = found.outcome.reason or "no p-value"
        return Check("A/A", "undecidable", reason, None, alpha, len(evidence), details=details)
    apart = interval[0] > margin_pp or interval[1] < -margin_pp
    status: Status = "passed" if p <= alpha else "failed" if apart else "undecidable"
    reason = (
        f"two no-sync replays of each seed differ by {float((pct[0] - pct[1]).mean()):.3f} pp, "
        f"{interval[0]:.3f} to {interval[1]:.3f}, margin {margin_pp:g} pp ({said}): TOST p = {p:.3g} ({how})"
    )
    return Check("A/A", status, reason, p, alpha, len(evidence), interval, details)
