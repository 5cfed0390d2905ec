"""Parquet files that are small on disk and huge in memory are refused before they are read."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from protocol import parquet
from protocol.errors import BadInput
from protocol.files import clean


def test_a_small_file_of_many_rows_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "raw.parquet"
    pq.write_table(pa.table({"x": np.zeros(200_000, np.int64)}), path)
    assert path.stat().st_size < 20_000 and len(parquet.read_table(path)) == 200_000
    monkeypatch.setattr(parquet, "MOST_ROWS", 100_000)
    with pytest.raises(BadInput, match=r"found 200,000 rows with 200,000 values; expected at most 100,000 rows"):
        parquet.read_table(path)


def test_long_lists_count_by_their_values_and_deep_ones_are_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "raw.parquet"
    pq.write_table(pa.table({"x": [[0] * 5000]}), path)
    assert parquet.read_table(path)["x"][0].as_py() == [0] * 5000
    monkeypatch.setattr(parquet, "MOST_VALUES", 4000)
    with pytest.raises(BadInput, match="1 rows with 5,000 values"):
        parquet.read_table(path)
    pq.write_table(pa.table({"x": [[[[1]]]]}), path)
    with pytest.raises(BadInput, match="x: found nested data"):
        parquet.read_table(path)


def test_what_a_terminal_would_obey_is_spelled_out() -> None:
    shown = clean("\x1b[2J\x1b[31mverified\x1b[0m \r PASS \u202eSSAP [bold]x[/bold]")
    assert shown == "U+001B[2JU+001B[31mverifiedU+001B[0m   PASS U+202ESSAP [bold]x[/bold]"
