"""G3: better than matched random placement, and by following the load."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from protocol import seeds
from protocol.evidence.model import (
    CROSSED,
    OPTIMUM,
    PARTNERS,
    PERMUTED,
    PESSIMUM,
    SHIFTED,
    TIMING,
    Evidence,
)
from protocol.gates.prediction import predict, quieter, stated, stated_tests
from protocol.gates.progress import merges_of
from protocol.gates.result import Check, GateResult
from protocol.gates.spec import Spec
from protocol.gates.units import compared
from protocol.gates.unlike import uneven, weights
from protocol.replay.replay import NO_SYNC, POLICY, UNIFORM, Replay
from protocol.stats.gains import MIN_DRAWS, Adjusted, Gain, Gains, Standing, judge_gains, undecided
from protocol.stats.multiplicity import holm
from protocol.stats.power import detectable_gains, seen_spread
from protocol.stats.predicted import PredictedGain, decided_by
from protocol.stats.result import Interval
from protocol.stats.sequential import SequentialOutcome, joint_test
from protocol.workload.slo import Slo
from protocol.workload.trace import NS_PER_S

TITLE = "matched random-deferral envelope"
#: Powers of the curve that a claim states, and the one at which a gain is called detectable.
POWERS, DETECTABLE = tuple(k / 20 for k in range(1, 20)), 0.9
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
    """Everything about one regime and SLO that the envelope's verdict rests on; costs in pp of sync-excess violations.

    evidence : the seeds that are compared.  gains : both gains and their tests.  exchanged : float64, shape (S, S),
        None where schedules were not exchanged.  p : the largest p-value, of draws that may stop early also theirs.
    plain, predicted : where a prediction decides over chance, the gains by the replays alone and the prediction.
    power_curve : gains in pp, each with the power to find it; None where that is unknown.
    """

    spec: Spec
    slo: Slo
    index: int
    evidence: tuple[Evidence, ...]
    gains: Gains
    exchanged: NDArray[np.float64] | None
    sequential: SequentialOutcome | None
    p: float | None
    reason: str | None
    power_curve: tuple[tuple[float, float], ...] | None
    plain: Gains | None = None
    predicted: PredictedGain | None = None

    # What the replays cost ---------------------------------------------------------------------------------------

    def idle(self, e: Evidence, r: Replay | None = None) -> float:
        """Violations without merges beside a replay; NaN where they are missing.

        A live block runs in a fixed order, so its baseline is read off at the replay's own place between the nearest
        replays without merges: a steady drift cancels, and in the balanced order it is the mean of the two neighbours.
        Elsewhere the order is random and the mean of all of them serves.
        """
        if not self.spec.on_server:
            return _first(e.priced(NO_SYNC, self.index))
        idle = sorted((i.position, float(i.rows.violates(self.slo).sum())) for i in e.replays(NO_SYNC))
        if self.spec.back_end == "live" and r is not None:
            return float(np.interp(r.position, [place for place, _ in idle], [count for _, count in idle]))
        return float(np.mean([count for _, count in idle]))

    def excess(self, e: Evidence, arm: str) -> NDArray[np.float64]:
        """Sync-excess violations of an arm's schedules, pp, shape (n,)."""
        counts = e.violations(arm, self.slo, self.index)
        if self.spec.on_server:
            base = np.array([self.idle(e, r) for r in e.replays(arm)])
        else:
            base = np.full(len(counts), self.idle(e))
        return 100 * (counts - base) / e.n_requests

    def priced_excess(self, e: Evidence, arm: str) -> NDArray[np.float64]:
        """The same as simulated; empty where it was not."""
        idle = e.priced(NO_SYNC, self.index)
        return 100 * (e.priced(arm, self.index) - idle[0]) / e.n_requests if len(idle) else np.empty(0)

    def best(self, arm: str) -> NDArray[np.float64]:
        """The placement that was searched for this SLO, by seed; NaN where there is none."""
        found = [e.placed.get(arm) for e in self.evidence]
        rows = [self.priced_excess(e, arm) for e in self.evidence]
        return np.array(
            [
                row[self.index] if p is not None and len(row) > self.index else np.nan
                for row, p in zip(rows, found, strict=True)
            ]
        )

    # As the certificate states it --------------------------------------------------------------------------------

    def to_json(self, adjusted: Adjusted) -> dict[str, Any]:
        """Plain values; unknown is None."""
        g = self.gains
        return {
            **self._gains(),
            "min_effect_pp": self.spec.min_effect_pp,
            "tests": stated_tests(g.tests),
            "p": self.p,
            "decided_by": g.decided_by,
            "p_sequential": self.sequential.pvalue if self.sequential is not None else None,
            "p_holm": adjusted.claim,
            "standing": str(standing(self, adjusted)),
            "attainable_p": g.floor,
            "n_seeds": g.n_seeds,
            "n_draws": g.n_draws,
            "detectable_gain_pp": self.detectable,
            "power_curve": self.power_curve,
            "unseen_loss_share": g.unseen_share,
            **self._costs(),
            "controls": controls(self),
            **({} if self.predicted is None else {"predicted": stated(self.predicted, self.plain)}),
        }

    def _gains(self) -> dict[str, Any]:
        g, load = self.gains, self.gains.load
        seen = _finite(np.mean(g.draw_mean - g.policy)) if self.known else None
        worst = g.worst_seed if self.known else None
        return {
            "gain_pp": g.chance.estimate if g.chance is not None else seen,
            **_limits_of("", g.chance),
            "t_interval_pp": _limits(g.chance.t_interval) if g.chance else None,
            "load_gain_pp": load.estimate if load else None,
            **_limits_of("load_", load),
            "load_gain_simulated": self.spec.on_server and load is not None,
            "bounded_lower_bound_pp": g.bounded.lower_bound if g.bounded else None,
            "bounded_p": g.bounded.outcome.pvalue if g.bounded else None,
            "worst_seed": None if worst is None else self.evidence[worst].seed,
            "worst_seed_gain_pp": None if worst is None else float(g.draw_mean[worst] - g.policy[worst]),
        }

    @property
    def detectable(self) -> float | None:
        """The gain in pp that a run like this one would have found 9 times in 10."""
        return next((gain for gain, power in self.power_curve or () if power == DETECTABLE), None)

    @property
    def known(self) -> bool:
        """Whether every compared seed has its costs."""
        return len(self.gains.policy) == len(self.evidence) > 0

    def _costs(self) -> dict[str, Any]:
        """Means over seeds, and every seed's own figures; all unknown without the costs."""
        g, spec, known = self.gains, self.spec, self.known
        requests = np.array([e.n_requests for e in self.evidence], np.float64)
        merges = np.array([merges_of(e, POLICY, spec)[0] for e in self.evidence], np.float64) if known else np.empty(0)
        idle_pct = np.array([100 * self.idle(e) / e.n_requests for e in self.evidence])
        optimum = np.full(len(idle_pct), np.nan) if spec.on_server else self.best(OPTIMUM)
        best = _finite(np.mean(g.draw_mean - optimum)) if known else None
        with np.errstate(all="ignore"):  # an edited file may name no islands; what is not finite is unknown
            per_run = np.float64(np.mean((g.draw_mean - g.policy) * requests / 100)) if known else np.float64(np.nan)
            saved = per_run * 600 / (spec.corridor.horizon_ns / NS_PER_S) / spec.islands

        def per_merge(cost: NDArray[np.float64]) -> float | None:
            return _finite((cost * requests).sum() / 100 / merges.sum()) if known and merges.sum() else None

        return {
            "policy_excess_pp": _finite(np.mean(g.policy)) if known else None,
            "control_excess_pp": _finite(np.mean(g.draw_mean)) if known else None,
            "no_sync_violation_pct": _finite(np.mean(idle_pct)) if len(idle_pct) else None,
            "policy_violations_per_merge": per_merge(g.policy),
            "control_violations_per_merge": per_merge(g.draw_mean),
            "optimum_gain_pp": best,
            "gain_captured": _finite(np.mean(g.draw_mean - g.policy) / best) if best else None,
            "requests_saved_per_sidecar_per_10_min": _finite(saved),
            "per_seed": [
                {
                    "seed": e.seed,
                    "merges": int(merges[i]),
                    "policy": float(g.policy[i]),
                    "draw_mean": float(g.draw_mean[i]),
                    "draw_sd": float(g.draw_sd[i]),
                    "rank": int(g.ranks[i]),
                    "of": len(self.excess(e, UNIFORM)) + 1,
                    "no_sync_pct": float(idle_pct[i]),
                    "optimum": _finite(optimum[i]),
                }
                for i, e in enumerate(self.evidence if known else ())
            ],
        }


