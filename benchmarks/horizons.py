"""Processor time of a certificate's simulation against the length of its horizon: `hourly-blocking`, 1.5 to 12 hours.

    python -m benchmarks.horizons --out docs/results/horizons

writes OUT.csv and OUT.svg.  Times are those of this process and of the scheduler's, one worker; lengths take turns, the
least of several runs counts, so that a shared machine tells on them less.  The line of the figure goes through the
origin and the longest horizon: what is linear lies on it or, with its fixed part, above it on the left.
"""

from __future__ import annotations

import argparse
import csv
import resource
import sys
import time
from functools import partial
from pathlib import Path

import matplotlib.pyplot as plt

from adapters.traces.worlds import GeneratedWorlds
from protocol.campaign.arms import close_contenders
from protocol.campaign.plan import Plan
from protocol.campaign.run import run
from protocol.cli.settings import contender_opener, setting_of
from protocol.regimes.regime import Regime
from protocol.replay.replay import POLICY
from reports.figures import DRAWS, MUTED, save, styled

#: Of a column of a two-column paper.
COLUMN_IN = 3.35
HOURS = (1.5, 3.0, 6.0, 12.0)


def cpu_s() -> float:
    """Of this process and of those that it has waited for."""
    ended = resource.getrusage(resource.RUSAGE_CHILDREN)
    return time.process_time() + ended.ru_utime + ended.ru_stime


def certified(hours: float, scheduler: str, n_seeds: int, draws: int) -> tuple[float, int, float]:
    """CPU seconds, requests of a replay, and merges a seed."""
    regime = Regime.load("hourly-blocking").replace(horizon_s=hours * 3600, seeds=n_seeds)
    setting = setting_of(regime, GeneratedWorlds(regime, 20260601), None)
    plan = Plan(partial(contender_opener, scheduler, ""), scheduler, 20260601, draws)
    began = cpu_s()
    found = run(plan, [setting], jobs=1)
    close_contenders()
    merges = sum(len(e.placed[POLICY].gaps) for e in found) / n_seeds
    return cpu_s() - began, sum(e.n_requests for e in found) // n_seeds, merges


def draw(rows: list[tuple[float, float, int, float]], stem: Path) -> None:
    hours, took = [r[0] for r in rows], [r[1] for r in rows]
    with styled():
        figure, axes = plt.subplots(figsize=(COLUMN_IN, 2.3), layout="constrained")
        axes.plot([0, hours[-1]], [0, took[-1]], color=MUTED, linewidth=0.8, linestyle="--")
        axes.plot(hours, took, "o", color=DRAWS)
        axes.set(xlabel="horizon, hours", ylabel="CPU seconds", xlim=(0, None), ylim=(0, None), xticks=hours)
        save(figure, stem, ("svg",))
        plt.close(figure)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--scheduler", default="wa-calibrated")
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--draws", type=int, default=99)
    parser.add_argument("--runs", type=int, default=3)
    parser.add_argument("--out", type=Path, required=True, help="stem of the CSV and the figure")
    asked = parser.parse_args()
    certified(HOURS[0], asked.scheduler, 1, 9)  # compiles
    runs = [[certified(h, asked.scheduler, asked.seeds, asked.draws) for h in HOURS] for _ in range(asked.runs)]
    rows = [(h, min(r[k][0] for r in runs), *runs[0][k][1:]) for k, h in enumerate(HOURS)]
    with asked.out.with_suffix(".csv").open("w", newline="") as file:
        writer = csv.writer(file, lineterminator="\n")
        writer.writerow(["horizon_h", "cpu_s", "requests", "merges"])
        writer.writerows([f"{h:g}", f"{s:.2f}", n, f"{k:.1f}"] for h, s, n, k in rows)
    draw(rows, asked.out)
    for hours, took, requests, _ in rows:
        sys.stdout.write(f"{hours:g} h: {took:.2f} CPU s, {1e6 * took / requests:.1f} us a request of a replay\n")


if __name__ == "__main__":
    main()
