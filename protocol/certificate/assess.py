"""From evidence to verdicts: one road for every tier.

`assess` is a pure function of a head (what was asked) and the evidence (what was measured), so whoever holds both
recomputes the certificate to the last digit.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from math import isfinite
from typing import Any

from protocol.certificate.model import SCHEMA, SCHEMA_VERSION, TIERS, Certificate, Claim, Head, plain
from protocol.certificate.sentence import sentence
from protocol.errors import BadInput
from protocol.evidence.model import Evidence
from protocol.gates.envelope import Measured, adjusted, envelope_gate, measure
from protocol.gates.integrity import distinct_traces, integrity_gate
from protocol.gates.load_match import load_match_gate
from protocol.gates.prediction import further_check
from protocol.gates.progress import merges_at, merges_of, progress_gate, steps_beside
from protocol.gates.result import VERDICT, GateResult, worst
from protocol.gates.spec import Spec
from protocol.gates.transfer import transfer_gate
from protocol.replay.replay import POLICY, UNIFORM, summary
from protocol.replay.telemetry import gauge_lag
from protocol.stats.gains import Adjusted
from protocol.workload.trace import NS_PER_S


@dataclass(frozen=True)
class _Judged:
    """A claim before Holm: every gate but G3."""

    slo: str
    spec: Spec
    gates: tuple[GateResult, ...]
    measured: Measured


def assess(head: Head, evidence: Sequence[Evidence]) -> Certificate:
    """The certificate, less the digests of its raw files.

    Raises BadInput on evidence that the head did not ask for.
    """
    judged: list[_Judged] = []
    regimes = []
    n_claims = sum(len(regime.slos) for regime in head.regimes)
    for regime in head.regimes:
        spec = head.spec(regime)
        mine = sorted((e for e in evidence if e.regime == regime.name), key=lambda e: e.seed)
        _check_seeds(mine, spec)
        own, further = mine[: spec.n_seeds], mine[spec.n_seeds :]
        regimes.append({**plain(regime), "seeds": [_seed_summary(e, spec) for e in own]})
        judged += _claims(own, further, spec, head.settings.bounded, n_claims)
    corrected = adjusted([j.measured for j in judged], head.settings.alpha)
    claims = [_claim(j, p) for j, p in zip(judged, corrected, strict=True)]
    verdict = _overall(claims)
    on_server = head.settings.back_end != "simulated"
    attempts = [summary(r) for e in evidence for r in e.served]
    return Certificate.model_validate(
        {
            **head.plain(),
            "schema": SCHEMA,
            "schema_version": SCHEMA_VERSION,
            "regimes": regimes,
            "claims": [plain(claim) for claim in claims],
            "verdict": verdict,
            "tier": plain(_headline(claims)),
            "sentence": sentence(head, verdict, claims),
            **({"replays": attempts} if on_server else {}),
            **({"gauges": _gauges(evidence)} if head.settings.back_end == "live" else {}),
        }
    )


def _gauges(evidence: Sequence[Evidence]) -> dict[str, Any] | None:
    """How far the gauges lagged behind the client's own counts, over the session."""
    found = gauge_lag([r.scrapes for e in evidence for r in e.served])
    if found is None:
        return None
    return {key: None if isinstance(v, float) and not isfinite(v) else v for key, v in asdict(found).items()}


def _claims(
    evidence: Sequence[Evidence], further: Sequence[Evidence], spec: Spec, bounded: bool, n_claims: int
) -> list[_Judged]:
    integrity, progress = integrity_gate(evidence, spec), progress_gate(evidence, spec)
    if spec.predicted:
        together = distinct_traces([*evidence, *further])
        integrity = replace(integrity, checks=(*integrity.checks[:-1], together, further_check(further, spec)))
    found = []
    for index, slo in enumerate(spec.slos):
        transfer = transfer_gate(evidence, spec, slo)
        gates = (integrity, transfer, load_match_gate(evidence, spec, slo, index), progress)
        found.append(_Judged(str(slo), spec, gates, measure(evidence, spec, index, bounded, n_claims, further)))
    return found


def _claim(judged: _Judged, corrected: Adjusted) -> Claim:
    """A claim with the verdict of the gates that decide.

    In simulation G1 decides how far a claim reaches (its tier), not whether the placement beat the control; on a real
    server there is no lower tier to fall back to.
    """
    spec = judged.spec
    first, last = judged.gates[:3], judged.gates[3:]
    gates = (*first, envelope_gate(judged.measured, corrected), *last)
    deciding = [gate for gate in gates if gate.gate != "G1" or spec.on_server]
    status = worst(gate.status for gate in deciding)
    culprit = next((gate for gate in deciding if gate.status == status != "passed"), None)
    return Claim.model_validate(
        {
            "regime": spec.regime,
            "slo": judged.slo,
            "verdict": VERDICT[status],
            "tier": _tier(gates, status, spec),
            "reason": "every gate passed" if culprit is None else f"{culprit.gate} {culprit.title}: {culprit.reason}",
            "gates": [
                {
                    "gate": gate.gate,
                    "title": gate.title,
                    "status": gate.status,
                    "reason": gate.reason,
                    "checks": [asdict(check) for check in gate.checks],
                }
                for gate in gates
            ],
            "envelope": judged.measured.to_json(corrected),
        }
    )


