"""docs/statistics.md names a function and a test beside each statement: they are there."""

from __future__ import annotations

import ast
import importlib
import re
from pathlib import Path

ROOT = Path(__file__).parents[2]
TEXT = (ROOT / "docs" / "statistics.md").read_text("utf-8")


def functions(path: Path) -> set[str]:
    return {node.name for node in ast.walk(ast.parse(path.read_text("utf-8"))) if isinstance(node, ast.FunctionDef)}


def test_every_test_that_it_names_is_there() -> None:
    files = {path.name: path for path in (ROOT / "tests").rglob("test_*.py")}
    named = re.findall(r"(test_\w+\.py)(?:::(test_\w+))?|`::(test_\w+)`", TEXT)
    assert len(named) > 25
    last = ""
    for file, test, also in named:
        last = file or last
        assert last in files, last
        wanted = test or also
        assert not wanted or wanted in functions(files[last]), f"{last}::{wanted}"


def test_every_function_that_it_names_is_there() -> None:
    modules = "anytime|betting|equivalence|gains|inversion|multiplicity|power|predicted|ratios|sequential"
    named = re.findall(rf"`({modules})\.(\w+)(?:\.(\w+))?", TEXT)
    assert len(named) > 12
    for module, name, part in named:
        found = getattr(importlib.import_module(f"protocol.stats.{module}"), name)
        assert not part or hasattr(found, part), f"{module}.{name}.{part}"


def test_paths_and_pages_exist() -> None:
    for path in re.findall(r"`((?:protocol|tests)/[\w/]+(?:\.py)?)", TEXT):
        assert (ROOT / path).exists(), path
    for page in re.findall(r"\]\((\w[\w-]*\.md)\)", TEXT):
        assert (ROOT / "docs" / page).exists(), page
