"""The conformance checks: honest schedulers pass, each fault is found by its own check."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from adapters.conformance import CHECKS, check_scheduler, synthetic_observations
from adapters.schedulers import open_scheduler
from protocol import registry


def found(tmp_path: Path, code: str, n_decisions: int = 300, n_islands: int = 8, **options: object) -> dict[str, str]:
    """Checks that found something, with their level."""
    path = tmp_path / "my_sched.py"
    path.write_text(code)
    source = open_scheduler(str(path), decision_timeout_s=1.0, **options)  # type: ignore[arg-type]
    with source:
        findings = check_scheduler(source, n_decisions, n_islands=n_islands)
    assert all(f.check in CHECKS and f.message and f.advice for f in findings)
    return {f.check: f.level for f in findings}


def body(text: str) -> str:
    return f"class Mine:\n    def decide(self, obs):\n        {text}\n"


HONEST = [
    body("return obs.in_flight < 3"),
    body("return obs.arrivals_per_s[-10:].sum() < 40"),
    "def decide(obs):\n    return all(i.queued == 0 for i in obs.islands) and obs.serving_pressure < 0.5\n",
    "class Mine:\n    def __init__(self, rng):\n        self.rng = rng\n    def decide(self, obs):\n"
    "        return self.rng.random() < 0.2 + 0.5 * (obs.queued == 0)\n",
]


@pytest.mark.parametrize("code", HONEST)
def test_honest_schedulers_pass(tmp_path: Path, code: str) -> None:
    assert found(tmp_path, code).keys() <= {"speed"}  # which a busy machine lacks


@pytest.mark.parametrize(
    ("code", "check", "level"),
    [
        (body("return 'maybe'"), "answers", "error"),
        (body("return obs.islands[0].queued < 3 or obs.islands[4]"), "answers", "error"),
        ("import random\n" + body("return random.random() < 0.5"), "repeats", "error"),
        ("import time\n" + body("return int(time.time_ns() // 1000) % 7 == 0"), "clock", "error"),
        ("import time\n" + body("return time.time() % 1e6 < obs.time_s + 9e5 - 9e5 or time.monotonic() > 0"), "decides",
         "warning"),
        ("import datetime\nBEGIN = datetime.datetime(2000, 1, 1)\n"
         + body("return (datetime.datetime.now() - BEGIN).total_seconds() // 12345.678 % 2 == obs.queued % 2"), "clock",
         "error"),
        (body("return False"), "decides", "warning"),
        (body("return True"), "decides", "warning"),
        (body("return obs.steps_since_merge >= 256"), "looks", "warning"),
        ("import time\n" + body("return obs.queued == 0"), "entropy", "warning"),
        ("import numpy as np\nRNG = np.random.default_rng()\n" + body("return RNG.random() < 0.5"), "repeats", "error"),
    ],
)  # fmt: skip
def test_each_fault_is_found(tmp_path: Path, code: str, check: str, level: str) -> None:
    assert found(tmp_path, code).get(check) == level


GROUPS = "from protocol.scheduler import Decision\n" + body("n = len(obs.islands); return {}")


@pytest.mark.parametrize(
    ("answer", "level"),
    [
        ("Decision(True, ((0, n - 1),)) if n > 1 and obs.queued == 0 else obs.queued == 0", "error"),  # ready or not
        ("Decision(True, ((0,),)) if n > 1 and obs.queued == 0 else obs.queued == 0", "error"),
        ("(lambda r: Decision(True, (tuple(r[:2]),)) if len(r) > 1 and obs.queued == 0 else obs.queued == 0 and n < 2)"
         "([i for i in range(n) if obs.islands[i].steps_since_merge >= obs.h_min])", None),
    ],
)  # fmt: skip
def test_groups_of_islands_that_may_merge(tmp_path: Path, answer: str, level: str | None) -> None:
    assert found(tmp_path, GROUPS.format(answer)).get("groups") == level


def test_a_peer_scheduler_is_checked_on_a_fleet_of_its_size(tmp_path: Path) -> None:
    """It may need islands that a single one does not have, and wait for good where there is nobody to pair."""
    ready = "[i for i in range(8) if obs.islands[i].steps_since_merge >= obs.h_min and not obs.islands[i].queued]"
    pairs = f"(lambda r: Decision(len(r) > 1, (tuple(r[:2]),) if len(r) > 1 else None))({ready})"
    code = "from protocol.scheduler import Decision\n" + body(f"return {pairs}")
    assert found(tmp_path, code).keys() <= {"speed"}
    assert found(tmp_path, code, n_islands=4) == {"answers": "error"}


def test_slow_decisions(tmp_path: Path) -> None:
    code = "import select\n" + body("select.select([], [], [], 0.012)\n        return obs.queued == 0")
    assert found(tmp_path, code, n_decisions=20) == {"speed": "warning"}


def test_memory_and_data_files(tmp_path: Path) -> None:
    (tmp_path / "table.txt").write_text("3")
    code = "TABLE = int(open('table.txt').read())\nHEAP = b'x' * (90 << 20)\n" + body("return obs.in_flight < TABLE")
    seen = found(tmp_path, code, memory_limit_mb=200)
    assert {check for check in seen if check != "speed"} == {"memory"}  # the digest covers the table


@pytest.mark.parametrize("name", sorted(registry.names("protocol.schedulers")))
def test_our_own_schedulers_conform(name: str) -> None:
    source = open_scheduler(name)
    try:
        assert [f for f in check_scheduler(source, n_decisions=120) if f.level == "error"] == []
    finally:
        source.close()


def test_synthetic_observations_are_reproducible_and_causal() -> None:
    first, again = synthetic_observations(4, 50, n_islands=3), synthetic_observations(4, 50, n_islands=3)
    assert [o.time_s for o in first] == [o.time_s for o in again]
    for a, b in zip(first, again, strict=True):
        assert np.array_equal(a.arrivals_per_s, b.arrivals_per_s) and a.islands == b.islands
        assert len(a.arrivals_per_s) == int(a.time_s) and a.h_min <= a.steps_since_merge < a.h_max
        assert a.in_flight == sum(i.in_flight for i in a.islands)
    assert not any(o.in_flight or o.queued for o in synthetic_observations(4, 50, load=0.0))
