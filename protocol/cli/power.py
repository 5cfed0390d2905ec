"""`protocol power`: how many seeds and draws find a given gain."""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import typer
from matplotlib.figure import Figure
from rich.console import Console
from rich.text import Text
from scipy import stats

from protocol import files, seeds
from protocol.cli import options
from protocol.errors import BadInput
from protocol.stats import power as pw
from protocol.stats.gains import MIN_DRAWS, MIN_EFFECT_PP, MIN_SEEDS
from reports import figures
from reports.fitted import fitted

#: Designs above this many seeds are not searched.
MOST_SEEDS = 200
_SCHEMA = 2
_COLOURS = ("#0072b2", "#d55e00", "#009e73", "#cc79a7", "#e69f00", "#56b4e9")


@dataclass(frozen=True)
class Assumed:
    """A name and seed-to-seed spreads in percentage points."""

    name: str
    spread: pw.Spread

    @classmethod
    def of(cls, name: str, policy_sd: float, draw_sd: float) -> Assumed:
        return cls(name, pw.Spread.alike(policy_sd, draw_sd))


def register(app: typer.Typer) -> None:
    app.command()(power)


def power(
    gain: Annotated[
        float, typer.Option(min=0.001, max=100, help="gain to detect, percentage points of sync-excess violations")
    ] = 1.5,
    min_effect: options.MinEffect = MIN_EFFECT_PP,
    target: Annotated[float, typer.Option("--power", min=0.01, max=0.999, help="chance of detecting it")] = 0.9,
    alpha: options.Alpha = 0.05,
    claims: Annotated[
        int, typer.Option(min=1, help="claims in the certificate; Holm's first step is alpha / claims")
    ] = 1,
    policy_sd: Annotated[
        float | None, typer.Option(min=0, max=100, help="seed-to-seed sd of the policy, pp (default: published)")
    ] = None,
    draw_sd: Annotated[
        float | None, typer.Option(min=0.001, max=100, help="seed-to-seed sd of a random draw, pp (published: 0.956)")
    ] = None,
    pilot: Annotated[Path | None, typer.Option(help="certificate.json whose spreads to take")] = None,
    draws: Annotated[list[int] | None, typer.Option(min=MIN_DRAWS, help="draws a seed; repeatable")] = None,
    reps: Annotated[int, typer.Option(min=100, max=100_000, help="simulated certificates for each design")] = 2000,
    seed: options.Seed = options.ROOT,
    json_: options.Json = False,
    out: options.Out = None,
) -> None:
    """Seeds needed to detect a gain, by simulation of the envelope with every test at the minimum effect.

    Without a pilot or --policy-sd, the published spreads of three kinds of policy are assumed.  A schedule is taken to
    vary as much on traces that it was not made on as on its own.
    """
    if gain <= min_effect:
        raise BadInput("--gain", f"{gain:g}", f"more than --min-effect, {min_effect:g}")
    spreads = _spreads(pilot, policy_sd, draw_sd)
    level = alpha / claims
    wanted = sorted(set(draws or (MIN_DRAWS, 19)))
    rows = [
        _row(one, family, m, gain, min_effect, target, level, reps, seed)
        for one in spreads for family in pw.FAMILIES for m in wanted
    ]  # fmt: skip
    result = {
        "schema": _SCHEMA, "gain_pp": gain, "min_effect_pp": min_effect, "power": target, "alpha": alpha,
        "claims": claims, "level": level, "reps": reps, "seed": seed, "fewest_seeds": MIN_SEEDS,
        "most_seeds": MOST_SEEDS, "designs": rows,
    }  # fmt: skip
    if out is not None:
        out.mkdir(parents=True, exist_ok=True)
        files.write_text(out / "power.json", files.canonical_json(result))
        _draw(spreads, wanted[-1], rows, result, out)
    console = Console(highlight=False)
    if json_:
        typer.echo(json.dumps(result, indent=2, sort_keys=True))
        return
    console.print(_table(result, wanted, console.width), soft_wrap=True)
    console.print(
        f"Seeds for {100 * target:g} % power at {gain:g} pp, minimum effect {min_effect:g} pp and level {level:g}; "
        f"[dim]simulated, {reps} certificates each, at least {MIN_SEEDS} seeds. A seed costs draws + 2 replays.[/]",
        soft_wrap=not console.is_terminal,
    )  # fmt: skip
    if out is not None:
        console.print(f"figure: {out / 'power.svg'}", soft_wrap=True)


def _spreads(pilot: Path | None, policy_sd: float | None, draw_sd: float | None) -> list[Assumed]:
    if pilot is not None:
        if policy_sd is not None or draw_sd is not None:
            raise BadInput("--pilot", "--policy-sd or --draw-sd beside it", "either a pilot or assumed spreads")
        return pilot_spreads(pilot)
    draw = pw.DRAW_SD if draw_sd is None else draw_sd
    if policy_sd is None:
        return [Assumed.of(f"published, {name}", sd, draw) for name, sd in pw.POLICY_SD.items()]
    return [Assumed.of("assumed", policy_sd, draw)]


