"""Says what a run of `.ci/vllm` measured on the real server, and fails where it measured nothing."""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np

from protocol.calibration import store as calibrations
from protocol.evidence import store
from protocol.replay.measurements import SERVED
from protocol.replay.replay import NO_SYNC, POLICY, UNIFORM, Replay


def counted(folder: Path) -> list[Replay]:
    """The replays of a certificate that count, with at least one request served."""
    found = [r for e in store.read(folder / "raw") for r in e.judged.values()]
    return [r for r in found if (r.rows.outcome == SERVED).any()]


def main() -> int:
    out = Path(sys.argv[1])
    wrong = []
    runs = calibrations.read_runs(out / "calibration")
    merges = sum(len(run.merges.windows_ns(0)[0]) for run in runs)
    served = sum(int((run.measurements.outcome == SERVED).sum()) for run in runs)
    print(f"calibration: {len(runs)} runs, {merges} merges, {served} requests served")
    if not merges or not served:
        wrong.append("calibration")
    for name, arms in (("host", {POLICY, NO_SYNC, UNIFORM}), ("pause", {POLICY, NO_SYNC, UNIFORM}), ("live", set())):
        replays = counted(out / name)
        merged = sum(len(r.ran_ns) for r in replays)
        late = [float(np.mean(r.rows.sent_ns - r.rows.arrival_ns > 5_000_000)) for r in replays]
        print(
            f"{name}: {len(replays)} valid replays, {merged} merges, {sum(len(r.rows) for r in replays)} requests, "
            f"at most {100 * max(late, default=1.0):.1f} % of one sent late"
        )
        if not merged or not arms <= {r.arm for r in replays} or (name == "live" and len(replays) < 5):
            wrong.append(name)
    further = sum(not e.served and bool(e.simulated) for e in store.read(out / "host" / "raw"))
    print(f"host: {further} further seeds in simulation, from which its replays are predicted")
    if further < 100:
        wrong.append("further seeds")
    if wrong:
        print(f"NOT MEASURED: {', '.join(wrong)}")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
