"""Several certificates side by side, corrected for having tried them all."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from protocol import seeds
from protocol.certificate.ledger import Entry
from protocol.certificate.model import Certificate, Limits, SeedPart
from protocol.errors import BadInput
from protocol.stats.gains import t_interval
from protocol.stats.multiplicity import holm
from protocol.stats.randomization import sign_flip

#: Settings that must be equal for claims to stand under one correction.
MUST_AGREE = ("alpha", "min_effect_pp", "bounded")
#: Settings and worlds that must be equal for two schedulers to be compared seed by seed.
SAME_WORLD = (*MUST_AGREE, "root_seed", "draws", "sequential", "control_draws", "back_end")


@dataclass(frozen=True)
class Compared:
    """One claim of one scheduler, before and after the correction over everything that was tried."""

    scheduler: str
    regime: str
    slo: str
    root_seed: int
    merges: int
    gain_pp: float | None
    interval_pp: Limits | None
    load_gain_pp: float | None
    load_interval_pp: Limits | None
    gain_captured: float | None
    p: float | None
    p_within: float | None
    p_overall: float | None
    verdict: str


def compare(certificates: Mapping[str, Certificate], tried: Sequence[Entry] = ()) -> list[Compared]:
    """Holm over every claim of every certificate and of every other run of the same schedulers.

    certificates : by the name of their folder; other roots, limits and regimes may stand side by side, and `root_seed`
    says which were used.  tried : runs that are not among them; whatever they gave counts as a claim that was tried.
    A claim that its own certificate refused stays refused.
    Raises BadInput when two were judged at different levels, naming what differs and both values.
    """
    items = list(certificates.items())
    if len(items) < 2 and not tried:
        raise BadInput("compare", f"{len(items)} certificate, and no other run of its scheduler", "at least two")
    first_name, first = items[0]
    for name, other in items[1:]:
        for key in MUST_AGREE:
            _agree(first_name, name, key, getattr(first.settings, key), getattr(other.settings, key))
    claims = [(certificate, claim) for _, certificate in items for claim in certificate.claims]
    alpha = first.settings.alpha
    # Holm multiplies by how many were tried, whatever p the others had: 1 is the least that they can cost.
    more = [1.0] * sum(entry.claims for entry in tried)
    adjusted = holm([*(claim.envelope.p for _, claim in claims), *more], alpha).adjusted
    return [
        Compared(
            scheduler=certificate.contender.name,
            regime=claim.regime,
            slo=claim.slo,
            root_seed=certificate.settings.root_seed,
            merges=sum(row.merges for row in claim.envelope.per_seed),
            p_within=claim.envelope.p_holm,
            p_overall=p,
            verdict=_verdict(claim.verdict, p, alpha),
            **{key: getattr(claim.envelope, key) for key in _SHOWN},
        )
        for (certificate, claim), p in zip(claims, adjusted[: len(claims)], strict=True)
    ]


_SHOWN = ("gain_pp", "interval_pp", "load_gain_pp", "load_interval_pp", "gain_captured", "p")


@dataclass(frozen=True)
class Paired:
    """One scheduler against another on the same traces.

    gain_pp : mean over seeds of the difference of their gains, each over its own draws, so that one that merges less
        gains nothing by that; positive is better.
    interval_pp : t over seeds, at `level`, of this claim alone.  p : one-sided sign flips over seeds; p_all : after
        Holm over all claims that are compared.  verdicts : of both claims.
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
    p_all: float | None
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
    (name, one), (other_name, other) = certificates.items()
    for key in SAME_WORLD:
        _agree(name, other_name, key, getattr(one.settings, key), getattr(other.settings, key))
    _agree(name, other_name, "regimes", _worlds(one), _worlds(other))
    found = []
    for mine, its in zip(one.claims, other.claims, strict=True):
        by_seed = []
        for folder, claim in ((name, mine), (other_name, its)):
            rows = claim.envelope.per_seed
            if not rows:
                raise BadInput(f"{folder}, {claim.regime}", "no values by seed", "a claim with an envelope")
            by_seed.append(np.array([row.draw_mean - row.policy for row in rows], np.float64))
        if len(by_seed[0]) != len(by_seed[1]):
            found_, expected = f"{len(by_seed[0])} and {len(by_seed[1])} seeds", "the same seeds in both"
            raise BadInput(f"{name} and {other_name}, {mine.regime}", found_, expected)
        gains = by_seed[0] - by_seed[1]
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
                p_all=None,
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
    adjusted = holm([row.p for row in found], 1 - level).adjusted
    return [replace(row, p_all=p) for row, p in zip(found, adjusted, strict=True)]


def _verdict(own: str, p: float | None, alpha: float) -> str:
    """Passed alone but not among all that were tried: failed."""
    return own if own != "PASS" or (p is not None and p <= alpha) else "FAIL"


def _done(seed: SeedPart, key: str) -> Any:
    return getattr(seed, key) if key in SeedPart.model_fields else seed.described(key)


def _worlds(certificate: Certificate) -> Sequence[str]:
    """Each regime's digest with its limits and its seeds' traces, which must be the same for all."""
    return [
        f"{r.name} {r.digest[:12]} {'+'.join(r.slos)} {r.seeds[0].trace_digest[:12]} x {r.n_seeds}"
        for r in certificate.regimes
    ]


def _agree(one: str, other: str, key: str, a: object, b: object) -> None:
    if a != b:
        raise BadInput(f"{one} and {other}, {key}", f"{a} and {b}", "the same in all certificates of a comparison")
