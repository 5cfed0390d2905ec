"""A learner that a scheduler can watch: the loss curve of a run that was really trained.  Needs no torch."""

from __future__ import annotations

import csv
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from protocol.errors import BadInput


@dataclass(frozen=True)
class MeasuredLearner:
    """Loss between measured points by linear interpolation; before the first and after the last, the nearest.

    steps : ascending inner steps.  losses : training loss at each, mean over seeds.
    """

    steps: NDArray[np.float64]
    losses: NDArray[np.float64]
    tokens_per_step: int

    def loss(self, inner_steps: int) -> float:
        return float(np.interp(inner_steps, self.steps, self.losses))

    @classmethod
    def read(cls, path: Path, method: str, islands: int = 8, column: str = "train_loss") -> MeasuredLearner:
        """From `curves.csv` of `protocol train`, the mean over its seeds.  Raises BadInput naming what is missing."""
        try:
            with path.open(newline="", encoding="utf-8") as file:
                rows = list(csv.DictReader(file))
        except (OSError, UnicodeDecodeError) as problem:
            raise BadInput(str(path), str(problem), "curves.csv of protocol train") from None
        try:
            mine = [r for r in rows if r["method"] == method and int(r["islands"]) == islands]
            table: dict[int, list[float]] = {}
            for row in mine:
                table.setdefault(int(row["step"]), []).append(float(row[column]))
            if not table:
                known = ", ".join(sorted({f"{r['method']} ({r['islands']})" for r in rows}))
                raise BadInput(str(path), f"no {method} with {islands} islands", f"one of {known}"[:300])
            # Tokens of all islands grow by this much a nominal step, unless islands cut their steps.
            tokens = max(int(r["tokens"]) / int(r["step"]) for r in mine) / islands
        except (KeyError, ValueError, TypeError, ZeroDivisionError) as problem:
            raise BadInput(str(path), f"{type(problem).__name__}: {problem}", "curves.csv of protocol train") from None
        steps = sorted(table)
        losses = np.array([np.mean(table[s]) for s in steps])
        if not np.isfinite(losses).all():
            raise BadInput(str(path), f"{method} with a loss that is not finite", "a run that did not diverge")
        return cls(np.array(steps, np.float64), losses, round(tokens))
