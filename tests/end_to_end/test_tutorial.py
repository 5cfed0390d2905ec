"""The tutorial's boxes are run as they stand, in their order."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

PAGE = Path(__file__).parents[2] / "docs" / "tutorial.md"
BOX = re.compile(r"^```(?P<kind>\w+)(?: title=\"(?P<title>[^\"]+)\")?\n(?P<body>.*?)^```$", re.M | re.S)


def boxes() -> list[re.Match[str]]:
    return list(BOX.finditer(PAGE.read_text("utf-8")))


def run(line: str, folder: Path) -> None:
    """One command of a box; `# ends with` names the exit codes that it may have, 0 alone where it says nothing."""
    command, _, codes = line.partition("  # ends with ")
    here = {**os.environ, "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}"}
    ended = subprocess.run(command, shell=True, cwd=folder, env=here, capture_output=True, text=True, timeout=600)
    assert str(ended.returncode) in (codes.split() or ["0"]), (command, ended.stdout[-2000:], ended.stderr[-2000:])
    assert "Traceback" not in ended.stdout + ended.stderr


def test_every_box_is_a_file_or_a_command() -> None:
    found = boxes()
    assert {box["kind"] for box in found} == {"python", "bash", "latex"}
    assert all((box["title"] is None) == (box["kind"] == "bash") for box in found)
    assert all(
        line.startswith("protocol ") for box in found if box["kind"] == "bash" for line in box["body"].splitlines()
    )


@pytest.mark.slow
def test_the_tutorial_ends_with_its_paper(tmp_path: Path) -> None:
    for box in boxes():
        if box["kind"] == "bash":
            for line in box["body"].splitlines():
                run(line, tmp_path)
        else:
            path = tmp_path / box["title"]
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(box["body"])
    assert (tmp_path / "timeline.svg").is_file()
    if shutil.which("pdflatex") is None:
        pytest.skip("pdflatex is not installed, so the paper is not set")
    run("pdflatex -interaction=nonstopmode -halt-on-error paper.tex", tmp_path / "paper")
    overfull = re.findall(r"Overfull \\hbox \(([\d.]+)pt", (tmp_path / "paper" / "paper.log").read_text("latin-1"))
    assert all(float(points) <= 1 for points in overfull), overfull
