"""Every bar of speed and memory in one run: a table, and JSON by which two commits can be compared.

    python benchmarks/bench.py --quick                      # make bench QUICK=--quick
    python benchmarks/bench.py --out build/bench            # make bench
    python benchmarks/bench.py --compare OLD.json NEW.json

A row is a ratio of two things measured in this run, or a figure that a bar or a cost model needs.  CPU seconds are used
wherever one process does the work, so that a shared machine tells less; the load average is kept beside the figures.
What is compared between two files is new over old; seconds are worth comparing only where machine and load were alike.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import campaign
import kernel
import numpy as np

from adapters.sidecars.simulated import SimulatedSidecar
from protocol.certificate.model import versions
from protocol.merging.corridor import Corridor

REPOSITORY = Path(__file__).resolve().parents[1]


@dataclass(frozen=True)
class Row:
    """bar : None where nothing is demanded.  better : "higher" or "lower"."""

    what: str
    value: float
    unit: str
    bar: float | None = None
    better: str = "lower"

    @property
    def holds(self) -> bool | None:
        if self.bar is None:
            return None
        return self.value >= self.bar if self.better == "higher" else self.value <= self.bar


def kernel_rows(quick: bool) -> Iterator[Row]:
    """The simulated sidecar against a SimPy model of the same batching, which agrees with it to the nanosecond."""
    rng = np.random.default_rng(0)
    trace = kernel.steady_trace(4000, rng)
    schedules = kernel.random_schedules(50 if quick else 250, int(trace.arrival_ns[-1]), rng)
    sidecar = SimulatedSidecar()
    loaded = sidecar.load(trace, rng)
    server = kernel.SimpyServer(sidecar.model, trace, schedules[0])
    server.run()
    if worst := kernel.disagreement(loaded, server, schedules[0]):
        raise SystemExit(f"the SimPy model and the kernel differ by up to {worst} ns")
    loaded.violations(schedules[:1], kernel.SLO)
    taken = campaign.least(lambda: loaded.violations(schedules, kernel.SLO), 3 if quick else 9)
    simpy = campaign.least(lambda: kernel.SimpyServer(sidecar.model, trace, schedules[0]).run(), 1 if quick else 3)
    per_s = len(schedules) * len(trace) / taken
    yield Row("kernel", per_s / 1e6, "M requests/s", kernel.BAR_PER_S / 1e6, "higher")
    yield Row("kernel / SimPy", per_s / (len(trace) / simpy), "x", kernel.BAR_RATIO, "higher")


def sampler_rows(quick: bool) -> Iterator[Row]:
    """Uniform placements on a corridor, and what drawing gaps until they fit takes for the same."""
    corridor = Corridor(
        h_min=94, h_max=376, decision_steps=1, step_ns=10**8, merge_ns=8 * 10**9, horizon_ns=600 * 10**9
    )
    rng, n = np.random.default_rng(0), 100_000
    corridor.sample(30, 10, rng)
    yield Row("100,000 placements of 30", campaign.least(lambda: corridor.sample(30, n, rng), 2), "s", 1.0)
    k, tries = 22, 100_000
    low, high = corridor.sum_range(k)
    accepted = 0

    def rejecting() -> None:
        nonlocal accepted
        totals = rng.integers(corridor.gap_min, corridor.gap_max + 1, (tries, k)).sum(axis=1)
        accepted = int(((totals >= low) & (totals <= high)).sum())

    proposed, drawn = campaign.least(rejecting, 1), campaign.least(lambda: corridor.sample(k, tries, rng), 2)
    yield Row("accept and reject / sampler, 22 merges", proposed / max(accepted, 1) / (drawn / tries), "x")
    share = corridor.log10_count(30) - 30 * np.log10(corridor.gap_max - corridor.gap_min + 1)
    yield Row("log10 share accepted, 30 merges", float(share), "")


def campaign_rows(quick: bool) -> Iterator[Row]:
    for what, value, unit, bar in campaign.lines(quick):
        yield Row(what, value, unit, bar, "higher" if unit in ("", "M requests/s") else "lower")


def scaling_rows(quick: bool) -> Iterator[Row]:
    """Two processes against one, by the clock on the wall: only a quiet machine shows what two cores give."""
    with tempfile.TemporaryDirectory() as scratch:
        walls = []
        for jobs in (1, 2):
            asked = ("--regime", "bursty-aperiodic", "--seeds", 4 if quick else 16, "--draws", 999, "--jobs", jobs)
            out = Path(scratch) / str(jobs)
            walls.append(campaign.command("certify", campaign.EXAMPLE, *asked, "--out", out).wall_s)
        yield Row("certify, one process / two", walls[0] / walls[1], "x", None, "higher")


GROUPS = {"kernel": kernel_rows, "sampler": sampler_rows, "campaign": campaign_rows, "jobs": scaling_rows}


def machine() -> dict[str, Any]:
    model = next(
        (line.partition(":")[2].strip() for line in _text("/proc/cpuinfo").splitlines() if "model name" in line), ""
    )
    return {"processor": model or platform.machine(), "cores": os.cpu_count(), "system": platform.platform()}


def _text(path: str) -> str:
    try:
        return Path(path).read_text()
    except OSError:
        return ""


def commit() -> str:
    run = subprocess.run(["git", "describe", "--always", "--dirty"], cwd=REPOSITORY, capture_output=True, text=True)
    return run.stdout.strip() or "unknown"


def measured(groups: Sequence[str], quick: bool) -> dict[str, Any]:
    rows, before, began = [], os.getloadavg()[0], time.perf_counter()
    for group in groups:
        for row in GROUPS[group](quick):
            print(line(row), flush=True)
            rows.append(row)
    return {
        "commit": commit(), "date": datetime.now(UTC).isoformat(timespec="seconds"), "quick": quick,
        "machine": machine(), "versions": versions(), "load_average": [before, os.getloadavg()[0]],
        "took_s": time.perf_counter() - began, "rows": [asdict(row) for row in rows],
    }  # fmt: skip


def line(row: Row) -> str:
    mark = "" if row.bar is None else f"   bar {row.bar:g}: {'held' if row.holds else 'MISSED'}"
    return f"{row.what:42}{row.value:12.4g} {row.unit}{mark}"


def compared(old: dict[str, Any], new: dict[str, Any]) -> Iterator[str]:
    """New over old, row by row; what only one of them has is named."""
    for key in ("commit", "date", "quick", "machine", "load_average"):
        yield f"{key:14}{old[key]}   ->   {new[key]}"
    rows = [{row["what"]: row for row in one["rows"]} for one in (old, new)]
    for what in dict.fromkeys([*rows[0], *rows[1]]):
        if what not in rows[0] or what not in rows[1]:
            yield f"{what:42}only in {'old' if what in rows[0] else 'new'}"
            continue
        a, b = (one[what]["value"] for one in rows)
        yield f"{what:42}{a:12.4g}{b:12.4g} {rows[0][what]['unit']:14} x {b / a if a else float('nan'):.2f}"


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--quick", action="store_true")
    parser.add_argument("--only", choices=list(GROUPS), action="append", help="one group; repeatable")
    parser.add_argument("--out", type=Path, help="folder for COMMIT.json")
    parser.add_argument("--compare", type=Path, nargs=2, metavar=("OLD", "NEW"))
    asked = parser.parse_args()
    if asked.compare:
        for text in compared(*(json.loads(path.read_text("utf-8")) for path in asked.compare)):
            print(text)
        return 0
    found = measured(asked.only or list(GROUPS), asked.quick)
    loads = ", ".join(f"{load:.1f}" for load in found["load_average"])
    print(f"{found['commit']}, {found['took_s']:.0f} s, load average before and after: {loads}")
    print("Vidur's event loop: not measured; nothing here drives it")
    if asked.out:
        asked.out.mkdir(parents=True, exist_ok=True)
        path = asked.out / f"{found['commit']}.json"
        path.write_text(json.dumps(found, indent=2) + "\n", "utf-8")
        print(f"kept: {path}")
    return int(any(Row(**row).holds is False for row in found["rows"]))


if __name__ == "__main__":
    sys.exit(main())
