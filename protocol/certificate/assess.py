"""From raw evidence to a verdict, a tier and the sentence that the evidence licenses.

`assess` is a pure function of a head (what was asked) and the evidence (what was measured), so whoever
holds both recomputes the certificate to the last digit.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from importlib.metadata import version
from platform import python_version
from typing import Any

from protocol.campaign import real
from protocol.errors import BadInput
from protocol.evidence.store import POLICY, UNIFORM, SeedEvidence
from protocol.gates import real as real_gates
from protocol.gates.envelope import Measured, envelope_gate, measure
from protocol.gates.integrity import integrity_gate
from protocol.gates.load_match import load_match_gate
from protocol.gates.loss import loss_check
from protocol.gates.peers import peer_progress_gate
from protocol.gates.progress import progress_gate
from protocol.gates.result import GateResult, claim
from protocol.gates.transfer import transfer_gate
from protocol.merging.corridor import Corridor
from protocol.merging.peers.schedules import Merging, Peers
from protocol.stats.multiplicity import holm
from protocol.workload.slo import Slo
from protocol.workload.trace import NS_PER_S

SCHEMA, SCHEMA_VERSION = "diloco-protocol/certificate", 1
#: Parts of the head that the certificate repeats as they are; `preregistration` is a digest or None.
HEAD = ("contender", "preregistration", "settings", "versions")
TIERS = ("refused", "stress harness", "calibrated replay", "real replay", "live")

Json = dict[str, Any]


def versions() -> dict[str, str]:
    """Versions that the numbers may depend on."""
    packages = ("diloco-protocol", "jinja2", "matplotlib", "numba", "numpy", "pyarrow", "scipy", "statsmodels")
    return {"python": python_version()} | {name: version(name) for name in packages}


def assess(head: Mapping[str, Any], evidence: Sequence[SeedEvidence]) -> Json:
    """The certificate, less the digests of its raw files.

    head : the parts named in HEAD and "regimes" (without seeds), as the campaign was asked.
    Raises BadInput when a seed that the head names has no evidence.
    """
    settings, kind = head["settings"], head["contender"]["kind"]
    most = settings["draws"] if settings.get("sequential") else None
    claims: list[tuple[str, str, list[GateResult], Measured]] = []
    regimes = []
    for regime in head["regimes"]:
        mine = sorted((e for e in evidence if e.regime == regime["name"]), key=lambda e: e.seed)
        if [e.seed for e in mine] != list(range(regime["n_seeds"])):
            raise BadInput(f"evidence, {regime['name']}", f"{len(mine)} seeds", f"seeds 0 to {regime['n_seeds'] - 1}")
        for e in mine:
            _check_arms(e, len(regime["slos"]), settings["draws"], most is not None)
        corridor = Corridor(**regime["corridor"])
        peers = peers_of(regime)
        summaries = [_seed_summary(e, corridor) if peers is None else _peer_summary(e, peers) for e in mine]
        regimes.append({**regime, "seeds": summaries})
        for index, text in enumerate(regime["slos"]):
            slo = Slo.parse(text)
            integrity = integrity_gate(
                mine, corridor, planner=kind == "planner", recorded=kind == "recorded", peers=peers
            )
            if "real" in settings:
                gates, measured = _in_replay(head, regime, mine, integrity, slo, index)
            else:
                root, alpha, tokens = settings["root_seed"], settings["alpha"], regime["tokens_per_step"]
                measured = measure(mine, index, corridor, regime["islands"], root, alpha, most)
                gates = [
                    integrity,
                    transfer_gate(regime["sidecar"].get("calibration"), alpha),
                    load_match_gate(mine, slo, index),
                    progress_gate(mine, corridor, tokens) if peers is None else peer_progress_gate(mine, peers, tokens),
                ]
            if "train" in settings:
                trained = settings["train"]
                loss = loss_check(mine, trained["seeds"], trained["loss_margin"], settings["alpha"])
                gates[-1] = replace(gates[-1], checks=(*gates[-1].checks, loss))
            claims.append((regime["name"], text, gates, measured))
    adjusted = holm([measured.p for *_, measured in claims], settings["alpha"]).adjusted
    written = []
    for (name, text, gates, measured), p_holm in zip(claims, adjusted, strict=True):
        gates.insert(3, envelope_gate(measured, p_holm, settings["alpha"], settings["min_effect_pp"]))
        # In simulation G1 decides how far a claim reaches (its tier), not whether the placement beat the control; on a
        # real server there is no lower tier to fall back to.
        deciding = [gate for gate in gates if gate.gate != "G1" or "real" in settings]
        written.append(claim(name, text, gates, deciding, measured.to_json(p_holm)))
    tier = _tier(written, head)
    verdict = _overall(written)
    return {
        "schema": SCHEMA,
        "schema_version": SCHEMA_VERSION,
        **{key: head.get(key) for key in HEAD},
        "regimes": regimes,
        "claims": written,
        "verdict": verdict,
        "tier": tier,
        "sentence": _sentence(verdict, tier, written, head),
        **({"replays": real.summary(evidence)} if "real" in settings else {}),
    }


def peers_of(regime: Mapping[str, Any]) -> Peers | None:
    """How the islands of a regime, as a head describes it, merge as peers; None where all merge together."""
    if "peer" not in regime:
        return None
    table: dict[str, Any] = {k: tuple(v) if isinstance(v, list) else v for k, v in regime["peer"].items()}
    merging = Merging(**table)
    merging.validate(f"{regime['name']}, peer", regime["islands"])
    return Peers(Corridor(**regime["corridor"]), merging, regime["islands"])


def _in_replay(
    head: Mapping[str, Any], regime: Json, mine: Sequence[SeedEvidence], integrity: GateResult, slo: Slo, index: int
) -> tuple[list[GateResult], Measured]:
    """Gates (less G3) and envelope from what a real server served; the placement itself was made in simulation."""
    settings, corridor = head["settings"], Corridor(**regime["corridor"])
    asked, root, alpha, draws = settings["real"], settings["root_seed"], settings["alpha"], settings["draws"]
    served = real.as_served(mine, [Slo.parse(text) for text in regime["slos"]], draws)
    checks = real_gates.replay_checks(mine, corridor, root, draws, asked["attempts"])
    whole = GateResult(integrity.gate, integrity.title, (*integrity.checks, *checks))
    transfer = real_gates.transfer_in_replay(mine, asked["server"]["name"], regime["sidecar"].get("calibration"), alpha)
    match = real_gates.load_match_in_replay(mine, served, slo, index, alpha, settings["min_effect_pp"])
    progress = progress_gate(served, corridor, regime["tokens_per_step"])
    return [whole, transfer, match, progress], measure(
        served, index, corridor, regime["islands"], root, alpha, simulated=mine
    )


def _check_arms(e: SeedEvidence, n_slos: int, draws: int, sequential: bool) -> None:
    where = f"evidence, {e.regime}, seed {e.seed}"
    if POLICY not in e.placed or len(e.placed[POLICY]) != 1:
        raise BadInput(where, "not exactly one schedule of the policy", "one")
    for arm, placements in e.placed.items():
        if placements.violations.shape[1:] != (n_slos,):
            raise BadInput(f"{where}, {arm}", f"violations of shape {placements.violations.shape}", f"(n, {n_slos})")
    made = len(e.placed[UNIFORM]) if UNIFORM in e.placed else None
    if made is not None and (made > draws or (made < draws and not sequential)):
        raise BadInput(f"{where}, {UNIFORM}", f"{made} draws", f"{draws}, as asked")


def head_of(certificate: Mapping[str, Any]) -> Json:
    """What was asked, taken back out of a certificate."""
    regimes = [{k: v for k, v in regime.items() if k != "seeds"} for regime in certificate["regimes"]]
    return {**{key: certificate.get(key) for key in HEAD}, "regimes": regimes}


def _seed_summary(e: SeedEvidence, corridor: Corridor) -> Json:
    merges = int(e.placed[POLICY].lengths[0])
    return {
        "seed": e.seed,
        "trace_digest": e.trace_digest,
        "requests": e.n_requests,
        "prompt_tokens": e.prompt_tokens,
        "output_tokens": e.output_tokens,
        "merges": merges,
        "forced": e.forced,
        "busy_s": merges * corridor.merge_ns / NS_PER_S,
        "inner_steps": (corridor.horizon_ns - merges * corridor.merge_ns) // corridor.step_ns,
        "asked": len(e.decided_ns),
    }


def _peer_summary(e: SeedEvidence, peers: Peers) -> Json:
    """As for merges of all islands; busy seconds add up over islands, and each island's own figures stand beside."""
    policy = peers.read(e.placed[POLICY])[0]
    islands = {key: values.tolist() for key, values in peers.by_island(policy).items()}
    return {
        "seed": e.seed,
        "trace_digest": e.trace_digest,
        "requests": e.n_requests,
        "prompt_tokens": e.prompt_tokens,
        "output_tokens": e.output_tokens,
        "merges": len(policy),
        "forced": e.forced,
        "busy_s": sum(islands["busy_ns"]) / NS_PER_S,
        "inner_steps": sum(islands["inner_steps"]),
        "bytes": sum(islands["bytes"]),
        "by_island": islands,
        "asked": len(e.decided_ns),
    }


