"""Files that are either whole or not there, and folders in which nothing of the user's is lost."""

from __future__ import annotations

import errno
import hashlib
import json
import os
import re
import shutil
import stat
import unicodedata
from collections.abc import Collection, Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path, PurePosixPath
from typing import Any

from protocol.errors import BadInput

#: The certificate of an output folder, and its signature.
CERTIFICATE, SIGNATURE = "certificate.json", "certificate.sig"
#: What every certificate of ours begins its schema with.
OURS = "diloco-protocol/"
#: What an unfinished run leaves in its output folder; the last one is where results wait for their place.
LOG, PARTIAL, LOCK, WAITING = "scheduler.log", ".partial", ".lock", ".protocol-writing"
UNFINISHED = (LOG, PARTIAL, LOCK, WAITING)
#: Tells the folder in which results wait from one of somebody else's with the same name.
_WRITER = ".of-diloco-protocol"
#: Names in an unfinished run's folder, those of what is being written there among them.
_PARTS = re.compile(
    r"\.?(run|plan\.json|asked\.json|(seed|replay|run|on-off|idle)-.*|[0-9a-f]{24}\.json|[0-9a-f]{12}\.[0-9]+\.tmp)"
)
_UNTOUCHED = "nothing there was touched"
_CERTIFICATE_BYTES = 256 << 20


@contextmanager
def atomic(path: Path) -> Iterator[Path]:
    """A temporary name beside `path` that takes its place when the block ends without an error.

    Raises BadInput that names `path` when the system refuses to write (a full disk, a name too long).
    """
    # Not made of the whole name: that may be as long as names can be.
    temporary = path.with_name(f".{hashlib.sha256(path.name.encode()).hexdigest()[:12]}.{os.getpid()}.tmp")
    with naming(path):
        try:
            yield temporary
            os.replace(temporary, path)
        finally:
            try:
                temporary.unlink(missing_ok=True)
            except OSError:  # the folder itself is the trouble, and said already
                pass


@contextmanager
def naming(path: Path) -> Iterator[None]:
    """Turn what the system refuses into one line that names the file: a full disk has no name of its own.

    Raises BadInput.
    """
    try:
        yield
    except OSError as error:
        inside = error.filename is None or Path(os.fsdecode(error.filename)).is_relative_to(path.parent)
        if error.errno is None or not inside:  # another file, which its own message names
            raise
        raise BadInput(str(path), os.strerror(error.errno).lower(), _EXPECTED.get(error.errno, _WRITABLE)) from None


_WRITABLE = "a place that can be written"
_EXPECTED = {
    errno.ENOSPC: "room on its disk",
    errno.EDQUOT: "room in its quota",
    errno.EFBIG: "room below the limit on file sizes",
    errno.ENAMETOOLONG: "a shorter name",
    errno.ELOOP: "a path without a circle of links",
}


def refuse_irregular(path: Path, most_bytes: int = 64 << 30) -> None:
    """A pipe never ends, a device has no end.  Raises BadInput on what is no regular file, or is larger."""
    try:
        about = path.stat()
    except OSError:  # whoever reads it will say
        return
    if stat.S_ISDIR(about.st_mode):
        raise BadInput(str(path), "a folder", "a file")
    if not stat.S_ISREG(about.st_mode):
        raise BadInput(str(path), "a device, pipe or socket", "a regular file")
    if about.st_size > most_bytes:
        raise BadInput(str(path), f"{about.st_size:,} bytes", f"at most {most_bytes:,}")


def read_bytes(path: Path, most_bytes: int = _CERTIFICATE_BYTES) -> bytes:
    """What a regular file holds.  Raises BadInput on another kind or a larger one, OSError as ever."""
    refuse_irregular(path, most_bytes)
    return path.read_bytes()


def write_text(path: Path, text: str) -> None:
    with atomic(path) as temporary:
        temporary.write_text(text, encoding="utf-8")


def canonical_json(value: object) -> str:
    """Sorted keys, two-space indent, no NaN or infinity; equal values give equal text.

    Raises ValueError on NaN or infinity, which no certificate may hold.
    """
    return json.dumps(value, sort_keys=True, indent=2, allow_nan=False, ensure_ascii=False) + "\n"


