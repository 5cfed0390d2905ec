"""An output folder that survives being killed: finished seeds stay, and two runs never share it."""

from __future__ import annotations

import fcntl
import hashlib
import os
import shutil
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

from protocol.errors import BadInput, ProtocolError
from protocol.evidence import store
from protocol.evidence.model import Evidence
from protocol.files import canonical_json, from_json, refuse_somebodys, write_text
from protocol.replay.replay import Replay

PLAN = "plan.json"
#: Names the run in the ledger.
RUN = "run"


@contextmanager
def locked(folder: Path) -> Iterator[None]:
    """Hold `folder` for one process.

    Raises ProtocolError when another one has it, BadInput when it cannot be written or holds somebody else's files.
    """
    try:
        folder.mkdir(parents=True, exist_ok=True)
        refuse_somebodys(folder)
        lock = os.open(folder / ".lock", os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW, 0o644)
    except OSError as error:
        why = (error.strerror or "an error").lower()
        raise BadInput(str(folder), f"a place that cannot be written ({why})", "a folder that can be written") from None
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        os.close(lock)
        raise ProtocolError(f"{folder}: another run is writing there; wait for it or give another --out") from None
    try:
        yield
    finally:
        (folder / ".lock").unlink(missing_ok=True)  # still held: whoever waits for this file is refused, and may retry
        os.close(lock)


def _parts(plan: Mapping[str, object]) -> Iterator[tuple[str, object]]:
    """A plan's tables, and the fields of what is judged each by itself: whoever starts afresh is told why."""
    for key, value in plan.items():
        if key == "contender" and isinstance(value, Mapping):
            yield from ((f"{key}.{name}", field) for name, field in value.items())
        else:
            yield key, value


class Partial:
    """Finished seeds of an unfinished campaign, valid only for exactly the same plan."""

    def __init__(self, folder: Path, plan: Mapping[str, object]) -> None:
        self.folder = folder / ".partial"
        self.started_afresh: str | None = None
        # Digests only: a scheduler that could read the plan of an unfinished run would know its root.
        digests = {key: hashlib.sha256(canonical_json(value).encode()).hexdigest() for key, value in _parts(plan)}
        stored = self._stored()
        if stored is not None and stored != digests:
            kept = len(list(self.folder.glob(f"*/{store.REPLAYS}")))
            changed = sorted(k for k in {*stored, *digests} if stored.get(k) != digests.get(k))
            self.started_afresh = (
                f"{', '.join(changed)} changed since the interrupted run"
                if stored
                else "the plan of the interrupted run cannot be read"
            )
            if kept:  # hours on a real server are not thrown away by a changed option
                raise ProtocolError(
                    f"{self.folder}: holds {kept} replays of another run ({self.started_afresh}); give another --out, "
                    "or remove that folder"
                )
            shutil.rmtree(self.folder)
        self.folder.mkdir(parents=True, exist_ok=True)
        write_text(self.folder / PLAN, canonical_json(digests))

    @property
    def mark(self) -> Path:
        return self.folder / RUN

    def _stored(self) -> dict[str, object] | None:
        try:
            return dict(from_json((self.folder / PLAN).read_text("utf-8")))
        except FileNotFoundError:
            shutil.rmtree(self.folder, ignore_errors=True)
            return None
        except (OSError, ValueError, TypeError):
            return {}

    def finished(self) -> dict[tuple[str, int], Evidence]:
        """Seeds that need not be run again; one that cannot be read is dropped, and so run again."""
        found = {}
        for folder in sorted(self.folder.glob("seed-*")):
            try:
                kept = store.read(folder)
            except BadInput:
                shutil.rmtree(folder, ignore_errors=True)
                continue
            for e in kept:
                found[e.regime, e.seed] = e
        return found

    def replays(self) -> list[Replay]:
        """Replays on a real server that need not be made again, in the order of their names."""
        found = []
        for folder in sorted(self.folder.glob("replay-*")):
            try:
                found += store.read_replays(folder)
            except BadInput:
                shutil.rmtree(folder, ignore_errors=True)
        return found

    def keep(self, e: Evidence) -> None:
        """Store one seed; it appears whole or not at all."""
        # A regime's name may be any, also one too long for a file's.
        named = hashlib.sha256(e.regime.encode()).hexdigest()[:12]
        self._store(f"seed-{named}-{e.seed}", lambda folder: store.write([e], folder))

    def keep_replay(self, r: Replay) -> None:
        """Store one replay; it appears whole or not at all."""
        self._store(f"replay-{r.seed}-{r.arm}-{r.draw}-{r.attempt}", lambda folder: store.write_replays([r], folder))

    def _store(self, name: str, write: Callable[[Path], object]) -> None:
        temporary, final = self.folder / f".{name}", self.folder / name
        shutil.rmtree(temporary, ignore_errors=True)
        write(temporary)
        shutil.rmtree(final, ignore_errors=True)
        temporary.rename(final)

    def remove(self) -> None:
        shutil.rmtree(self.folder, ignore_errors=True)