def measure(
    evidence: Sequence[Evidence], spec: Spec, index: int, bounded: bool = False, claims: int | None = None,
    further: Sequence[Evidence] = (),
) -> Measured:  # fmt: skip
    """The envelope of one regime for its SLO number `index`; never raises on missing arms, they are undecidable.

    further : seeds that were only simulated, whose prediction decides where one was asked for.
    claims : of the whole certificate, at whose first step of Holm a gain is said to be detectable; None: not asked.
    """
    kept = tuple(compared(evidence, spec))
    slo = spec.slos[index]
    bare = Measured(spec, slo, index, kept, _nothing(spec), None, None, None, None, None)
    policy = [_first(bare.excess(e, POLICY)) for e in kept]
    draws = [bare.excess(e, UNIFORM) for e in kept]
    exchanged = None if spec.back_end == "live" else _exchanged(bare)
    worst = bare.best(PESSIMUM)
    gains = judge_gains(
        policy,
        draws,
        exchanged,
        stream(spec, "envelope", index),
        delta=spec.min_effect_pp,
        alpha=spec.alpha,
        worst=worst if np.isfinite(worst).all() and len(worst) and not spec.on_server else None,
        best=bare.best(OPTIMUM) if not spec.on_server else None,
        bounded=bounded,
        watched=spec.until_decided,
        min_draws=1 if spec.back_end == "live" else MIN_DRAWS,
    )
    unlike = None if exchanged is None else uneven(kept, spec)
    # What is not shown anyway stays not shown.
    if unlike is not None and gains.pvalue is not None and (gains.at_zero("load") or 0.0) <= spec.alpha:
        gains = undecided(gains, unlike)
    plain, predicted = None, None
    if spec.predicted and gains.chance is not None:
        found = predict([[bare.priced_excess(e, arm) for arm in (POLICY, UNIFORM)] for e in kept], policy, draws,
                        [[bare.priced_excess(e, arm) for arm in (POLICY, UNIFORM)] for e in further])  # fmt: skip
        plain, gains = gains, decided_by(gains, found)
        predicted = None if isinstance(found, str) else found
    sequential = None
    if spec.sequential and kept:
        own, drawn = ([e.priced(arm, index) for e in kept] for arm in (POLICY, UNIFORM))
        sequential = joint_test(own, drawn, [e.n_requests for e in kept], spec.draws)
    ps, reason = [gains.pvalue], gains.reason
    if sequential is not None and (sequential.stopped_early or sequential.pvalue is None):
        ps.append(sequential.pvalue)
        reason = reason or sequential.reason
    known = [p for p in ps if p is not None]
    p = max(known) if len(known) == len(ps) else None
    left = quieter(policy, draws, predicted)
    curve = None if claims is None else _power_curve(spec, index, *left, exchanged, gains, bounded, claims)
    return Measured(spec, slo, index, kept, gains, exchanged, sequential, p, reason, curve, plain, predicted)


