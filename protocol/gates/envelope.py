"""G3: better than matched random placement, and by looking at the load."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from protocol import seeds
from protocol.evidence.store import (
    CROSSED,
    NO_SYNC,
    OPTIMUM,
    PARTNERS,
    PERMUTED,
    POLICY,
    SHIFTED,
    TIMING,
    UNIFORM,
    SeedEvidence,
)
from protocol.gates.result import Check, GateResult
from protocol.merging.corridor import Corridor
from protocol.stats.envelope import Envelope, envelope
from protocol.stats.randomization import crossed
from protocol.stats.result import Interval, TestOutcome
from protocol.stats.sequential import SequentialOutcome, StoppingRule, besag_clifford
from protocol.workload.trace import NS_PER_S

#: Level of the stopping rule of sequential draws; certificates at a smaller alpha are stricter still.
SEQUENTIAL_ALPHA = 0.05
UNRELATED, PLACEBO = "unrelated-trace", "placebo"

#: Of peer schedules, the matched draws keep more than the number of merges.
_PEERS = "same sizes of merges, and merges, busy time and bytes of each island, at random: better than chance?"
#: What each control keeps of the policy's schedule, and the question that the rest answers.
QUESTIONS = {
    UNIFORM: "same number of merges, uniform over the corridor: better than chance?",
    PERMUTED: "own gaps in random order: does the order of the gaps matter?",
    SHIFTED: "own schedule moved in time: does its phase matter?",
    UNRELATED: "own schedules exchanged between traces: do they follow the load?",
    TIMING: "own groups at other times: does the timing matter?",
    PARTNERS: "own times with partners exchanged: does it matter who merges with whom?",
    PLACEBO: "schedules made on other traces against uniform draws: is there a gain without looking?",
}


@dataclass(frozen=True, eq=False)
class Measured:
    """Everything about one regime and SLO that the envelope's verdict rests on.

    excess : sync-excess violations in percentage points, by arm: policy (S,), draws of each control S arrays.
    tests : the matched envelope.  independence : whether the schedules know their traces.
    p : the largest of the p-values, None when any is undecidable, with `reason`.  p_sequential : of draws that may stop
        early; it counts when they did.
    """

    seeds: tuple[int, ...]
    merges: NDArray[np.int64]
    tests: Envelope
    independence: TestOutcome
    p: float | None
    p_sequential: float | None
    reason: str | None
    no_sync_pct: NDArray[np.float64]
    optimum_pp: NDArray[np.float64]
    per_merge: tuple[float, float]
    requests_saved: float
    controls: tuple[Mapping[str, Any], ...]

    def to_json(self, p_holm: float | None) -> dict[str, Any]:
        """Plain values; unknown is None."""
        t = self.tests
        known = len(t.policy) == len(self.seeds)
        optimum_gain = _finite(np.mean(t.draw_mean - self.optimum_pp)) if known else None
        captured = t.gain / optimum_gain if t.gain is not None and optimum_gain else None
        per_seed = [
            {
                "seed": seed,
                "merges": int(self.merges[i]),
                "policy": float(t.policy[i]),
                "draw_mean": float(t.draw_mean[i]),
                "draw_sd": float(t.draw_sd[i]),
                "rank": int(t.ranks[i]),
                "of": t.n_draws + 1,
                "no_sync_pct": float(self.no_sync_pct[i]),
                "optimum": _finite(self.optimum_pp[i]),
            }
            for i, seed in enumerate(self.seeds)
            if known
        ]
        return {
            "gain_pp": t.gain,
            "interval_pp": _limits(t.interval),
            "lower_bound_pp": _finite(t.lower_bound),
            "t_interval_pp": _limits(t.t_interval),
            "p_stratified": t.stratified.pvalue,
            "p_sign_flip": t.sign_flip.pvalue,
            "p_rank": t.rank.pvalue,
            "p_crossed": self.independence.pvalue,
            "p_sequential": self.p_sequential,
            "p": self.p,
            "p_holm": p_holm,
            "attainable_p": t.floor,
            "n_seeds": t.n_seeds,
            "n_draws": t.n_draws,
            "mde_pp": t.detectable,
            "policy_excess_pp": _finite(np.mean(t.policy)) if known else None,
            "control_excess_pp": _finite(np.mean(t.draw_mean)) if known else None,
            "no_sync_violation_pct": _finite(np.mean(self.no_sync_pct)),
            "policy_violations_per_merge": _finite(self.per_merge[0]),
            "control_violations_per_merge": _finite(self.per_merge[1]),
            "optimum_gain_pp": optimum_gain,
            "gain_captured": _finite(captured),
            "requests_saved_per_sidecar_per_10_min": _finite(self.requests_saved),
            "per_seed": per_seed,
            "controls": list(self.controls),
        }


def measure(
    evidence: Sequence[SeedEvidence],
    slo: int,
    corridor: Corridor,
    islands: int,
    root_seed: int,
    alpha: float,
    most: int | None = None,
    simulated: Sequence[SeedEvidence] | None = None,
) -> Measured:
    """The envelope of one regime for its SLO number `slo`; never raises on missing arms, they are undecidable.

    most : draws a seed at which sequential drawing would have ended; None when the number was fixed.
    simulated : the seeds as they were simulated, when `evidence` is what a real server made of them.  The exchange
        between traces, whose replays grow with the square of the seeds, is then read from there.
    """
    name = evidence[0].regime
    placed_in = evidence if simulated is None else simulated
    requests = np.array([e.n_requests for e in evidence], np.float64)
    idle = np.array([_violations(e, NO_SYNC, slo)[0] for e in evidence], np.float64)

    def excess(arm: str) -> list[NDArray[np.float64]]:
        return [100 * (_violations(e, arm, slo) - idle[i]) / requests[i] for i, e in enumerate(evidence)]

    policy = np.array([values[0] for values in excess(POLICY)])
    best = np.array([values[slo] if len(values) > slo else np.nan for values in excess(OPTIMUM)])
    merges = np.array([e.placed[POLICY].lengths[0] for e in placed_in], np.int64)

    def stream(what: str) -> np.random.Generator:
        return seeds.generator(root_seed, "test", what, name, slo)

    tests = envelope(policy, excess(UNIFORM), stream("envelope"), alpha=alpha)
    simulated_idle = np.array([_violations(e, NO_SYNC, slo)[0] for e in placed_in], np.float64)
    cost = _cost_per_merge(placed_in, slo, simulated_idle)
    independence = crossed(cost, stream("crossed"))
    exchanged = _exchanged(cost) * merges
    ps = [tests.pvalue, independence.pvalue]
    sequential = sequential_test(evidence, slo, most) if most is not None else None
    if sequential is not None and (sequential.stopped_early or sequential.pvalue is None):
        ps.append(sequential.pvalue)
    known = [p for p in ps if p is not None]
    reasons = (tests.reason, independence.reason, sequential.reason if sequential is not None else None)
    missing = next((reason for reason in reasons if reason), None)
    gain_requests = np.mean((tests.draw_mean - tests.policy) * requests / 100) if len(tests.policy) else np.nan
    with np.errstate(all="ignore"):  # an edited file may name no islands; what is not finite is shown as unknown
        requests_saved = float(np.float64(gain_requests) * 600 / (corridor.horizon_ns / NS_PER_S) / islands)
    total = merges.sum()
    peers = any(TIMING in e.placed for e in evidence)
    per_merge = (
        (float((policy * requests).sum() / 100 / total), float((tests.draw_mean * requests).sum() / 100 / total))
        if total and len(tests.draw_mean)
        else (np.nan, np.nan)
    )
    return Measured(
        seeds=tuple(e.seed for e in evidence),
        merges=merges,
        tests=tests,
        independence=independence,
        p=max(known) if len(known) == len(ps) else None,
        p_sequential=sequential.pvalue if sequential is not None else None,
        reason=missing,
        no_sync_pct=100 * idle / requests,
        optimum_pp=best,
        per_merge=per_merge,
        requests_saved=requests_saved,
        controls=tuple(
            _controls(policy, exchanged, tests, independence, excess, stream, alpha, peers)
            if simulated is None
            else _replayed_controls(simulated, slo, exchanged, simulated_idle, tests, independence, alpha)
        ),
    )


def sequential_test(evidence: Sequence[SeedEvidence], slo: int, most: int) -> SequentialOutcome:
    """Besag and Clifford's test on joint draws: draw j is the sum over seeds of each seed's j-th draw.

    The rule stops only once the p-value must exceed 5 %, so a certificate is only ever given on all draws.
    """
    requests = [e.n_requests for e in evidence]
    own = sum(_violations(e, POLICY, slo)[0] / n for e, n in zip(evidence, requests, strict=True))
    fewest = min(len(_violations(e, UNIFORM, slo)) for e in evidence)
    joint = sum(_violations(e, UNIFORM, slo)[:fewest] / n for e, n in zip(evidence, requests, strict=True))
    return besag_clifford(float(own), np.asarray(joint).tolist(), StoppingRule.futility(SEQUENTIAL_ALPHA, most))


def _violations(e: SeedEvidence, arm: str, slo: int) -> NDArray[np.float64]:
    placed = e.placed.get(arm)
    return np.array([np.nan]) if placed is None else placed.violations[:, slo].astype(np.float64)


def _cost_per_merge(evidence: Sequence[SeedEvidence], slo: int, idle: NDArray[np.float64]) -> NDArray[np.float64]:
    """cost[s, t]: sync-excess violations per merge of the schedule made on trace t, replayed on trace s, in pp."""
    size = len(evidence)
    cost = np.full((size, size), np.nan)
    for s, e in enumerate(evidence):
        placed = e.placed.get(CROSSED)
        if placed is not None and len(placed) == size:
            merges = np.where(placed.lengths > 0, placed.lengths, np.nan)
            cost[s] = 100 * (placed.violations[:, slo] - idle[s]) / merges / e.n_requests
    return cost


def _exchanged(cost: NDArray[np.float64]) -> NDArray[np.float64]:
    """Mean cost per merge on each trace of the schedules made on the other traces, shape (S,)."""
    size = len(cost)
    return (cost.sum(axis=1) - np.diagonal(cost)) / (size - 1) if size > 1 else np.full(size, np.nan)


def _controls(
    policy: NDArray[np.float64],
    exchanged: NDArray[np.float64],
    tests: Envelope,
    independence: TestOutcome,
    excess: Callable[[str], list[NDArray[np.float64]]],
    stream: Callable[[str], np.random.Generator],
    alpha: float,
    peers: bool,
) -> list[dict[str, Any]]:
    """The controls side by side; only the uniform draws and the exchange between traces decide."""
    found = [_control(UNIFORM, tests.gain, tests.pvalue, tests.n_seeds * tests.n_draws, True, alpha)]
    if peers:
        found[0]["question"] = _PEERS
    for arm in (TIMING, PARTNERS) if peers else (PERMUTED, SHIFTED):
        draws = excess(arm)
        usable = [i for i, d in enumerate(draws) if len(d) and np.isfinite(d).all()]
        result = envelope(policy[usable], [draws[i] for i in usable], stream(arm), alpha=alpha, min_draws=1)
        found.append(_control(arm, result.gain, result.pvalue, sum(len(draws[i]) for i in usable), False, alpha))
    own = _finite(np.mean(exchanged - policy)) if len(exchanged) else None
    found.append(_control(UNRELATED, own, independence.pvalue, independence.n, True, alpha))
    placebo = envelope(exchanged, excess(UNIFORM), stream(PLACEBO), alpha=alpha)
    found.append(_control(PLACEBO, placebo.gain, placebo.pvalue, placebo.n_seeds * placebo.n_draws, False, alpha))
    return found


def _replayed_controls(
    simulated: Sequence[SeedEvidence],
    slo: int,
    exchanged: NDArray[np.float64],
    idle: NDArray[np.float64],
    tests: Envelope,
    independence: TestOutcome,
    alpha: float,
) -> list[dict[str, Any]]:
    """The two that decide: the draws as the server served them, and the exchange as it was simulated."""
    own = [100 * (_violations(e, POLICY, slo)[0] - idle[i]) / e.n_requests for i, e in enumerate(simulated)]
    exchange = _control(UNRELATED, _finite(np.mean(exchanged - own)), independence.pvalue, independence.n, True, alpha)
    exchange["question"] = f"{exchange['question']} (simulated)"
    return [_control(UNIFORM, tests.gain, tests.pvalue, tests.n_seeds * tests.n_draws, True, alpha), exchange]


def _control(name: str, gain: float | None, p: float | None, n: int, gates: bool, alpha: float) -> dict[str, Any]:
    if p is None:
        says = "undecidable"
    elif p <= alpha:
        says = {
            UNIFORM: "better than chance",
            UNRELATED: "the schedules follow the load",
            PLACEBO: "a gain without looking",
        }.get(name, "it matters")
    else:
        says = {
            UNIFORM: "not shown to beat chance",
            UNRELATED: "not shown to follow the load",
            PLACEBO: "no gain without looking was shown",
        }.get(name, "not shown")
    return {
        "name": name,
        "question": QUESTIONS[name],
        "gain_pp": _finite(gain),
        "p": p,
        "n": n,
        "gates": gates,
        "says": says,
    }


def envelope_gate(measured: Measured, p_holm: float | None, alpha: float, min_effect_pp: float) -> GateResult:
    """Passes when the Holm-adjusted p is at most alpha and the gain's lower bound exceeds the minimum effect."""
    title = "matched random-deferral envelope"
    t = measured.tests
    floor = max(t.floor or 0.0, measured.independence.floor or 0.0)
    lower = _finite(t.lower_bound)
    if measured.p is None or p_holm is None or lower is None or t.gain is None or floor > alpha:
        reason = measured.reason or f"no p below {floor:.3g} was attainable, so none at {alpha:g}: more seeds or draws"
        return GateResult("G3", title, (Check("placement", "undecidable", reason, n=t.n_seeds),))
    limits = _limits(t.interval)
    interval = (limits[0], limits[1]) if limits and limits[0] is not None and limits[1] is not None else None
    found = {
        "the stratified test": t.stratified.pvalue or 0.0,
        "the sign-flip test": t.sign_flip.pvalue or 0.0,
        "the exchange between traces": measured.independence.pvalue or 0.0,
    }
    weakest = max(found, key=lambda name: found[name])
    detectable = f"; a gain of {t.detectable:.2f} pp would have been found 9 times in 10" if t.detectable else ""
    says = f"gain {t.gain:.2f} pp over {t.n_draws} matched draws in each of {t.n_seeds} seeds"
    significant = p_holm <= alpha
    blind = measured.independence.pvalue is not None and measured.independence.pvalue > alpha
    if significant:
        reason = f"{says}, Holm p = {p_holm:.3g}"
    elif blind and t.pvalue is not None and t.pvalue <= alpha:
        reason = (
            f"{says}, but exchanging its schedules between traces costs no more "
            f"(p = {measured.independence.pvalue:.3g}): "
            "the gain comes from its gaps or a clock, not from looking at the load"
        )
    else:
        reason = f"{says}, Holm p = {p_holm:.3g}, by {weakest} (p = {found[weakest]:.3g}){detectable}"
    placement = Check("placement", "passed" if significant else "failed", reason, p_holm, alpha, t.n_seeds, interval)
    enough = lower > min_effect_pp
    bound = f"lower bound of the gain {lower:.3f} pp, minimum effect {min_effect_pp:g} pp"
    effect = Check("effect", "passed" if enough else "failed", bound, lower, min_effect_pp, t.n_seeds, interval)
    load = Check(
        "load-aware",
        "failed" if blind else "passed",
        f"own schedules against the same schedules exchanged between traces: p = {measured.independence.pvalue:.3g}",
        measured.independence.pvalue,
        alpha,
        measured.independence.n,
    )
    return GateResult("G3", title, (placement, effect, load))


def _limits(interval: Interval | None) -> list[float | None] | None:
    return None if interval is None else [_finite(interval.lower), _finite(interval.upper)]


def _finite(value: float | np.floating[Any] | None) -> float | None:
    return float(value) if value is not None and np.isfinite(value) else None