def from_json(text: str | bytes) -> Any:
    """What a JSON text from outside says.  Raises ValueError on anything else, brackets without end among it."""
    try:
        return json.loads(text)
    except RecursionError:
        raise ValueError("nested too deeply") from None


def sha256(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


# Output folders --------------------------------------------------------------------------------------------------


def refuse_somebodys(folder: Path) -> None:
    """Raises BadInput where something of somebody else's has a name that runs of ours use and remove."""
    theirs = _somebodys(folder)
    if theirs is not None:
        raise BadInput(str(folder), theirs, f"another --out; {_UNTOUCHED}")


def _somebodys(folder: Path) -> str | None:
    """What has the name of something that an unfinished run of ours leaves and is none; None where all is ours."""
    partial, lock = folder / PARTIAL, folder / LOCK
    for path in (partial, lock, folder / LOG, folder / WAITING):
        if path.is_symlink():
            return f"{path.name}, a link"
    if lock.exists() and (not lock.is_file() or lock.stat().st_size):  # ours is empty
        return f"{LOCK}, which is not ours"
    if (folder / LOG).is_dir():
        return f"{LOG}, a folder"
    if partial.exists() and not partial.is_dir():
        return f"{PARTIAL}, a file"
    names = sorted(os.listdir(partial)) if partial.exists() else []
    others = [name for name in names if not _PARTS.fullmatch(name)]
    if others:
        return f"{PARTIAL}/{others[0]}, which is not ours"
    kept = [name for name in names if name.startswith(("seed-", "replay-"))]
    if kept and "plan.json" not in names:  # written before anything is kept, and without it all of that is removed
        return f"{PARTIAL}/{kept[0]}, without the plan of a run of ours"
    waiting = folder / WAITING
    if waiting.exists() and not (waiting / _WRITER).is_file() and (not waiting.is_dir() or os.listdir(waiting)):
        return f"{WAITING}, which is not ours"
    return None


def claim_folder(folder: Path) -> frozenset[str]:
    """Make an output folder, or see that it may be written to; the names in it that are ours to replace.

    A folder is ours when it is new, empty, holds a certificate of ours or nothing but what an unfinished run of ours
    leaves.  Ours to replace is what its certificate lists: never a whole folder, never anything else.
    Raises BadInput when it holds something else, or cannot be made.
    """
    with naming(folder):
        if folder.is_symlink() and not folder.exists():
            raise BadInput(str(folder), f"a link that leads nowhere ({os.readlink(folder)})", "a folder")
        if folder.exists() and not folder.is_dir():
            raise BadInput(str(folder), "a file", "a folder")
        folder.mkdir(parents=True, exist_ok=True)
        if not os.access(folder, os.W_OK | os.X_OK):
            raise BadInput(str(folder), "a folder that cannot be written", _WRITABLE)
        found = {entry.name for entry in folder.iterdir()}
    refuse_somebodys(folder)
    if CERTIFICATE in found:
        return frozenset(_listed(folder / CERTIFICATE)) | {CERTIFICATE, SIGNATURE}
    others = sorted(found - set(UNFINISHED))
    if others and not _json(folder / PARTIAL / "plan.json"):
        shown = ", ".join(others[:3]) + (f" and {len(others) - 3} more" if len(others) > 3 else "")
        expected = f"a new or empty folder, or one with a certificate of ours; {_UNTOUCHED}"
        raise BadInput(str(folder), f"files of somebody else ({shown})", expected)
    return frozenset()


@contextmanager
def replacing(folder: Path, listed: Collection[str]) -> Iterator[Path]:
    """A folder to write everything new into; when the block ends without an error its files take their places.

    listed : what `claim_folder` answered; of that, what has no successor is removed.  The certificate goes first and
    comes back last, so that a folder with a certificate is always whole.
    Raises BadInput, and touches nothing, when a new file would take the place of one that is not listed.
    """
    with _waiting(folder) as waiting:
        yield waiting
        new = _placeable(folder, waiting, listed)
        with naming(folder):
            for name in (CERTIFICATE, SIGNATURE, *sorted(set(listed) - {*new, CERTIFICATE, SIGNATURE})):
                _remove(folder, name)
        _place(folder, waiting, sorted(new, key=lambda name: (name == CERTIFICATE, name)))


@contextmanager
def adding(folder: Path, listed: Collection[str]) -> Iterator[Path]:
    """As `replacing`, but whatever is not written anew stays, the certificate above all."""
    with _waiting(folder) as waiting:
        yield waiting
        _place(folder, waiting, _placeable(folder, waiting, listed))


@contextmanager
def _waiting(folder: Path) -> Iterator[Path]:
    """Where new files wait; gone when the block ends, however it does."""
    waiting = folder / WAITING
    with naming(waiting):
        shutil.rmtree(waiting, ignore_errors=True)
        waiting.mkdir()
        (waiting / _WRITER).touch()
    try:
        yield waiting
    finally:
        shutil.rmtree(waiting, ignore_errors=True)


def _placeable(folder: Path, waiting: Path, listed: Collection[str]) -> list[str]:
    """Names of the new files.  Raises BadInput where one would take the place of a file that is not listed."""
    new = names_in(waiting)
    for name in new:
        _free(folder, name, listed)
    return new


def _place(folder: Path, waiting: Path, names: Iterable[str]) -> None:
    for name in names:
        with naming(folder / name):
            (folder / name).parent.mkdir(parents=True, exist_ok=True)
            os.replace(waiting / name, folder / name)


def names_in(folder: Path) -> list[str]:
    """Every file beneath `folder`, as sorted POSIX paths from there."""
    return sorted(p.relative_to(folder).as_posix() for p in folder.rglob("*") if not p.is_dir() and p.name != _WRITER)


def _listed(certificate: Path) -> Iterator[str]:
    """Names that a certificate of ours lists: its raw files and its pages."""
    found = _json(certificate)
    if not str(found.get("schema", "")).startswith(OURS):
        raise BadInput(str(certificate), "a file that is no certificate of ours", "another --out; it was not touched")
    for prefix, key in (("raw/", "files"), ("", "pages")):
        names = found.get(key)
        for name in names if isinstance(names, dict | list) else ():
            path = PurePosixPath(prefix + str(name))
            if not path.is_absolute() and ".." not in path.parts and len(path.parts):
                yield path.as_posix()


def _json(path: Path) -> dict[str, object]:
    """The JSON object in a file; empty when it holds none."""
    try:
        if path.stat().st_size > _CERTIFICATE_BYTES:
            return {}
        found = from_json(path.read_bytes())
    except (OSError, ValueError):
        return {}
    return found if isinstance(found, dict) else {}


def _above(folder: Path, name: str) -> Iterable[Path]:
    """The folders between `folder` and a name in it, outermost first."""
    parts = PurePosixPath(name).parts
    return (folder.joinpath(*parts[:n]) for n in range(1, len(parts)))


def _free(folder: Path, name: str, listed: Collection[str]) -> None:
    """Raises BadInput when writing `name` would change something that is not ours."""
    for above in _above(folder, name):
        if above.is_symlink() or (above.exists() and not above.is_dir()):
            raise BadInput(str(above), "a link or a file", "a folder, or another --out; it was not touched")
    path = folder / name
    if os.path.lexists(path) and (name not in listed or path.is_dir()):
        raise BadInput(str(path), "something that no certificate here lists", "another --out; it was not touched")


def _remove(folder: Path, name: str) -> None:
    """Remove one listed file, not through links, and the folders that are empty then."""
    above = list(_above(folder, name))
    if any(p.is_symlink() for p in above) or (folder / name).is_dir():
        return
    (folder / name).unlink(missing_ok=True)
    for parent in reversed(above):
        try:
            parent.rmdir()
        except OSError:  # not empty: something else lies there
            return


def clean(text: object) -> str:
    """The text on one line, with control, format and unassigned characters spelled out as U+XXXX.

    Terminal escapes, line separators and direction overrides could otherwise change what a reader sees.
    """
    shown = []
    for char in str(text):
        category = unicodedata.category(char)
        if char in "\n\t\r":
            shown.append(" ")
        elif category[0] == "C" or category in ("Zl", "Zp"):
            shown.append(f"U+{ord(char):04X}")
        else:
            shown.append(char)
    return "".join(shown)
