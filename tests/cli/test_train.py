"""`protocol train` from the outside."""

from __future__ import annotations

import csv
import dataclasses
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import typer
from typer.testing import CliRunner

from protocol.cli import train, train_grid, train_measure
from protocol.errors import BadInput

ROOT = Path(__file__).resolve().parents[2]


def run(*arguments: str, **environment: str) -> subprocess.CompletedProcess[str]:
    env = {**os.environ, "PYTHONPATH": str(ROOT), "COLUMNS": "200", **environment}
    command = [sys.executable, "-m", "protocol", "train", *arguments]
    return subprocess.run(command, capture_output=True, text=True, env=env, timeout=300, check=False)


def need_torch() -> None:
    pytest.importorskip("torch", reason="torch is not installed; to run this test: pip install -e '.[train]'")


def test_without_torch_there_is_one_line(tmp_path: Path) -> None:
    (tmp_path / "torch.py").write_text("raise ModuleNotFoundError(\"No module named 'torch'\", name='torch')\n")
    found = run("--quick", PYTHONPATH=f"{tmp_path}{os.pathsep}{ROOT}")
    assert found.returncode == 2
    assert "pip install 'diloco-protocol[train]'" in found.stderr and "Traceback" not in found.stderr


def test_quick_comparison(tmp_path: Path) -> None:
    need_torch()
    out = tmp_path / "out"
    found = run("--quick", "--out", str(out), "--no-transfers")
    assert found.returncode == 0, found.stderr
    assert "Modelled time of the first over the second" in found.stdout
    assert {p.name for p in out.iterdir()} == {
        "training.md", "summary.csv", "differences.csv", "ratios.csv", "contraction.csv", "momentum.csv",
        "acceleration.csv", "curves.csv",
        "loss-h30-n8.svg", "loss-h30-n8.pdf", "loss-h1-n8.svg", "loss-h1-n8.pdf", "mixing.svg", "mixing.pdf",
    }  # fmt: skip
    with (out / "summary.csv").open() as file:
        rows = list(csv.DictReader(file))
    assert {(r["method"].split(" (")[0], int(r["h"])) for r in rows} == set(train_grid.FEWER)
    # Every method learns: an untrained decoder is near log 98 = 4.6 nats.
    assert all(float(r["loss"]) < 3.8 for r in rows)
    with (out / "ratios.csv").open() as file:
        networks = {r["network"] for r in csv.DictReader(file)}
    assert networks == {"equal", "one at 20 %", "one at 10 %"}


def test_distributed_engine(tmp_path: Path) -> None:
    need_torch()
    found = run("--quick", "--engine", "distributed", "--islands", "2", "--steps", "60", "--method", "GASLoC 2-peer")
    assert found.returncode == 0, found.stderr
    assert found.stdout.count("2 processes") == 2  # H = 30 and H = 1


@pytest.mark.parametrize(
    ("arguments", "what"),
    [
        (("--method", "no such"), "one of All-reduce AdamW"),
        (("--text", "absent.txt"), "a text file"),
        (("--text", "a", "--hugging-face", "b"), "one of them"),
        (("--engine", "gpu"), "stacked or distributed"),
    ],
)
def test_bad_options_are_one_line(arguments: tuple[str, ...], what: str) -> None:
    need_torch()
    app = typer.Typer()
    train.register(app)
    found = CliRunner().invoke(app, ["--quick", *arguments])
    assert isinstance(found.exception, BadInput) and what in str(found.exception)
    assert "\n" not in str(found.exception)


def test_unstable_methods_are_named() -> None:
    method = train_grid.Method("x", 30, "gasloc", (0.7, 0.9), "pair")
    assert any("1.022" in line for line in train._unstable([method], [8]))
    assert train._unstable(train_grid.METHODS, [8, 16, 32]) == []


def test_every_named_comparison_exists() -> None:
    known = {(m.name, m.h) for m in train_grid.METHODS}
    assert len(known) == len(train_grid.METHODS)
    assert known.issuperset(train_grid.FEWER) and known.issuperset(name for pair in train.LOSSES for name in pair)


def test_a_step_of_all_islands_always_trains_on_the_same_tokens() -> None:
    # What `cells` reads of a recipe, without torch.
    made: Any = dataclasses.make_dataclass("Recipe", [("batch", int), ("steps", int)])
    cells = list(train_grid.cells(train_grid.METHODS, [8, 16, 32], range(2), made(4, 750), train_grid.Link(), 5, 9))
    assert {c.islands * c.recipe.batch for c in cells} == {32}
    assert {c.recipe.steps for c in cells if c.islands > 8} == {360}
    assert len(set(map(repr, cells))) == len(cells)
    assert {c.network for c in cells if c.method.adapted} == {"one at 20 %", "one at 10 %"}


def test_measured_tables_agree_with_their_predictions() -> None:
    for row in train_measure.contraction_rows(0, quick=True):
        assert abs(row["measured"] - row["formula"]) < 5 * row["standard_error"]
        assert row["spectral_gap"] == 1 - row["formula"]
    for row in train_measure.momentum_rows(0, quick=True):
        assert row["measured"] == pytest.approx(row["predicted"], rel=0.15)


def test_momentum_helps_on_fixed_graphs_and_not_on_random_ones() -> None:
    rows = train_measure.acceleration_rows(quick=True)
    for row in rows:
        assert (row["speed_up"] > 1.2) == (row["topology"] == "fixed ring")
        assert row["best_gamma"] == 0 or row["topology"] == "fixed ring"
