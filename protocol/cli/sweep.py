"""`protocol sweep`: variants tuned on development traces, the winner certified once on others."""

from __future__ import annotations

import itertools
import tomllib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import typer
from rich.console import Console

from adapters.schedulers.parameters import literal, with_parameters
from protocol import seeds
from protocol.campaign.plan import Plan
from protocol.campaign.run import run
from protocol.cli import options
from protocol.cli.backend import Backend
from protocol.cli.certify import Asked, Sidecar
from protocol.cli.groups import Declared, Draws, Judging, Learning, Output, Server, Training, Trust, Worlds
from protocol.cli.judging import judge
from protocol.cli.progress import progress_bar
from protocol.cli.settings import describe_contender
from protocol.errors import BadInput
from protocol.files import sha256
from protocol.gates.envelope import measure
from protocol.gates.integrity import integrity_gate
from reports.format import shortened

#: Most variants of one sweep: beyond this, what is tuned is the luck of the development traces.
MOST = 1000
#: Seeds and draws on which a variant is tried.
SEEDS, DRAWS = 8, 19


def register(app: typer.Typer) -> None:
    app.command()(options.grouped(sweep))


@dataclass(frozen=True)
class Grid:
    """Which constructor arguments are tried."""

    param: Annotated[
        list[str] | None, typer.Option(help="constructor argument and its values, NAME=V1,V2,...; repeatable")
    ] = None
    grid: Annotated[Path | None, typer.Option(help="TOML file with a list of values for each argument")] = None
    development_seeds: Annotated[
        int, typer.Option(min=2, max=1000, help="seeds a regime on which variants are tried")
    ] = SEEDS
    development_trace: Annotated[
        list[Path] | None, typer.Option(help="with --trace: other traces, on which variants are tried; repeatable")
    ] = None

    def worlds(self, judged: Worlds) -> Worlds:
        """Where variants are tried.  Windows of one file would be tuned on and judged on, so another is asked for."""
        tried, traces = self.development_trace, judged.trace
        if bool(tried) != bool(traces):
            found, expected = ("--trace", "--development-trace") if traces else ("--development-trace", "--trace")
            raise BadInput(found, f"no {expected} beside it", f"{expected}, another file, beside it")
        if {_sha256(path) for path in tried or ()} & {_sha256(path) for path in traces or ()}:
            raise BadInput("--development-trace", "a file that --trace names too", "another one")
        return replace(judged, trace=tried)

    def values(self) -> dict[str, list[Any]]:
        """Values by argument.  Raises BadInput."""
        found = _read(self.grid) if self.grid is not None else {}
        for text in self.param or ():
            name, equals, rest = text.partition("=")
            if not equals or not name.isidentifier() or not rest:
                raise BadInput("--param", repr(text), "NAME=V1,V2,...")
            if name in found:
                raise BadInput("--param", f"{name} twice", "each argument once")
            found[name] = [literal(word) for word in rest.split(",")]
        return counted(found)


def counted(values: dict[str, list[Any]]) -> dict[str, list[Any]]:
    """The same values.  Raises BadInput when they give no variants, or too many."""
    if not values:
        raise BadInput("--param, --grid", "neither", "at least one argument to vary")
    n = int(np.prod([len(v) for v in values.values()]))
    if not 0 < n <= MOST:
        raise BadInput("--param, --grid", f"{n} variants", f"1 to {MOST}")
    return values


def _sha256(path: Path) -> str:
    try:
        return sha256(path)
    except OSError as error:
        raise BadInput(str(path), error.strerror or "an error", "a trace") from None


def _read(path: Path) -> dict[str, list[Any]]:
    try:
        found = tomllib.loads(path.read_text("utf-8"))
    except (OSError, UnicodeDecodeError, tomllib.TOMLDecodeError) as error:
        raise BadInput(str(path), f"an unreadable file ({error})", "TOML with a list of values an argument") from None
    for name, values in found.items():
        if not isinstance(values, list) or not values:
            raise BadInput(f"{path}, {name}", repr(values), "a list of values")
    return found


