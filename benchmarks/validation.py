"""Does the calibrated simulator predict replays on the real server that it was not fitted on?

New traces and schedules at two loads, each replayed twice on the server (the difference between the
two is the server's own A/A spread), all in random order, and simulated once under the merges that really ran.

    python benchmarks/validation.py --calibration DIR --sidecar URL --model NAME --out DIR
"""

from __future__ import annotations

import argparse
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from scipy import stats

from adapters.merge_loads.runner import MergeLoad
from adapters.sidecars.fitting import simulate
from adapters.sidecars.identity import server_version
from adapters.sidecars.openai import Target
from adapters.sidecars.real import RealSidecar
from adapters.sidecars.simulated import SidecarModel
from protocol import seeds
from protocol.calibration import store as calibrations
from protocol.calibration.check import refuse_mismatch
from protocol.calibration.model import IDLE, ON_OFF, Calibration, CalibrationPlan, CalibrationRun
from protocol.merging.schedule import Schedule
from protocol.replay.measurements import SERVED, Measurements
from protocol.workload.slo import Slo
from protocol.workload.trace import NS_PER_S, RequestTrace, seconds_to_ns

SEED = 777
SLO = Slo.parse("e2e<=2s")
#: Bars of SPEC 10: relative error of p50 and p95, error of the violation rate in points, rank correlation.
QUANTILE, RATE_PP, SPEARMAN = 0.05, 0.5, 0.9
#: Two replays of one thing differ by less than this many standard deviations of one replay, 95 times of 100.
_PAIR = 1.96 * np.sqrt(2)


@dataclass(frozen=True)
class Case:
    """A schedule at a load.  start_s : merge starts."""

    name: str
    load: str
    rate_per_s: float
    start_s: tuple[float, ...]


def cases(loads: dict[str, float], n: int, horizon_s: float, merge_s: float) -> list[Case]:
    """n schedules a load, with none to as many merges as fit half of the time, placed at random and apart."""
    found = []
    most = int(horizon_s / (2 * merge_s))
    for load, rate in loads.items():
        for i in range(n):
            rng = seeds.generator(SEED, "validation", load, i)
            k = i % (most + 1)
            free = horizon_s - k * merge_s
            start = np.sort(rng.uniform(0, free, k)) + np.arange(k) * merge_s
            found.append(Case(f"{load}-{i}", load, rate, tuple(np.round(start, 3).tolist())))
    return found


def trace_of(case: Case, horizon_s: float, plan: CalibrationPlan) -> RequestTrace:
    rng = seeds.generator(SEED, "validation", "trace", case.name)
    n = int(rng.poisson(case.rate_per_s * horizon_s))
    arrival = (np.sort(rng.uniform(0, horizon_s, n)) * NS_PER_S).astype(np.int64)
    prompt, output = rng.choice(plan.prompt_tokens, n), rng.choice(plan.output_tokens, n)
    return RequestTrace(arrival, prompt, output, name=case.name)


def measures(m: Measurements) -> NDArray[np.float64]:
    """p50 and p95 of E2E in milliseconds, violations in percent."""
    served = m.e2e_ns[m.outcome == SERVED] / 1e6
    return np.array([*np.quantile(served, [0.5, 0.95]), 100 * m.violates(SLO).mean()])


def table(
    found: Sequence[Case], real: Callable[[Case, int], CalibrationRun], model: SidecarModel
) -> tuple[list[str], bool]:
    """Markdown lines, and whether every bar is held."""
    lines, held = [], True
    for load in dict.fromkeys(case.load for case in found):
        mine = [case for case in found if case.load == load]
        twice = np.array([[measures(real(case, i).measurements) for i in (0, 1)] for case in mine])
        said = np.array([
            np.mean([measures(simulate(model, real(case, i), SEED)) for i in (0, 1)], axis=0) for case in mine
        ])  # fmt: skip
        mean = twice.mean(axis=1)
        apart = (twice[:, 0] - twice[:, 1]) / np.where([True, True, False], mean, 1.0)
        spread = _PAIR * np.sqrt((apart**2).mean(axis=0) / 2)
        bar = np.maximum([QUANTILE, QUANTILE, RATE_PP], spread)
        error = (said - mean) / np.where([True, True, False], mean, 1.0)
        rank = [stats.spearmanr(said[:, j], mean[:, j]).statistic for j in range(3)]
        lines += [
            f"### {mine[0].rate_per_s:g} requests/s",
            "",
            f"The server's own A/A spread (95 % of differences between two replays): p50 {100 * spread[0]:.1f} %, "
            f"p95 {100 * spread[1]:.1f} %, violations {spread[2]:.2f} pp.  Spearman over {len(mine)} schedules: "
            f"p50 {rank[0]:.3f}, p95 {rank[1]:.3f}, violations {rank[2]:.3f}.",
            "",
            "| schedule | merges | p50 real, ms | simulated | error | p95 real, ms | simulated | error "
            "| violations real, % | simulated | error, pp | within |",
            "|---|---|---|---|---|---|---|---|---|---|---|---|",
        ]
        for case, r, s, e in zip(mine, mean, said, error, strict=True):
            inside = np.abs(e) <= bar
            held &= bool(inside.all())
            missed = [name for name, ok in zip(("p50", "p95", "violations"), inside, strict=True) if not ok]
            lines.append(
                f"| {case.name} | {len(case.start_s)} | {r[0]:.0f} | {s[0]:.0f} | {100 * e[0]:+.1f} % | {r[1]:.0f} | "
                f"{s[1]:.0f} | {100 * e[1]:+.1f} % | {r[2]:.2f} | {s[2]:.2f} | {e[2]:+.2f} | "
                f"{'yes' if not missed else 'not ' + ', '.join(missed)} |"
            )
        held &= min(rank) >= SPEARMAN
        lines.append("")
    return lines, held


