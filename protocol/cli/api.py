"""The same campaigns from Python: what `import protocol` offers in scripts and notebooks.

Every function takes and means what the command of its name does, and raises `protocol.errors.BadInput`, one line, where
that would refuse.
"""

from __future__ import annotations

import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import pandas as pd
from rich.console import Console

from adapters.schedulers.notebook import specification
from adapters.traces.readers import Reading
from protocol.certificate.compare import compare as compared
from protocol.certificate.ledger import others
from protocol.certificate.reading import read_certificate
from protocol.cli import options
from protocol.cli.certify import Asked, Sidecar
from protocol.cli.groups import MIN_EFFECT_PP, Draws, Judging, Learning, Output, Server, Training, Trust, Worlds
from protocol.cli.judging import judged
from protocol.cli.results import Result, Simulation
from protocol.cli.simulate import simulated
from protocol.cli.sweep import SEEDS, Grid, counted, winner
from protocol.errors import BadInput

#: A class, an instance, a function, or any text that the command line takes.
Scheduler = object


def certify(
    scheduler: Scheduler,
    *,
    regimes: Sequence[str] | None = None,
    traces: Sequence[str | Path] | None = None,
    slos: Sequence[str] | None = None,
    seeds: int | None = None,
    draws: int | str | None = None,
    min_effect_pp: float = MIN_EFFECT_PP,
    alpha: float = 0.05,
    bounded: bool = False,
    seed: int | None = None,
    fresh_seed: bool = False,
    calibration: str | Path | None = None,
    out: str | Path | None = None,
    jobs: int = 2,
    quiet: bool = False,
) -> Result:
    """Does a scheduler place merges at better moments than chance?  Everything is written to `out` as well.

    scheduler : class, instance, function, or text; one of a notebook is written to a file with what it names, and
        judged in the same confined process as any other.
    regimes : names or TOML files (default: all five).  traces : files of real requests, cut into windows.
    slos : e.g. ``["ttft<=200ms,itl<=50ms"]``, instead of the regimes' own.
    seeds : independent worlds a regime (default: the regime's, 20).  draws : a seed (default 999), or "auto".
    min_effect_pp : gain in percentage points that must be exceeded.
    alpha : level.  bounded : the bound that assumes no shape must exceed it, too.
    seed : root of every random stream.  fresh_seed : one that nobody could know.
    calibration : folder of ``protocol calibrate``.  out : folder (default: runs/NAME).
    jobs : processes; no result depends on it.  quiet : no progress.

    Raises BadInput or SchedulerError: in one line, what was found and what was expected.

    >>> import protocol, tempfile
    >>> class WhenQuiet:
    ...     def decide(self, obs):
    ...         return obs.in_flight < 4
    >>> with tempfile.TemporaryDirectory() as out:
    ...     found = protocol.certify(
    ...         WhenQuiet, regimes=["ordinary"], seeds=2, draws=5, out=out + "/run", jobs=1, quiet=True
    ...     )
    ...     found.verdict, list(found.claims["regime"])
    ('INCONCLUSIVE', ['ordinary'])
    """
    worlds = _worlds(regimes, traces, seeds)
    judging = _judging(slos, alpha, min_effect_pp, bounded, seed, fresh_seed)
    sidecar = Sidecar(calibration=None if calibration is None else Path(calibration))
    n_jobs = _at_least("jobs", jobs, 1) or 1
    spec = _spec(scheduler, out)
    asked = Asked(
        spec, worlds, Draws(None if draws is None else str(draws)), judging, Learning(), Training(), sidecar, Server(),
        _output(out, _name(spec)), n_jobs,
    )  # fmt: skip
    return _judged(asked, quiet)


def sweep(
    scheduler: Scheduler,
    parameters: Mapping[str, Sequence[Any]],
    *,
    regimes: Sequence[str] | None = None,
    traces: Sequence[str | Path] | None = None,
    slos: Sequence[str] | None = None,
    seeds: int | None = None,
    draws: int | str | None = None,
    development_seeds: int = SEEDS,
    min_effect_pp: float = MIN_EFFECT_PP,
    alpha: float = 0.05,
    seed: int | None = None,
    out: str | Path | None = None,
    jobs: int = 2,
    quiet: bool = False,
) -> Result:
    """Try every variant on development traces, then certify the best one, once, on others.

    parameters : values to try of each constructor argument.  The rest as for `certify`.
    """
    worlds = _worlds(regimes, traces, seeds)
    grid = _Given(development_seeds=_at_least("development_seeds", development_seeds, 2) or SEEDS, of=parameters)
    judging = _judging(slos, alpha, min_effect_pp, False, seed, False)
    n_jobs = _at_least("jobs", jobs, 1) or 1
    spec = _spec(scheduler, out)
    asked = Asked(
        spec, worlds, Draws(None if draws is None else str(draws)), judging, Learning(), Training(), Sidecar(),
        Server(), _output(out, f"sweep-{_name(spec)}"), n_jobs,
    )  # fmt: skip
    return _judged(winner(asked, grid, _notes(quiet)), quiet)