def sweep(
    scheduler: options.Scheduler,
    declared: Declared,
    grid: Grid,
    worlds: Worlds,
    draws: Draws,
    judging: Judging,
    learner: Learning,
    trust: Trust,
    output: Output,
    backend: Backend,
    jobs: options.Jobs = 2,
) -> None:
    """Try every variant on development traces, then certify the best one, once, on other traces.

    The certificate holds how many were tried and what each gained there.  Exit codes are those of certify.
    """
    notes = Console(stderr=True, highlight=False)
    out = replace(output, out=output.folder(f"sweep-{Path(scheduler).name}"))
    unseen = (*trust.files, *(worlds.trace or ()), *(grid.development_trace or ()))
    asked = Asked(
        scheduler,
        worlds,
        draws,
        judging,
        learner,
        Training(),
        Sidecar(),
        Server(),
        out,
        jobs,
        None,
        unseen,
        declared.variables,
        backend=backend,
    )
    judge(winner(asked, grid, notes).request(trust, notes), trust, out, notes)


def winner(asked: Asked, grid: Grid, notes: Console) -> Asked:
    """The variant that gains most on the development traces.  Raises BadInput when none could be judged there."""
    with asked.backend.started(asked.jobs):
        tried = list(_tried(asked, grid, notes))
    best = max(tried, key=lambda one: (one["gain_pp"] is not None, one["gain_pp"] or 0.0))
    if best["gain_pp"] is None:
        found = f"no variant that could be judged ({best['reason']})"
        raise BadInput(asked.scheduler, found, "one that keeps its corridor")
    notes.print(f"best of {len(tried)} on development traces: {best['scheduler']}, {best['gain_pp']:+.2f} pp")
    root = development_root(asked)
    stated = {"tried": len(tried), "development_root": root, "development_seeds": grid.development_seeds,
              "development_draws": DRAWS, "variants": tried, "winner": best["scheduler"]}  # fmt: skip
    if grid.development_trace:
        stated["development_traces"] = [path.name for path in grid.development_trace]
    return replace(asked, scheduler=best["scheduler"], sweep=stated)


def development_root(asked: Asked) -> int:
    """Root of the development traces: another one than any certificate's, and the same for every variant."""
    root = options.ROOT if asked.judging.seed is None else asked.judging.seed
    return int(seeds.generator(root, "development").integers(2**48))


def _variants(values: Mapping[str, list[Any]]) -> Iterator[dict[str, Any]]:
    for chosen in itertools.product(*values.values()):
        yield dict(zip(values, chosen, strict=True))


def _tried(asked: Asked, grid: Grid, notes: Console) -> Iterator[dict[str, Any]]:
    """Every variant with its digest and its mean gain over the claims on the development traces."""
    variants, worlds = list(_variants(grid.values())), grid.worlds(asked.worlds)
    with progress_bar(notes, "variants tried") as tell:
        for number, parameters in enumerate(variants):
            spec = with_parameters(asked.scheduler, parameters)
            tell(completed=number, total=len(variants), description=f"trying {shortened(spec, 40)}")
            yield _on_development(replace(asked, scheduler=spec, worlds=worlds), grid.development_seeds)


def _on_development(asked: Asked, n_seeds: int) -> dict[str, Any]:
    root = development_root(asked)
    settings, regimes = asked.chosen(root, n_seeds)
    contender = describe_contender(asked.opener(None)())
    plan = Plan(asked.opener(None), asked.scheduler, root, DRAWS, control_draws=1, probes=0)
    head = asked.head(plan, root, (settings, regimes))
    evidence = run(plan, settings, asked.jobs)
    gains, reason = [], None
    for regime in head.regimes:
        spec, mine = head.spec(regime), [e for e in evidence if e.regime == regime.name]
        corridor = next(c for c in integrity_gate(mine, spec).checks if c.name == "corridor")
        if corridor.status != "passed":
            reason = corridor.reason
        for index in range(len(spec.slos)):
            found = measure(mine, spec, index)
            # The mean itself: what is too little to be tested is enough to choose by.
            gains.append(float(np.mean(found.gains.draw_mean - found.gains.policy)) if found.known else np.nan)
            reason = reason or (None if np.isfinite(gains[-1]) else found.gains.reason)
    known = reason is None and bool(np.isfinite(gains).all())
    return {
        "scheduler": asked.scheduler,
        "digest": contender.get("digest"),
        "gain_pp": float(np.mean(gains)) if known else None,
        "reason": reason,
    }
