"""A comparison as LaTeX, Markdown, CSV and a figure, and on the terminal."""

from __future__ import annotations

import csv
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest

from reports import comparison

SETTINGS = {"alpha": 0.05, "min_effect_pp": 0.5}
NASTY = "<script>alert(1)</script> & 100% $x_$"
LONG = "my_quite_long_scheduler_name.py:Mine(threshold=4)"
REGIMES = ("ordinary", "high-pressure", "bursty-periodic", "bursty-aperiodic")


def row(scheduler: str, regime: str, gain: float | None, verdict: str = "FAIL", slo: str = "e2e<=1000ms") -> Any:
    ends = None if gain is None else (gain - 0.5, gain + 0.5)
    return {
        "scheduler": scheduler, "regime": regime, "slo": slo, "root_seed": 7, "merges": 160, "gain_pp": gain,
        "interval_pp": ends, "load_gain_pp": gain, "load_interval_pp": ends,
        "gain_captured": None if gain is None else 0.25, "p": 0.02, "p_within": 0.03, "p_overall": 0.04,
        "verdict": verdict,
    }  # fmt: skip


ROWS = [
    row(name, regime, 1.25 + i, verdict)
    for i, (name, verdict) in enumerate([("wa-diloco", "PASS"), (NASTY, "FAIL"), (LONG, "INCONCLUSIVE")])
    for regime in REGIMES
]


def test_files_are_the_same_bytes_every_time(tmp_path: Path) -> None:
    first, second = (comparison.write(ROWS, SETTINGS, tmp_path / name) for name in "ab")
    assert [p.name for p in first] == [f"comparison.{s}" for s in ("tex", "md", "csv", "pdf", "svg")]
    assert [p.read_bytes() for p in first] == [p.read_bytes() for p in second]


def test_csv_keeps_every_number(tmp_path: Path) -> None:
    comparison.write([row("a", "r", 1 / 3), row("b", "r", None)], SETTINGS, tmp_path)
    known, unknown = csv.DictReader((tmp_path / "comparison.csv").read_text().splitlines())
    assert float(known["gain_pp"]) == 1 / 3 and float(known["interval_low_pp"]) == 1 / 3 - 0.5
    assert (known["gain_captured"], known["p_overall"], known["root_seed"]) == ("0.25", "0.04", "7")
    assert unknown["gain_pp"] == unknown["interval_high_pp"] == unknown["gain_captured"] == ""


def test_markdown_and_latex_show_names_as_they_are(tmp_path: Path) -> None:
    comparison.write(ROWS, SETTINGS, tmp_path)
    tex, md = ((tmp_path / f"comparison.{s}").read_text() for s in ("tex", "md"))
    assert "<script>" not in md and md.count("\n") == 2 + len(ROWS)
    assert r"\multicolumn{8}{l}{\emph{bursty-periodic, e2e$<$=1000ms}}" in tex
    assert r"wa-diloco & +1.25 & {[}0.75, 1.75{]} & +1.25 & {[}0.75, 1.75{]} & 25~\% & 0.0400 & PASS \\" in tex


@pytest.mark.skipif(shutil.which("pdflatex") is None, reason="no pdflatex")
@pytest.mark.parametrize("start", [r"\documentclass[twocolumn]{article}", r"\documentclass{article}"])
def test_latex_fits_a_page(tmp_path: Path, start: str) -> None:
    comparison.write(ROWS, SETTINGS, tmp_path)
    (tmp_path / "paper.tex").write_text(
        start + r"\usepackage[utf8]{inputenc}\usepackage[a4paper,margin=2cm]{geometry}\usepackage{booktabs}"
        r"\begin{document}\begin{table*}\centering\footnotesize\input{comparison.tex}\end{table*}x\end{document}"
    )
    done = subprocess.run(["pdflatex", "-interaction=nonstopmode", "paper.tex"], cwd=tmp_path, capture_output=True,
                          timeout=60)  # fmt: skip
    assert done.returncode == 0 and b"Overfull" not in done.stdout, done.stdout.decode()[-2000:]


@pytest.mark.parametrize("width", [80, 100, 160])
def test_terminal_tables_fit(width: int) -> None:
    text = comparison.on_terminal(ROWS, SETTINGS, width).plain
    assert max(map(len, text.split("\n"))) <= width
    assert all(f"{regime}, e2e<=1000ms" in text for regime in REGIMES)
    assert text.count("INCONCLUSIVE") == len(REGIMES) and "[0.75,\u00a01.75]" in text
    assert ("p alone" in text) == (width == 160)


def test_terminal_shows_codes_in_names_escaped() -> None:
    assert "\x1b" not in comparison.on_terminal([row("a\x1b[31m", "r\x1b[2J", 1.0)], SETTINGS, 80).plain


def test_the_figure_has_a_panel_a_regime_and_a_line_a_scheduler() -> None:
    rows = [*ROWS, row("wa-diloco", "ordinary", None, "INCONCLUSIVE")]
    figure = comparison.comparison_figure(rows, SETTINGS)
    panels = [axes for axes in figure.axes if axes.get_title(loc="left") or axes.get_title()]
    assert len(panels) == len(REGIMES)
    names = [text.get_text() for text in figure.axes[0].get_yticklabels()]
    assert names[0] == "wa-diloco" and names[-1] == "wa-diloco (2)" and len(names) == 4
    shares = [note.get_text() for note in figure.axes[0].texts]
    assert shares.count("25\u00a0%") == 3 and shares.count("") == 1
