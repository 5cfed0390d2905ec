"""What a campaign costs: linear in draws, seeds and horizon; how much of it is the kernel; its memory; each command.

    python benchmarks/campaign.py [--quick]

Costs are CPU seconds, of this process or of a command and all that it started, so that other work on the machine
tells less.  A line is fitted by least squares; printed are its slope, its intercept and R2.  Bars: R2 at least 0.98 for
draws and horizon; a command at most 2.5 times the kernel's own time for its replays with 999 draws.
"""

from __future__ import annotations

import argparse
import os
import resource
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import numpy as np

from adapters.traces.worlds import GeneratedWorlds
from protocol.campaign.arms import close_contenders, load, run_seed, schedules_of
from protocol.campaign.plan import Plan, Setting
from protocol.cli.settings import PUBLISHED, contender_opener, setting_of
from protocol.evidence import store
from protocol.regimes.regime import Regime
from protocol.replay.replay import UNIFORM

EXAMPLE = Path(__file__).resolve().parents[1] / "examples" / "ewma.py"
ROOT = 20260601
LINEAR, OF_KERNEL = 0.98, 2.5


@dataclass(frozen=True)
class Fit:
    """cost = fixed + per * size; r2 : share of the variance that it explains."""

    fixed: float
    per: float
    r2: float

    @classmethod
    def of(cls, sizes: Sequence[float], costs: Sequence[float]) -> Fit:
        x, y = np.asarray(sizes, float), np.asarray(costs, float)
        per, fixed = np.polyfit(x, y, 1)
        return cls(float(fixed), float(per), float(1 - np.var(y - fixed - per * x) / np.var(y)))


def least(work: Callable[[], object], repeats: int) -> float:
    """CPU seconds of the best of some repeats."""
    taken = []
    for _ in range(repeats):
        begin = time.process_time()
        work()
        taken.append(time.process_time() - begin)
    return min(taken)


def setting(horizon_s: float | None = None, name: str = "bursty-aperiodic") -> Setting:
    regime = Regime.load(name)
    regime = regime if horizon_s is None else regime.replace(horizon_s=horizon_s)
    return setting_of(regime, GeneratedWorlds(regime, ROOT), None)


def plan(draws: int) -> Plan:
    return Plan(partial(contender_opener, str(EXAMPLE), ""), "ewma", ROOT, draws)


def by_draws(draws: Sequence[int], repeats: int) -> Fit:
    """Of one seed, 600 s."""
    one = setting()
    return Fit.of(draws, [least(lambda n=n: run_seed(plan(n), one, 0), repeats) for n in draws])


def by_horizon(horizons_s: Sequence[float], draws: int, repeats: int) -> Fit:
    """Of one seed."""
    settings = [setting(s) for s in horizons_s]
    return Fit.of(horizons_s, [least(lambda s=s: run_seed(plan(draws), s, 0), repeats) for s in settings])


def by_seeds(seeds: Sequence[int], draws: int) -> Fit:
    """Of one regime: each seed has its own trace, so the line is through their sum."""
    one, costs, total = setting(), [0.0] * len(seeds), 0.0
    for seed in range(max(seeds)):
        total += least(lambda seed=seed: run_seed(plan(draws), one, seed), 1)
        costs = [total if seed + 1 == n else cost for n, cost in zip(seeds, costs, strict=True)]
    return Fit.of(seeds, costs)


@dataclass(frozen=True)
class Spent:
    """Of a command and all that it started.  peak_mb : of its largest process."""

    cpu_s: float
    wall_s: float
    peak_mb: float


def command(*words: object) -> Spent:
    """Raises SystemExit when it ends as no command should."""
    line = [sys.executable, "-m", "protocol", *map(str, words)]
    begin = time.perf_counter()
    run = subprocess.Popen(line, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE)
    errors = run.stderr.read() if run.stderr else b""
    _, status, used = os.wait4(run.pid, 0)
    run.returncode = os.waitstatus_to_exitcode(status)
    if run.returncode not in (0, 1, 3):
        raise SystemExit(f"{' '.join(line)}: {errors.decode()[-500:]}")
    return Spent(used.ru_utime + used.ru_stime, time.perf_counter() - begin, used.ru_maxrss / 1024)


def kernel_s(raw: Path, regimes: Sequence[str]) -> tuple[float, int]:
    """CPU seconds of the kernel alone for every replay of a run, from its rate on each seed's own draws; requests."""
    total, requests = 0.0, 0
    settings = {name: setting(name=name) for name in regimes}
    for e in store.read(raw):
        one, n = settings[e.regime], sum(len(p) for p in e.placed.values()) * len(settings[e.regime].slos)
        sidecar = load(plan(1), one, e.seed, one.worlds.workload(e.seed))
        rows = e.placed[UNIFORM].rows()[:100]
        drawn = schedules_of(rows, one.corridor, sidecar.trace.n_islands)
        sidecar.violations(drawn[:1], one.slos[0])
        total += least(partial(sidecar.violations, drawn, one.slos[0]), 3) / len(drawn) * n
        requests += n * e.n_requests
    return total, requests


