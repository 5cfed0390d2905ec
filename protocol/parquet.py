"""Parquet files of raw results: written whole, read without gaps."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq

from protocol.errors import BadInput
from protocol.files import atomic


def write_tables(tables: Mapping[str, pa.Table], folder: Path) -> list[str]:
    """Write each table to its name in `folder`; returns the names, sorted.  Same tables, same bytes."""
    folder.mkdir(parents=True, exist_ok=True)
    for name, table in tables.items():
        with atomic(folder / name) as temporary:
            pq.write_table(table, temporary, compression="zstd", row_group_size=1 << 20)
    return sorted(tables)


def read_table(path: Path, nullable: Collection[str] | None = ()) -> pa.Table:
    """Raises BadInput when the file is missing or unreadable, or a column outside `nullable` has an empty cell.

    nullable : columns that may have some; None for all of them.
    """
    try:
        table = pq.read_table(path)
    except FileNotFoundError:
        raise BadInput(str(path), "no such file", "a raw file of a campaign") from None
    except (pa.ArrowException, OSError) as error:
        raise BadInput(str(path), f"an unreadable file ({str(error).splitlines()[0]})", "Parquet") from None
    for name in table.column_names:
        values = table[name].combine_chunks()
        inner, part = 0, values
        while pa.types.is_list(part.type):
            part = part.flatten()
            inner += part.null_count
        if nullable is not None and values.null_count + inner and name not in nullable:
            raise BadInput(f"{path}, {name}", "an empty cell", "a value in every row")
    return table
