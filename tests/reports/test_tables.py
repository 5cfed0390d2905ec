"""LaTeX, Markdown and CSV of a certificate."""

from __future__ import annotations

import csv
import re
import shutil
import subprocess
from pathlib import Path

import pytest
from sample_certificate import HOSTILE, REGIMES, build

from reports.tables import write_tables

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
    assert r"$-$0.34~pp & {[}$-$1.00, 0.25{]}" in tex and "$<$ 0.001" in tex


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
        rows = [r for r in (tmp_path / f"{name}.tex").read_text("utf-8").splitlines() if r.endswith(r" \\")]
        assert rows and len({len(re.findall(r"(?<!\\)&", r)) for r in rows}) == 1
        assert "\\input" not in "".join(rows)


@pytest.mark.slow
def test_latex_compiles(tmp_path: Path) -> None:
    if shutil.which("pdflatex") is None:
        pytest.skip("no pdflatex: install TeX to run this test")
    certificate, _ = build((HOSTILE, "sync-heavy-steady"), seeds=3, draws=9, name=HOSTILE)
    write_tables(certificate, tmp_path)
    inputs = "\n".join(rf"\input{{{n}}}" for n in ("claims", "gates", "seeds"))
    preamble = (
        r"\documentclass{article}\usepackage[a3paper,landscape,margin=1cm]{geometry}\usepackage{booktabs,longtable}"
    )
    (tmp_path / "all.tex").write_text(rf"{preamble}\begin{{document}}\tiny {inputs}\end{{document}}", "utf-8")
    command = ["pdflatex", "-interaction=nonstopmode", "-halt-on-error", "all.tex"]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=120, errors="replace")
    assert done.returncode == 0, done.stdout[-2000:]
