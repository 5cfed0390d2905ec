"""Which processor cores a server, the merge load beside it and the client take.

The client stands for users who do not live on the server's host.  Where it shares their cores it sends late whenever
they are busy, and a late replay counts for nothing; so wherever there are two cores, it gets one of its own, and the
load shares the server's, as a merge does.
"""

from __future__ import annotations

import os
import re
import socket
from collections.abc import Collection, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import urlsplit

from protocol.errors import BadInput

AUTO, ALL = "auto", "all"
_LISTENS = "0A"


@dataclass(frozen=True)
class Cores:
    """Numbers of cores.  server : None where the server is not on this host, or not ours to look at."""

    server: tuple[int, ...] | None
    load: tuple[int, ...]
    client: tuple[int, ...]

    @property
    def apart(self) -> bool:
        """Whether the client has its cores to itself."""
        return set(self.client).isdisjoint((*self.load, *(self.server or ())))

    def describe(self) -> dict[str, list[int] | None]:
        """What a certificate states."""
        return {
            "server_cores": None if self.server is None else list(self.server),
            "load_cores": list(self.load),
            "client_cores": list(self.client),
        }

    def __str__(self) -> str:
        server = "elsewhere or unknown" if self.server is None else f"on {named(self.server)}"
        shared = "" if self.apart else " (shared)"
        return f"server {server}, merge load on {named(self.load)}, client on {named(self.client)}{shared}"


def named(cores: Collection[int]) -> str:
    """As `--cores` takes them.

    >>> named((0, 1, 2, 5))
    '0-2,5'
    """
    runs: list[list[int]] = []
    for core in sorted(cores):
        if runs and runs[-1][-1] == core - 1:
            runs[-1].append(core)
        else:
            runs.append([core])
    return ",".join(str(run[0]) if len(run) == 1 else f"{run[0]}-{run[-1]}" for run in runs)


def available() -> tuple[int, ...]:
    """The cores that this thread may run on."""
    if not hasattr(os, "sched_getaffinity"):
        return tuple(range(os.cpu_count() or 1))
    return tuple(sorted(os.sched_getaffinity(0)))


def asked(text: str) -> tuple[int, ...] | None:
    """The cores that `--cores` names: numbers and ranges, `all` (None: no restriction), or `auto`.

    `auto` leaves the last core to the client, where there are two or more.  Raises BadInput.
    """
    mine = available()
    if text == ALL:
        return None
    if text == AUTO:
        return mine[:-1] if len(mine) > 1 and hasattr(os, "sched_setaffinity") else None
    found: set[int] = set()
    for word in text.split(","):
        limits = re.fullmatch(r"(\d+)(?:-(\d+))?", word.strip())
        cores = range(int(limits[1]), int(limits[2] or limits[1]) + 1) if limits else ()
        if not cores:
            raise BadInput("--cores", repr(text), "numbers and ranges, e.g. 0 or 0-3,6; auto; or all")
        found.update(cores)
    if not found <= set(mine):
        raise BadInput("--cores", text, f"cores of this machine, {named(mine)}")
    return tuple(sorted(found))


def taken(url: str) -> Cores:
    """Who takes which cores when a server at `url` is measured from here."""
    mine, server = available(), cores_of_server(url)
    if server is None:
        return Cores(None, mine, mine)
    rest = tuple(core for core in mine if core not in server)
    load = tuple(core for core in mine if core in server)
    return Cores(server, load or mine, rest or mine)


@contextmanager
def pinned(cores: Collection[int] | None) -> Iterator[None]:
    """Keep this thread, and what it starts meanwhile, on some cores; None: where it is."""
    if not cores or not hasattr(os, "sched_setaffinity"):
        yield
        return
    usual = os.sched_getaffinity(0)
    os.sched_setaffinity(0, cores)
    try:
        yield
    finally:
        os.sched_setaffinity(0, usual)


def cores_of_server(url: str) -> tuple[int, ...] | None:
    """Cores that the process listening at `url`, and all that it started, may run on; None where that is unknown."""
    parts = urlsplit(url)
    port = parts.port or (443 if parts.scheme == "https" else 80)
    if not hasattr(os, "sched_getaffinity") or not _is_here(parts.hostname or ""):
        return None
    listening = _listening(port)
    found: set[int] = set()
    for pid in _with_descendants(listening) if listening else ():
        for thread in Path(f"/proc/{pid}/task").glob("[0-9]*"):
            with suppress(OSError):  # it has ended meanwhile
                found |= os.sched_getaffinity(int(thread.name))
    return tuple(sorted(found)) or None


def _is_here(host: str) -> bool:
    """Whether a host name is an address of this machine: one can listen there."""
    try:
        address = socket.getaddrinfo(host, None, type=socket.SOCK_STREAM)[0]
        with socket.socket(address[0]) as probe:
            probe.bind((address[4][0], 0))
    except OSError:
        return False
    return True


def _listening(port: int) -> set[int]:
    """Processes that listen on a port, as far as they may be looked at."""
    wanted = set()
    for table in ("tcp", "tcp6"):
        with suppress(OSError):
            for line in Path(f"/proc/net/{table}").read_text().splitlines()[1:]:
                fields = line.split()
                if fields[3] == _LISTENS and int(fields[1].rpartition(":")[2], 16) == port:
                    wanted.add(f"socket:[{fields[9]}]")
    found = set()
    for entry in Path("/proc").glob("[0-9]*/fd/[0-9]*") if wanted else ():
        with suppress(OSError):
            if os.readlink(entry) in wanted:
                found.add(int(entry.parts[2]))
    return found


def _with_descendants(pids: Collection[int]) -> set[int]:
    children: dict[int, list[int]] = {}
    for entry in Path("/proc").glob("[0-9]*/stat"):
        with suppress(OSError):
            fields = entry.read_text().rpartition(")")[2].split()
            children.setdefault(int(fields[1]), []).append(int(entry.parts[2]))
    found: set[int] = set()
    waiting = list(pids)
    while waiting:
        pid = waiting.pop()
        if pid not in found:
            found.add(pid)
            waiting += children.get(pid, [])
    return found