def _power_curve(
    spec: Spec, index: int, policy: list[float], draws: list[NDArray[np.float64]],
    exchanged: NDArray[np.float64] | None, gains: Gains, bounded: bool, claims: int,
) -> tuple[tuple[float, float], ...] | None:  # fmt: skip
    """Gains that a run like this one would have found with each power, by simulation with the spreads seen."""
    spread = seen_spread(policy, draws, exchanged) if gains.pvalue is not None else None
    if spread is None:
        return None
    lowest = gains.bounded.lowest if bounded and gains.bounded is not None else None
    found = detectable_gains(
        spread, gains.n_seeds, gains.n_draws, stream(spec, "detectable", index), powers=POWERS, alpha=spec.alpha,
        claims=claims, delta=spec.min_effect_pp, lowest=lowest,
    )  # fmt: skip
    return tuple((gain, power) for gain, power in zip(found, POWERS, strict=True) if gain is not None) or None


def _nothing(spec: Spec) -> Gains:
    return judge_gains([], [], None, np.random.default_rng(0), alpha=spec.alpha)


def stream(spec: Spec, what: str, index: int) -> np.random.Generator:
    return seeds.generator(spec.root_seed, "test", what, spec.regime, index)


def _first(values: NDArray[np.float64]) -> float:
    return float(values[0]) if len(values) else float("nan")


