"""A comparison as LaTeX, Markdown, CSV and a figure, and on the terminal."""

from __future__ import annotations

import csv
import re
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest

from protocol.errors import BadInput
from reports import comparison, comparison_figures
from reports.figures import styled

SETTINGS = {"alpha": 0.05, "min_effect_pp": 0.5}
NASTY = "<script>alert(1)</script> & 100% $x_$"
LONG = "my_quite_long_scheduler_name.py:Mine(threshold=4)"
REGIMES = ("ordinary", "high-pressure", "bursty-periodic", "bursty-aperiodic")


def row(scheduler: str, regime: str, gain: float | None, verdict: str = "FAIL", slo: str = "e2e<=1000ms") -> Any:
    ends = None if gain is None else (gain - 0.5, gain + 0.5)
    known = gain is not None
    return {
        "scheduler": scheduler, "regime": regime, "slo": slo, "root_seed": 7, "merges": 160, "gain_pp": gain,
        "interval_pp": ends, "load_gain_pp": gain, "load_interval_pp": ends,
        "gain_captured": None if gain is None else 0.25, "p": 0.02, "p_within": 0.03, "p_overall": 0.04,
        "verdict": verdict, "digest": "abcdef0123", "n_seeds": 20, "n_draws": 999, "merges_a_seed": 8.0,
        "policy_excess_pp": 3.0 if known else None, "control_excess_pp": 3.0 + gain if known else None,
        "requests_saved_per_sidecar_per_10_min": 9.9, "seed_gains_pp": [gain - 0.1, gain + 0.1] if known else [],
    }  # fmt: skip


TRIED = [{"name": NASTY, "scheduler": "0" * 64, "root_seed": None, "claims": 5, "verdict": "abandoned"}]
TABLES = ("comparison", "comparison-gains", "comparison-runs")
FIGURES = ("comparison", "comparison-load", "comparison-seeds", "comparison-budget")


ROWS = [
    row(name, regime, 1.25 + i, verdict)
    for i, (name, verdict) in enumerate([("wa-diloco", "PASS"), (NASTY, "FAIL"), (LONG, "INCONCLUSIVE")])
    for regime in REGIMES
]


def write(folder: Path, rows: Any = None, **asked: Any) -> Path:
    comparison.write(ROWS if rows is None else rows, SETTINGS, TRIED, folder, comparison.Asked(**asked))
    return folder


@pytest.fixture
def tables_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    """Drawing takes seconds."""
    monkeypatch.setattr(comparison, "comparison_figures", lambda *_: {})


