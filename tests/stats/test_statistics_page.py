"""docs/statistics.md names a function and a test beside each statement: they are there."""

from __future__ import annotations

import ast
import itertools
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


def members() -> tuple[set[str], set[str]]:
    """Every function, class and field of the domain by its name, and what is in modules and classes, as OWNER.NAME."""
    names, owned = set(), set()
    for path in (ROOT / "protocol").rglob("*.py"):
        tree = ast.parse(path.read_text("utf-8"))
        owners = [(path.stem, tree), *((n.name, n) for n in ast.walk(tree) if isinstance(n, ast.ClassDef))]
        for owner, node in owners:
            for part in node.body:
                if isinstance(part, ast.FunctionDef | ast.ClassDef):
                    names.add(part.name)
                    owned.add(f"{owner}.{part.name}")
                elif isinstance(part, ast.AnnAssign) and isinstance(part.target, ast.Name):
                    owned.add(f"{owner}.{part.target.id}")
    return names, owned


def test_every_function_that_it_names_is_there() -> None:
    """Whatever stands in code marks and is no test, path, option or command: MODULE.FUNCTION[.METHOD], CLASS.METHOD,
    or a bare name.
    """
    names, owned = members()
    named = [n for n in re.findall(r"`([^`]+)`", TEXT) if re.fullmatch(r"\.?[A-Za-z_]\w*(?:\.(?!py$)\w+)*", n)]
    assert len(named) > 30
    owner = ""
    for name in named:
        parts = [owner, name[1:]] if name.startswith(".") else name.split(".")
        pairs = [f"{one}.{other}" for one, other in itertools.pairwise(parts)]
        assert parts[0] in names if not pairs else all(pair in owned for pair in pairs), name
        owner = parts[-2] if len(parts) > 1 else owner


def test_every_section_names_a_test() -> None:
    for section in TEXT.split("\n## ")[1:]:
        assert "test_" in section or "docs/" in section, section.splitlines()[0]


def test_paths_and_pages_exist() -> None:
    for path in re.findall(r"`((?:protocol|tests)/[\w/]+(?:\.py)?)", TEXT):
        assert (ROOT / path).exists(), path
    for page in re.findall(r"\]\((\w[\w-]*\.md)\)", TEXT):
        assert (ROOT / "docs" / page).exists(), page
