"""What a calibration shows of the claims that rest on it: the loads that it saw, and every run counted by a limit."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from functools import lru_cache
from pathlib import Path
from typing import Any

from adapters.sidecars.fitting import simulate
from adapters.sidecars.simulated import SidecarModel
from protocol.calibration.model import IDLE, ON_OFF, CalibrationRun
from protocol.calibration.store import FILE, MERGES, REQUESTS, read, read_runs
from protocol.calibration.support import support_of
from protocol.errors import BadInput
from protocol.files import sha256
from protocol.replay.measurements import Measurements
from protocol.workload.slo import Slo


def shown_for(folder: Path, slos: Sequence[Slo]) -> dict[str, Any]:
    """{"support": ranges, "agreement": {limit: one row a run}}, plain values.

    A run with merges is simulated by the model of the half that did not see it, one without by the model itself.
    Raises BadInput when the calibration is missing or broken.
    """
    stated, pairs = read(folder), replayed(folder)
    support = support_of([run.measurements for run in read_runs(folder)], stated.merge_s)
    plain = {name: list(ends) for name, ends in asdict(support).items()}
    return {
        "support": plain,
        "agreement": {str(slo): [_row(run, simulated, slo) for run, simulated in pairs] for slo in slos},
    }


def _row(run: CalibrationRun, simulated: Measurements, slo: Slo) -> dict[str, Any]:
    return {
        "run": run.label,
        "load": run.load,
        "requests": len(run.measurements),
        "merges": len(run.merges),
        "violations": int(run.measurements.violates(slo).sum()),
        "simulated_violations": int(simulated.violates(slo).sum()),
    }


def replayed(folder: Path) -> list[tuple[CalibrationRun, Measurements]]:
    """The runs at the two loads, as they were measured and as the model serves them."""
    try:
        digests = tuple(sha256(folder / name) for name in (FILE, REQUESTS, MERGES))
    except OSError as error:
        raise BadInput(f"{error.filename}", str(error.strerror).lower(), "a file of a calibration") from None
    return _replayed(_Copy(digests, folder))


@dataclass(frozen=True)
class _Copy:
    """A calibration by its contents: a run's copy of one is no other."""

    digests: tuple[str, ...]
    folder: Path = field(compare=False)


@lru_cache(maxsize=4)
def _replayed(copy: _Copy) -> list[tuple[CalibrationRun, Measurements]]:
    folder = copy.folder
    stated = read(folder)
    whole = SidecarModel.from_calibration(stated)
    halves = [SidecarModel.fitted(half, f"{folder}, halves[{i}]") for i, half in enumerate(stated.halves)]
    half_of = {row.run: row.half for row in stated.runs}
    return [
        (run, simulate(halves[half_of[run.label]] if run.kind == ON_OFF else whole, run, stated.plan.seed))
        for run in read_runs(folder)
        if run.kind in (ON_OFF, IDLE)
    ]
