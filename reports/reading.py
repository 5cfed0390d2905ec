"""What a certificate's parts mean, in words: shared by the page and the terminal."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

#: What the next tier asks for beyond what this one has (from tier 0 to 3).
_NEXT = (
    "Integrity (G0) must pass in every claim; until then nothing may be said.",
    "Calibrated replay: some claim must pass, and in every claim that does, the effect transfer (G1, from a recorded "
    "calibration of a real server), the load match (G2) and the training progress (G4) must pass too.",
    "Real replay: every arm replayed on a real server, with the effect transfer (G1) and the load match (G2) "
    "measured there.",
    "Live: decisions taken from live telemetry while the server served.",
)

#: The same for replays on a real server.
REPLAYED = (
    ("Replays that count", "replays.parquet: seed, arm, draw, attempt, planned_ns, ran_ns; served.parquet: replay, "
     "arrival_ns, sent_ns",
     "row k of replays.parquet has the rows of served.parquet with replay = k; it counts when 99 % of them were sent "
     "within 5 ms of arrival and every merge began and ended within 50 ms of plan"),
    ("Violations, sync-excess, gain, p", "replays.parquet, served.parquet in place of requests.parquet and of the"
     " violations in placements.parquet",
     "as above, with arms policy, no-sync and uniform; only tests of the load gain are on simulated violations"),
    ("Effect transfer", "served.parquet of the uniform draws: e2e_ns, exposure_ns, outcome",
     "by seed, p95 of requests with exposure_ns > 0 over p95 of the others, all draws together; t over seeds on the "
     "logarithm"),
    ("A/A", "served.parquet of the first and last no-sync replay",
     "difference of the violation rates by seed; two one-sided t tests against the margin"),
)  # fmt: skip

#: How each number is recomputed: what, the raw file with its columns, how.
RECOMPUTE = (
    ("Requests, tokens, trace digest", "seeds.parquet: n_requests, prompt_tokens, output_tokens, trace_digest",
     "as stored, one row a seed"),
    ("Violations of the scheduler and without merges", "requests.parquet: arm policy or no-sync; outcome, e2e_ns, "
     "ttft_ns, max_itl_ns, output_tokens",
     "count the rows that are not served (outcome other than 0) or miss a limit of the SLO; mean time per output token "
     "is (e2e_ns − ttft_ns) / (output_tokens − 1)"),
    ("Realised merges, busy seconds", "placements.parquet: arm policy; gaps",
     "number of gaps; times merge_s of the regime.  A gap counts decisions from the end of one merge (first: time 0) "
     "to the start of the next"),
    ("Sync-excess violations", "placements.parquet: arm, draw, violations; seeds.parquet: n_requests",
     "100 (violations of the schedule − violations of arm no-sync) / n_requests; entry k of violations is SLO number k "
     "of the regime"),
    ("Gain", "placements.parquet: arms policy, uniform, no-sync",
     "mean over seeds of (mean sync-excess of the seed's uniform draws − sync-excess of the scheduler)"),
    ("Rank of a seed", "placements.parquet: arms policy, uniform",
     "1 + number of draws that are at most the scheduler's value"),
    ("p, stratified randomisation; interval", "placements.parquet: arms policy, uniform",
     "sum over seeds of the scheduler's sync-excess, compared with the sum when each seed's scheduler is one of its "
     "m + 1 values taken at random: enumerated up to 100,000 choices, else (b + 1) / (B + 1) with B = 9999; the "
     "limits invert this test and the next; the wider of the two at each end; every test is at the minimum effect"),
    ("p, paired sign flip", "placements.parquet: arms policy, uniform",
     "the seed gains with their signs flipped at random: all flips up to 20 seeds, sampled above"),
    ("p, exchange between traces; gain from following the load", "placements.parquet: arm crossed",
     "row t of a seed is the schedule made on trace t, replayed on the seed's own trace; sync-excess per merge of the "
     "own schedules against that of permuted assignments of schedules to traces: enumerated up to 8 seeds, else 9999"),
    ("p, paired sign flip of the load gain", "placements.parquet: arm crossed",
     "with R and C the sums of row and column s of those costs without the diagonal, G that of all R: "
     "(R + C − G / (S − 1)) / (S − 2) − own cost is what seed s saved on its own trace; their signs flipped as above"),
    ("p, Holm", "the p of every claim of this certificate",
     "p is the largest of all; Holm's step-down over all claims"),
    ("Gain captured", "placements.parquet: arm optimum; row k for SLO k",
     "gain divided by the gain of the offline optimum, which adds up the cost of each merge alone"),
    ("Requests saved", "gain; seeds.parquet: n_requests",
     "mean over seeds of gain × n_requests / 100, times 600 s / horizon_s, per island"),
    ("Own gaps permuted, own schedule shifted", "placements.parquet: arms own-gaps-permuted, own-schedule-shifted",
     "the same two tests against these draws"),
    ("Decisions", "decisions.parquet: decided_ns, merged",
     "every question that the scheduler was asked, and its answer"),
    ("Causality, determinism", "seeds.parquet: probes",
     "each re-run: its kind, from when on the future was altered, and the first decision that differed"),
)  # fmt: skip

#: The same where a sidecar is calibrated.
CALIBRATED = (
    ("Effect transfer, agreement, of a calibrated sidecar", "calibrations/NAME: requests.parquet, merges.parquet, "
     "calibration.json",
     "by run of kind on-off, p95 of requests with exposure_ns > 0 over p95 of the others; t over runs on the "
     "logarithm, each load by itself; the simulated side replays the run with the parameters of its half"),
)  # fmt: skip

#: What replaces rows of RECOMPUTE, by their first cell, where islands merge as peers.
_PEERS = {
    "Realised merges, busy seconds": (
        "Realised merges, busy seconds, bytes", "placements.parquet: arm policy; gaps, groups",
        "number of gaps.  A gap counts decisions between the starts of successive merges (first: from time 0), groups "
        "names each merge's islands; what a group sends and for how long it is busy follows from the table peer of the "
        "regime"),
    "Own gaps permuted, own schedule shifted": (
        "Own groups at other times, own times with other partners",
        "placements.parquet: arms own-partners-retimed, own-times-repartnered",
        "the same two tests against these draws"),
    "Gain captured": ("Gain captured", "none", "unknown: no exact optimum of peer schedules is at hand"),
}  # fmt: skip


def recompute(certificate: Mapping[str, Any]) -> list[tuple[str, str, str]]:
    """RECOMPUTE, what stands in its place where islands merge as peers, and what calibrations and replays add."""
    peers = ["peer" in regime for regime in certificate["regimes"]]
    rows = []
    for row in RECOMPUTE:
        if not all(peers) or row[0] not in _PEERS:
            rows.append(row)
        if any(peers) and row[0] in _PEERS:
            rows.append(_PEERS[row[0]])
    calibrated = any(regime["sidecar"].get("calibration") for regime in certificate["regimes"])
    return [*rows, *(CALIBRATED if calibrated else ()), *(REPLAYED if certificate.get("replays") else ())]


def next_tier(certificate: Mapping[str, Any]) -> list[str]:
    """What a higher tier would need, and what in this certificate stands in its way."""
    number = certificate["tier"]["number"]
    if number >= len(_NEXT):
        return ["There is no higher tier."]
    needed = [_NEXT[number]]
    if number == 0:
        needed += obstacles(certificate, ("G0",))
    if number == 1:
        won = [c for c in certificate["claims"] if c["verdict"] == "PASS"]
        needed += obstacles({"claims": won}, ("G1", "G2", "G4")) if won else ["No claim of this certificate passed."]
    if certificate["tier"]["upper_bound"]:
        recorded = certificate["contender"]["kind"] == "recorded"
        why = "Nothing shows that a log is causal" if recorded else "A planner sees the whole trace"
        needed.append(f"{why}, so it stays an upper bound at every tier.")
    return needed


def obstacles(certificate: Mapping[str, Any], gates: Sequence[str]) -> list[str]:
    """Each distinct reason for which one of the gates did not pass, with the claims that it concerns."""
    found: dict[tuple[str, str], list[str]] = {}
    for claim in certificate["claims"]:
        for gate in claim["gates"]:
            if gate["gate"] in gates and gate["status"] != "passed":
                where = found.setdefault((f"{gate['gate']} {gate['status']}", gate["reason"]), [])
                where.append(f"{claim['regime']}, {claim['slo']}")
    everywhere = len(certificate["claims"])
    lines = []
    for (what, reason), where in found.items():
        place = "" if len(where) == everywhere else f" ({'; '.join(where)})"
        lines.append(f"{what}{place}: {reason}")
    return lines
