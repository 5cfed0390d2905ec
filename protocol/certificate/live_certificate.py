"""From a live session to a verdict and the sentence that it licenses (tier 4).

Like `protocol.certificate.assess`, a pure function of what was asked and what was measured.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from protocol import seeds
from protocol.certificate.assess import HEAD, TIERS
from protocol.errors import BadInput
from protocol.evidence.live import ARMS, POLICY, Session
from protocol.gates import live as gates
from protocol.gates.live import MIN_BLOCKS
from protocol.gates.result import claim
from protocol.merging.corridor import Corridor
from protocol.replay.measurements import SERVED
from protocol.stats.multiplicity import holm
from protocol.workload.slo import Slo
from protocol.workload.trace import NS_PER_S

SCHEMA, SCHEMA_VERSION = "diloco-protocol/live-certificate", 1
LIVE = len(TIERS) - 1

Json = dict[str, Any]


def assess(head: Mapping[str, Any], session: Session) -> Json:
    """The certificate, less the digests of its raw files.

    head : the parts named in HEAD, "server", "calibration" (or None) and "regimes" (one, without blocks).
    Raises BadInput when a block holds an arm that it may not.
    """
    settings, (regime,) = head["settings"], head["regimes"]
    unknown = {s.arm for s in session.segments} - set(ARMS)
    if unknown or any(not 0 <= s.block < settings["blocks"] for s in session.segments):
        what = f"arms {sorted(unknown)}" if unknown else "a block that was not planned"
        raise BadInput("raw files, segments", what, f"{settings['blocks']} blocks of {', '.join(ARMS)}")
    corridor, blocks, alpha = Corridor(**regime["corridor"]), session.blocks(), settings["alpha"]
    integrity = gates.integrity(session, settings["blocks"], corridor)
    own = gates.own_calibration(blocks, head["server"]["name"], head["server"]["date"])
    transfer = gates.transfer(head.get("calibration") or own, alpha)
    progress = gates.progress(blocks, corridor, regime["tokens_per_step"])
    slos = [Slo.parse(text) for text in regime["slos"]]
    measured = [
        gates.paired(blocks, slo, seeds.generator(settings["root_seed"], "test", "live", str(slo)), alpha)
        for slo in slos
    ]
    adjusted = holm([m.p for m in measured], alpha).adjusted
    claims = []
    for slo, found, p_holm in zip(slos, measured, adjusted, strict=True):
        load = gates.load_match(blocks, slo, settings["margin_pp"], alpha)
        placement = gates.placement(found, p_holm, alpha, settings["min_effect_pp"])
        envelope = found.to_json(p_holm, alpha, settings["segment_s"])
        judged = (integrity, transfer, load, placement, progress)
        # Every gate decides: a live claim speaks of a real server, so the effect must be there, too.
        claims.append(claim(regime["name"], str(slo), judged, judged, envelope))
    verdicts = {c["verdict"] for c in claims}
    verdict = "FAIL" if integrity.status == "failed" else _best(verdicts)
    tier = {"number": 0 if integrity.status == "failed" else LIVE, "upper_bound": False}
    return {
        "schema": SCHEMA,
        "schema_version": SCHEMA_VERSION,
        **{key: head.get(key) for key in HEAD},
        "server": head["server"],
        "calibration": head.get("calibration"),
        "regimes": [{**regime, "blocks": _summaries(session)}],
        "transfer": own,
        "claims": claims,
        "verdict": verdict,
        "tier": {**tier, "name": TIERS[int(tier["number"])]},
        "sentence": _sentence(verdict, claims, head),
    }


def head_of(certificate: Mapping[str, Any]) -> Json:
    """What was asked, taken back out of a certificate."""
    regimes = [{k: v for k, v in regime.items() if k != "blocks"} for regime in certificate["regimes"]]
    return {**{key: certificate.get(key) for key in (*HEAD, "server", "calibration")}, "regimes": regimes}


def _best(verdicts: set[str]) -> str:
    return "PASS" if "PASS" in verdicts else "INCONCLUSIVE" if "INCONCLUSIVE" in verdicts else "FAIL"


def _summaries(session: Session) -> list[Json]:
    """Every segment in the order in which it ran."""
    return [
        {
            "block": s.block,
            "arm": s.arm,
            "began_s": s.began_s,
            "trace_digest": s.trace_digest,
            "requests": len(s.served.requests),
            "served": int((s.served.requests.outcome == SERVED).sum()),
            "failures": dict(s.served.failures),
            "merges": s.served.n_merges,
            "busy_s": s.served.busy_ns / NS_PER_S,
            "asked": sum(d.said is not None for d in s.served.decisions) if s.arm == POLICY else None,
            "scrapes": len(s.served.scrapes),
            "scrapes_failed": sum(scrape.running is None for scrape in s.served.scrapes),
        }
        for s in session.segments
    ]


def _sentence(verdict: str, claims: Sequence[Json], head: Mapping[str, Any]) -> str:
    name, server = head["contender"]["name"], head["server"]["name"]
    if verdict == "PASS":
        won = [c for c in claims if c["verdict"] == "PASS"]
        gains = " and ".join(f"{c['envelope']['gain_pp']:.2f} pp fewer {c['slo']} violations" for c in won)
        return (
            f"{name} improves sync-excess SLO violations on {server} in live operation: {gains} than matched random "
            f"placement of the same number of merges, over {won[0]['envelope']['n_seeds']} paired blocks."
        )
    word = "" if verdict == "FAIL" else " yet"
    why = next(c for c in claims if c["verdict"] == verdict)
    also = "" if verdict == "FAIL" else _measured(why)
    return f"Nothing is licensed about {name} on {server}{word}: {why['reason']}.{also}"


def _measured(claim: Json) -> str:
    """What an undecided session saw all the same, and what it could have shown at best."""
    e = claim["envelope"]
    if not e["n_seeds"]:
        return ""
    return (
        f" Seen, not shown: {e['gain_pp']:+.2f} pp of gain in {claim['slo']} over {e['n_seeds']} paired blocks; the "
        f"smallest p that so many could give is {e['attainable_p']:.3g}, and {MIN_BLOCKS} blocks are needed."
    )
