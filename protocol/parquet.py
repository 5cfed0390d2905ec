"""Parquet files of raw results: written whole, read without gaps."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq

from protocol.errors import BadInput
from protocol.files import atomic

#: A week of 80 requests a second, and its values; 120 million rows of one value fit a file of 1 MB.
MOST_ROWS, MOST_VALUES = 50_000_000, 500_000_000
#: Parts of the name of a list of lists below its column's.
_DEEPEST = 4


def write_tables(tables: Mapping[str, pa.Table], folder: Path) -> list[str]:
    """Write each table to its name in `folder`; returns the names, sorted.  Same tables, same bytes."""
    folder.mkdir(parents=True, exist_ok=True)
    for name, table in tables.items():
        with atomic(folder / name) as temporary:
            pq.write_table(table, temporary, compression="zstd", row_group_size=1 << 20)
    return sorted(tables)


def check_size(where: str, file: pq.ParquetFile) -> None:
    """Refuse a file that is small on disk and takes all memory when read.

    Raises BadInput above `MOST_ROWS` rows or `MOST_VALUES` values, and for columns nested deeper than a list of lists.
    """
    about = file.metadata
    groups = (about.row_group(g) for g in range(about.num_row_groups))
    values = sum(group.column(c).num_values for group in groups for c in range(group.num_columns))
    if about.num_rows > MOST_ROWS or values > MOST_VALUES:
        expected = f"at most {MOST_ROWS:,} rows and {MOST_VALUES:,} values"
        raise BadInput(where, f"{about.num_rows:,} rows with {values:,} values", expected)
    for column in range(about.num_columns):
        path = about.schema.column(column).path
        if path.count(".") > _DEEPEST:
            raise BadInput(f"{where}, {path.partition('.')[0]}", "nested data", "plain columns or lists of them")


def read_table(path: Path, nullable: Collection[str] | None = ()) -> pa.Table:
    """Raises BadInput when the file is missing or unreadable, or a column outside `nullable` has an empty cell.

    nullable : columns that may have some; None for all of them.
    """
    try:
        with pq.ParquetFile(path) as file:
            check_size(str(path), file)
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
