"""Holm's correction over a family of claims (Holm 1979, Scand. J. Stat. 6, 65-70)."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np


@dataclass(frozen=True)
class HolmOutcome:
    """adjusted : p-values adjusted for the whole family, None where the claim was undecidable.
    rejected : whether adjusted p <= alpha; never for an undecidable claim.
    """

    adjusted: tuple[float | None, ...]
    rejected: tuple[bool, ...]
    alpha: float
    family: int


def holm(pvalues: Sequence[float | None], alpha: float = 0.05) -> HolmOutcome:
    """Adjusted p-values; controls the chance of any false claim at alpha under every dependence.

    None (or NaN) marks a claim that could not be decided.  It stays in the family as p = 1: a claim that was declared
    and then lost must not make the others easier to pass.

    Raises ValueError for a number outside [0, 1].
    """
    known = [None if p is None or math.isnan(p) else float(p) for p in pvalues]
    for p in known:
        if p is not None and not 0 <= p <= 1:
            raise ValueError(f"p-value {p} is outside [0, 1]")
    # Step down by hand: statsmodels' multipletests runs a full garbage collection at each call (40 ms here), which a
    # calibration over thousands of families cannot afford.  The tests hold the two equal.
    raw = np.array([1.0 if p is None else p for p in known])
    order = np.argsort(raw, kind="stable")
    corrected = np.empty(len(raw))
    corrected[order] = np.minimum(np.maximum.accumulate(raw[order] * np.arange(len(raw), 0, -1)), 1.0)
    adjusted = tuple(None if p is None else float(q) for p, q in zip(known, corrected, strict=True))
    return HolmOutcome(adjusted, tuple(q is not None and q <= alpha for q in adjusted), alpha, len(known))
