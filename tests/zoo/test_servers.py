"""Servers that cooperate with a scheduler: what they drop, repeat, shorten or misprice is found."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from judging import INNOCENT, Judge
from numpy.typing import NDArray

from protocol.merging.schedule import Schedule
from protocol.replay.measurements import REFUSED, Measurements
from protocol.workload.trace import RequestTrace

S = 10**9


class Bent:
    """The simulated sidecar, whose measurements pass through `bend` before anybody sees them."""

    def __init__(self, sidecar: Any, bend: Callable[[Measurements], Measurements], prices: Any = None) -> None:
        self._sidecar, self._bend, self._prices = sidecar, bend, prices
        self.name, self.calibrated = sidecar.name, sidecar.calibrated

    def load(self, trace: RequestTrace, rng: np.random.Generator) -> Any:
        return BentLoaded(self._sidecar.load(trace, rng), self._bend, self._prices)

    def describe(self) -> Any:
        return self._sidecar.describe()


class BentLoaded:
    def __init__(self, loaded: Any, bend: Callable[[Measurements], Measurements], prices: Any) -> None:
        self._loaded, self._bend, self._prices, self.trace = loaded, bend, prices, loaded.trace

    def replay(self, schedule: Schedule) -> Measurements:
        return self._bend(self._loaded.replay(schedule))

    def violations(self, schedules: list[Schedule], slo: Any) -> NDArray[np.int64]:
        if self._prices is not None:
            return np.asarray(self._prices(self._loaded.violations(schedules, slo)), np.int64)
        return np.array([self.replay(s).violates(slo).sum() for s in schedules], np.int64)

    def merge_cost(self, *arguments: Any) -> Any:
        return self._loaded.merge_cost(*arguments)

    def session(self) -> Any:
        session, bend = self._loaded.session(), self._bend

        class Bending:
            advance, observe, add_merge = session.advance, session.observe, session.add_merge

            @staticmethod
            def finish() -> Measurements:
                return bend(session.finish())

        return Bending()


def rows(m: Measurements, which: Any) -> Measurements:
    return Measurements(**{name: getattr(m, name)[which] for name in m.__dataclass_fields__})


def exposed(m: Measurements) -> NDArray[np.bool_]:
    """Requests whose life touches a merge: there are none in the no-sync arm."""
    return np.asarray(m.exposure_ns > 0)


def retried(m: Measurements) -> Measurements:
    """Counts an exposed request from its second attempt, two seconds later."""
    again = exposed(m) & (m.e2e_ns > S)
    later = np.where(again, 2 * S, 0)
    return replace(m, arrival_ns=m.arrival_ns + later, e2e_ns=np.where(again, m.e2e_ns // 4, m.e2e_ns))


def shortened(m: Measurements) -> Measurements:
    """Ends the answer of an exposed request early and so in time."""
    cut = exposed(m) & (m.e2e_ns > S)
    return replace(
        m,
        output_tokens=np.where(cut, m.output_tokens // 2, m.output_tokens),
        e2e_ns=np.where(cut, m.e2e_ns // 2, m.e2e_ns),
    )


def refusing(m: Measurements) -> Measurements:
    """Refuses every request that touches a merge: they count as violations."""
    none = np.where(exposed(m), -1, m.e2e_ns)
    return replace(
        m,
        outcome=np.where(exposed(m), REFUSED, m.outcome),
        e2e_ns=none,
        ttft_ns=np.where(exposed(m), -1, m.ttft_ns),
    )


SERVERS = {
    "drops exposed requests": (lambda m: rows(m, ~exposed(m)), "G0", "completeness", "scheduled requests"),
    "drops the last request": (lambda m: rows(m, slice(0, -1)), "G0", "completeness", "scheduled requests"),
    "serves twice": (
        lambda m: rows(m, np.append(np.arange(len(m)), len(m) - 1)), "G0", "completeness", "scheduled requests"),
    "retries": (retried, "G0", "determinism", "the sidecar reports another arrival_ns than the trace has"),
    "swaps requests": (
        lambda m: rows(m, np.arange(len(m))[::-1]), "G0", "determinism", "reports another arrival_ns"),
    "other prompts": (
        lambda m: replace(m, prompt_tokens=m.prompt_tokens // 2), "G0", "determinism", "reports another prompt_tokens"),
    "shortens answers": (shortened, "G2", "tokens served", "tokens of"),
}  # fmt: skip


@pytest.mark.parametrize("name", SERVERS)
def test_servers_that_bend_the_rows(judge: Judge, name: str) -> None:
    bend, gate, check, words = SERVERS[name]
    judged = judge(INNOCENT, sidecar=lambda sidecar: Bent(sidecar, bend))
    assert judged.refusal is None
    assert judged.check(check, gate)["status"] == "failed" and words in judged.check(check, gate)["reason"]
    assert judged.certificate["claims"][0]["verdict"] == "FAIL"
    assert judged.certificate["sentence"].startswith("Nothing is licensed")


def test_a_server_that_prices_the_controls_higher(judge: Judge) -> None:
    judged = judge(INNOCENT, sidecar=lambda sidecar: Bent(sidecar, lambda m: m, lambda counts: counts + 5))
    assert judged.refused and "priced like a control" in judged.reason


def test_refusals_during_merges_count_against_the_scheduler(judge: Judge) -> None:
    refused, plain = judge(INNOCENT, sidecar=lambda s: Bent(s, refusing)), judge(INNOCENT)
    assert not refused.refused and refused.check("completeness")["details"]["not_served"] > 100
    worse, before = (j.certificate["claims"][0]["envelope"]["per_seed"][0]["policy"] for j in (refused, plain))
    assert worse > before
