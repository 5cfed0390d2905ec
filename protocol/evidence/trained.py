"""What really trained models lost under judged schedules: one row a seed and arm."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import pyarrow as pa

from protocol.errors import BadInput
from protocol.parquet import read_table, write_tables

TRAINED = "learner.parquet"


@dataclass(frozen=True)
class Trained:
    """One training run under one schedule.

    arm : the policy, or the first of its matched draws.  trained_steps, tokens : of all islands.
    validation_loss : final, of the islands' average, nats a symbol; not finite where training diverged.
    """

    regime: str
    seed: int
    arm: str
    trained_steps: int
    tokens: int
    validation_loss: float


_COLUMNS = {
    "regime": pa.string(), "seed": pa.int32(), "arm": pa.string(), "trained_steps": pa.int64(), "tokens": pa.int64(),
    "validation_loss": pa.float64(),
}  # fmt: skip


def write(runs: Sequence[Trained], folder: Path) -> list[str]:
    columns = {name: pa.array([getattr(r, name) for r in runs], kind) for name, kind in _COLUMNS.items()}
    return write_tables({TRAINED: pa.table(columns)}, folder)


def read(folder: Path) -> list[Trained]:
    """The runs that `write` stored.  Raises BadInput when a column is missing or of another type."""
    table = read_table(folder / TRAINED)
    if dict(zip(table.column_names, table.schema.types, strict=True)) != _COLUMNS:
        raise BadInput(str(folder / TRAINED), f"columns {', '.join(table.column_names)}", ", ".join(_COLUMNS))
    return [Trained(**row) for row in table.to_pylist()]