def pilot_spreads(path: Path) -> list[Assumed]:
    """Two spreads a claim of a certificate: as estimated, and at the one-sided 95 % limit of the pilot's sd.

    The seeds' gains D = policy - mean of draws vary by policy_sd^2 + draw_sd^2 / m, whatever the seeds' levels.
    Raises BadInput naming the claim and field that are missing or no numbers.
    """
    try:
        claims = files.from_json(path.read_text(encoding="utf-8"))["claims"]
    except OSError as problem:
        raise BadInput(str(path), problem.strerror or "an unreadable file", "a certificate.json") from None
    except (ValueError, KeyError, TypeError):
        raise BadInput(str(path), "no JSON object with claims", "a certificate.json") from None
    spreads: list[Assumed] = []
    for i, claim in enumerate(claims if isinstance(claims, list) else []):
        where = f"{path}, claim {i + 1}"
        table = claim.get("envelope") if isinstance(claim, dict) else None
        seeds_ = table.get("per_seed") if isinstance(table, dict) else None
        if not isinstance(table, dict) or not isinstance(seeds_, list) or len(seeds_) < 2:
            raise BadInput(f"{where}, envelope.per_seed", "fewer than two seeds", "policy and draws by seed")
        policy, mean, sd = (
            np.array([_number(s, k, where) for s in seeds_]) for k in ("policy", "draw_mean", "draw_sd")
        )
        m = _number(table, "n_draws", where)
        if not (m >= 1 and (sd >= 0).all() and (sd > 0).any()):
            raise BadInput(f"{where}, envelope", "no draws that vary", "n_draws of at least 1 and positive draw_sd")
        draw_sd = math.sqrt(float(np.mean(sd**2)))
        variance = float(np.var(policy - mean, ddof=1))
        upper = variance * (len(seeds_) - 1) / float(stats.chi2.ppf(0.05, len(seeds_) - 1))
        name = " ".join(str(claim.get(k)) for k in ("regime", "slo") if claim.get(k)) or f"claim {i + 1}"
        for note, value in (("", variance), (", upper limit", upper)):
            spreads.append(Assumed.of(name + note, math.sqrt(max(value - draw_sd**2 / m, 0.0)), draw_sd))
    if not spreads:
        raise BadInput(str(path), "no claims", "a certificate with at least one claim")
    return spreads


def _number(record: Any, key: str, where: str) -> float:
    value = record.get(key) if isinstance(record, dict) else None
    if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value):
        raise BadInput(f"{where}, {key}", repr(value)[:40], "a finite number")
    return float(value)


def _row(
    one: Assumed,
    family: pw.Family,
    draws: int,
    gain: float,
    min_effect: float,
    target: float,
    level: float,
    reps: int,
    seed: int,
) -> dict[str, Any]:
    found = pw.required_seeds(
        gain=gain, spread=one.spread, draws=draws, power=target, alpha=level, delta=min_effect, family=family,
        fewest=MIN_SEEDS, most=MOST_SEEDS, reps=reps, rng=seeds.generator(seed, "power", one.name, family, draws),
    )  # fmt: skip
    return {
        "spread": one.name, "policy_sd_pp": one.spread.policy_sd, "draw_sd_pp": one.spread.draw_sd, "family": family,
        "draws": draws, "seeds": found and found.design.seeds, "power": found and found.power,
        "power_interval": found and [found.lower, found.upper],
    }  # fmt: skip


def _table(result: dict[str, Any], wanted: Sequence[int], width: int) -> Text:
    """Seeds needed, a row a spread and family, a column a number of draws."""
    heads = ("spread", "policy sd", "draw sd", "family", *(f"{m} draws" for m in wanted))
    designs, rows = result["designs"], []
    for begin in range(0, len(designs), len(wanted)):
        first, group = designs[begin], designs[begin : begin + len(wanted)]
        cells = [f"{r['seeds']}" if r["seeds"] else f"above {MOST_SEEDS}" for r in group]
        spreads = (f"{first[f'{of}_sd_pp']:.2f}" for of in ("policy", "draw"))
        rows.append((first["spread"], *spreads, first["family"], *cells))
    right = [i for i in range(1, len(heads)) if heads[i] != "family"]
    return Text("Seeds needed\n", "italic").append(fitted(heads, rows, width, names=(0,), right=right))


def _draw(
    spreads: Sequence[Assumed], draws: int, rows: Sequence[dict[str, Any]], result: dict[str, Any], folder: Path
) -> None:
    """Power against seeds for every spread (normal solid, lognormal dashed), as power.svg and power.png."""
    known = [r["seeds"] for r in rows if r["draws"] == draws and r["seeds"]]
    last = min(MOST_SEEDS, max(2 * MIN_SEEDS, round(1.4 * max(known, default=40))))
    grid = np.unique(np.linspace(MIN_SEEDS, last, 14).round().astype(int))
    with figures.styled():
        figure = Figure(figsize=(6.4, 3.8), layout="constrained")
        axes = figure.subplots()
        for i, one in enumerate(spreads[: len(_COLOURS)]):
            for family, style in zip(pw.FAMILIES, ("-", "--"), strict=True):
                rng = seeds.generator(result["seed"], "power curve", one.name, family)
                design = (result["gain_pp"], one.spread, family, result["level"], result["min_effect_pp"])
                curve = [pw.simulate_power(pw.Design(int(s), draws, *design), rng, result["reps"]) for s in grid]
                label = one.name if family == "normal" else f"{one.name}, lognormal"
                axes.plot(grid, [p.power for p in curve], style, color=_COLOURS[i], label=label)
                low, high = [p.lower for p in curve], [p.upper for p in curve]
                axes.fill_between(grid, low, high, color=_COLOURS[i], alpha=0.12, linewidth=0)
        axes.axhline(result["power"], color=figures.INK, linewidth=0.8, linestyle=":")
        axes.set(xlabel="seeds", ylabel="power", ylim=(0, 1.02))
        axes.set_title(f"Power to detect {result['gain_pp']:g} pp at level {result['level']:g}, {draws} draws a seed")
        axes.legend(loc="lower right", fontsize=7)
        for suffix, metadata in (("svg", {"Date": None, "Creator": None}), ("png", {"Software": None})):
            with files.atomic(folder / f"power.{suffix}") as temporary:
                figure.savefig(temporary, format=suffix, dpi=150, metadata=metadata)
