"""`protocol audit` as a user runs it."""

from __future__ import annotations

import contextlib
import io
import json
import sys
from dataclasses import dataclass
from html.parser import HTMLParser
from pathlib import Path

import pytest

from protocol.cli import main

RATES = {
    "mine": (5.0, 6.0, 4.0, 5.5, 4.5),
    "random-deferral": (6.0, 7.5, 5.0, 7.0, 6.0),
    "fixed": (12.0, 13.0, 11.0, 12.5, 11.0),
}
MERGES = {"mine": 8, "random-deferral": 8, "fixed": 16}


@dataclass
class Done:
    returncode: int
    stdout: str
    stderr: str


def run(*words: object, cwd: Path) -> Done:
    """The entry point itself, in this process: starting Python for every call would take most of the time."""
    out, err = io.StringIO(), io.StringIO()
    code: object = 0
    with (
        pytest.MonkeyPatch.context() as patch,
        contextlib.redirect_stdout(out),
        contextlib.redirect_stderr(err),
        contextlib.chdir(cwd),
    ):
        patch.setattr(sys, "argv", ["protocol", "audit", *map(str, words)])
        patch.setenv("COLUMNS", "400")
        try:
            main()
        except SystemExit as stop:
            code = stop.code
    return Done(int(code or 0), out.getvalue(), err.getvalue())  # type: ignore[call-overload]


@pytest.fixture
def table(tmp_path: Path) -> Path:
    lines = ["arm,seed,violation_pct,requests,merges"]
    lines += [
        f"{arm},{seed},{pct},{1000 + seed},{MERGES[arm]}" for arm, ps in RATES.items() for seed, pct in enumerate(ps)
    ]
    path = tmp_path / "mine.csv"
    path.write_text("\n".join(lines) + "\n")
    return path


def test_json_names_the_gate_and_its_size(table: Path) -> None:
    done = run("mine.csv", "--json", cwd=table.parent)
    assert done.returncode == 0, done.stderr
    document = json.loads(done.stdout)
    (comparison,) = document["comparisons"]
    claims = {c["versus"]: c for c in comparison["claims"]}
    assert claims["fixed"]["verdict"] == "not licensed"
    budget = next(c for c in claims["fixed"]["checks"] if c["name"] == "G0 budget")
    assert (budget["status"], budget["statistic"]) == ("failed", 8.0)
    # Rates 5.0 / 8 windows against 11.9 / 16: the win is smaller, not gone.
    assert claims["fixed"]["pair"]["adjusted_pp"]["estimate"]["mean"] == pytest.approx(5.0 - 11.9 / 2)
    assert document["command"] == "protocol audit mine.csv"


def test_page_markdown_and_terminal_say_the_same(table: Path) -> None:
    out = table.parent / "out"
    done = run("mine.csv", "--out", "out", "--markdown", "audit.md", cwd=table.parent)
    assert done.returncode == 0, done.stderr
    page, text = (out / "audit.html").read_text(), (table.parent / "audit.md").read_text()
    document = json.loads((out / "audit.json").read_text())
    for claim in document["comparisons"][0]["claims"]:
        for shown in (page, text, done.stdout):
            assert claim["text"].split(" beats ")[0] in shown and claim["verdict"] in shown
    assert "protocol audit mine.csv --markdown audit.md" in text
    assert "<script" not in page and "http://" not in page and "https://" not in page
    HTMLParser().feed(page)


def test_the_document_can_be_made_again_byte_for_byte(table: Path) -> None:
    made = []
    for _ in range(2):
        assert run("mine.csv", "--markdown", "audit.md", cwd=table.parent).returncode == 0
        made.append((table.parent / "audit.md").read_bytes())
    assert made[0] == made[1] and str(table.parent).encode() not in made[0]


def test_request_files_become_a_comparison_with_an_slo(tmp_path: Path) -> None:
    for arm, slow in (("mine", 0.2), ("random", 0.6)):
        for seed in range(2):
            n = 20
            value = {
                "completed": n, "failed": 0, "duration": 20.0, "start_times": [float(i) for i in range(n)],
                "queue_times": [0.0] * n, "ttfts": [0.1] * n,
                "itls": [[slow + seed / 10 if i % 4 == 0 else 0.1] for i in range(n)],
                "input_lens": [8 + seed] * n, "output_lens": [2] * n, "errors": [""] * n,
            }  # fmt: skip
            (tmp_path / f"{arm}-s{seed}.json").write_text(json.dumps(value))
    done = run(".", "--slo", "e2e<=500ms", "--policy", "mine", "--json", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    document = json.loads(done.stdout)
    (comparison,) = document["comparisons"]
    rates = {a["arm"]: a["violation_pct"]["mean"] for a in comparison["arms"]}
    assert rates == {"mine": 0.0, "random": 25.0}
    load = next(c for c in comparison["claims"][0]["checks"] if c["name"] == "G2 load match")
    assert load["status"] == "passed"
    assert all(f["facts"]["requests"] == 20 and "e2e_p95_s" not in f["facts"] for f in document["files"])


@pytest.mark.parametrize(
    ("content", "told"),
    [("{", "not JSON"), ("{}", "no known format"), ('{"completed": 1, "duration": "x"}', "duration")],
)
def test_malformed_files_are_one_line_and_exit_2(tmp_path: Path, content: str, told: str) -> None:
    (tmp_path / "a.json").write_text(content)
    done = run("a.json", "--out", "out", cwd=tmp_path)
    assert done.returncode == 2 and told in done.stderr
    assert len(done.stderr.strip().splitlines()) == 1 and "Traceback" not in done.stderr
    assert not (tmp_path / "out").exists()


def test_names_cannot_draw_on_the_terminal_or_the_page(tmp_path: Path) -> None:
    evil = "<b>\x1b[31mx"
    lines = [
        "arm,seed,violation_pct",
        *(f"{arm},{s},{s + i}" for i, arm in enumerate((evil, "random")) for s in range(3)),
    ]
    (tmp_path / "mine.csv").write_text("\n".join(lines))
    done = run("mine.csv", "--out", "out", "--markdown", "a.md", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert "\x1b[31m" not in done.stdout
    page = (tmp_path / "out" / "audit.html").read_text()
    assert "<b>" not in page and "\x1b" not in page and "\x1b" not in (tmp_path / "a.md").read_text()


def test_an_unknown_arm_is_told(table: Path) -> None:
    done = run("mine.csv", "--policy", "mien", cwd=table.parent)
    assert done.returncode == 2 and "mien" in done.stderr and "random-deferral" in done.stderr


def test_the_published_document_is_what_the_command_makes(shared_data: Path, tmp_path: Path) -> None:
    """docs/audit-wa-diloco.md, from the real artifact of the shared data."""
    kept = Path(__file__).resolve().parents[2] / "docs" / "audit-wa-diloco.md"
    (tmp_path / "docs").mkdir()
    done = run(shared_data / "published" / "wa_diloco", "--markdown", "docs/audit-wa-diloco.md", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert (tmp_path / "docs" / "audit-wa-diloco.md").read_text() == kept.read_text()
