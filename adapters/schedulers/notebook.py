"""A scheduler that was defined in a session (a notebook, a prompt), written to a file to run as any other does.

What is judged runs in a confined process of its own, which imports it from a file.  So the class is written there with
everything of its session that its code names: imports, functions, other classes, plain values.
"""

from __future__ import annotations

import ast
import builtins
import hashlib
import inspect
import linecache
import textwrap
from collections.abc import Iterator, Mapping
from pathlib import Path
from types import CodeType, FunctionType, ModuleType
from typing import Any

from adapters.schedulers.parameters import with_parameters
from protocol.errors import BadInput
from protocol.files import write_text

_PLAIN = (bool, int, float, str, bytes, type(None))


def specification(scheduler: object, folder: Path) -> str:
    """What `open_scheduler` takes for a class, an instance, a function, or a text that it takes already.

    An instance stands for its class, constructed with the arguments that its attributes of the same names hold; what
    else it has come to hold is not carried along.  What lies in a file is run from there; what a session defined is
    written to `folder`/DIGEST/NAME.py.
    Raises BadInput when the code cannot be found, or names something that cannot be written down.
    """
    if isinstance(scheduler, str | Path):
        return str(scheduler)
    kind = scheduler if isinstance(scheduler, type | FunctionType) else type(scheduler)
    if kind.__module__ in ("builtins", "typing"):
        raise BadInput("scheduler", repr(scheduler)[:80], "a class or an instance with decide(obs), a function, a file")
    file = _file(kind)
    if file is None:
        text = written(kind)
        file = folder / hashlib.sha256(text.encode()).hexdigest()[:12] / f"{kind.__name__}.py"
        file.parent.mkdir(parents=True, exist_ok=True)
        write_text(file, text)
    spec = f"{file}:{kind.__qualname__}"
    return spec if kind is scheduler else with_parameters(spec, _arguments(scheduler, kind))


def written(kind: type | FunctionType) -> str:
    """Source of a class or function of a session, after everything that it names.  Raises BadInput."""
    parts: dict[str, str] = {}
    _write(kind, parts, set())
    imports = sorted({text for text in parts.values() if text.startswith(("import ", "from "))})
    rest = [text for text in parts.values() if text not in imports]
    future = ["from __future__ import annotations"]
    return "\n".join([*future, *imports]) + "\n\n" + "\n\n".join(rest) + "\n"


def _file(kind: type | FunctionType) -> Path | None:
    """The file that an importable class or function lies in; None of what a session defined."""
    functions = [kind] if isinstance(kind, FunctionType) else list(_functions(kind))
    typed = any(not Path(f.__code__.co_filename).is_file() for f in functions)
    if kind.__module__ == "__main__" or "<locals>" in kind.__qualname__ or typed:
        return None
    found = inspect.getsourcefile(kind)
    if found is None or not Path(found).is_file():
        return None
    return Path(found).resolve()


def _arguments(instance: object, kind: type | FunctionType) -> dict[str, Any]:
    found = {}
    for name, parameter in inspect.signature(kind).parameters.items():
        if name == "rng":
            continue
        if not hasattr(instance, name):
            if parameter.default is not parameter.empty:
                continue
            raise BadInput(f"scheduler, {name}", f"no such attribute of {kind.__name__}", "one for each argument")
        value = getattr(instance, name)
        if not isinstance(value, _PLAIN) or isinstance(value, bytes):
            raise BadInput(f"scheduler, {name}", f"{value!r:.60}", "a number, a text, True, False or None")
        found[name] = value
    return found


# Source ----------------------------------------------------------------------------------------------------------


