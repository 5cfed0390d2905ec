"""Rows of a CSV, JSON lines or Parquet file as columns of text, with the number of each row in its file."""

from __future__ import annotations

import io
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.csv
import pyarrow.parquet
from numpy.typing import NDArray

from adapters.traces.parsing import Fault
from adapters.traces.sample import DECODER, LINE_END, Sample, first_line
from protocol.errors import BadInput
from protocol.parquet import check_size

_BLOCK = 8 << 20
_JSON_BLOCK = 1 << 16


@dataclass(eq=False)
class Rows:
    """Some columns of a file.

    number : int64, shape (n,), the line (or Parquet row) of each row; malformed : rows that are none, by number.
    cells : the columns asked for, in their order; keys : every column or key that occurs in the file.
    typed_dates : whether the first column asked for held typed dates, given here in nanoseconds since 1970.
    """

    where: str
    number: NDArray[np.int64]
    cells: list[Any]
    malformed: dict[int, Fault] = field(default_factory=dict)
    keys: frozenset[str] = frozenset()
    typed_dates: bool = False

    def __len__(self) -> int:
        return len(self.number)

    def blocks(self, i: int) -> Iterator[Any]:
        """The i-th column asked for, in Arrow arrays (or lists, where JSON values of several types mix)."""
        cells = self.cells[i]
        if not isinstance(cells, list):
            yield from cells.chunks
            return
        for start in range(0, len(cells), _JSON_BLOCK):
            block = cells[start : start + _JSON_BLOCK]
            try:
                yield pa.array(block)
            except (pa.ArrowException, OverflowError, UnicodeEncodeError):  # the last: half a surrogate pair
                yield block

    def column(self, i: int) -> Iterator[object]:
        """Cells of the i-th column asked for: text, int, None or whatever JSON holds."""
        for block in self.blocks(i):
            yield from block if isinstance(block, list) else block.to_pylist()


def rows_of(sample: Sample, columns: tuple[str, ...], keep_going: bool) -> Rows:
    """The columns named, each of which `sample` has exactly once; of JSON also dotted paths into its objects.

    Raises BadInput for a file without rows and, unless `keep_going`, for the first malformed row.
    """
    readers = {"csv": _csv, "jsonl": _json_lines, "json array": _json_array, "parquet": _parquet}
    read = readers[sample.container]
    rows = read(sample, columns, keep_going)
    if not len(rows) and not rows.malformed:
        raise BadInput(str(sample.path), "a header and no rows", "one row a request")
    return rows


def _csv(sample: Sample, columns: tuple[str, ...], keep_going: bool) -> Rows:
    data = sample.data.rstrip(b"\r\n")  # empty lines at the end are no rows
    malformed: dict[int, Fault] = {}
    if LINE_END.search(data) is None:  # nothing but the header
        return Rows("line", np.zeros(0, np.int64), [[] for _ in columns])

    def ragged(row: Any) -> str:
        expected = f"{row.expected_columns} columns, as in the header"
        malformed[row.number] = Fault("wrong number of columns", "", f"{row.actual_columns} columns", expected)
        return "skip" if keep_going else "error"

    names = [str(i) for i in range(len(sample.columns))]
    wanted = [names[sample.columns.index(column)] for column in columns]
    try:
        table = pyarrow.csv.read_csv(
            pa.BufferReader(data),
            read_options=pyarrow.csv.ReadOptions(
                use_threads=False,
                block_size=_BLOCK,
                column_names=names,
                skip_rows=1,
                encoding=_encoding(data),
            ),
            parse_options=pyarrow.csv.ParseOptions(
                delimiter=sample.delimiter, ignore_empty_lines=False, invalid_row_handler=ragged
            ),
            convert_options=pyarrow.csv.ConvertOptions(
                include_columns=wanted, column_types={name: pa.string() for name in names}, strings_can_be_null=False
            ),
        )
    except (pa.ArrowException, OSError, ValueError) as error:
        if malformed and not keep_going:
            raise row_error(sample, "line", *next(iter(malformed.items()))) from None
        raise BadInput(str(sample.path), f"a table that breaks off ({first_line(error)})", "CSV in UTF-8") from None
    number = np.arange(2, 2 + table.num_rows + len(malformed), dtype=np.int64)
    number = np.setdiff1d(number, np.fromiter(malformed, np.int64, len(malformed)), assume_unique=True)
    return Rows("line", number, [table.column(name) for name in wanted], malformed, frozenset(sample.columns))


