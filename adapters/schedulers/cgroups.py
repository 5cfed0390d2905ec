"""A control group for a host's runs, where this process may make one beside its own (cgroup v2, delegated).

It caps what all processes of a run hold together, files in memory included, between two of the host's counts too.
Elsewhere, and under cgroup v1, the counts alone do.

Runs in the child: standard library only.
"""

from __future__ import annotations

import os

#: Where the unified hierarchy is mounted, and what says where in it a process is.
MOUNT, OWN = "/sys/fs/cgroup", "/proc/self/cgroup"


class Group:
    """A group that was made; descriptors reach it after this process has left the file system."""

    def __init__(self, above: str, name: str) -> None:
        self._name = name
        self._above = os.open(above, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        os.mkdir(name, dir_fd=self._above)
        self._own = os.open(name, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC, dir_fd=self._above)

    def limit(self, most_bytes: int) -> None:
        self._write("memory.max", str(most_bytes))
        self._write("memory.swap.max", "0")

    def join(self) -> bool:
        """Put this process, and what it will fork, into the group.  False where that is refused."""
        return self._write("cgroup.procs", "0")

    def killed(self) -> int:
        """How many processes the kernel has ended for what the group held."""
        try:
            handle = os.open("memory.events", os.O_RDONLY, dir_fd=self._own)
            with os.fdopen(handle) as events:
                return sum(int(line.split()[1]) for line in events if line.startswith("oom_kill "))
        except (OSError, ValueError, IndexError):
            return 0

    def remove(self) -> None:
        try:
            os.rmdir(self._name, dir_fd=self._above)
        except OSError:  # something of a killed run is still ending; an empty group costs nothing
            return

    def _write(self, name: str, text: str) -> bool:
        try:
            handle = os.open(name, os.O_WRONLY, dir_fd=self._own)
        except OSError:
            return False
        try:
            os.write(handle, text.encode())
        except OSError:
            return False
        finally:
            os.close(handle)
        return True


def make() -> Group | None:
    """A group beside this process's own; None where there is none to be had.

    Beside, not beneath: a group with processes of its own may not divide its memory.
    """
    try:
        with open(OWN) as lines:
            own = next((line.rstrip("\n")[3:] for line in lines if line.startswith("0::/")), None)
        if own is None:
            return None
        above = os.path.dirname(MOUNT + own.rstrip("/")) if own != "/" else MOUNT
        with open(os.path.join(above, "cgroup.subtree_control")) as handed_on:
            if "memory" not in handed_on.read().split():
                return None
        return Group(above, f"protocol-{os.getpid()}")
    except OSError:
        return None