def _exchanged(measured: Measured) -> NDArray[np.float64]:
    """[s, t]: sync-excess violations in pp on trace s, as simulated, of the schedule that was made on trace t.

    Scaled to the merges of the schedule made on trace s, so that a schedule that merges less gains nothing by that;
    where merges are not all alike, to the time that they are busy.
    """
    size = len(measured.evidence)
    every = max((e.seed for e in measured.evidence), default=-1) + 1
    columns = [e.seed for e in measured.evidence]
    cost = np.full((size, size), np.nan)
    for row, e in enumerate(measured.evidence):
        placed, excess = e.placed.get(CROSSED), measured.priced_excess(e, CROSSED)
        if placed is not None and len(excess) >= every:
            busy = weights(placed, measured.spec)
            made = np.where(busy > 0, busy, np.nan)
            cost[row] = (excess / made * busy[e.seed])[columns]
    return cost


# Controls --------------------------------------------------------------------------------------------------------


def controls(measured: Measured) -> list[dict[str, Any]]:
    """The controls side by side, each alone and against no gain at all.

    Of the uniform draws and the exchanged schedules the gate asks more: the minimum effect, after Holm.

    Those that would cost a replay each are there in simulation only.
    """
    spec, gains, kept = measured.spec, measured.gains, measured.evidence
    if spec.back_end == "live" or not kept:
        return []
    gain = gains.chance.estimate if gains.chance else None
    found = [_control(UNIFORM, gain, gains.at_zero("chance"), gains.n_seeds * gains.n_draws, True, spec.alpha)]
    peers = any(TIMING in e.placed for e in kept)
    if peers:
        found[0]["question"] = _PEERS
    if not spec.on_server:
        for arm in (TIMING, PARTNERS) if peers else (PERMUTED, SHIFTED):
            found.append(_against(measured, arm))
    unrelated = _control(
        UNRELATED, gains.load.estimate if gains.load else None, gains.at_zero("load"), len(kept), True, spec.alpha
    )
    if spec.on_server:
        unrelated["question"] += " (simulated)"
    return [*found, unrelated, *([] if spec.on_server else [_placebo(measured)])]


def _against(measured: Measured, arm: str) -> dict[str, Any]:
    """The policy against one of the sensitivity controls, at no effect at all."""
    kept = [e for e in measured.evidence if len(measured.excess(e, arm)) and np.isfinite(measured.excess(e, arm)).all()]
    policy = [_first(measured.excess(e, POLICY)) for e in kept]
    draws = [measured.excess(e, arm) for e in kept]
    return _judged(measured, arm, policy, draws, 1)


def _placebo(measured: Measured) -> dict[str, Any]:
    cost, size = measured.exchanged, len(measured.evidence)
    known = cost is not None and size > 1
    others = (
        (cost.sum(axis=1) - np.diagonal(cost)) / (size - 1) if known and cost is not None else np.full(size, np.nan)
    )
    return _judged(
        measured, PLACEBO, others.tolist(), [measured.excess(e, UNIFORM) for e in measured.evidence], MIN_DRAWS
    )


def _judged(
    measured: Measured, name: str, policy: list[float], draws: list[NDArray[np.float64]], least: int
) -> dict[str, Any]:
    spec = measured.spec
    g = judge_gains(policy, draws, None, stream(spec, name, measured.index), alpha=spec.alpha, min_draws=least)
    gain = g.chance.estimate if g.chance else None
    return _control(name, gain, g.pvalue, sum(map(len, draws)), False, spec.alpha)


_SAYS = {
    UNIFORM: ("better than chance", "not shown to beat chance"),
    UNRELATED: ("the schedules follow the load", "not shown to follow the load"),
    PLACEBO: ("a gain without looking", "no gain without looking was shown"),
}


def _control(name: str, gain: float | None, p: float | None, n: int, gates: bool, alpha: float) -> dict[str, Any]:
    yes, no = _SAYS.get(name, ("it matters", "not shown"))
    return {
        "name": name,
        "question": QUESTIONS[name],
        "gain_pp": _finite(gain),
        "p": p,
        "n": n,
        "gates": gates,
        "says": "undecidable" if p is None else yes if p <= alpha else no,
    }