def of_kernel(seeds: int, draws: int, regimes: Sequence[str], folder: Path) -> tuple[Spent, float, int]:
    """A command in one process, and the kernel's own time for its replays."""
    asked = [word for name in regimes for word in ("--regime", name)]
    spent = command("certify", EXAMPLE, *asked, "--seeds", seeds, "--draws", draws, "--jobs", 1, "--out", folder)
    return spent, *kernel_s(folder / "raw", regimes)


def twice(draws: int, seeds: int) -> tuple[float, float]:
    """Peak MB of a fresh process after one campaign, and after the same again."""
    code = (
        "import resource, sys; from pathlib import Path; import protocol\n"
        "for k in range(2):\n"
        "    protocol.certify(sys.argv[1], regimes=['bursty-aperiodic'], seeds=int(sys.argv[2]), "
        "draws=int(sys.argv[3]), jobs=1, out=f'{sys.argv[4]}/{k}', quiet=True)\n"
        "    print(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024)\n"
    )
    with tempfile.TemporaryDirectory() as out:
        words = [sys.executable, "-c", code, str(EXAMPLE), str(seeds), str(draws), out]
        once, again = map(float, subprocess.run(words, capture_output=True, text=True, check=True).stdout.split())
    return once, again


def lines(quick: bool) -> Iterator[tuple[str, float, str, float | None]]:
    """What, how much, its unit, and the bar that it is held to."""
    repeats = 1 if quick else 3
    run_seed(plan(9), setting(), 0)  # compiles
    fit = by_draws((499, 1999, 7999) if quick else (499, 999, 1999, 3999, 7999), 3)
    yield "a draw", 1e3 * fit.per, "ms CPU", None
    yield "a seed without draws", fit.fixed, "s CPU", None
    yield "linear in draws, R2", fit.r2, "", LINEAR
    fit = by_horizon((600, 1200, 2400) if quick else (600, 1200, 2400, 4800), 199, repeats)
    yield "100 s of horizon, 199 draws", 100 * fit.per, "s CPU", None
    yield "linear in horizon, R2", fit.r2, "", LINEAR
    fit = by_seeds((1, 2, 4) if quick else (1, 2, 4, 8), 199)
    yield "a seed, 199 draws", fit.per, "s CPU", None
    yield "linear in seeds, R2", fit.r2, "", LINEAR
    close_contenders()
    regimes = ("bursty-aperiodic",) if quick else PUBLISHED
    with tempfile.TemporaryDirectory() as scratch:
        folder, seeds = Path(scratch) / "out", 2 if quick else 20
        few, _, _ = of_kernel(seeds, 19, regimes, Path(scratch) / "few")
        many, kernel, requests = of_kernel(seeds, 999, regimes, folder)
        yield "certify, 19 draws", few.cpu_s, "s CPU", None
        yield "certify, 999 draws", many.cpu_s, "s CPU", None
        yield "the kernel alone, its replays", kernel, "s CPU", None
        yield "kernel", requests / kernel / 1e6, "M requests/s", None
        yield "certify, 999 draws / kernel", many.cpu_s / kernel, "x", OF_KERNEL
        yield "certify, largest process", many.peak_mb, "MB", 1024
        yield "verify", command("verify", folder).cpu_s, "s CPU", None
        yield "report", command("report", folder, "--out", Path(scratch) / "pages").cpu_s, "s CPU", None
    yield "start-up: --version", command("--version").wall_s, "s", None
    once, again = twice(99, 2)
    yield "a second run in one process adds", again - once, "MB", None


def holds(value: float, unit: str, bar: float | None) -> bool | None:
    """A share of variance is held from below, every other from above."""
    return None if bar is None else value >= bar if unit == "" else value <= bar


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--quick", action="store_true")
    missed = 0
    for what, value, unit, bar in lines(parser.parse_args().quick):
        kept = holds(value, unit, bar)
        missed += kept is False
        mark = "" if bar is None else f"   bar {bar:g}: {'held' if kept else 'MISSED'}"
        print(f"{what:36}{value:12.4g} {unit}{mark}", flush=True)
    own = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    print(f"load average {os.getloadavg()[0]:.1f}; this process {own:.0f} MB at most")
    return int(missed > 0)


if __name__ == "__main__":
    sys.exit(main())
