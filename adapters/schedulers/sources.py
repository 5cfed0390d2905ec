"""Which scheduler a word on the command line means, and which source files make it up."""

from __future__ import annotations

import ast
import hashlib
import importlib.util
import os
import shlex
import shutil
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from adapters.schedulers.parameters import Argument, split_parameters
from protocol import registry
from protocol.errors import BadInput

GROUP = "protocol.schedulers"
#: Imported by the host before it forks when a scheduler names them, so that no run pays for them again.
_PRELOADED = ("numba", "numpy", "pandas", "protocol", "scipy", "sklearn", "statsmodels", "torch")
#: A scheduler's own folder may have this much in it for all of it to be readable.
MOST_FILES, MOST_BYTES = 500, 64 << 20
_MOST_VISITED, _MOST_SOURCE = 5000, 4 << 20
_PROSE = (".md", ".rst", ".log", ".ipynb")
_SKIPPED = ("__pycache__", "node_modules")
#: Compiled modules, and keys: what signs a certificate is no part of what is judged, wherever it lies.
_NO_DATA = (".pyc", ".pyo", ".pem", ".key", ".pub")
_IMPORTERS = ("exec", "eval", "run_path", "run_module", "spec_from_file_location", "exec_module", "walk_packages")
FORMS = (
    "FILE.py, FILE.py:Class, FILE.py:Class(name=value), package.module:attribute, cmd:COMMAND, "
    "a merge log (.jsonl, .csv) or a name"
)


@dataclass(frozen=True)
class Target:
    """A scheduler's code: a file, a module or a command.

    folder : the scheduler's own folder; import_path : what comes first on its import path.
    arguments : of its constructor, from the command line.
    """

    name: str
    folder: Path
    import_path: Path
    file: Path | None = None
    module: str | None = None
    attribute: str | None = None
    command: tuple[str, ...] | None = None
    arguments: tuple[tuple[str, Argument], ...] = ()

    def entry(self) -> Path | None:
        """The file in which the scheduler's code begins."""
        if self.module is None:
            return self.file
        return module_file(self.import_path, self.module)

    def sources(self) -> tuple[list[Path], list[str]]:
        """Own files reachable by imports that name their module, sorted; modules to preload."""
        if self.command is not None:
            return sorted(p for p in map(Path, self.command) if p.is_file() and _beneath(p, self.folder)), []
        entry = self.entry()
        if entry is None:
            return [], []
        found, outside = {entry}, set()
        packages = list((self.module or "").split(".")[:-1])
        for depth in range(1, len(packages) + 1):
            parent = module_file(self.import_path, ".".join(packages[:depth]))
            if parent is not None:
                found.add(parent)
        todo = sorted(found)
        while todo:
            here = todo.pop()
            for name in _imports(here, self.import_path):
                own = [f for f in _chain(self.import_path, name) if _beneath(f, self.folder)]
                todo += [f for f in own if f not in found]
                found.update(own)
                if not own and name.partition(".")[0] in _PRELOADED:
                    outside.add(name)
        return sorted(found), sorted(outside)

    def readable(self, hidden: Sequence[Path]) -> list[Path]:
        """Files of its own folder that a run may read, all of them digested: its modules and its data.

        Data are all files that are no Python and no prose.  Where an import's name is computed, all Python files count.
        A folder of more than `MOST_FILES` files or `MOST_BYTES` gives nothing but the modules.
        """
        modules = self.sources()[0]
        computed = any(_computes_imports(path) for path in modules if path.suffix == ".py")
        data: list[Path] = []
        size = 0
        for path in _files_beneath(self.folder, hidden):
            if path.suffix in _PROSE or (path.suffix == ".py" and not computed and self.command is None):
                continue
            data.append(path)
            size += path.stat().st_size
            if len(data) > MOST_FILES or size > MOST_BYTES:
                return modules
        return sorted({*modules, *data})


