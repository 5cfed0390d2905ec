"""What a gate says."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Literal

Status = Literal["passed", "failed", "undecidable"]
#: What a claim is called whose deciding gates have this status.
VERDICT = {"passed": "PASS", "failed": "FAIL", "undecidable": "INCONCLUSIVE"}


@dataclass(frozen=True)
class Check:
    """One condition of a gate, with the evidence for its verdict.

    statistic, threshold, n, interval : None where the condition has none; units are said in `reason`.
    details : further plain numbers that the verdict rests on, for the certificate.
    """

    name: str
    status: Status
    reason: str
    statistic: float | None = None
    threshold: float | None = None
    n: int | None = None
    interval: tuple[float, float] | None = None
    details: Mapping[str, object] = field(default_factory=dict)


@dataclass(frozen=True)
class GateResult:
    """A gate passes when all of its checks pass, fails when one fails, and is undecidable otherwise."""

    gate: str
    title: str
    checks: tuple[Check, ...]

    @property
    def status(self) -> Status:
        return worst(check.status for check in self.checks)

    @property
    def reason(self) -> str:
        """The reason of the first check that decided the status."""
        status = self.status
        return next((c.reason for c in self.checks if c.status == status and status != "passed"), "every check passed")


def worst(statuses: Iterable[Status]) -> Status:
    """`failed` before `undecidable` before `passed`; no evidence at all is undecidable."""
    seen = set(statuses)
    if "failed" in seen:
        return "failed"
    return "passed" if seen == {"passed"} else "undecidable"
