"""`protocol train`: peer-to-peer merging and its baselines, trained for real at laptop size."""

from __future__ import annotations

import contextlib
import csv
import dataclasses
import hashlib
import io
import json
import os
import shutil
import time
import warnings
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import joblib
import numpy as np
import typer
from rich.console import Console

from protocol import files
from protocol.cli import options
from protocol.cli import train_grid as grid
from protocol.cli.progress import progress_bar
from protocol.cli.train_measure import acceleration_rows, contraction_rows, momentum_rows, transfer_rows
from protocol.errors import BadInput
from protocol.merging.peers.topology import Topology, UnstableMixing, warn_if_unstable
from protocol.training.curves import Curve, loss_difference, time_ratio
from reports import figures
from reports import training as report

if TYPE_CHECKING:
    from adapters.learners.corpus import Corpus
    from adapters.learners.islands import Recipe

#: Differences and ratios that are printed: first, second (both with their H); see `protocol.training.curves`.
LOSSES = (
    (("GASLoC 2-peer", 30), ("DiLoCo", 30)), (("GASLoC 1-peer", 30), ("DiLoCo", 30)),
    (("Local-DAdam 2-peer", 30), ("DiLoCo", 30)), (("Local-DAdam 1-peer", 30), ("DiLoCo", 30)),
    (("Local-DAdam 1-peer delayed", 30), ("DiLoCo", 30)), (("Local-DAdam 2-peer scaled rate", 30), ("DiLoCo", 30)),
    (("Local-DAdam 2-peer", 30), ("GASLoC 2-peer", 30)), (("Local-DAdam 1-peer", 30), ("GASLoC 1-peer", 30)),
    (("GASLoC 1-peer literal", 30), ("GASLoC 1-peer", 30)), (("NoLoCo", 30), ("GASLoC 1-peer", 30)),
    (("GASLoC 2-peer", 1), ("DAdam 2-peer", 1)), (("GASLoC 1-peer", 1), ("DAdam 1-peer", 1)),
    (("GASLoC 2-peer", 1), ("DAdam 2-peer scaled rate", 1)), (("GASLoC 2-peer", 1), ("All-reduce AdamW", 1)),
)  # fmt: skip
_QUICK = {"steps": 120, "batch": 4, "warm_up": 10}
#: In the tables only: the figures hold no more than nine lines that can be told apart.
_UNDRAWN = ("GASLoC 1-peer literal", "GASLoC 2-peer adapted", "NoLoCo")
_SUMMARY = {
    "method": "method", "h": "H", "seeds": "seeds", "diverged": "diverged", "loss": "validation loss, averaged model",
    "island_loss": "mean of islands", "worst_loss": "worst island", "consensus": "consensus distance",
    "tokens": "tokens", "gigabytes": "GB sent an island",
}  # fmt: skip


def register(app: typer.Typer) -> None:
    app.command("train")(train)