def _files_beneath(folder: Path, hidden: Sequence[Path]) -> Iterator[Path]:
    """Regular files of a folder, without keys and those of environments, caches, certificates and hidden places."""
    visited = 0
    for at, folders, names in os.walk(folder):
        here = Path(at)
        if "pyvenv.cfg" in names or "certificate.json" in names:
            folders.clear()
            continue
        folders[:] = sorted(f for f in folders if f not in _SKIPPED and f[0] != "." and here / f not in hidden)
        for name in sorted(names):
            path = here / name
            visited += 1
            if visited > _MOST_VISITED:
                return
            if name[0] != "." and path.suffix not in _NO_DATA and path.is_file() and not _leads_to(path, hidden):
                yield path


def _leads_to(path: Path, hidden: Sequence[Path]) -> bool:
    """Whether a file is one of the hidden, or lies in one of them, through links too."""
    real = Path(os.path.realpath(path))
    return any(real.is_relative_to(secret) for secret in hidden)


def digest(target: Target, files: Iterable[Path], environment: Mapping[str, str]) -> str:
    """SHA-256 over what was asked for: arguments, environment, and every file's path and bytes.

    Paths count from the scheduler's folder; a file outside counts by its name.
    """
    sha = hashlib.sha256(b"scheduler/2\n")
    known = set(files)
    if target.command is not None:
        words = [os.path.relpath(w, target.folder) if Path(w) in known else w for w in target.command[1:]]
        sha.update(repr([os.path.basename(target.command[0]), *words]).encode() + b"\n")
    if target.arguments:
        sha.update(f"{target.arguments!r}\n".encode())
    sha.update(f"{target.module} {target.attribute}\n{sorted(environment.items())!r}\n".encode())
    for path in sorted(known):
        data = path.read_bytes()
        name = os.path.relpath(path, target.folder) if path.is_relative_to(target.folder) else path.name
        runs = " x" if path.stat().st_mode & 0o111 else ""  # which shows to whoever asks
        sha.update(f"{len(name.encode())} {name} {len(data)}{runs}\n".encode() + data)
    return sha.hexdigest()


def resolve(spec: str) -> Target:
    """What `spec` means.  Raises BadInput when it is no form of scheduler or its file does not exist."""
    plain, arguments = split_parameters(spec)
    if arguments and plain.endswith((".csv", ".jsonl")):
        raise BadInput(spec, "arguments of a merge log", "a scheduler that takes them: a log is what happened")
    target = _resolve(plain)
    if not arguments:
        return target
    name = f"{target.name}({', '.join(f'{key}={value!r}' for key, value in arguments.items())})"
    return replace(target, name=name, arguments=tuple(arguments.items()))


def _resolve(spec: str) -> Target:
    if not spec:
        raise BadInput("scheduler", "nothing", FORMS)
    if spec.startswith("cmd:"):
        return _command(spec)
    known = registry.names(GROUP)
    if spec in known:
        point = known[spec]
        return _module(spec, point.module, point.attr or None)
    head, _, attribute = spec.partition(".py:") if ".py:" in spec else (spec, "", "")
    path = Path(head + ".py") if attribute else Path(spec)
    if path.suffix == ".py" or path.exists():
        if not path.is_file():
            raise BadInput(spec, "no such file" if not path.exists() else "a folder", FORMS)
        if path.suffix != ".py":
            raise BadInput(spec, f"a file of type {path.suffix or 'unknown'}", FORMS)
        real = Path(os.path.realpath(path))
        name = real.name + (f":{attribute}" if attribute else "")
        return Target(name, real.parent, real.parent, file=real, attribute=attribute or None)
    module, colon, attribute = spec.partition(":")
    if colon and module and all(part.isidentifier() for part in f"{module}.{attribute}".split(".")):
        return _module(spec, module, attribute)
    if any(c in spec for c in "/\\. "):
        raise BadInput(spec, "no such file", FORMS)
    registry.load(GROUP, spec)  # raises, suggesting near names
    raise BadInput(spec, "an unknown scheduler", FORMS)