def replay_missing(
    options: argparse.Namespace,
    calibration: Calibration,
    work: Sequence[tuple[Case, int]],
    kept: dict[str, CalibrationRun],
) -> None:
    """Up to `options.most` of the replays that are not among the kept ones, in random order; each is kept at once."""
    refuse_mismatch(calibration.stated(), merge_s=calibration.merge_s, server=server_version(options.sidecar))
    target = Target(options.sidecar, options.model, extra={"detokenize": False})
    server = RealSidecar(target, MergeLoad.parse(calibration.merge_load))
    made = 0
    for k in seeds.generator(SEED, "validation", "order").permutation(len(work)):
        case, i = work[k]
        label = f"{case.name}-{i}"
        if label in kept or made >= options.most:
            continue
        trace = trace_of(case, options.horizon_s, calibration.plan)
        starts = (np.array(case.start_s) * NS_PER_S).astype(np.int64)
        done = server.replay(trace, Schedule.all_islands(starts, seconds_to_ns(calibration.merge_s)))
        if done.invalid:
            print(f"{label}: {done.invalid}; made again later")
            continue
        kind = ON_OFF if case.start_s else IDLE
        begin_ns = np.maximum(done.ran_ns[:, 0], 0)
        merges = Schedule(begin_ns, (done.ran_ns[:, 1] - begin_ns)[:, None])
        kept[label] = CalibrationRun(label, kind, case.load, case.rate_per_s, done.rows, merges)
        calibrations.write_runs(options.out, list(kept.values()))
        made += 1
        print(f"{len(kept)} of {len(work)}: {label}", flush=True)


def main() -> None:
    asked = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    asked.add_argument("--calibration", type=Path, required=True)
    asked.add_argument("--sidecar", help="address of the server; without it, only the table of what is stored is made")
    asked.add_argument("--model")
    asked.add_argument("--out", type=Path, required=True)
    asked.add_argument("--loads", default="3,6.5", help="requests/s; other ones than the calibration's")
    asked.add_argument("--schedules", type=int, default=10, help="a load")
    asked.add_argument("--horizon-s", type=float, default=36.0)
    asked.add_argument("--most", type=int, default=10**6, help="new replays, then stop; the same command goes on")
    options = asked.parse_args()
    calibration = calibrations.read(options.calibration)
    loads = {f"load-{rate}": float(rate) for rate in options.loads.split(",")}
    found = cases(loads, options.schedules, options.horizon_s, calibration.merge_s)
    work = [(case, i) for case in found for i in (0, 1)]
    stored = calibrations.read_runs(options.out) if (options.out / "merges.parquet").exists() else ()
    kept = {run.label: run for run in stored}
    if options.sidecar:
        replay_missing(options, calibration, work, kept)
    missing = [f"{case.name}-{i}" for case, i in work if f"{case.name}-{i}" not in kept]
    if missing:
        print(f"{len(missing)} replays are missing: run the same command again")
        return
    model = SidecarModel.from_calibration(calibration)
    lines, held = table(found, lambda case, i: kept[f"{case.name}-{i}"], model)
    head = [
        f"Server: {calibration.server}; calibration of {calibration.date}, merge load "
        f"{calibration.merge_load}, merges of {calibration.merge_s:g} s; SLO {SLO}; "
        f"{options.horizon_s:g} s a replay, each schedule twice.",
        "",
        f"Bars: p50 and p95 within {100 * QUANTILE:g} % or the A/A spread, violations within {RATE_PP:g} pp or the A/A "
        f"spread, Spearman at least {SPEARMAN:g}.  {'Every bar is held.' if held else 'Not every bar is held.'}",
        "",
    ]
    print("\n".join(head + lines))
    (options.out / "validation.md").write_text("\n".join(head + lines))


if __name__ == "__main__":
    main()
