"""What a source file offers, read off its text: nothing of it is executed.

Who is a scheduler and who is a planner, and by which name it is judged, is settled here, before any of its code runs.
Whatever cannot be told to be a planner is taken as a scheduler, which is shown observations only.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from adapters.schedulers.sources import Target, module_file, parsed
from protocol.errors import BadInput

Kind = Literal["scheduler", "planner"]
_Scope = dict[str, ast.stmt]


@dataclass(frozen=True)
class Offer:
    """The name of what is judged in its module, and its kind."""

    attribute: str
    kind: Kind


def offer(target: Target) -> Offer | None:
    """What the target's file offers; None where its text does not parse, which its run will report.

    Raises BadInput when there is nothing to choose, or more than one.
    """
    entry = target.entry()
    tree = parsed(entry) if entry else None
    if tree is None or entry is None:
        return None
    found = {name: kind for name, node in _scope(tree).items() if (kind := _kind(node, entry, target, 0))}
    if target.attribute:
        return Offer(target.attribute, _named(target.attribute, tree, entry, target))
    public = [name for name in found if not name.startswith("_")]
    if len(public) == 1:
        return Offer(public[0], found[public[0]])
    if not public:
        raise BadInput(target.name, "no scheduler", "a class with decide(self, obs), or a function decide(obs)")
    base = target.file.name if target.file else target.name.partition(":")[0]
    names = " or ".join(f"{base}:{name}" for name in public)
    raise BadInput(target.name, f"{len(public)} schedulers", f"one of them by name: {names}")


def _statements(body: list[ast.stmt]) -> Iterator[ast.stmt]:
    """Statements that run when a module or class body does, those under `if`, `try` and `with` among them."""
    for node in body:
        yield node
        for part in ("body", "orelse", "finalbody"):
            if isinstance(node, ast.If | ast.Try | ast.With | ast.For | ast.While):
                yield from _statements(getattr(node, part, []))
        for handler in getattr(node, "handlers", []):
            yield from _statements(handler.body)


def _scope(tree: ast.Module | ast.ClassDef) -> _Scope:
    """Statements that bind a name, by that name; the last one counts."""
    found: _Scope = {}
    for node in _statements(tree.body):
        if isinstance(node, ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
            found[node.name] = node
        elif isinstance(node, ast.Assign):
            found |= {t.id: node for t in node.targets if isinstance(t, ast.Name)}
        elif isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name) and node.value is not None:
            found[node.target.id] = node
        elif isinstance(node, ast.ImportFrom):
            found |= {alias.asname or alias.name: node for alias in node.names}
    return found


def _kind(node: ast.stmt, path: Path, target: Target, depth: int) -> Kind | None:
    """Kind of a class or function that a module defines itself; None for anything else."""
    if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
        return "scheduler" if node.name == "decide" else None
    if not isinstance(node, ast.ClassDef):
        return None
    methods = _methods(node, path, target, depth)
    return "scheduler" if "decide" in methods else "planner" if "plan" in methods else None


def _methods(node: ast.ClassDef, path: Path, target: Target, depth: int) -> set[str]:
    """Names that a class has, those of its bases among them, as far as its own files tell."""
    names = set(_scope(node))
    if depth > 20:
        return names
    for base in node.bases:
        found = _look_up(ast.unparse(base), path, target, depth + 1)
        if found is not None:
            names |= _methods(found[0], found[1], target, depth + 1)
    return names


def _look_up(dotted: str, path: Path, target: Target, depth: int) -> tuple[ast.ClassDef, Path] | None:
    """The class that a name of a file means, through imports from the scheduler's own folder."""
    tree = parsed(path)
    if tree is None or depth > 20:
        return None
    head, _, rest = dotted.partition(".")
    node = _scope(tree).get(head)
    while isinstance(node, ast.ClassDef) and rest:
        head, _, rest = rest.partition(".")
        node = _scope(node).get(head)
    if isinstance(node, ast.ClassDef):
        return node, path
    if isinstance(node, ast.ImportFrom):
        own = next((a.name for a in node.names if (a.asname or a.name) == head), head)
        package = list(path.parent.relative_to(target.import_path).parts) if path.is_relative_to(
            target.import_path) else []  # fmt: skip
        base = package[: len(package) - node.level + 1] if node.level else []
        module = ".".join([*base, *(node.module or "").split(".")]).strip(".")
        there = module_file(target.import_path, module) if module else None
        return _look_up(own + (f".{rest}" if rest else ""), there, target, depth + 1) if there else None
    value = getattr(node, "value", None)
    if isinstance(value, ast.Name | ast.Attribute):
        return _look_up(ast.unparse(value), path, target, depth + 1)
    if isinstance(value, ast.Call):  # an instance
        return _look_up(ast.unparse(value.func), path, target, depth + 1)
    return None


def _named(attribute: str, tree: ast.Module, path: Path, target: Target) -> Kind:
    scope = _scope(tree)
    if attribute.partition(".")[0] not in scope:
        offered = [n for n, node in scope.items() if not n.startswith("_") and _kind(node, path, target, 0)]
        expected = " or ".join(offered) or "a class with decide(self, obs), or a function decide(obs)"
        raise BadInput(target.name, f"no {attribute}", expected)
    found = _look_up(attribute, path, target, 0)
    if found is None:
        return "scheduler"
    return "planner" if _kind(found[0], found[1], target, 0) == "planner" else "scheduler"