# The gate --------------------------------------------------------------------------------------------------------


def adjusted(measured: Sequence[Measured], alpha: float) -> list[Adjusted]:
    """Every claim's p-values after Holm over all of them: what is said of several is false at most alpha often."""
    found = (
        holm([m.p for m in measured], alpha).adjusted,
        *(holm([m.gains.at_zero(gain) for m in measured], alpha).adjusted for gain in ("chance", "load")),
    )
    return [Adjusted(*ps) for ps in zip(*found, strict=True)]


def standing(measured: Measured, adjusted: Adjusted) -> Standing:
    """What the tests license after Holm; draws that stopped early have lost."""
    if measured.p is None or adjusted.claim is None:
        return Standing.UNDECIDABLE
    if measured.p != measured.gains.pvalue:
        return Standing.NOT_CHANCE
    return measured.gains.standing(adjusted)


def envelope_gate(measured: Measured, adjusted: Adjusted) -> GateResult:
    """Passes when the Holm-adjusted p, of every test at the declared minimum effect, is at most alpha."""
    g, spec, p_holm = measured.gains, measured.spec, adjusted.claim
    stands = standing(measured, adjusted)
    seen = _seen(measured)
    if stands == Standing.UNDECIDABLE or p_holm is None:
        floor = g.floor or 0.0
        why = (
            measured.reason or f"no p below {floor:.3g} was attainable, so none at {spec.alpha:g}: more seeds or draws"
        )
        reason = f"{seen}: {why}" if seen else why
        return GateResult("G3", TITLE, (Check("placement", "undecidable", reason, n=g.n_seeds),))
    won = stands == Standing.SHOWN
    detectable = measured.detectable
    found = f"; a gain of {detectable:.2f} pp would have been found 9 times in 10" if detectable and not won else ""
    reason = (
        f"{seen}: {stands}; Holm p = {p_holm:.3g} at a minimum effect of {spec.min_effect_pp:g} pp, decided by the "
        f"{g.decided_by} (p = {g.pvalue:.3g}){found}"
    )
    placement = Check(
        "placement", "passed" if won else "failed", reason, p_holm, spec.alpha, g.n_seeds, _pair(g.chance),
        {t.name: t.outcome.pvalue for t in g.tests},
    )  # fmt: skip
    checks = [placement]
    if g.load is not None:
        load = max((t for t in g.tests if t.concerns == "load"), key=lambda test: test.at_zero)
        p = load.at_zero if adjusted.load is None else adjusted.load
        follows = p <= spec.alpha
        how = " (simulated)" if spec.on_server else ""
        text = (
            f"{load.name}{how}: {g.load.estimate:.2f} pp of gain from following the load, {_text(g.load.interval)}; "
            f"Holm p = {p:.3g} against none"
        )
        checks.append(
            Check(
                "load-aware",
                "passed" if follows else "failed",
                text,
                p,
                spec.alpha,
                g.n_seeds,
                _pair(g.load),
            )
        )
    return GateResult("G3", TITLE, tuple(checks))


def _seen(measured: Measured) -> str:
    g = measured.gains
    if g.chance is None:
        return ""
    how = " (simulated)" if measured.spec.on_server else ""
    load = f", {g.load.estimate:.2f} pp from following the load{how}" if g.load else ""
    return f"gain {g.chance.estimate:.2f} pp over {g.n_draws} matched draws in each of {g.n_seeds} seeds{load}"


def _text(interval: Interval) -> str:
    return f"{100 * interval.level:g} % interval {interval.lower:.2f} to {interval.upper:.2f}"


def _pair(gain: Gain | None) -> tuple[float, float] | None:
    limits = _limits(gain.interval) if gain is not None else None
    return (limits[0], limits[1]) if limits and limits[0] is not None and limits[1] is not None else None


def _limits_of(prefix: str, gain: Gain | None) -> dict[str, Any]:
    return {
        f"{prefix}interval_pp": _limits(gain.interval) if gain else None,
        f"{prefix}lower_bound_pp": _finite(gain.lower_bound) if gain else None,
    }


def _limits(interval: Interval | None) -> list[float | None] | None:
    return None if interval is None else [_finite(interval.lower), _finite(interval.upper)]


def _finite(value: float | np.floating[Any] | None) -> float | None:
    return float(value) if value is not None and np.isfinite(value) else None