def simulate(
    scheduler: Scheduler,
    *,
    regime: str | None = None,
    trace: str | Path | None = None,
    seed_number: int = 0,
    slo: str | None = None,
    seed: int = options.ROOT,
) -> Simulation:
    """One scheduler on one seed: its merges, every request, and a picture.

    >>> import protocol
    >>> found = protocol.simulate("fixed-h-512", regime="ordinary")
    >>> len(found.merges), list(found.merges.columns)
    (13, ['start_s', 'busy_s', 'islands', 'forced'])
    """
    with tempfile.TemporaryDirectory() as folder:
        spec = specification(scheduler, Path(folder))
        number = _at_least("seed_number", seed_number, 0) or 0
        found = simulated(spec, regime, Path(trace) if trace is not None else None, Reading(), number, slo, None, seed)
    return Simulation(found)


def load(folder: str | Path) -> Result:
    """The result of a finished run.

    Raises BadInput when the folder holds none.
    """
    path = Path(folder)
    read_certificate(path)
    return Result(path)


def compare(*runs: Result | str | Path) -> pd.DataFrame:
    """One row a claim of several runs, corrected for all that was tried, other runs of these schedulers included.

    Unlike the command it takes the folders as stated; `Result.verify` recomputes one.
    """
    folders = [run.folder if isinstance(run, Result) else Path(run) for run in runs]
    certificates = {str(folder): read_certificate(folder) for folder in folders}
    tried = others(
        folders, [str(c.contender.described("digest")) for c in certificates.values()], certificates.values()
    )
    return pd.DataFrame([asdict(row) for row in compared(certificates, tried)])


@dataclass(frozen=True)
class _Given(Grid):
    """A grid that is given as values."""

    of: Mapping[str, Sequence[Any]] = field(default_factory=dict)

    def values(self) -> dict[str, list[Any]]:
        return counted({name: _several(f"parameters, {name}", values) for name, values in self.of.items()})


# What they share -------------------------------------------------------------------------------------------------


def _spec(scheduler: Scheduler, out: str | Path | None) -> str:
    """What the harness takes for a scheduler; what a session defined is kept beside its runs, to run again."""
    runs = Path(out).parent if out is not None else Output().folder("any").parent
    return specification(scheduler, runs / "schedulers")


def _name(spec: str) -> str:
    return Path(spec.partition("(")[0].partition(":")[0]).name


def _worlds(regimes: Sequence[str] | None, traces: Sequence[str | Path] | None, seeds: int | None) -> Worlds:
    return Worlds(
        regime=None if regimes is None else [str(r) for r in _several("regimes", regimes)],
        trace=None if traces is None else [Path(t) for t in _several("traces", traces)],
        seeds=_at_least("seeds", seeds, 1),
    )


def _judged(asked: Asked, quiet: bool) -> Result:
    notes, trust = _notes(quiet), Trust()
    judged(asked.request(trust, notes), trust, notes)
    return Result(asked.folder)


def _notes(quiet: bool) -> Console:
    return Console(stderr=True, highlight=False, quiet=quiet)


def _output(out: str | Path | None, name: str) -> Output:
    return Output(Path(out) if out is not None else Output().folder(name))


def _judging(
    slos: Sequence[str] | None, alpha: float, min_effect_pp: float, bounded: bool, seed: int | None, fresh_seed: bool
) -> Judging:
    _within("alpha", alpha, 0.0001, 0.5)
    _within("min_effect_pp", min_effect_pp, 0, 100)
    limits = None if slos is None else [str(s) for s in _several("slos", slos)]
    return Judging(limits, alpha, min_effect_pp, bounded, seed=_at_least("seed", seed, 0), fresh_seed=fresh_seed)


def _several(name: str, values: Sequence[Any]) -> list[Any]:
    if isinstance(values, str | Path) or not len(values):
        raise BadInput(name, repr(values), "a list with at least one of them")
    return list(values)


def _at_least(name: str, value: int | None, least: int) -> int | None:
    if value is not None and (isinstance(value, bool) or not isinstance(value, int) or value < least):
        raise BadInput(name, repr(value), f"a whole number from {least} on")
    return value


def _within(name: str, value: float, low: float, high: float) -> None:
    if not low <= value <= high:
        raise BadInput(name, repr(value), f"{low:g} to {high:g}")
