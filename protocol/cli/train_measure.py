"""Measurements of `protocol train` that need no training: mixing, momentum, transfers."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from protocol.merging.peers.topology import Form, Kind, Topology, measured_contraction, measured_disagreement
from protocol.seeds import generator

Row = dict[str, Any]


def contraction_rows(seed: int, quick: bool) -> list[Row]:
    """1-peer and 2-peer, 8 to 256 islands, by formula and over random draws."""
    rows: list[Row] = []
    kinds: tuple[tuple[str, Kind], ...] = (("1-peer", "pair"), ("2-peer", "ring"))
    for name, kind in kinds:
        for n in (8, 16, 32, 64, 128, 256):
            topology = Topology(kind, n)
            draws = 100 if quick else 1000
            mean, error = measured_contraction(topology, draws, generator(seed, "contraction", kind, n))
            formula = topology.contraction()
            rows.append(
                {
                    "topology": name, "islands": n, "draws": draws, "formula": formula, "measured": mean,
                    "standard_error": error, "spectral_gap": 1 - formula, "measured_gap": 1 - mean,
                }
            )  # fmt: skip
    return rows


def momentum_rows(seed: int, quick: bool) -> list[Row]:
    """Factor of the disagreement a round, from exact second moments and from simulated exchanges.

    measured : geometric mean factor between rounds 4 and 12 of the root mean square over many runs.
    """
    rows: list[Row] = []
    cases: tuple[tuple[str, Topology, Form], ...] = (
        ("1-peer", Topology("pair", 8), "mixed"), ("1-peer", Topology("pair", 8), "literal"),
        ("2-peer", Topology("ring", 8), "mixed"), ("2-peer", Topology("ring", 8), "literal"),
        ("fixed ring", fixed_ring(32), "mixed"),
    )  # fmt: skip
    for name, topology, form in cases:
        # A fixed graph shows its slowest mode only after the faster ones are gone.
        early, late = (60, 120) if topology.fixed else (4, 12)
        copies = 20 if topology.fixed else 100 if quick else 2000
        for gamma in (0.0, 0.3, 0.5, 0.7, 0.9):
            rng = generator(seed, "momentum", name, form, str(gamma))
            size = measured_disagreement(topology, gamma, form, 1.0, late, copies, rng)
            rows.append(
                {
                    "topology": name, "islands": topology.n, "form": form, "gamma": gamma,
                    "predicted": topology.stability(gamma, form),
                    "measured": float(size[late] / size[early]) ** (1 / (late - early)),
                }
            )  # fmt: skip
    return rows


def fixed_ring(n: int) -> Topology:
    return Topology("graph", n, tuple((i, (i + 1) % n) for i in range(n)))


def acceleration_rows(quick: bool) -> list[Row]:
    """The outer momentum (alpha 1, form mixed) that shrinks disagreement fastest, on random and on fixed graphs.

    Rounds are those that it takes to shrink the disagreement tenfold, from the exact factors.
    """
    rows: list[Row] = []
    for name, make in (
        ("1-peer", lambda n: Topology("pair", n)), ("2-peer", lambda n: Topology("ring", n)), ("fixed ring", fixed_ring)
    ):  # fmt: skip
        for n in (8, 16, 32) if quick else (8, 16, 32, 64, 128, 256):
            topology = make(n)
            factors = {g: topology.stability(g) for g in np.linspace(0, 0.99, 34 if quick else 100).round(3).tolist()}
            best = min(factors, key=lambda g: factors[g])
            rounds = [math.log(10) / -math.log(f) for f in (factors[0.0], factors[best])]
            rows.append(
                {
                    "topology": name, "islands": n, "factor": factors[0.0], "best_gamma": best,
                    "best_factor": factors[best], "rounds": rounds[0], "best_rounds": rounds[1],
                    "speed_up": rounds[0] / rounds[1],
                }
            )  # fmt: skip
    return rows


def transfer_rows(quick: bool) -> list[Row]:
    from adapters.learners.transfers import check_model

    if quick:
        fit, checks = check_model(4, payloads=(1 << 17, 1 << 18), slow_shares=(1.0, 0.2), repeats=1)
    else:
        fit, checks = check_model()
    rows: list[Row] = [
        {
            "exchange": c.exchange, "islands": c.islands, "slow_share": c.slow_share, "payload_bytes": c.payload_bytes,
            "predicted_s": c.predicted_s, "measured_s": c.measured_s, "error_percent": 100 * c.error,
            "fitted_bandwidth": fit.bandwidth, "fitted_latency_s": fit.latency_s,
            "fit_error_percent": 100 * float(np.abs(fit.relative_error).max()),
        }
        for c in checks
    ]  # fmt: skip
    assert all(math.isfinite(row["error_percent"]) for row in rows)
    return rows
