"""`protocol selftest`: what the gates say of schedulers whose worth is known, and whether what is printed is true."""

from __future__ import annotations

import dataclasses
import itertools
import json
import shlex
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path
from typing import Annotated, Any

import joblib
import pyarrow as pa
import pyarrow.csv
import typer
from rich.console import Console
from rich.text import Text

from adapters.traces.worlds import GeneratedWorlds
from protocol import files
from protocol.cli import options
from protocol.cli.backend import Backend
from protocol.cli.progress import progress_bar
from protocol.cli.settings import setting_of
from protocol.errors import BadInput
from protocol.regimes.regime import Regime
from protocol.selftest import pools, sessions, synthetic
from protocol.selftest.counts import BARS, Row
from reports.fitted import fitted

SYNTHETIC, SIMULATED = "synthetic", "simulated"
KEPT = "selftest.jsonl"
WORLDS = (SYNTHETIC, SIMULATED, sessions.LIVE, sessions.PREDICTED)


@dataclass(frozen=True)
class Size:
    """How much is run: certificates of a family, and for the simulated ones how many worlds and draws.

    null, power, detect : certificates at a true gain, of a known power, and for what was said to be found.
    reps : simulated in each of the latter.  draws : a seed of the synthetic families; many : of the simulated ones.
    horizon_s : None for the regime's own.
    """

    null: int
    power: int
    detect: int
    reps: int
    worlds: int
    draws: int = 19
    many: int = 999
    seeds: int = 20
    resamples: int = 999
    horizon_s: float | None = None

    def scaled(self, null: int) -> Size:
        """As many certificates of a family, and of the rest in the proportions of a full run."""
        return dataclasses.replace(
            self, null=null, power=max(null // 2, 1), detect=max(null // 5, 1), worlds=max(null // 2, 40)
        )


FULL = Size(null=2000, power=1000, detect=400, reps=300, worlds=1000)
QUICK = Size(null=20, power=20, detect=3, reps=60, worlds=40, many=99, resamples=499, horizon_s=150.0)

Task = Callable[[], Sequence[Row]]


def register(app: typer.Typer) -> None:
    app.command("selftest")(options.grouped(selftest_command))


def selftest_command(
    backend: Backend,
    quick: Annotated[bool, typer.Option("--quick", help="a few certificates of each family")] = False,
    world: Annotated[list[str] | None, typer.Option(help=f"only these: {', '.join(WORLDS)}; repeatable")] = None,
    nulls: Annotated[
        int | None, typer.Option(min=1, help="certificates of each family; the rest in proportion")
    ] = None,
    seed: Annotated[int, typer.Option(min=0, help="root of every random stream")] = 20260601,
    jobs: Annotated[int, typer.Option(min=1, help="processes")] = 2,
    out: Annotated[Path | None, typer.Option(help="folder for selftest.csv and selftest.md")] = None,
) -> None:
    """False certification, coverage, power and detectable gains, with exact intervals; exit 1 when a bar is missed."""
    chosen = tuple(world or WORLDS)
    for name in chosen:
        if name not in WORLDS:
            raise BadInput("--world", repr(name), f"one of {', '.join(WORLDS)}")
    base = QUICK if quick else FULL
    size = base if nulls is None else base.scaled(nulls)
    console = Console(highlight=False)
    command = _command(quick, chosen, nulls, seed)
    if out is not None:
        out.mkdir(parents=True, exist_ok=True)
    whole = f"{_command(quick, WORLDS, nulls, seed)}, version {version('diloco-protocol')}"
    kept = None if out is None else Kept(out / KEPT, whole)
    with backend.started(jobs):
        rows, cpu_s = _run(_tasks(chosen, size, seed), _how_many(chosen, size, seed), jobs, kept)
    missed = [line for row in rows if (line := row.missed()) is not None]
    for name, told in itertools.groupby(rows, key=lambda row: row.world):
        console.print(_terminal(name, list(told), console.width), soft_wrap=True)
    if out is not None:
        with files.atomic(out / "selftest.csv") as temporary:
            pyarrow.csv.write_csv(pa.Table.from_pylist([row.to_json() for row in rows]), temporary)
        files.write_text(out / "selftest.md", _markdown(rows, missed, command, cpu_s))
        console.print(f"tables: {out / 'selftest.md'}, {out / 'selftest.csv'}", soft_wrap=True)
    for line in missed:
        console.print(f"bar missed: {line}", soft_wrap=True)
    console.print(
        f"{command}: {cpu_s:.0f} s of CPU time, {'bars missed' if missed else 'every bar held'}", soft_wrap=True
    )
    if missed:
        raise typer.Exit(1)


def _command(quick: bool, chosen: tuple[str, ...], nulls: int | None, seed: int) -> str:
    parts = ["protocol", "selftest"] + (["--quick"] if quick else [])
    parts += [part for name in chosen for part in ("--world", name)] if chosen != WORLDS else []
    parts += [] if nulls is None else ["--nulls", str(nulls)]
    return shlex.join([*parts, "--seed", str(seed)])


def _tasks(chosen: tuple[str, ...], size: Size, seed: int) -> Iterator[tuple[str, Task]]:
    if SYNTHETIC in chosen:
        made = synthetic.cells(seed, size.null, size.power, size.detect, size.reps, size.draws, size.many)
        for cell in made:
            yield f"{cell.family}, {cell.design}, gain {cell.effect_pp:g}", cell.rows
    if SIMULATED in chosen:
        for pool, players in _pools(size, seed):
            for player in players:
                yield f"{pool.name}, {player.name}", _played(pool, player, size)
    if sessions.LIVE in chosen:
        yield "live sessions", lambda: list(sessions.live_rows(seed, size.null))
    if sessions.PREDICTED in chosen:
        yield "tier 3 sessions", lambda: list(sessions.replayed_rows(seed, size.null, size.power))


def _how_many(chosen: tuple[str, ...], size: Size, seed: int) -> int:
    """Families that `_tasks` yields, without making a pool."""
    made = synthetic.cells(seed, size.null, size.power, size.detect, size.reps, size.draws, size.many)
    of = {SYNTHETIC: sum(1 for _ in made), SIMULATED: len(pools.PLAYERS) + len(pools.CLOCKS)}
    return sum(of.get(name, 1) for name in chosen)


def _played(pool: pools.Pool, player: pools.Player, size: Size) -> Task:
    def run() -> Sequence[Row]:
        return pools.Played.on(pool, player).rows(size.null, size.seeds, size.many, size.resamples)

    return run


def _pools(size: Size, seed: int) -> Iterator[tuple[pools.Pool, Sequence[pools.Player]]]:
    """The aperiodic regime, and the periodic one with its bursts at the same time in every seed: a clock's world."""
    aperiodic, periodic = Regime.load("bursty-aperiodic"), Regime.load("bursty-periodic")
    periodic = periodic.replace(arrivals=periodic.arrivals.replace(phase_s=0.0))
    for name, regime, players in (
        ("bursty-aperiodic", aperiodic, pools.PLAYERS), ("same-phase", periodic, pools.CLOCKS),
    ):  # fmt: skip
        if size.horizon_s is not None:
            regime = regime.replace(horizon_s=size.horizon_s)
        worlds = GeneratedWorlds(regime, seed)
        yield pools.Pool.of(name, setting_of(regime, worlds, None), worlds, size.worlds, seed), players


def _run(tasks: Iterator[tuple[str, Task]], total: int, jobs: int, kept: Kept | None) -> tuple[list[Row], float]:
    """The rows of every family, of which there are `total`, and the CPU seconds that they took.

    Each family is kept as soon as it is done, and not made again by the same command: a run of an hour may be stopped.
    """
    done = kept.read() if kept is not None else {}
    order: list[str] = []

    def left() -> Iterator[Any]:
        for label, task in tasks:
            order.append(label)
            if label in done:
                tell(advance=1)
            else:
                yield joblib.delayed(_timed)(label, task)

    bar = progress_bar(Console(stderr=True), "families counted")
    with bar as tell, joblib.Parallel(n_jobs=jobs, return_as="generator") as parallel:
        tell(total=total)
        for part in parallel(left()):
            done[part.label] = part
            if kept is not None:
                kept.add(part)
            tell(advance=1)
    return [row for label in order for row in done[label].rows], sum(done[label].cpu_s for label in order)


@dataclass(frozen=True)
class Part:
    """One family's rows.  label : unlike every other's.  cpu_s : what it took."""

    label: str
    rows: tuple[Row, ...]
    cpu_s: float


def _timed(label: str, task: Task) -> Part:
    began = time.process_time()
    rows = tuple(task())
    return Part(label, rows, time.process_time() - began)


@dataclass(frozen=True)
class Kept:
    """Families that are done, one a line beside the tables.

    command : what makes them, whatever worlds were asked for; lines of others are passed over.
    """

    path: Path
    command: str

    def add(self, part: Part) -> None:
        line = json.dumps({"command": self.command, **dataclasses.asdict(part)})
        with self.path.open("a", encoding="utf-8") as file:
            file.write(f"\n{line}")  # on a line of its own, whatever a stopped run left

    def read(self) -> dict[str, Part]:
        found = {}
        for line in self.path.read_text("utf-8").splitlines() if self.path.exists() else ():
            try:
                values = files.from_json(line)
                if values["command"] == self.command:
                    rows = tuple(Row(**row) for row in values["rows"])
                    found[values["label"]] = Part(values["label"], rows, values["cpu_s"])
            except (ValueError, KeyError, TypeError):  # cut off when the run was stopped
                continue
        return found


def _cell(row: Row | None) -> str:
    if row is None:
        return ""
    low, high = row.interval
    mark = "" if row.bar is None else " *" if row.missed() is None else " !"
    return f"{100 * row.rate:.1f} ({100 * low:.1f}-{100 * high:.1f}){mark}"


def _pivot(rows: Sequence[Row]) -> tuple[list[str], list[tuple[Row, list[Row | None]]]]:
    """What was counted, and for each family and design a first row and the row of everything that was counted."""
    whats = list(dict.fromkeys(row.what for row in rows))
    lines: dict[tuple[str, str, float], dict[str, Row]] = {}
    for row in rows:
        lines.setdefault((row.family, row.design, row.effect_pp), {})[row.what] = row
    return whats, [(next(iter(line.values())), [line.get(what) for what in whats]) for line in lines.values()]


def _terminal(world: str, rows: Sequence[Row], width: int) -> Text:
    """What is held to a bar, one line each; everything that was counted is in the files."""
    shown = []
    for row in rows:
        if row.bar is not None:
            low, high = row.interval
            cells = (
                f"{100 * row.rate:.1f}",
                f"{100 * low:.1f}-{100 * high:.1f}",
                "yes" if row.missed() is None else "NO",
            )
            shown.append((f"{row.family}, {row.design}", row.what, str(row.n), *cells))
    heads = ("family", "what", "n", "%", "limits", "holds")
    title = Text(f"{world}: how often, %, with exact 95 % limits\n", "italic")
    return title.append(fitted(heads, shown, width, right=(2, 3, 4, 5)))


def _markdown(rows: Sequence[Row], missed: Sequence[str], command: str, cpu_s: float) -> str:
    told = [
        "# Selftest\n",
        f"Made by `{command}` in {cpu_s / 60:.0f} minutes of CPU time. Cells: how often, in percent, with the exact",
        "(Clopper and Pearson) 95 % interval; `*` marks what is held to a bar and holds, `!` a bar that was missed;",
        "the rest is only reported. `selftest.csv` has the counts and which bar each is held to. Bars:\n",
    ]
    told += [f"- *{name}*: {words}" for name, words in BARS.items() if any(row.bar == name for row in rows)]
    for name, group in itertools.groupby(rows, key=lambda row: row.world):
        whats, lines = _pivot(list(group))
        told += [f"\n## {name}\n", "| family | seeds x draws | gain, pp | n | " + " | ".join(whats) + " |"]
        told += ["|" + "---|" * (4 + len(whats))]
        for first, line in lines:
            cells = [_cell(row) for row in line]
            told.append(
                f"| {first.family} | {first.design} | {first.effect_pp:.2f} | {first.n} | {' | '.join(cells)} |"
            )
    told += ["", "Every bar is held." if not missed else "Bars missed:\n\n" + "\n".join(f"- {line}" for line in missed)]
    return "\n".join(told) + "\n"
