"""LaTeX, Markdown and CSV of a certificate."""

from __future__ import annotations

import csv
import re
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest
from sample_certificate import HOSTILE, REGIMES, build

from protocol.errors import BadInput
from reports import latex, paper
from reports.tables import write_tables

NASTY = "<script>alert(1)</script> & 100% $x_$"
NAMES = [f"{table}.{suffix}" for table in ("claims", "gates", "seeds") for suffix in ("csv", "md", "tex")]


def _rows(path: Path) -> list[dict[str, str]]:
    with path.open(newline="", encoding="utf-8") as file:
        return list(csv.DictReader(file))


def test_files_and_sizes(tmp_path: Path) -> None:
    certificate, _ = build(REGIMES, ("e2e<=1s", "ttft<=200ms,itl<=50ms"), seeds=3, draws=9)
    assert [p.name for p in write_tables(certificate, tmp_path / "tables")] == NAMES
    assert len(_rows(tmp_path / "tables" / "claims.csv")) == 10
    assert len(_rows(tmp_path / "tables" / "seeds.csv")) == 30
    checks = sum(len(g["checks"]) for c in certificate["claims"] for g in c["gates"])
    assert len(_rows(tmp_path / "tables" / "gates.csv")) == checks
    assert sorted(p.name for p in (tmp_path / "tables").iterdir()) == NAMES


def test_csv_holds_the_certificates_own_numbers(tmp_path: Path) -> None:
    certificate, _ = build(draws=19)
    write_tables(certificate, tmp_path)
    row, envelope = _rows(tmp_path / "claims.csv")[0], certificate["claims"][0]["envelope"]
    assert float(row["gain_pp"]) == envelope["gain_pp"]
    assert [float(row["interval_low_pp"]), float(row["interval_high_pp"])] == envelope["interval_pp"]
    assert float(row["load_gain_pp"]) == envelope["load_gain_pp"]
    assert {t["name"]: float(row[f"p_{t['name'].replace(' ', '_')}"]) for t in envelope["tests"]} == {
        t["name"]: t["p"] for t in envelope["tests"]
    }
    assert float(row["p_holm"]) == envelope["p_holm"]
    seed = _rows(tmp_path / "seeds.csv")[4]
    assert {k: float(seed[k]) for k in ("seed", "rank", "of")} == {
        k: envelope["per_seed"][4][k] for k in ("seed", "rank", "of")
    }
    assert float(seed["policy_pp"]) == envelope["per_seed"][4]["policy"]


def test_shown_numbers(tmp_path: Path) -> None:
    certificate, _ = build(draws=19)
    certificate["claims"][0]["envelope"] |= {
        "gain_pp": -0.344, "interval_pp": [-1.0, 0.25], "load_gain_pp": -0.5, "load_interval_pp": None,
        "p_holm": 0.00001,
    }  # fmt: skip
    write_tables(certificate, tmp_path)
    shown = (tmp_path / "claims.md").read_text("utf-8")
    assert "| −0.34\u00a0pp | \\[−1.00, 0.25\\] | −0.50\u00a0pp | – |" in shown
    assert "| &lt; 0.001 | 28\u00a0% |" in shown
    tex = (tmp_path / "claims.tex").read_text("utf-8")
    assert r"$-$0.34*** \\ {[}$-$1.00, 0.25{]}" in tex and "$<$ 0.001" in tex


@pytest.mark.parametrize("envelope", [True, False])
def test_unknown_numbers(tmp_path: Path, envelope: bool) -> None:
    certificate, _ = build(seeds=1, draws=1, verdict="INCONCLUSIVE", envelope=envelope)
    write_tables(certificate, tmp_path)
    row = _rows(tmp_path / "claims.csv")[0]
    assert row["p_holm"] == "" and row["interval_low_pp"] == ""
    assert len(_rows(tmp_path / "seeds.csv")) == envelope
    assert "| – |" in (tmp_path / "claims.md").read_text("utf-8")


