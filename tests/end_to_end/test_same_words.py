"""Certificate, terminal, report and tables of one run call each test by one name, and each gain by one number."""

from __future__ import annotations

import csv
import html
import json
import re
from pathlib import Path
from typing import Any

import pytest
from conftest import Protocol

from protocol.stats.inversion import EXCHANGE, LOAD_FLIP, SIGN_FLIP, STRATIFIED
from reports import format as fmt


@pytest.fixture
def said(protocol: Protocol, small: Path, aware: Path, tmp_path: Path) -> dict[str, str]:
    """What one run says, by where it says it; white space as one space."""
    out = tmp_path / "out"
    ended = protocol("certify", aware, "--regime", small, "--out", out, "--draws", 19, "--jobs", 1, "--min-effect", 0)
    assert ended.returncode == 0, ended.stderr
    texts = {"terminal": ended.stdout, "certificate": (out / "certificate.json").read_text()}
    report = re.sub("<style.*?</style>", "", (out / "report.html").read_text(), flags=re.DOTALL)
    texts["report"] = html.unescape(re.sub("<[^>]*>", " ", report))
    for suffix in ("md", "tex", "csv"):
        texts[suffix] = (out / "tables" / f"claims.{suffix}").read_text()
    texts["tex"] = re.sub(r"\\shortstack\[.\]\{([^}]*)\}", lambda found: found[1].replace("\\\\", ""), texts["tex"])
    return {where: text if where == "csv" else " ".join(text.split()) for where, text in texts.items()}


def envelope(said: dict[str, str]) -> dict[str, Any]:
    (claim,) = json.loads(said["certificate"])["claims"]
    return dict(claim["envelope"])


@pytest.mark.slow
def test_one_run_says_the_same_everywhere(said: dict[str, str]) -> None:
    e = envelope(said)
    names = [test["name"] for test in e["tests"]]
    assert names == [STRATIFIED, SIGN_FLIP, EXCHANGE, LOAD_FLIP]
    (row,) = csv.DictReader(said["csv"].splitlines())
    for test in e["tests"]:
        for where in ("report", "md"):  # a column of a paper has room for the corrected p only
            assert f"p, {test['name']}" in said[where], where
        assert float(row[f"p_{test['name'].replace(' ', '_')}"]) == test["p"]
    assert f"decided by the {e['decided_by']}" in said["terminal"]
    assert f"decided by the {e['decided_by']} (p" in said["report"]
    for where, text in said.items():  # and by no other name
        assert set(re.findall(r"(\w+)[ -]sign[ -]flip", text)) <= {"paired"}, where
        assert set(re.findall(r"stratified (\w+)", text)) <= {"randomisation"}, where
        assert "crossed schedules" not in text, where
    for of in ("", "load_"):
        gain, limits = e[f"{of}gain_pp"], e[f"{of}interval_pp"]
        assert float(row[f"{of}gain_pp"]) == gain
        assert [float(row[f"{of}interval_{end}_pp"]) for end in ("low", "high")] == limits
        number, interval = fmt.fixed(gain, sign=True), fmt.interval(limits)
        assert f" {number} " in said["terminal"] and interval in said["terminal"]
        assert f"{number} pp {interval}" in said["report"]
        assert number in said["md"] and fmt.markdown(interval) in said["md"]
        assert fmt.latex(number) in said["tex"] and fmt.latex(interval) in said["tex"]
        plain = f"{gain:.2f} pp {interval.replace(fmt.MINUS, '-')}"
        for where in ("certificate", "terminal", "report"):
            assert plain in said[where], where
