"""Finding and constructing a scheduler in its own process: the only module that imports its code.

Runs in the child: standard library, NumPy and `protocol.scheduler` only.
"""

from __future__ import annotations

import importlib
import importlib.util
import inspect
import os
import sys
from types import ModuleType
from typing import Any

import numpy as np


class Refused(Exception):
    """What to tell the user about a scheduler that cannot run."""

    def __init__(self, **report: object) -> None:
        super().__init__(report)
        self.report = report


def short_path(path: str, folder: str) -> str:
    real = os.path.realpath(path)
    return os.path.relpath(real, folder) if real.startswith(folder.rstrip("/") + "/") else real


def of_folder(path: str, folder: str) -> bool:
    # Frozen modules and evaluated strings have names in angle brackets, which are no files.
    return not path.startswith("<") and os.path.realpath(path).startswith(folder.rstrip("/") + "/")


def crash(error: BaseException, folder: str) -> dict[str, object]:
    """Type, message and the innermost line of the scheduler's own folder in an exception."""
    where: tuple[str, int] | None = None
    trace = error.__traceback__
    while trace is not None:
        path = trace.tb_frame.f_code.co_filename
        if of_folder(path, folder) and "site-packages" not in path:
            where = short_path(path, folder), trace.tb_lineno
        trace = trace.tb_next
    if isinstance(error, SyntaxError) and error.filename:
        if not error.filename.startswith("<"):
            where = short_path(error.filename, folder), error.lineno or 1
        message: str = str(error.msg)
    elif isinstance(error, SystemExit):
        message = f"called exit({'' if error.code is None else error.code})"
    else:
        try:
            message = " ".join(str(error).split())
        except Exception:  # __str__ is the scheduler's code, too
            message = "(its message cannot be printed)"
    message = message if len(message) <= 300 else message[:297] + "..."
    return {"file": where and where[0], "line": where and where[1], "error": type(error).__name__, "message": message}


# --- the scheduler's code ---------------------------------------------------------------------------------


def _forget_shadowed(folder: str) -> None:
    """Drop host modules that the scheduler's folder has its own version of, so that its imports find those."""
    names = {os.path.splitext(entry)[0] for entry in os.listdir(folder)}
    for name in names & {module.partition(".")[0] for module in sys.modules}:
        if name in sys.stdlib_module_names or name in ("numpy", "__main__"):
            continue
        for own in (os.path.join(folder, name + ".py"), os.path.join(folder, name, "__init__.py")):
            loaded = getattr(sys.modules.get(name), "__file__", None)
            if os.path.isfile(own) and (loaded is None or os.path.realpath(loaded) != os.path.realpath(own)):
                for module in [m for m in sys.modules if m.partition(".")[0] == name]:
                    del sys.modules[module]


def load(target: dict[str, Any], folder: str) -> ModuleType:
    _forget_shadowed(folder)
    if target["module"]:
        return importlib.import_module(target["module"])
    path = target["file"]
    name = os.path.splitext(os.path.basename(path))[0]
    if name in sys.stdlib_module_names or name in sys.modules or not name.isidentifier():
        name = "scheduler_" + "".join(c if c.isalnum() else "_" for c in name)
    spec = importlib.util.spec_from_file_location(name, path)
    if spec is None or spec.loader is None:
        raise Refused(bad="file", found="a name that Python does not import", expected="a .py file")
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    spec.loader.exec_module(module)
    return module


def choose(module: ModuleType, attribute: str, kind: str) -> object:
    """What the module calls by this name.  Name and kind were read off the source before any of it ran."""
    value: object = module
    for part in attribute.split("."):
        if not hasattr(value, part):
            raise Refused(bad="attribute", found=f"no {attribute}", expected="a name that the module keeps")
        value = getattr(value, part)
    method = "plan" if kind == "planner" else "decide"
    if not callable(getattr(value, method, None)) and not (kind == "scheduler" and inspect.isfunction(value)):
        raise Refused(bad="attribute", found=f"{attribute} without {method}", expected=f"a class with {method}")
    return value


def construct(
    name: str, value: object, words: list[int], asked_for: dict[str, object], given: dict[str, object] | None = None
) -> Any:
    """A fresh scheduler, or its function of one observation.

    asked_for : arguments from the command line.  given : what a planner's constructor may name beside `rng`.
    """
    factory: Any = value
    if not inspect.isclass(value) and not inspect.isfunction(value):
        if asked_for:
            raise Refused(bad="signature", found=f"{name}, which is made already", expected="no arguments for it")
        return factory
    parameters = inspect.signature(factory).parameters
    offered = {"rng": np.random.Generator(np.random.PCG64(np.random.SeedSequence(words))), **(given or {})}
    wrong = [key for key in asked_for if key not in parameters or key in offered]
    if wrong:
        raise Refused(bad="signature", found=f"{name}({', '.join(parameters)})", expected=f"a parameter {wrong[0]}")
    arguments = {**{key: thing for key, thing in offered.items() if key in parameters}, **asked_for}
    free = [
        p.name
        for p in parameters.values()
        if p.default is p.empty and p.kind in (p.POSITIONAL_ONLY, p.POSITIONAL_OR_KEYWORD, p.KEYWORD_ONLY)
    ]
    free = [p for p in free if p not in arguments]
    asked = f"{name}({', '.join(parameters)})"
    if inspect.isfunction(value):
        if len(free) != 1:
            raise Refused(bad="signature", found=asked, expected="one observation")
        function: Any = value
        return (lambda seen: function(seen, **arguments)) if arguments else function
    if free:
        raise Refused(bad="signature", found=asked, expected=f"defaults for all parameters but {' and '.join(offered)}")
    return factory(**arguments)


def loaded_files(before: set[int]) -> list[str]:
    """Files of the modules that this run has imported by now."""
    files = [getattr(m, "__file__", None) for m in list(sys.modules.values()) if id(m) not in before]
    return sorted({os.path.realpath(f) for f in files if isinstance(f, str) and not f.startswith("<")})
