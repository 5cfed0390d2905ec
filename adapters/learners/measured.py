"""A learner that a scheduler can watch: the loss curve of a run that was really trained.  Needs no torch."""

from __future__ import annotations

import csv
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from protocol.errors import BadInput


@dataclass(frozen=True)
class MeasuredLearner:
    """Loss between measured points by linear interpolation; before the first and after the last, the nearest.

    steps : ascending inner steps.  losses : training loss at each, mean over seeds.  h, islands : of the runs.
    """

    steps: NDArray[np.float64]
    losses: NDArray[np.float64]
    tokens_per_step: int
    h: int = 1
    islands: int = 1

    def loss(self, inner_steps: int) -> float:
        return float(np.interp(inner_steps, self.steps, self.losses))

    def stretched(self, factor: int) -> MeasuredLearner:
        """The same run when `factor` inner steps stand for one measured step, and share its tokens.

        Raises BadInput unless the tokens of a measured step can be shared equally.
        """
        if factor < 1 or self.tokens_per_step % factor:
            raise BadInput("--learner-scale", f"{factor}", f"a divisor of {self.tokens_per_step}, the tokens of a step")
        return replace(self, steps=self.steps * factor, tokens_per_step=self.tokens_per_step // factor)

    def covering(self, inner_steps: int) -> int:
        """The least factor for `stretched` with which the curve covers this many inner steps, or the largest."""
        factors = [k for k in range(1, self.tokens_per_step + 1) if self.tokens_per_step % k == 0]
        return next((k for k in factors if k * self.steps[-1] >= inner_steps), factors[-1])

    @classmethod
    def read(cls, path: Path, method: str, islands: int | None = None, column: str = "train_loss") -> MeasuredLearner:
        """From `curves.csv` of `protocol train`, the mean over its seeds; of several H the largest.

        islands : those of the table's first run of this method where None.  Raises BadInput naming what is missing.
        """
        try:
            with path.open(newline="", encoding="utf-8") as file:
                rows = list(csv.DictReader(file))
        except (OSError, UnicodeDecodeError) as problem:
            raise BadInput(str(path), str(problem), "curves.csv of protocol train") from None
        try:
            named = [r for r in rows if r["method"] == method]
            n = int(named[0]["islands"]) if islands is None and named else islands
            h = max((int(r["h"]) for r in named if int(r["islands"]) == n), default=0)
            mine = [r for r in named if (int(r["islands"]), int(r["h"])) == (n, h)]
            table: dict[int, list[float]] = {}
            for row in mine:
                table.setdefault(int(row["step"]), []).append(float(row[column]))
            if not table or n is None:
                known = ", ".join(sorted({f"{r['method']} ({r['islands']})" for r in rows}))
                raise BadInput(
                    str(path), f"no {method}" + (f" with {islands} islands" if islands else ""), f"one of {known}"[:300]
                )
            # Tokens of all islands grow by this much a nominal step, unless islands cut their steps.
            tokens = max(int(r["tokens"]) / int(r["step"]) for r in mine) / n
        except (KeyError, ValueError, TypeError, ZeroDivisionError) as problem:
            raise BadInput(str(path), f"{type(problem).__name__}: {problem}", "curves.csv of protocol train") from None
        if tokens < 1 or min(table) < 1:
            found = f"{method} with {tokens:g} tokens a step from step {min(table)} on"
            raise BadInput(str(path), found, "at least one token a step, and steps from 1 on")
        steps = sorted(table)
        losses = np.array([np.mean(table[s]) for s in steps])
        if not np.isfinite(losses).all():
            raise BadInput(str(path), f"{method} with a loss that is not finite", "a run that did not diverge")
        return cls(np.array(steps, np.float64), losses, round(tokens), h, n)
