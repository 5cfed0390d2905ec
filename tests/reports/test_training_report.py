"""Tables and figures of training runs, on curves made here."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from protocol.training.curves import Curve, Estimate
from reports import figures
from reports import training as report


def made(method: str, seed: int, networks: tuple[str, ...] = ("equal", "slow"), bad: bool = False) -> Curve:
    steps = np.arange(30, 301, 30)
    loss = 2 + np.exp(-steps / 100) + 0.01 * seed
    loss = np.where(steps > 200, np.nan, loss) if bad else loss
    return Curve(
        method=method, h=30, islands=8, seed=seed, step=steps, tokens=steps * 1024, sent_bytes=steps * 8e6,
        loss=loss, train_loss=loss, consensus=np.full(10, 0.01),
        time_s={name: steps * (1.0 + k + 0.1 * seed) for k, name in enumerate(networks)},
        island_loss=float(loss[-1]) + 0.1, worst_loss=float(loss[-1]) + 0.2 + seed, diverged=bad,
    )  # fmt: skip


@pytest.fixture
def groups() -> dict[report.Key, list[Curve]]:
    curves = [made("DiLoCo", s) for s in (1, 0)] + [made("GASLoC 1-peer adapted", s, ("slow",)) for s in (0, 1)]
    return report.grouped(curves)


def test_summary_by_hand(groups: dict[report.Key, list[Curve]]) -> None:
    diloco, adapted = report.summary_rows(groups)
    assert (diloco["method"], adapted["method"]) == ("DiLoCo", "GASLoC 1-peer adapted (slow)")
    assert diloco["loss"].mean == pytest.approx(2 + np.exp(-3) + 0.005)
    assert diloco["worst_loss"] == pytest.approx(2 + np.exp(-3) + 0.01 + 1.2)
    assert diloco["gigabytes"] == pytest.approx(300 * 8e6 / 1e9 / 8)
    assert diloco["time_s slow"] == pytest.approx(300 * 2.05)
    assert "time_s equal" not in adapted and adapted["time_s slow"] == pytest.approx(300 * 1.05)


def test_a_diverged_run_is_counted_and_has_no_mean() -> None:
    (row,) = report.summary_rows(report.grouped([made("A", 0), made("A", 1, bad=True)]))
    assert row["diverged"] == 1 and row["loss"] is None


def test_markdown_and_csv(groups: dict[report.Key, list[Curve]]) -> None:
    rows = report.summary_rows(groups)
    table = report.markdown(rows, {"method": "method", "loss": "loss", "absent": "x", "time_s equal": "s"})
    head, rule, first, second = table.splitlines()
    assert head == "| method | loss | s |" and second.endswith("| – |")
    assert "2.055 \\[1.991, 2.118\\]" in first
    flat = report.csv_rows(rows)[0]
    assert flat["loss low"] < flat["loss"] < flat["loss high"]
    points = report.curve_rows([made("DiLoCo", 0)])
    assert len(points) == 10 and points[0]["time_s slow"] == "60" and points[0]["tokens"] == 30 * 1024


def test_unknown_is_a_dash() -> None:
    assert report.shown(None) == report.shown(float("nan")) == "–"
    assert report.shown(Estimate(1.0, None, None, 1)) == "1.000"


def test_figures_are_drawn_and_the_same_twice(groups: dict[report.Key, list[Curve]], tmp_path: Path) -> None:
    both = {**groups, **report.grouped([made("Broken", 0, bad=True)])}
    contraction = [
        {"topology": kind, "islands": n, "formula": 0.4, "measured": 0.41, "standard_error": 0.01}
        for kind in ("1-peer", "2-peer") for n in (8, 16)
    ]  # fmt: skip
    momentum = [
        {"topology": "1-peer", "islands": 8, "form": "mixed", "gamma": g, "predicted": g, "measured": g}
        for g in (0.0, 0.9)
    ]
    for folder in ("a", "b"):
        (tmp_path / folder).mkdir()
        with figures.styled():
            figures.save(report.loss_figure(both, ["equal", "slow"]), tmp_path / folder / "loss")
            figures.save(report.mixing_figure(contraction, momentum), tmp_path / folder / "mixing")
    for name in ("loss", "mixing"):
        text = (tmp_path / "a" / f"{name}.svg").read_text()
        assert text == (tmp_path / "b" / f"{name}.svg").read_text() and len(text) > 5000
