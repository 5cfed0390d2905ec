"""Several certificates side by side, corrected for having tried them all."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from protocol import seeds
from protocol.certificate.model import Certificate, Claim, SeedPart
from protocol.errors import BadInput
from protocol.stats.gains import t_interval
from protocol.stats.multiplicity import holm
from protocol.stats.randomization import sign_flip

#: Settings that must be equal for certificates to stand in one table.
MUST_AGREE = ("root_seed", "draws", "sequential", "control_draws", "alpha", "min_effect_pp")


@dataclass(frozen=True)
class Compared:
    """One claim of one scheduler, before and after the correction over the whole comparison."""

    scheduler: str
    regime: str
    slo: str
    gain_pp: float | None
    p: float | None
    p_within: float | None
    p_overall: float | None
    verdict: str


def compare(certificates: Mapping[str, Certificate]) -> list[Compared]:
    """Holm over every claim of every certificate; a claim that its own certificate refused stays refused.

    certificates : by the name of their folder.  Raises BadInput when two were made under different settings or in
    different worlds, naming what differs and both values.
    """
    items = list(certificates.items())
    if len(items) < 2:
        raise BadInput("compare", f"{len(items)} certificate", "at least two")
    first_name, first = items[0]
    for name, other in items[1:]:
        for key in MUST_AGREE:
            _agree(first_name, name, key, getattr(first.settings, key), getattr(other.settings, key))
        _agree(first_name, name, "regimes", _worlds(first), _worlds(other))
    claims = [(certificate.contender.name, claim) for _, certificate in items for claim in certificate.claims]
    alpha = first.settings.alpha
    adjusted = holm([_p(claim) for _, claim in claims], alpha).adjusted
    return [
        Compared(
            scheduler=name,
            regime=claim.regime,
            slo=claim.slo,
            gain_pp=claim.envelope.gain_pp,
            p=_p(claim),
            p_within=claim.envelope.p_holm,
            p_overall=p,
            verdict=_verdict(claim.verdict, p, alpha),
        )
        for (name, claim), p in zip(claims, adjusted, strict=True)
    ]


@dataclass(frozen=True)
class Paired:
    """One scheduler against another on the same traces.

    gain_pp : mean over seeds of (sync-excess violations of `other` - those of `scheduler`); positive is better.
    interval_pp : t over seeds, at `level`.  p : one-sided sign flips over seeds.  verdicts : of both claims.
    exchanged : what both did on all seeds together, as {what: (scheduler, other)}.
    """

    scheduler: str
    other: str
    regime: str
    slo: str
    gain_pp: float
    interval_pp: tuple[float, float] | None
    level: float
    p: float | None
    n_seeds: int
    verdicts: tuple[str, str]
    exchanged: Mapping[str, tuple[float, float]]

    @property
    def matched(self) -> bool:
        """Whether both merged as often, for as long and with as many bytes: else less merging may be all there is."""
        return all(one == other for one, other in self.exchanged.values())


def paired(certificates: Mapping[str, Certificate], level: float = 0.95) -> list[Paired]:
    """The first of two certificates against the second, seed by seed; neither need have passed.

    Raises BadInput as `compare` does, when there are not two, and when a claim has no values by seed.
    """
    if len(certificates) != 2:
        raise BadInput("compare, paired", f"{len(certificates)} certificates", "two")
    compare(certificates)
    (name, one), (other_name, other) = certificates.items()
    found = []
    for mine, its in zip(one.claims, other.claims, strict=True):
        policy = []
        for folder, claim in ((name, mine), (other_name, its)):
            rows = claim.envelope.per_seed
            if not rows:
                raise BadInput(f"{folder}, {claim.regime}", "no values by seed", "a claim with an envelope")
            policy.append(np.array([row.policy for row in rows], np.float64))
        gains = policy[1] - policy[0]
        interval = t_interval(gains, level)
        root = seeds.generator(one.settings.root_seed, "test", "paired", mine.regime, mine.slo)
        regimes = [next(r for r in c.regimes if r.name == mine.regime) for c in (one, other)]
        found.append(
            Paired(
                scheduler=one.contender.name,
                other=other.contender.name,
                regime=mine.regime,
                slo=mine.slo,
                gain_pp=float(gains.mean()),
                interval_pp=None if interval is None else (interval.lower, interval.upper),
                level=level,
                p=sign_flip(-gains, root).pvalue,
                n_seeds=len(gains),
                verdicts=(mine.verdict, its.verdict),
                exchanged={
                    key: (float(total[0]), float(total[1]))
                    for key in ("merges", "bytes", "busy_s", "inner_steps")
                    if all(_done(seed, key) is not None for r in regimes for seed in r.seeds)
                    for total in [[sum(_done(seed, key) for seed in r.seeds) for r in regimes]]
                },
            )
        )
    return found


def _verdict(own: str, p: float | None, alpha: float) -> str:
    """Passed alone but not among all that were tried: failed."""
    return own if own != "PASS" or (p is not None and p <= alpha) else "FAIL"


def _done(seed: SeedPart, key: str) -> Any:
    return getattr(seed, key) if key in SeedPart.model_fields else seed.described(key)


def _p(claim: Claim) -> float | None:
    return claim.envelope.p


def _worlds(certificate: Certificate) -> Sequence[str]:
    """Each regime's digest with its limits and its seeds' traces, which must be the same for all."""
    return [
        f"{r.name} {r.digest[:12]} {'+'.join(r.slos)} {r.seeds[0].trace_digest[:12]} x {r.n_seeds}"
        for r in certificate.regimes
    ]


def _agree(one: str, other: str, key: str, a: object, b: object) -> None:
    if a != b:
        raise BadInput(f"{one} and {other}, {key}", f"{a} and {b}", "the same in all certificates of a comparison")