def _command(spec: str) -> Target:
    try:
        words = shlex.split(spec.removeprefix("cmd:"))
    except ValueError as error:
        raise BadInput(spec, f"a command that does not parse ({error})", "cmd:COMMAND ARGUMENTS") from None
    if not words:
        raise BadInput(spec, "no command", "cmd:COMMAND ARGUMENTS")
    program = shutil.which(words[0])
    if program is None:
        raise BadInput(spec, f"no program {words[0]!r}", "a program on PATH or a path to one")
    full = [os.path.realpath(w) if os.path.isfile(w) else w for w in words[1:]]
    files = [Path(w) for w in full if os.path.isfile(w)]
    # A program without file arguments is itself the scheduler.
    folder = files[0].parent if files else Path(os.path.realpath(program)).parent
    name = " ".join([os.path.basename(words[0]), *words[1:]])
    return Target(name, folder, folder, command=(os.path.abspath(program), *full))


def _module(name: str, module: str, attribute: str | None) -> Target:
    top = module.partition(".")[0]
    local = Path.cwd()
    origin = module_file(local, top)
    if origin is None:
        spec = importlib.util.find_spec(top)  # a top-level name: nothing is executed
        if spec is None or not spec.origin or not os.path.isfile(spec.origin):
            raise BadInput(name, f"no module {top!r} with a source file", "one that is installed or in this folder")
        origin = Path(os.path.realpath(spec.origin))
    package = origin.name == "__init__.py"
    folder = origin.parent
    root = folder.parent if package else folder
    if module_file(root, module) is None:
        raise BadInput(name, f"no module {module!r}", f"a module of {top}")
    return Target(name, folder, root, module=module, attribute=attribute)


def _beneath(path: Path, folder: Path) -> bool:
    return path.is_relative_to(folder)


def module_file(root: Path, module: str) -> Path | None:
    stem = root.joinpath(*module.split("."))
    for candidate in (stem / "__init__.py", stem.with_name(stem.name + ".py")):
        if candidate.is_file():
            return Path(os.path.realpath(candidate))
    return None


def _chain(root: Path, module: str) -> list[Path]:
    """Files that importing a dotted name executes, as far as they lie under `root`."""
    parts = module.split(".")
    files = (module_file(root, ".".join(parts[:n])) for n in range(1, len(parts) + 1))
    return [f for f in files if f is not None]


def _imports(path: Path, root: Path) -> Iterator[str]:
    """Dotted names that a file imports; relative ones are made absolute."""
    tree = parsed(path)
    if tree is None:
        return
    package = list(path.parent.relative_to(root).parts) if path.is_relative_to(root) else []
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            base = package[: len(package) - node.level + 1] if node.level else []
            name = ".".join([*base, *(node.module or "").split(".")]).strip(".")
            if name:
                yield name
            yield from (f"{name}.{alias.name}".strip(".") for alias in node.names)
        elif isinstance(node, ast.Call) and node.args and isinstance(node.args[0], ast.Constant):
            called = node.func.attr if isinstance(node.func, ast.Attribute) else getattr(node.func, "id", "")
            if called in ("import_module", "__import__") and isinstance(node.args[0].value, str):
                yield node.args[0].value


def parsed(path: Path) -> ast.Module | None:
    """A source file's syntax tree; None for what does not parse, which the run itself reports with its line."""
    try:
        return ast.parse(path.read_bytes()) if path.stat().st_size <= _MOST_SOURCE else None
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return None


def _computes_imports(path: Path) -> bool:
    """Whether a file may import what its text does not name."""
    tree = parsed(path)
    for node in ast.walk(tree) if tree else ():
        if isinstance(node, ast.Call):
            called = node.func.attr if isinstance(node.func, ast.Attribute) else getattr(node.func, "id", "")
            named = bool(node.args) and isinstance(node.args[0], ast.Constant)
            if called in _IMPORTERS or (called in ("import_module", "__import__") and not named):
                return True
    return False