def _encoding(data: bytes) -> str:
    """UTF-8, or Latin-1 for bytes that are none: there every byte stands for itself, and only the cells asked for must
    make sense (the parser prints a traceback when it meets other bytes in a row it wants to complain about)."""
    if data.isascii():
        return "utf8"
    try:
        data.decode("utf-8")
    except UnicodeDecodeError:
        return "latin-1"
    return "utf8"


def _json_lines(sample: Sample, columns: tuple[str, ...], keep_going: bool) -> Rows:
    number: list[int] = []
    cells: list[list[object]] = [[] for _ in columns]
    pairs = list(zip(cells, columns, strict=True))
    malformed: dict[int, Fault] = {}
    first = set(sample.columns)
    keys = set(first)
    decode = DECODER.raw_decode
    for i, line in enumerate(io.BytesIO(sample.data.rstrip()), start=1):
        try:
            text = line.strip(b" \t\r\n").decode("utf-8")
            value, end = decode(text)
            if end != len(text):
                value = None
        except (ValueError, RecursionError):
            value = None
        if type(value) is not dict:
            found = "no whole JSON object" if line.strip() else "a blank line"
            malformed[i] = Fault("not a JSON object", "", found, "one JSON object a line")
            if not keep_going:
                raise row_error(sample, "line", i, malformed[i])
            continue
        if value.keys() != first:
            keys |= value.keys()
        number.append(i)
        for values, column in pairs:
            values.append(value[column] if column in value else within(value, column))
    return Rows("line", np.array(number, np.int64), list(cells), malformed, frozenset(keys))


def _json_array(sample: Sample, columns: tuple[str, ...], keep_going: bool) -> Rows:
    objects: Any = sample.document
    cells = [[row[column] if column in row else within(row, column) for row in objects] for column in columns]
    keys = frozenset(str(key) for row in objects for key in row)
    return Rows("row", np.arange(1, len(objects) + 1, dtype=np.int64), list(cells), {}, keys)


def within(value: object, path: str) -> object:
    """What a dotted path leads to inside a JSON object; None where it leads nowhere."""
    for key in path.split("."):
        value = value.get(key) if isinstance(value, dict) else None
    return value


def _parquet(sample: Sample, columns: tuple[str, ...], keep_going: bool) -> Rows:
    try:
        with pyarrow.parquet.ParquetFile(io.BytesIO(sample.data)) as file:
            check_size(str(sample.path), file)
        table = pyarrow.parquet.read_table(io.BytesIO(sample.data), columns=list(columns), use_threads=False)
        cells = [_as_text(table.column(column)) for column in columns]
        dates = pa.types.is_timestamp(table.column(columns[0]).type)
    except (pa.ArrowException, OSError, ValueError, KeyError) as error:
        found = f"columns that cannot be read ({first_line(error)})"
        raise BadInput(str(sample.path), found, "a whole Parquet file with plain columns") from None
    return Rows("row", np.arange(1, table.num_rows + 1, dtype=np.int64), cells, {}, frozenset(sample.columns), dates)


def _as_text(column: Any) -> Any:
    """Text of the shortest decimal that gives the same number; dates as whole nanoseconds since 1970."""
    if pa.types.is_timestamp(column.type):
        return pc.cast(pc.cast(column, pa.timestamp("ns", column.type.tz)), pa.int64())
    if pa.types.is_integer(column.type) or pa.types.is_nested(column.type):
        return column
    return pc.cast(column, pa.string())


def row_error(sample: Sample, where: str, number: int, fault: Fault) -> BadInput:
    """The refusal for one row."""
    place = f"{sample.path}, {where} {number}" + (f", {fault.column}" if fault.column else "")
    return BadInput(place, fault.found, f"{fault.expected} (or drop bad rows: --drop-bad-rows)")