def _status(claim: Json, gate: str) -> str:
    return next(str(g["status"]) for g in claim["gates"] if g["gate"] == gate)


def _overall(claims: Sequence[Json]) -> str:
    """PASS when some claim is certified and integrity failed nowhere; a broken run can prove nothing."""
    if any(_status(c, "G0") == "failed" for c in claims):
        return "FAIL"
    verdicts = {c["verdict"] for c in claims}
    return "PASS" if "PASS" in verdicts else "INCONCLUSIVE" if "INCONCLUSIVE" in verdicts else "FAIL"


def _tier(claims: Sequence[Json], head: Mapping[str, Any]) -> Json:
    """The highest tier for which every needed gate passed; of replays on a real server, the one that they speak of."""
    upper_bound = head["contender"]["kind"] != "scheduler"
    if any(_status(c, "G0") == "failed" for c in claims):
        number = 0
    elif "real" in head["settings"]:
        number = 3
    else:
        won = [c for c in claims if c["verdict"] == "PASS"]
        number = 2 if won and all(_status(c, gate) == "passed" for c in won for gate in ("G1", "G2", "G4")) else 1
    return {"number": number, "name": TIERS[number], "upper_bound": upper_bound}


def _sentence(verdict: str, tier: Json, claims: Sequence[Json], head: Mapping[str, Any]) -> str:
    name = head["contender"]["name"]
    replayed = f" in replay on {head['settings']['real']['server']['name']}" if tier["number"] == 3 else ""
    if tier["number"] == 0:
        broken = next(c for c in claims if _status(c, "G0") == "failed")
        return f"Nothing is licensed about {name}: {broken['reason']}."
    if verdict == "INCONCLUSIVE":
        why = next(c for c in claims if c["verdict"] == "INCONCLUSIVE")
        return f"Nothing is licensed about {name} yet: {why['reason']}."
    if verdict == "FAIL":
        unsound = next((c for c in claims if _status(c, "G3") != "failed"), None)
        if unsound is not None:
            return f"Nothing is licensed about {name}: {unsound['reason']}."
        return (
            f"Nothing is licensed about {name}: with the same number of merges, its placement was not shown "
            f"to beat matched random placement in {_listed(c['regime'] for c in claims)}{replayed}."
        )
    won = [c for c in claims if c["verdict"] == "PASS"]
    gains = _listed(f"{c['regime']} ({c['envelope']['gain_pp']:.2f} pp fewer {c['slo']} violations)" for c in won)
    sidecars = [r["sidecar"] for r in head["regimes"] if r["name"] in {c["regime"] for c in won}]
    if tier["number"] == 1:
        models = _listed(f"{'' if s['calibrated'] else 'uncalibrated '}simulated sidecar {s['name']}" for s in sidecars)
        under = f"in a repeatable benchmark on the {models}"
    elif tier["number"] == 3:
        under = replayed.strip()
    else:
        servers = _listed(f"{s['calibration']['server']} at {s['calibration']['date']}" for s in sidecars)
        under = f"under a sidecar model calibrated on {servers}"
    bound = {
        "scheduler": "",
        "planner": "As an upper bound that no deployable scheduler may claim, ",
        "recorded": "As an upper bound, because nothing shows that this recorded schedule did not know its future, ",
    }[head["contender"]["kind"]]
    some = {c["regime"] for c in won}
    lost = [f"{c['regime']} ({c['slo']})" if c["regime"] in some else c["regime"] for c in claims if c not in won]
    rest = f" Nothing is licensed for {_listed(lost)}." if lost else ""
    level = head["settings"]["alpha"]
    rest += f" This was judged at level {level:g}, not at 0.05." if level > 0.05 else ""
    return f"{bound}{name} beats matched random placement of the same number of merges {under}: {gains}.{rest}"


def _listed(items: Any) -> str:
    found = list(dict.fromkeys(items))
    return found[0] if len(found) == 1 else ", ".join(found[:-1]) + " and " + found[-1]