def train(
    quick: options.Quick = False,
    islands: Annotated[list[int] | None, typer.Option(min=2, help="numbers of islands; the first runs all")] = None,
    seeds: Annotated[int | None, typer.Option(min=1, help="runs of each method (default 3)")] = None,
    steps: Annotated[int | None, typer.Option(min=30, help="inner steps of the first number of islands")] = None,
    method: Annotated[list[str] | None, typer.Option(help="only methods of this name")] = None,
    text: Annotated[Path | None, typer.Option(help="a text of 1 MB or more (default: Python's own sources)")] = None,
    hugging_face: Annotated[str | None, typer.Option(help="stream a dataset, owner/name or owner/name:subset")] = None,
    parameters: Annotated[float, typer.Option(min=1.0, help="modelled size of what is exchanged")] = 134e6,
    gigabits: Annotated[float, typer.Option(min=1e-6, help="modelled bandwidth of an island, Gbit/s")] = 1.0,
    step_s: Annotated[float, typer.Option(min=1e-6, help="modelled seconds of an inner step")] = 0.715,
    engine: Annotated[str, typer.Option(help="stacked, or distributed: one real process an island")] = "stacked",
    deadline_s: Annotated[float, typer.Option(min=0.1, help="longest silence of a distributed island")] = 60.0,
    transfers: Annotated[bool, typer.Option(help="check the communication model on loopback sockets")] = True,
    jobs: Annotated[int | None, typer.Option(min=1, help="processes of one thread each (default 2; quick: 1)")] = None,
    first_seed: Annotated[int, typer.Option(min=0, help="seeds are this one and the following")] = 0,
    out: options.Out = None,
) -> None:
    """DiLoCo, GASLoC and decentralised AdamW: loss against steps, tokens, bytes and modelled time."""
    began = time.perf_counter()
    if engine not in ("stacked", "distributed"):
        raise BadInput("--engine", engine, "stacked or distributed")
    methods = _methods(method, quick)
    recipe, corpus = _recipe(quick, steps), _corpus(text, hugging_face)
    link = grid.Link(parameters=parameters, bandwidth=gigabits * 1e9 / 8, step_s=step_s)
    numbers = list(dict.fromkeys(islands or ([8] if quick else [8, 16, 32])))
    if out is not None:
        _folder(out)
    console = Console(highlight=False)
    for line in _unstable(methods, numbers):
        console.print(f"[yellow]warning:[/] {line}", soft_wrap=True)
    runs = range(first_seed, first_seed + (seeds or (2 if quick else 3)))
    work = list(grid.cells(methods, numbers, runs, recipe, link, 10 if quick else 25, 64 if quick else 256))
    if engine == "distributed":
        _distributed(work, corpus, deadline_s, console)
        return
    curves = _run(work, corpus, jobs or (1 if quick else 2), None if out is None else out / ".partial")
    groups = report.grouped(curves)
    tables: dict[str, list[report.Row]] = {
        "summary": report.summary_rows(groups),
        "differences": _differences(groups, numbers),
        "ratios": _ratios(groups, list(link.networks(2))),
        "contraction": contraction_rows(runs[0], quick),
        "momentum": momentum_rows(runs[0], quick),
        "acceleration": acceleration_rows(quick),
    }
    if transfers:
        tables["transfers"] = transfer_rows(quick)
    body = _markdown(tables, numbers, link, recipe, corpus, list(runs))
    console.print(body, soft_wrap=True, markup=False)
    if out is not None:
        _write(out, body, tables, curves, groups, numbers, list(link.networks(2)))
        shutil.rmtree(out / ".partial", ignore_errors=True)
        console.print(f"tables and figures: {out}", soft_wrap=True)
    spent = sum(curve.cpu_s for curve in curves)
    console.print(f"{len(work)} runs, {spent:.0f} processor seconds of training, {time.perf_counter() - began:.0f} s")


def _folder(out: Path) -> None:
    try:
        out.mkdir(parents=True, exist_ok=True)
        files.refuse_somebodys(out)
    except OSError as problem:
        raise BadInput(str(out), problem.strerror or "an error", "a folder that can be written") from None