def test_hostile_names_stay_in_their_cells(tmp_path: Path) -> None:
    certificate, _ = build((HOSTILE,), seeds=2, draws=3, name=HOSTILE)
    write_tables(certificate, tmp_path)
    for name in ("claims", "gates", "seeds"):
        lines = (tmp_path / f"{name}.md").read_text("utf-8").splitlines()
        assert len({len(re.findall(r"(?<!\\)\|", line)) for line in lines}) == 1
        assert not any("<" in line or "\x1b" in line for line in lines)
        tex = (tmp_path / f"{name}.tex").read_text("utf-8")
        assert "\\input" not in tex and "<script" not in tex and "\x1b" not in tex


def test_marks_say_how_small_the_corrected_p_is() -> None:
    assert [latex.stars(p) for p in (0.0009, 0.009, 0.049, 0.05, 1.0, None)] == ["***", "**", "*", "", "", ""]
    text = paper.documents(build()[0], paper.Asked())["claims"]
    assert latex.MARKS.replace("<", "$<$") in text and "***" in text.partition("midrule")[2]


def test_columns_and_decimals_are_what_was_asked_for(tmp_path: Path) -> None:
    certificate, _ = build(draws=19)
    write_tables(certificate, tmp_path, paper.Asked(columns=("claim", "worst", "gain"), decimals=3))
    tex = (tmp_path / "claims.tex").read_text("utf-8")
    head = tex.partition("toprule")[2].partition("midrule")[0]
    assert [head.index(word) for word in ("Claim", "Worst", "Gain")] == sorted(
        head.index(word) for word in ("Claim", "Worst", "Gain")
    )
    assert "By load" not in tex and f"{certificate['claims'][0]['envelope']['gain_pp']:+.3f}" in tex


@pytest.mark.parametrize(
    ("asked", "said"),
    [({"columns": ("claim", "colour")}, "found colour; expected claim, verdict"),
     ({"columns": ()}, "found none"),
     ({"columns": paper.COLUMNS, "width": "column"}, "which take .* pt; expected at most 229 pt")],
)  # fmt: skip
def test_columns_that_are_not_there_or_do_not_fit(tmp_path: Path, asked: dict[str, Any], said: str) -> None:
    with pytest.raises(BadInput, match=said):
        write_tables(build(draws=9)[0], tmp_path, paper.Asked(**asked))


def _set(folder: Path, options: str, kind: str) -> str:
    body = "".join(rf"\input{{{n}}}\clearpage" for n in ("claims", "gates", "seeds", "islands"))
    text = rf"\documentclass{options}{{{kind}}}\usepackage[T1]{{fontenc}}\usepackage{{array,booktabs}}"
    (folder / "all.tex").write_text(rf"{text}\begin{{document}}\null {body}\end{{document}}", "utf-8")
    command = ["pdflatex", "-interaction=nonstopmode", "-halt-on-error", "all.tex"]
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True, timeout=120, errors="replace")
    assert done.returncode == 0, done.stdout[-2000:]
    return done.stdout


@pytest.mark.parametrize("width", ["column", "page"])
@pytest.mark.parametrize(("kind", "options"), [("article", ""), ("article", "[twocolumn]"), ("IEEEtran", "")])
def test_latex_compiles_in_every_class_and_nothing_sticks_out(
    tmp_path: Path, width: Any, kind: str, options: str
) -> None:
    if shutil.which("pdflatex") is None or subprocess.run(["kpsewhich", f"{kind}.cls"], capture_output=True).returncode:
        pytest.skip(f"NO PDFLATEX OR NO {kind}: apt-get install texlive-latex-recommended texlive-publishers")
    certificate, _ = build((HOSTILE, "sync-heavy-steady", NASTY), seeds=20, draws=9, name=NASTY)
    certificate["regimes"][0] |= {"peer": {}, "islands": 2}
    for seed in certificate["regimes"][0]["seeds"]:
        seed["by_island"] = {key: [7, 12_345] for key in ("merges", "busy_ns", "bytes", "inner_steps")}
    write_tables(certificate, tmp_path, paper.Asked(width=width))
    said = _set(tmp_path, options, kind)
    assert [float(pt) for pt in re.findall(r"Overfull \\hbox \(([\d.]+)pt", said) if float(pt) > 1] == []
