"""A calibration on disk: a folder of `calibration.json` and, beside it, the raw rows of every run (Parquet)."""

from __future__ import annotations

import shutil
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from protocol import reading
from protocol.calibration.model import SCHEMA, SCHEMA_VERSION, Calibration, CalibrationRun
from protocol.errors import BadInput
from protocol.files import canonical_json, sha256, write_text
from protocol.merging.schedule import Schedule
from protocol.parquet import write_tables
from protocol.replay.measurements import Measurements

FILE, REQUESTS, MERGES = "calibration.json", "requests.parquet", "merges.parquet"
#: Where a certificate's raw files hold the calibrations that it rests on.
CARRIED = "calibrations"
KNOWN = tuple((SCHEMA, version) for version in range(1, SCHEMA_VERSION + 1))


def write(folder: Path, calibration: Calibration, runs: Sequence[CalibrationRun]) -> Calibration:
    """The raw rows, then the file that names them by digest; the calibration as it stands there."""
    whole = calibration.replace(files=write_runs(folder, runs))
    write_text(folder / FILE, canonical_json(whole.plain()))
    return whole


def write_runs(folder: Path, runs: Sequence[CalibrationRun]) -> dict[str, str]:
    """The raw rows alone; their digests by file name."""
    requests, merges = [], []
    for run in runs:
        labels = {"run": run.label, "kind": run.kind, "load": run.load}
        table = run.measurements.to_table()
        for name, text in reversed(labels.items()):
            table = table.add_column(0, name, pa.array([text] * len(table), pa.string()))
        table = table.add_column(3, "rate_per_s", pa.array(np.full(len(table), run.rate_per_s)))
        requests.append(table)
        begin, end = run.merges.windows_ns(0)
        merges.append(
            pa.table({"run": pa.array([run.label] * len(begin), pa.string()), "begin_ns": begin, "end_ns": end})
        )
    names = write_tables({REQUESTS: pa.concat_tables(requests), MERGES: pa.concat_tables(merges)}, folder)
    return {name: sha256(folder / name) for name in names}


def read(path: Path) -> Calibration:
    """The calibration in a folder, or its file.  Raises BadInput when it is missing, broken or of another schema."""
    file = path / FILE if path.is_dir() else path
    found = reading.json_values(reading.text_of(file, "a calibration"), str(file))
    kind = (found.get("schema"), found.get("schema_version")) if isinstance(found, dict) else (None, None)
    if kind not in KNOWN:
        expected = " or ".join(f"{schema} version {version}" for schema, version in KNOWN)
        raise BadInput(str(file), f"schema {reading.shown(kind[0])}, version {reading.shown(kind[1])}", expected)
    return reading.read(Calibration, found, str(file))


def read_runs(folder: Path) -> list[CalibrationRun]:
    """The runs behind a calibration, in the order in which they were written.

    Raises BadInput naming the file when one is missing or has other columns.
    """
    try:
        requests, merges = pq.read_table(folder / REQUESTS), pq.read_table(folder / MERGES)
        kept = {
            name: merges.filter(pa.compute.equal(merges["run"], name)) for name in merges["run"].unique().to_pylist()
        }
        runs = []
        for label in requests["run"].unique().to_pylist():
            rows = requests.filter(pa.compute.equal(requests["run"], label))
            windows = kept.get(label, merges.slice(0, 0))
            begin, end = windows["begin_ns"].to_numpy(), windows["end_ns"].to_numpy()
            runs.append(
                CalibrationRun(
                    label, rows["kind"][0].as_py(), rows["load"][0].as_py(), rows["rate_per_s"][0].as_py(),
                    Measurements.from_table(rows), Schedule(begin, (end - begin)[:, None]),
                )
            )  # fmt: skip
        return runs
    except FileNotFoundError as error:
        raise BadInput(str(error.filename or folder), "no such file", "the rows of a calibration") from None
    except (OSError, KeyError, pa.ArrowException) as error:
        raise BadInput(str(folder), f"broken raw files ({str(error).splitlines()[0]})", "files as written") from None
    except BadInput as error:
        raise BadInput(f"{folder}, {error.where}", error.found, error.expected) from None


def carry(folder: Path, raw: Path) -> list[str]:
    """Copy a calibration into the raw files of a certificate; the copies' names within `raw`."""
    name = carried_as(read(folder).model.name)
    (raw / name).mkdir(parents=True)
    for part in (FILE, REQUESTS, MERGES):
        shutil.copyfile(folder / part, raw / name / part)
    return [f"{name}/{part}" for part in (FILE, REQUESTS, MERGES)]


def carried_as(name: str) -> str:
    """Folder within the raw files; a calibration may be named anything, its folder may not."""
    return f"{CARRIED}/{''.join(c if c.isalnum() or c in '-_' else '-' for c in str(name))}"
