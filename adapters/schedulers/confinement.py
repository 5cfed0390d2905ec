"""What confinement took hold of a scheduler's process, as its host reported before any of its code ran."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

#: Parts that hosts are told to do without: "landlock", "seccomp", "namespaces", "clock".  Tests set it, to see what is
#: said of machines that lack them.
WITHOUT: set[str] = set()


@dataclass(frozen=True)
class Confinement:
    """What holds of a run and of all that it starts.

    landlock_abi : version of the kernel's Landlock, 0 where it has none or refuses.
    seccomp : system calls that leave notes, reach other processes or the network are refused.
    namespaces : it sees a file system, network and host name of its own; else `namespaces_refused` says why not.
    clock : which clocks are simulated: "every clock", "Python's clocks", or none ("real").
    limits : limits of the operating system that hold (RLIMIT names).
    own_pids : process ids are those of a namespace made for the run, the same in all.
    memory : what bounds the memory of a whole run: "counts" from time to time, or a "control group" as well.
    The last two are None where they were not stated, in certificates older than that.
    """

    landlock_abi: int
    seccomp: bool
    namespaces: bool
    namespaces_refused: str | None
    clock: str
    limits: tuple[str, ...]
    own_pids: bool | None = None
    memory: str | None = None

    @classmethod
    def read(cls, report: Mapping[str, Any]) -> Confinement:
        """From the child's report."""
        return cls(
            int(report["landlock_abi"]), bool(report["seccomp"]), bool(report["namespaces"]),
            report["namespaces_refused"], str(report["clock"]), tuple(map(str, report["limits"])),
            None if report.get("own_pids") is None else bool(report["own_pids"]),
            None if report.get("memory") is None else str(report["memory"]),
        )  # fmt: skip

    @property
    def reads_confined(self) -> bool:
        """Nothing can be read but what was granted."""
        return self.landlock_abi > 0 or self.namespaces

    @property
    def gaps(self) -> tuple[str, ...]:
        """What is not confined, a line each, the gravest first; the first two leave G0 without ground."""
        found = []
        if not self.reads_confined:
            found.append(
                f"reads of files are not confined: no Landlock, and no namespaces ({self.namespaces_refused}); "
                "it could read the run that judges it"
            )
        if not self.seccomp:
            found.append("system calls are not filtered: a run could leave notes for a later one")
        if not self.namespaces and self.reads_confined:
            found.append(
                f"sizes and times of files outside can be looked at: no namespaces ({self.namespaces_refused})"
            )
        if self.own_pids is False:
            found.append("process ids are the machine's: they count what it starts")
        if self.clock != "every clock":
            found.append(f"clocks: {'those of C code are' if self.clock != 'real' else 'all are'} real")
        return tuple(found)

    @property
    def sound(self) -> bool:
        """No run can read what judges it or leave a note for the next one: what G0 rests on."""
        return self.reads_confined and self.seccomp

    def describe(self) -> dict[str, object]:
        """Plain JSON values."""
        stated = asdict(self)
        return {
            **{key: value for key, value in stated.items() if value is not None or key == "namespaces_refused"},
            "limits": list(self.limits),
            "reads_confined": self.reads_confined,
            "sound": self.sound,
            "gaps": list(self.gaps),
        }

    def __str__(self) -> str:
        has = [f"Landlock ABI {self.landlock_abi}"] if self.landlock_abi else []
        has += ["namespaces"] if self.namespaces else []
        has += ["own process ids"] if self.own_pids else []
        has += ["system calls filtered"] if self.seccomp else []
        memory = [f"memory bound by {self.memory}"] if self.memory else []
        return "; ".join([", ".join(has) or "nothing", *memory, *self.gaps])
