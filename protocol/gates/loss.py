"""G4 with a learner attached: models trained under the policy's schedules end no worse than under matched draws."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
import scipy

from protocol.evidence.model import Evidence
from protocol.gates.result import Check, Status
from protocol.replay.replay import POLICY, UNIFORM

NAME = "validation loss"
#: Fewer pairs give no limit that is worth stating.
FEWEST = 3


def loss_check(evidence: Sequence[Evidence], n: int, margin: float, alpha: float) -> Check:
    """H0: the mean over seeds of the policy's final loss minus its control's exceeds `margin` (nats a symbol).

    n : seeds of the regime that were to be trained, the first ones.  Passed when the one-sided upper t limit at `alpha`
    is at most the margin, failed when the lower limit exceeds it.  Undecidable when less was trained than the schedules
    have merges, which merging cannot show in, or when the differences do not vary, which says the same.
    """
    pairs = [(e.seed, e.trained.get(POLICY), e.trained.get(UNIFORM)) for e in evidence if e.seed < n]
    whole = [(seed, a, b) for seed, a, b in pairs if a is not None and b is not None]
    details: dict[str, object] = {
        "seeds": [seed for seed, *_ in whole],
        "policy": [_number(a.validation_loss) for _, a, _ in whole],
        "control": [_number(b.validation_loss) for *_, b in whole],
        "trained_steps": [a.trained_steps for _, a, _ in whole],
        "tokens": [a.tokens for _, a, _ in whole],
    }

    def undecided(reason: str) -> Check:
        return Check(NAME, "undecidable", reason, threshold=margin, n=len(whole), details=details)

    for seed, a, b in whole:
        if (a.trained_steps, a.tokens) != (b.trained_steps, b.tokens):
            other = f"the control {b.tokens} in {b.trained_steps}"
            reason = f"seed {seed}: trained on {a.tokens} tokens in {a.trained_steps} steps, {other}"
            return Check(NAME, "failed", reason, threshold=margin, n=len(whole), details=details)
    if len(whole) < n:
        return undecided(f"{len(whole)} of {n} seeds were trained under both schedules")
    if n < FEWEST:
        return undecided(f"{n} seeds; at least {FEWEST} are needed")
    for e in evidence:
        arm, merges = e.trained.get(POLICY), int(e.placed[POLICY].lengths[0]) if len(e.placed[POLICY]) else 0
        if arm is not None and arm.trained_steps < max(merges, 1):
            return undecided(
                f"seed {e.seed}: {arm.trained_steps} trained steps for {merges} merges; train more of them"
            )
    d = np.array([a.validation_loss - b.validation_loss for _, a, b in whole])
    if not np.isfinite(d).all():
        return undecided(f"seed {whole[int(np.argmin(np.isfinite(d)))][0]}: training diverged, no final loss")
    if np.ptp(d) == 0:
        return undecided(f"every seed differs by {d[0]:+.4f} nats: differences that do not vary decide nothing")
    half = float(scipy.stats.t.ppf(1 - alpha, n - 1) * scipy.stats.sem(d))
    mean = float(d.mean())
    low, high = mean - half, mean + half
    status: Status = "passed" if high <= margin else "failed" if low > margin else "undecidable"
    reason = (
        f"{mean:+.4f} nats a symbol against the first matched draw, {100 * (1 - 2 * alpha):g} % interval "
        f"{low:.4f} to {high:.4f} over {n} seeds (margin {margin:g})"
    )
    return Check(NAME, status, reason, mean, margin, n, (low, high), details)


def _number(value: float) -> float | None:
    return value if math.isfinite(value) else None