@pytest.fixture(scope="module")
def drawn(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """The files of either width."""
    return {width: write(tmp_path_factory.mktemp(width), width=width) for width in ("column", "page")}


def test_files_are_the_same_bytes_every_time(tmp_path: Path) -> None:
    first, second = (comparison.write(ROWS[:1], SETTINGS, TRIED, tmp_path / name) for name in "ab")
    names = [f"{name}.{s}" for name in TABLES for s in ("tex", "md", "csv")]
    names += [f"{name}.{s}" for name in FIGURES for s in ("pdf", "svg")]
    assert [p.name for p in first] == names
    assert [p.read_bytes() for p in first] == [p.read_bytes() for p in second]


def test_csv_keeps_every_number(tmp_path: Path, tables_alone: None) -> None:
    write(tmp_path, [row("a", "r", 1 / 3), row("b", "r", None), row("b", "s", 2.0)])
    known, unknown, _ = csv.DictReader((tmp_path / "comparison.csv").read_text().splitlines())
    assert float(known["gain_pp"]) == 1 / 3 and float(known["interval_low_pp"]) == 1 / 3 - 0.5
    assert (known["gain_captured"], known["p_overall"], known["root_seed"]) == ("0.25", "0.04", "7")
    assert unknown["gain_pp"] == unknown["interval_high_pp"] == unknown["gain_captured"] == ""
    one, two = csv.DictReader((tmp_path / "comparison-gains.csv").read_text().splitlines())
    assert float(one["gain_pp, r, e2e<=1000ms"]) == 1 / 3 and one["gain_pp, s, e2e<=1000ms"] == ""
    assert two["gain_pp, r, e2e<=1000ms"] == "" and float(two["gain_pp, s, e2e<=1000ms"]) == 2
    runs = list(csv.DictReader((tmp_path / "comparison-runs.csv").read_text().splitlines()))
    assert [(r["scheduler"], r["merges"], r["claims"], r["passed"]) for r in runs] == [
        ("a", "160", "1", "0"), ("b", "320", "2", "0"), (NASTY, "", "5", ""),
    ]  # fmt: skip
    assert runs[2]["shown"] == "no: abandoned" and runs[2]["root_seed"] == ""


def test_markdown_and_latex_show_names_as_they_are(tmp_path: Path, tables_alone: None) -> None:
    write(tmp_path)
    for name in TABLES:
        tex, md = ((tmp_path / f"{name}.{s}").read_text() for s in ("tex", "md"))
        assert "<script>" not in md and "<script>" not in tex and "$<$script$>$" in tex.replace(r"\allowbreak{}", "")
        assert len({len(re.findall(r"(?<!\\)\|", line)) for line in md.splitlines()}) == 1
    tex = (tmp_path / "comparison.tex").read_text().replace(r"\allowbreak{}", "")
    assert "bursty-periodic, e2e$<$=1000ms" in tex and tex.count(r"\multicolumn{7}") == len(REGIMES)
    assert "Holm-corrected over the 17 claims that were tried" in tex and "+1.25*" in tex


def test_columns_decimals_and_width_are_what_was_asked_for(tmp_path: Path, tables_alone: None) -> None:
    tex = (write(tmp_path, width="column", columns=("scheduler", "saved"), decimals=1) / "comparison.tex").read_text()
    head = tex.partition("toprule")[2].partition("midrule")[0]
    assert "Saved" in head and "By load" not in head and r"\begin{table}[tp]" in tex
    assert "+1.2" in (tmp_path / "comparison-gains.tex").read_text().replace("+1.25", "")
    for asked, said in (({"columns": ("colour",)}, "found colour"),
                        ({"columns": comparison.COLUMNS, "width": "column"}, "which take")):  # fmt: skip
        with pytest.raises(BadInput, match=said):
            write(tmp_path / "none", **asked)
    assert not (tmp_path / "none").exists()


def test_regimes_that_do_not_fit_beside_the_others_go_on_below(tmp_path: Path, tables_alone: None) -> None:
    rows = [row(name, f"regime-{k}", 12.25) for name in ("a", "b") for k in range(14)]
    tex = (write(tmp_path, rows, width="column") / "comparison-gains.tex").read_text()
    assert tex.count(r"\begin{table}") == 3 and all(tex.count(f"regime-{k} ") == 1 for k in range(14))
    with styled():
        drawn = comparison_figures.comparison_figures(rows[:14], SETTINGS, "column")
    assert {name: len(figure.axes) for name, figure in drawn.items() if name.startswith("-budget")} == {
        "-budget": 5, "-budget-2": 5, "-budget-3": 4,
    }  # fmt: skip
    assert all(figure.get_size_inches()[1] <= 7 for figure in drawn.values())


PAPERS = {
    "article": r"\documentclass[twocolumn]{article}",
    "IEEEtran": r"\documentclass{IEEEtran}",
}


@pytest.mark.parametrize("width", ["column", "page"])
@pytest.mark.parametrize("kind", PAPERS)
def test_a_paper_of_three_tables_and_four_figures(
    tmp_path: Path, drawn: dict[str, Path], kind: str, width: str
) -> None:  # fmt: skip
    if shutil.which("pdflatex") is None or subprocess.run(["kpsewhich", f"{kind}.cls"], capture_output=True).returncode:
        pytest.skip(f"NO PDFLATEX OR NO {kind}: apt-get install texlive-latex-recommended texlive-publishers")
    shutil.copytree(drawn[width], tmp_path, dirs_exist_ok=True)
    star = "*" if width == "page" else ""
    figures = "".join(
        rf"\begin{{figure{star}}}\centering\includegraphics{{{name}.pdf}}\caption{{{name}}}\end{{figure{star}}}"
        for name in FIGURES
    )
    tables = "".join(rf"\input{{{name}}}" for name in TABLES)
    (tmp_path / "paper.tex").write_text(
        rf"{PAPERS[kind]}\usepackage[T1]{{fontenc}}\usepackage{{array,booktabs,graphicx}}\begin{{document}}"
        rf"\section{{Results}}{'Words of a paper fill its columns. ' * 300}{tables}{figures}\end{{document}}", "utf-8"
    )  # fmt: skip
    command = ["pdflatex", "-interaction=nonstopmode", "-halt-on-error", "paper.tex"]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=120, errors="replace")
    assert done.returncode == 0, done.stdout[-2000:]
    said = done.stdout.replace("\n", "")  # TeX breaks its lines anywhere
    over = re.findall(r"Overfull \\[hv]box \(([\d.]+)pt", said)
    assert [pt for pt in map(float, over) if pt > 1] == [], done.stdout[-3000:]
    assert "Float too large" not in said and all(f"{name}.pdf" in said for name in FIGURES)