def _recipe(quick: bool, steps: int | None) -> Recipe:
    from adapters.learners.decoder import Shape
    from adapters.learners.islands import Recipe

    made = Recipe(shape=Shape(16, 1, 2, 40, 16), **_QUICK) if quick else Recipe(steps=750)  # type: ignore[arg-type]
    return made if steps is None else dataclasses.replace(made, steps=steps // 30 * 30)


def _corpus(text: Path | None, dataset: str | None) -> Corpus:
    from adapters.learners import corpus

    if text is not None and dataset is not None:
        raise BadInput("--text, --hugging-face", "both", "one of them")
    if text is not None:
        return corpus.text_file(text)
    return corpus.hugging_face(dataset) if dataset is not None else corpus.standard_library()


def _methods(names: Sequence[str] | None, quick: bool) -> list[grid.Method]:
    known = {m.name for m in grid.METHODS}
    for name in names or ():
        if name not in known:
            raise BadInput("--method", name, f"one of {', '.join(sorted(known))}")
    chosen = [m for m in grid.METHODS if not names or m.name in names]
    return [m for m in chosen if (m.name, m.h) in grid.FEWER] if quick and not names else chosen


def _unstable(methods: Sequence[grid.Method], numbers: Sequence[int]) -> list[str]:
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always", UnstableMixing)
        for method in methods:
            for n in numbers if method.momentum else ():
                gamma, form, alpha = method.momentum or (0.0, "mixed", 1.0)
                warn_if_unstable(Topology(method.topology, n), gamma, form, alpha)
    return list(dict.fromkeys(str(w.message) for w in caught))


def _run(work: Sequence[grid.Cell], corpus: Corpus, jobs: int, kept: Path | None) -> list[Curve]:
    """Train what is not among the `kept` curves of an interrupted run with the same settings."""
    names = [hashlib.sha256(f"{cell!r} {corpus.digest}".encode()).hexdigest()[:24] for cell in work]
    done: dict[int, Curve] = {}
    for k, name in enumerate(names):
        if kept is not None:
            # What is absent or cannot be read is run.
            with contextlib.suppress(OSError, ValueError, KeyError, TypeError):
                done[k] = Curve.from_dict(json.loads((kept / f"{name}.json").read_text("utf-8")))
    # Longest first, so that no process ends alone; results come back in the order of `work`.
    order = sorted((k for k in range(len(work)) if k not in done), key=lambda k: -work[k].islands)
    # Worker processes must not each start a thread for every core.
    threads = os.environ.get("OMP_NUM_THREADS")
    os.environ["OMP_NUM_THREADS"] = "1"
    try:
        with progress_bar(Console(stderr=True), "runs trained") as tell:
            tell(total=len(work), completed=len(done))
            parallel = joblib.Parallel(jobs, return_as="generator")
            results = parallel(joblib.delayed(grid.train_cell)(work[k], corpus) for k in order)
            for k, curve in zip(order, results, strict=True):
                done[k] = curve
                if kept is not None:
                    kept.mkdir(parents=True, exist_ok=True)
                    files.write_text(kept / f"{names[k]}.json", json.dumps(curve.as_dict()))
                tell(advance=1)
    finally:
        os.environ.pop("OMP_NUM_THREADS") if threads is None else os.environ.update(OMP_NUM_THREADS=threads)
    return [done[k] for k in range(len(work))]


def _distributed(work: Sequence[grid.Cell], corpus: Corpus, deadline_s: float, console: Console) -> None:
    """Real processes for the first number of islands and the first seed; the loss beside the stacked engine's."""
    from adapters.learners.distributed import train as train_processes
    from adapters.learners.framework import torch
    from adapters.learners.islands import Examiner
    from adapters.learners.stacked import StackedRun

    torch.set_num_threads(1)
    for cell in [c for c in work if c.islands == work[0].islands and c.seed == work[0].seed]:
        recipe = dataclasses.replace(cell.recipe, seed=cell.seed, rate=cell.recipe.rate * cell.method.rate_scale)
        rounds = grid.rounds_of(cell, cell.network)
        real = train_processes(recipe, corpus, cell.method.optimiser(), rounds, deadline_s=deadline_s)
        stacked = StackedRun(recipe, corpus, cell.method.optimiser(), rounds, cell.windows)
        last = list(stacked.points(len(rounds)))[-1]
        rows = torch.from_numpy(real.theta).to(stacked.islands.theta)
        loss = float(Examiner(stacked.islands.decoder, corpus, cell.windows).losses(rows.mean(0, keepdim=True))[0])
        console.print(
            f"{cell.label}: validation loss {loss:.4f} in {cell.islands} processes, {last.loss:.4f} stacked; largest "
            f"difference of a parameter {np.abs(real.theta - stacked.theta).max():.2g}; median exchange "
            f"{1e3 * np.median(real.exchange_s):.2f} ms",
            soft_wrap=True,
        )


# Tables ----------------------------------------------------------------------------------------------------------


def _pick(groups: Mapping[report.Key, list[Curve]], name: tuple[str, int], n: int) -> list[Curve]:
    return next((runs for key, runs in groups.items() if key[:3] == (*name, n) and len(key[3]) > 1), [])


def _differences(groups: Mapping[report.Key, list[Curve]], numbers: Sequence[int]) -> list[report.Row]:
    rows: list[report.Row] = []
    for n in numbers:
        for first, second in LOSSES:
            a, b = _pick(groups, first, n), _pick(groups, second, n)
            if a and b:
                found = loss_difference(a, b)
                same = sum(x.loss[-1] > y.loss[-1] for x, y in zip(a, b, strict=True))
                rows.append(
                    {
                        "islands": n, "h": first[1], "first": first[0], "second": second[0], "difference": found,
                        "first_worse": f"{same} of {len(a)}",
                    }
                )  # fmt: skip
    return rows


def _ratios(groups: Mapping[report.Key, list[Curve]], networks: Sequence[str]) -> list[report.Row]:
    """Time to a common loss of DiLoCo over each GASLoC, on every network: with and without a straggler."""
    rows: list[report.Row] = []
    for key, runs in groups.items():
        name, h, n, mine = key
        base = _pick(groups, ("DiLoCo", 30) if h == 30 else ("All-reduce AdamW", 1), n)
        if not name.startswith("GASLoC") or not base:
            continue
        for network in [x for x in networks if x in mine]:
            row: report.Row = {
                "islands": n, "h": h, "network": network, "first": base[0].method, "second": name,
                "per_round": float(np.mean([c.time_s[network][-1] for c in base]))
                / float(np.mean([c.time_s[network][-1] for c in runs])),
                "half": time_ratio(base, runs, network, 0.5), "full": time_ratio(base, runs, network),
            }  # fmt: skip
            rows.append(row)
    return sorted(rows, key=lambda r: (r["islands"], r["h"] == 1, networks.index(r["network"])))


def _markdown(
    tables: Mapping[str, list[report.Row]], numbers: Sequence[int], link: grid.Link, recipe: Recipe, corpus: Corpus,
    runs: Sequence[int],
) -> str:  # fmt: skip
    shape = recipe.shape
    parts = [
        f"""# Training runs

Made by `protocol train`. Decoder of {shape.parameters} parameters (width {shape.width}, {shape.layers} layers, context
{shape.context}); {recipe.steps} inner steps, inner rate {recipe.rate:g}, batch {recipe.batch} an island. Seeds
{", ".join(map(str, runs))}. Text: {corpus.name}, {len(corpus.train)} bytes and {len(corpus.validation)} held out
(sha256 {corpus.digest[:12]}). Beyond {numbers[0]} islands: the same tokens a step over all islands, about half the
steps. Bytes and seconds are modelled: {link.parameters:g} parameters of {link.bytes_each} bytes,
{link.bandwidth * 8 / 1e9:g} Gbit/s an island, {1e3 * link.latency_s:g} ms a hop, {link.step_s:g} s an inner step.
Losses are nats a byte; intervals are 95 % t intervals over seeds.
"""
    ]
    times = {f"time_s {name}": f"modelled s, {name}" for name in link.networks(2)}
    for n in numbers:
        mine = [row for row in tables["summary"] if row["islands"] == n]
        parts.append(f"## {n} islands\n\n" + report.markdown(mine, {**_SUMMARY, **times}))
    heads = {"islands": "islands", "h": "H", "first": "first", "second": "second"}
    parts.append(
        "## Differences of final loss, first minus second, paired by seed\n\n"
        + report.markdown(tables["differences"], {**heads, "difference": "loss", "first_worse": "seeds, first worse"})
    )
    ratios = {
        "islands": "islands", "h": "H", "network": "network", "first": "first", "second": "second",
        "per_round": "whole run", "half": "to a common loss, half way", "full": "to a common loss",
    }  # fmt: skip
    parts.append(
        "## Modelled time of the first over the second (above 1: the second is faster)\n\n"
        + report.markdown(tables["ratios"], ratios, 2)
    )
    plain = {
        "contraction": "## Expected contraction E|Wx|² / |x|² of one exchange, no momentum",
        "momentum": "## Disagreement, factor a round without gradients, by outer momentum",
        "acceleration": "## Outer momentum that shrinks disagreement fastest, and rounds to a tenth of it",
        "transfers": "## Communication model against real transfers (paced TCP sockets on loopback)",
    }
    for name, head in plain.items():
        if tables.get(name):
            keys = {key: key.replace("_", " ") for key in tables[name][0]}
            parts.append(f"{head}\n\n" + report.markdown(tables[name], keys, 4))
    return "\n".join(parts)


def _write(
    out: Path, body: str, tables: Mapping[str, list[report.Row]], curves: Sequence[Curve],
    groups: Mapping[report.Key, list[Curve]], numbers: Sequence[int], networks: Sequence[str],
) -> None:  # fmt: skip
    files.write_text(out / "training.md", body)
    for name, rows in {**tables, "curves": report.curve_rows(curves)}.items():
        if rows:
            files.write_text(out / f"{name}.csv", _csv(report.csv_rows(rows)))
    with figures.styled():
        for n in numbers:
            for h in (30, 1):
                mine = {k: runs for k, runs in groups.items() if k[1:3] == (h, n) and k[0] not in _UNDRAWN}
                if mine:
                    figures.save(report.loss_figure(mine, networks), out / f"loss-h{h}-n{n}")
        figures.save(report.mixing_figure(tables["contraction"], tables["momentum"]), out / "mixing")


def _csv(rows: Sequence[Mapping[str, Any]]) -> str:
    stream = io.StringIO()
    writer = csv.DictWriter(stream, list(dict.fromkeys(key for row in rows for key in row)), lineterminator="\n")
    writer.writeheader()
    writer.writerows(rows)
    return stream.getvalue()