def _write(thing: Any, parts: dict[str, str], open_: set[str]) -> None:
    """Add the source of a class or function, after what it names."""
    name = thing.__name__
    if name in parts or name in open_:
        return
    open_.add(name)
    source, functions = _source(thing)
    tree = ast.parse(source)
    scope: Mapping[str, Any] = functions[0].__globals__ if functions else {}
    local = {k: v for f in functions for k, v in zip(f.__code__.co_freevars, _cells(f), strict=True)}
    for used in sorted(_names(tree) - {name}):
        if used in local or used in scope:
            _add(used, local.get(used, scope.get(used)), parts, open_)
        elif not hasattr(builtins, used):
            continue  # an attribute, an argument, or something that does not exist and fails as it does there
    parts[name] = source


def _add(name: str, value: Any, parts: dict[str, str], open_: set[str]) -> None:
    if isinstance(value, ModuleType):
        parts[name] = f"import {value.__name__} as {name}" if name != value.__name__ else f"import {name}"
    elif isinstance(value, type | FunctionType) and _file(value) is None and value.__module__ != "builtins":
        if value.__name__ != name:
            raise BadInput(f"scheduler, {name}", f"another name of {value.__name__}", "the name that it was defined by")
        _write(value, parts, open_)
    elif callable(value) and hasattr(value, "__module__") and hasattr(value, "__qualname__"):
        module = "protocol.scheduler" if value.__module__ == "protocol.scheduler" else value.__module__
        parts[name] = f"from {module} import {value.__qualname__} as {name}"
    else:
        parts[name] = f"{name} = {_literal(name, value)}"


def _literal(name: str, value: Any) -> str:
    text = repr(value)
    try:
        same = ast.literal_eval(text) == value
    except (ValueError, SyntaxError, MemoryError, RecursionError):
        same = False
    if not same:
        raise BadInput(
            f"scheduler, {name}", f"{type(value).__name__} of the session",
            "an import, a function, a class or a plain value; make it inside the class",
        )  # fmt: skip
    return text


def _source(thing: Any) -> tuple[str, list[FunctionType]]:
    """Dedented source of a class or function, and its functions."""
    functions = [thing] if isinstance(thing, FunctionType) else list(_functions(thing))
    kinds: tuple[type[ast.AST], ...] = (ast.FunctionDef,) if isinstance(thing, FunctionType) else (ast.ClassDef,)
    for file in dict.fromkeys(f.__code__.co_filename for f in functions):
        lines = linecache.getlines(file)
        tree = _parsed("".join(lines))
        for node in reversed(list(ast.walk(tree)) if tree is not None else []):
            if isinstance(node, kinds) and getattr(node, "name", None) == thing.__name__ and _holds(node, functions):
                first = min([node.lineno, *(d.lineno for d in node.decorator_list)])  # type: ignore[attr-defined]
                return textwrap.dedent("".join(lines[first - 1 : node.end_lineno])).rstrip(), functions  # type: ignore[attr-defined]
    raise BadInput("scheduler", f"no source of {thing.__name__}", "one defined in a file, a notebook or a prompt")


def _holds(node: ast.AST, functions: list[FunctionType]) -> bool:
    """Whether a definition spans the lines of these functions: the same name may have been defined twice."""
    first = min([node.lineno, *(d.lineno for d in node.decorator_list)])  # type: ignore[attr-defined]
    return all(first <= f.__code__.co_firstlineno <= node.end_lineno for f in functions)  # type: ignore[attr-defined]


def _parsed(text: str) -> ast.Module | None:
    try:
        return ast.parse(text)
    except SyntaxError:
        return None


def _functions(kind: type) -> Iterator[FunctionType]:
    """Functions that a class itself defines."""
    for value in vars(kind).values():
        inner = getattr(value, "__func__", None) or getattr(value, "fget", None) or value
        if isinstance(inner, FunctionType) and inner.__qualname__.startswith(kind.__qualname__):
            code: CodeType = inner.__code__
            if not code.co_filename.startswith("<string>"):  # of a dataclass, not written by anybody
                yield inner


def _cells(function: FunctionType) -> list[Any]:
    return [cell.cell_contents for cell in function.__closure__ or ()]


def _names(tree: ast.AST) -> set[str]:
    return {node.id for node in ast.walk(tree) if isinstance(node, ast.Name)}