def test_two_limits_of_several_regimes_fit_a_column(tmp_path: Path) -> None:
    """Headings with relations in them, which are broader than a digit, beside a name without a word that breaks."""
    if shutil.which("pdflatex") is None:
        pytest.skip("NO PDFLATEX: apt-get install texlive-latex-recommended")
    rows = [
        {**row(name, regime, 12.25), "slo": slo}
        for name in ("quiet.py", NASTY)
        for regime, slo in (("bursty-aperiodic", "e2e<=2000ms"), ("own-short", "e2e<=2200ms"),
                            ("own-short", "e2e<=2000ms,ttft<=500ms"), ("mmm", "ttft<=2000ms"))
    ]  # fmt: skip
    made = write(tmp_path, rows, width="column")
    (made / "paper.tex").write_text(
        r"\documentclass[twocolumn]{article}\usepackage{array,booktabs}\begin{document}\input{comparison-gains}"
        r"\input{comparison}\end{document}"
    )
    command = ["pdflatex", "-interaction=nonstopmode", "paper.tex"]
    done = subprocess.run(command, cwd=made, capture_output=True, text=True, timeout=120, errors="replace")
    over = re.findall(r"Overfull \\[hv]box \(([\d.]+)pt", done.stdout.replace("\n", ""))
    assert done.returncode == 0 and [pt for pt in map(float, over) if pt > 1] == [], done.stdout[-3000:]


def test_figures_are_as_wide_as_asked_and_embed_their_fonts(drawn: dict[str, Path]) -> None:
    for width, inches in (("column", 3.17), ("page", 6.5)):
        for name in FIGURES:
            data = (drawn[width] / f"{name}.pdf").read_bytes()
            box = re.search(rb"/MediaBox \[ 0 0 ([\d.]+) ([\d.]+) \]", data)
            assert box and abs(float(box[1]) - 72 * inches) < 0.5 and float(box[2]) < 72 * 9
            assert b"/FontFile2" in data and b"/Type3" not in data


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
    figure = comparison_figures.gains(rows, SETTINGS)
    panels = [axes for axes in figure.axes if axes.get_title(loc="left") or axes.get_title()]
    assert len(panels) == len(REGIMES)
    names = [text.get_text() for text in figure.axes[0].get_yticklabels()]
    assert names[0] == "wa-diloco" and names[-1] == "wa-diloco (2)" and len(names) == 4
    notes = [note.get_text() for note in figure.axes[0].texts]
    assert notes.count("25\u00a0%") == 3 and notes.count("no result") == 1
    assert [[t.get_text() for t in axes.texts].count("not judged here") for axes in panels[1:]] == [1] * 3
    assert [axes.get_title()[:3] for axes in panels] == ["(a)", "(b)", "(c)", "(d)"]


def test_what_nothing_is_known_of_has_no_figure() -> None:
    bare = [{**row("a", "r", 1.0), "load_gain_pp": None, "seed_gains_pp": [], "policy_excess_pp": None}]
    assert list(comparison_figures.comparison_figures(bare, SETTINGS, "page")) == [""]


def test_budgets_stand_at_the_merges_of_a_seed_and_what_they_cost() -> None:
    figure = comparison_figures.budgets([row("a", "r", 1.5)])
    drawn, own = figure.axes[0].lines[:2]
    assert (drawn.get_xdata()[0], drawn.get_ydata()[0]) == (8.0, 4.5) and own.get_ydata()[0] == 3.0