def _tier(gates: Sequence[GateResult], status: str, spec: Spec) -> dict[str, Any]:
    """How far one claim reaches, whatever the certificate's other claims showed."""
    by_name = {gate.gate: gate.status for gate in gates}
    if by_name["G0"] == "failed":
        number = 0
    elif spec.on_server:
        number = 3 if spec.back_end == "real" else 4
    else:
        number = 2 if status == "passed" and all(by_name[g] == "passed" for g in ("G1", "G2", "G4")) else 1
    return {"number": number, "name": TIERS[number], "upper_bound": spec.kind != "scheduler"}


def _overall(claims: Sequence[Claim]) -> str:
    """PASS when some claim is certified and integrity failed nowhere; a broken run can prove nothing."""
    if any(claim.status("G0") == "failed" for claim in claims):
        return "FAIL"
    verdicts = {claim.verdict for claim in claims}
    return "PASS" if "PASS" in verdicts else "INCONCLUSIVE" if "INCONCLUSIVE" in verdicts else "FAIL"


def _headline(claims: Sequence[Claim]) -> Any:
    """The highest tier of a claim that passed, else of any; refused when integrity failed somewhere."""
    broken = [c.tier for c in claims if c.tier.number == 0]
    passed = [c.tier for c in claims if c.verdict == "PASS"]
    return broken[0] if broken else max(passed or [c.tier for c in claims], key=lambda tier: tier.number)


def _check_seeds(evidence: Sequence[Evidence], spec: Spec) -> None:
    """Refuse evidence of another shape than what was asked for; less of it than that, the gates judge."""
    numbers = [e.seed for e in evidence]
    if numbers != list(range(len(numbers))) or len(numbers) > spec.n_seeds + spec.predicted:
        expected = f"seeds 0 to at most {spec.n_seeds + spec.predicted - 1}, each once"
        raise BadInput(f"evidence, {spec.regime}", f"seeds {numbers}", expected)
    for e in evidence:
        where = f"evidence, {e.regime}, seed {e.seed}"
        policy = e.placed.get(POLICY)
        if spec.back_end != "live" and (policy is None or len(policy) != 1):
            raise BadInput(where, "not exactly one schedule of the policy", "one")
        width = 0 if spec.back_end == "live" else len(spec.slos)
        for arm, placements in e.placed.items():
            shape = placements.violations.shape
            if shape[1:] != (width,):
                raise BadInput(f"{where}, {arm}", f"violations of shape {shape}", f"(n, {width})")
        made = len(e.placed[UNIFORM]) if UNIFORM in e.placed else None
        if made is not None and (made > spec.draws or (made < spec.draws and not spec.sequential)):
            raise BadInput(f"{where}, {UNIFORM}", f"{made} draws", f"{spec.draws}, as asked")
        if bool(e.served) != spec.on_server and (e.served or spec.back_end == "live"):
            raise BadInput(where, f"{len(e.served)} replays on a server", f"those of a {spec.back_end} back-end")
        if e.served and e.seed >= spec.n_seeds:
            raise BadInput(where, f"{len(e.served)} replays on a server", "none: a further seed is only simulated")


def _seed_summary(e: Evidence, spec: Spec) -> dict[str, Any]:
    """Busy seconds and inner steps add up over islands that merge as peers; each island's own stand beside."""
    corridor, peers = spec.corridor, spec.peers
    plain_values: dict[str, Any] = {
        "seed": e.seed,
        "trace_digest": e.trace_digest,
        "requests": e.n_requests,
        "prompt_tokens": e.prompt_tokens,
        "output_tokens": e.output_tokens,
        "forced": e.forced,
        "asked": len(e.decided_ns) or sum(d.said is not None for r in e.served for d in r.decisions),
    }
    if peers is not None:
        policy = peers.read(e.placed[POLICY])[0]
        islands = {key: values.tolist() for key, values in peers.by_island(policy).items()}
        return {
            **plain_values,
            "merges": len(policy),
            "busy_s": sum(islands["busy_ns"]) / NS_PER_S,
            "inner_steps": sum(islands["inner_steps"]),
            "bytes": sum(islands["bytes"]),
            "by_island": islands,
        }
    made = merges_of(e, POLICY, spec)
    merges = made[0] if made else 0
    policy_replay = e.replay(POLICY) if spec.on_server else None
    kinds = merges_at(e, POLICY, 0)
    busy_s = spec.timing.busy_ns(merges if kinds is None else kinds) / NS_PER_S
    return {
        **plain_values,
        "merges": merges,
        "busy_s": busy_s if policy_replay is None else policy_replay.inside(corridor.horizon_ns)[1],
        "inner_steps": steps_beside(merges, e, POLICY, 0, spec),
    }
