"""The tree keeps its shape: no long modules or functions, one name a test file, packages that say what they are."""

from __future__ import annotations

import ast
import importlib
import importlib.util
import re
import subprocess
import tomllib
from collections import Counter
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
OURS = ("protocol", "adapters", "baselines", "reports")
MOST_LINES, MOST_OF_A_FUNCTION = 500, 60
#: One compiled loop: calls inside it would cost what it was written for, and numba compiles it anew for each caller.
LONG_ON_PURPOSE = {("adapters/sidecars/kernel.py", "serve")}


def tracked(pattern: str = "*.py") -> list[str]:
    listed = subprocess.run(["git", "ls-files", "-z", pattern], cwd=ROOT, capture_output=True, text=True)
    if listed.returncode:
        pytest.skip("not a git checkout")
    return [name for name in listed.stdout.split("\0") if name and (ROOT / name).is_file()]


def long_parts(name: str) -> list[str]:
    """What of a module is too long; a function counts from its first decorator."""
    text = (ROOT / name).read_text("utf-8")
    lines = text.count("\n")
    found = [f"{name}: {lines} lines"] if lines > MOST_LINES else []
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) and (name, node.name) not in LONG_ON_PURPOSE:
            first = min([node.lineno, *(d.lineno for d in node.decorator_list)])
            length = (node.end_lineno or first) - first + 1
            if length > MOST_OF_A_FUNCTION:
                found.append(f"{name}: {node.name} has {length} lines")
    return found


def test_no_module_and_no_function_is_long() -> None:
    names = tracked()
    assert len(names) > 200
    assert [line for name in names for line in long_parts(name)] == []


def test_basenames_of_test_files_are_unique() -> None:
    names = Counter(Path(name).name for name in tracked() if Path(name).name.startswith("test_"))
    assert [name for name, count in names.items() if count > 1] == []


def test_pages_that_a_command_draws_are_not_tracked() -> None:
    assert tracked("*.html") == []


def part(module: str) -> str:
    """`protocol.stats.power` is part `stats`."""
    return module.removeprefix("protocol.").partition(".")[0]


def imported(package: Path) -> set[str]:
    """Parts of `protocol` that the modules of a package import, those for annotations included."""
    found: set[str] = set()
    for path in package.rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text("utf-8"))):
            if isinstance(node, ast.ImportFrom) and node.module == "protocol":
                found |= {alias.name for alias in node.names}
            elif isinstance(node, ast.ImportFrom) and (node.module or "").startswith("protocol."):
                found.add(part(node.module or ""))
            elif isinstance(node, ast.Import):
                found |= {part(alias.name) for alias in node.names if alias.name.startswith("protocol.")}
    return found


PACKAGES = sorted(path.parent.relative_to(ROOT / "protocol") for path in (ROOT / "protocol").rglob("*/__init__.py"))


def allowed(package: Path) -> set[str] | None:
    """What its docstring allows it to import, None for everything."""
    said = ast.get_docstring(ast.parse((ROOT / "protocol" / package / "__init__.py").read_text("utf-8"))) or ""
    match = re.search(r"^(\S.*?)\s+May import: (.*)\.$", " ".join(said.split()))
    assert match, f"protocol/{package}/__init__.py: no docstring with a purpose and 'May import: ....'"
    what = match[2]
    return None if what == "everything" else set() if what == "nothing of `protocol`" else set(what.split(", "))


@pytest.mark.parametrize("package", PACKAGES, ids=str)
def test_packages_state_what_they_import(package: Path) -> None:
    """What a docstring allows is what the contract allows; what a package imports is among it."""
    stated = allowed(package)
    if str(package) == "cli":
        assert stated is None
        return
    own = package.parts[0]
    config = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["tool"]["importlinter"]["contracts"]
    layers = [layer.split(" | ") for layer in next(c for c in config if c["type"] == "layers")["layers"]]
    place = next(i for i, layer in enumerate(layers) if own in layer)
    below = {name for layer in layers[place + 1 :] for name in layer}
    assert stated is not None and stated - {own} <= below
    assert imported(ROOT / "protocol" / package) - {own} <= stated


def test_every_package_has_been_looked_at() -> None:
    assert {"cli", "stats", "merging/peers", "workload"} <= {str(package) for package in PACKAGES}


@pytest.mark.parametrize("script", sorted((ROOT / "benchmarks").glob("*.py")), ids=lambda path: path.stem)
def test_what_a_benchmark_imports_is_there(script: Path) -> None:
    """No type checker looks at them, and no other test runs most of them."""
    for node in ast.walk(ast.parse(script.read_text("utf-8"))):
        if isinstance(node, ast.ImportFrom) and (node.module or "").partition(".")[0] in OURS:
            module = importlib.import_module(str(node.module))
            for alias in node.names:
                inside = (
                    importlib.util.find_spec(f"{node.module}.{alias.name}") if hasattr(module, "__path__") else None
                )
                assert hasattr(module, alias.name) or inside, f"{node.module}.{alias.name}"
