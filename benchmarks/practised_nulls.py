"""How often load-blind schedulers are certified where merges are not all alike: full replays of small bursty worlds.

    python -m benchmarks.practised_nulls --n 2000 --out nulls.csv

Each certification is one of `protocol certify`'s, less the scheduler's process: merges by the regime's own stream,
matched draws and exchange as a campaign makes them, gate G3.  Blind schedulers take turns: a uniform draw, gaps of one
size, clusters, gaps that drift.
"""

from __future__ import annotations

import argparse
import csv
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import joblib
import numpy as np

from adapters.traces.worlds import GeneratedWorlds
from protocol import seeds
from protocol.campaign import arms
from protocol.campaign.plan import Plan, Setting
from protocol.cli.settings import setting_of
from protocol.evidence.model import CROSSED, Evidence
from protocol.gates.envelope import adjusted, envelope_gate, measure
from protocol.gates.spec import Spec
from protocol.merging.placements import Placements
from protocol.merging.practice import Durations, Merges, Practice
from protocol.merging.schedule import Schedule
from protocol.regimes.regime import Regime
from protocol.replay.replay import NO_SYNC, POLICY, UNIFORM
from protocol.selftest.counts import tally, verdict

SEEDS, DRAWS, ALPHA = 8, 19, 0.05
TESTS = ("stratified randomisation", "paired sign flip", "exchange between traces", "certified")
WORLD = Regime.load("bursty-aperiodic").replace(horizon_s=180.0, cooldown_s=10.0, seeds=SEEDS)
#: Merges as they vary: each family is a [merge] table.
FAMILIES = {
    "uniform lengths, some not committed": Practice(
        duration=Durations(follows="uniform", least_s=2.0, most_s=14.0), failed_share=0.1
    ),
    "growing lengths": Practice(duration=Durations(follows="given", values_s=(1.0, 2.0, 4.0, 8.0, 16.0, 32.0))),
    "fragments": Practice(
        fragments=4, sync_delay_steps=8, send_slowdown=1.5, apply_s=0.5,
        duration=Durations(follows="lognormal", median_s=1.5, sigma=0.7, least_s=0.3, most_s=8.0),
    ),
}  # fmt: skip

Wish = Callable[[int], int]


def _wishes(number: int, low: int, high: int, rng: np.random.Generator) -> Wish:
    """Gaps that a blind scheduler would like."""
    if number % 4 == 1:
        gap = int(rng.integers(low, high, endpoint=True))
        return lambda i: gap
    if number % 4 == 2:
        length, phase = int(rng.integers(2, 5)), int(rng.integers(0, 4))
        return lambda i: high if (i + phase) % length == 0 else low
    first, step = int(rng.integers(low, high)), int(rng.integers(1, 9) * rng.choice((-1, 1)))
    return lambda i: first + i * step


def made(setting: Setting, stream: Merges, number: int, rng: np.random.Generator) -> Placements:
    """A blind scheduler's schedule in the control loop; every fourth one is moved to a uniform place."""
    c, lengths = setting.corridor, setting.practice.length_ns(stream.took_ns, setting.corridor.step_ns)
    wish, gaps, now_ns = _wishes(number, c.gap_min, c.gap_max, rng), [], 0
    while True:
        room = (c.horizon_ns - now_ns - int(lengths[len(gaps)])) // c.grid_ns
        gap = int(np.clip(wish(len(gaps)), c.gap_min, c.gap_max))
        if gap > room and room < c.gap_max:
            break
        gaps.append(min(gap, room))
        now_ns += gaps[-1] * c.grid_ns + int(lengths[len(gaps) - 1])
    own = stream.first(len(gaps))
    row = np.array(gaps)[None]
    if number % 4 == 0:
        row, own = c.sample(len(gaps), 1, rng, setting.timing.spent(own)), own.ordered(own.orders(1, rng)[0])
    return Placements.of(row, np.zeros((1, 1), np.int64), [own])


def certification(family: str, root: int, number: int) -> dict[str, bool]:
    """Which tests one blind scheduler passed in world `number`."""
    own_root = int(seeds.words(root, "practised-null", family, number)[0])
    regime = WORLD.replace(merge=FAMILIES[family])
    setting = setting_of(regime, GeneratedWorlds(regime, own_root), None)
    plan = Plan(lambda: None, "null", own_root, DRAWS)  # type: ignore[arg-type, return-value]
    schedules = []
    for s in range(SEEDS):
        stream = arms.stream_of(own_root, setting, s)
        assert stream is not None
        schedules.append(made(setting, stream, number, seeds.generator(own_root, "blind", s)))
    evidence = []
    for s in range(SEEDS):
        workload = setting.worlds.workload(s)
        sidecar = arms.load(plan, setting, s, workload)
        everywhere = arms.priced(sidecar, arms.crossed(schedules, setting), setting)
        drawn = arms.drawn_more(plan, setting, s, schedules[s], 0)
        assert drawn is not None
        idle = sidecar.violations([Schedule.empty(1)], setting.slos[0])[:, None]
        placed = {
            POLICY: replace(schedules[s], violations=everywhere.violations[s : s + 1]),
            NO_SYNC: Placements.of(np.zeros((1, 0), np.int64), idle),
            UNIFORM: arms.priced(sidecar, drawn, setting),
            CROSSED: everywhere,
        }
        trace = workload.trace
        evidence.append(Evidence(regime.name, s, trace.digest, len(trace), 0, 0, 0, None, None, (), placed=placed))
    spec = Spec(
        regime.name, "simulated", "scheduler", setting.corridor, None, 1, setting.slos, SEEDS, DRAWS, 1, False, 1,
        own_root, ALPHA, 0.0, practice=regime.merge,
    )  # fmt: skip
    measured = measure(evidence, spec, 0)
    found = verdict(measured.gains)
    found["certified"] = envelope_gate(measured, adjusted([measured], measured.spec.alpha)[0]).status == "passed"
    return {name: found[name] for name in TESTS}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--n", type=int, default=500, help="certifications of each family")
    parser.add_argument("--first", type=int, default=0, help="number of the first world")
    parser.add_argument("--root", type=int, default=20260601)
    parser.add_argument("--jobs", type=int, default=2)
    parser.add_argument("--family", choices=[*FAMILIES], action="append")
    parser.add_argument("--out", type=Path, required=True, help="CSV of every certification; appended to")
    asked = parser.parse_args()
    new = not asked.out.exists()
    with asked.out.open("a", newline="") as file:
        writer = csv.writer(file, lineterminator="\n")
        if new:
            writer.writerow(["family", "world", *TESTS])
        for family in asked.family or FAMILIES:
            numbers = range(asked.first, asked.first + asked.n)
            found = joblib.Parallel(n_jobs=asked.jobs)(
                joblib.delayed(certification)(family, asked.root, k) for k in numbers
            )
            writer.writerows([family, k, *map(int, hit.values())] for k, hit in zip(numbers, found, strict=True))
            design = f"{SEEDS} seeds x {DRAWS}"
            for row in tally(found, dict.fromkeys(TESTS), world="small bursty worlds", family=family, design=design):
                low, high = row.interval
                said = f"{row.count}/{row.n} = {row.rate:.4f} [{low:.4f}, {high:.4f}]"
                sys.stdout.write(f"{row.family}, {row.what}: {said}\n")


if __name__ == "__main__":
    main()
