"""Schedulers without any trick, however they are written, pass every check of G0."""

from __future__ import annotations

from pathlib import Path

import pytest
from judging import Judge, confined

HONEST = {
    "stateful EWMA": """
        class Ewma:
            def __init__(self, alpha=0.3):
                self.alpha, self.mean, self.seen = alpha, 0.0, 0
            def decide(self, obs):
                for count in obs.arrivals_per_s[self.seen:]:
                    self.mean += self.alpha * (count - self.mean)
                self.seen = len(obs.arrivals_per_s)
                return self.mean < 4.0
        """,
    "uses its generator": """
        class Coin:
            def __init__(self, rng):
                self.rng = rng
            def decide(self, obs):
                return self.rng.random() < 0.1
        """,
    "uses NumPy": """
        import numpy as np
        class Quantile:
            def decide(self, obs):
                recent = obs.arrivals_per_s[-8:]
                return np.mean(recent) <= np.quantile(obs.arrivals_per_s, 0.3)
        """,
    "function": "def decide(obs):\n    return obs.queued == 0 and obs.in_flight < 3\n",
    "function with a generator": "def decide(obs, rng):\n    return rng.random() < 0.2 and obs.in_flight < 5\n",
    "constants of the module": """
        LIMIT, TABLE = 4, {"quiet": True, "busy": False}
        class Table:
            def decide(self, obs):
                return TABLE["quiet" if obs.in_flight < LIMIT else "busy"]
        """,
    "several methods and a base class": """
        from abc import ABC, abstractmethod
        class _Base(ABC):
            def decide(self, obs):
                return self.score(obs) > 0
            @abstractmethod
            def score(self, obs): ...
        class Score(_Base):
            def score(self, obs):
                return self._limit() - obs.in_flight
            @staticmethod
            def _limit():
                return 4
            @property
            def unused(self):
                return 1
        """,
    "prints": """
        import sys
        class Chatty:
            def decide(self, obs):
                print("deciding at", obs.time_s)
                print("to stderr, too: \\u00e9", file=sys.stderr)
                return obs.in_flight < 4
        """,
    "dataclasses and typing": """
        from __future__ import annotations
        from collections import deque
        from dataclasses import dataclass, field
        from typing import ClassVar
        @dataclass
        class Window:
            limit: int = 4
            seen: deque[int] = field(default_factory=lambda: deque(maxlen=3))
            name: ClassVar[str] = "window"
            def decide(self, obs) -> bool:
                self.seen.append(obs.in_flight)
                return max(self.seen) < self.limit
        """,
    "NumPy's bool": "import numpy as np\ndef decide(obs):\n    return np.bool_(obs.in_flight < 4)\n",
    "Decision": """
        from protocol.scheduler import Decision
        def decide(obs):
            return Decision(obs.in_flight < 4, reason="quiet" if obs.in_flight < 4 else "")
        """,
    "Decision of all islands": """
        from protocol.scheduler import Decision
        def decide(obs):
            return Decision(True, ((0,),)) if obs.in_flight < 4 else Decision(False)
        """,
    "sets, dicts and hashes of strings": """
        def decide(obs):
            words = {"quiet" if obs.in_flight < 4 else "busy", "a", "b", "c", str(obs.queued)}
            return hash(next(iter(words))) % 2 == 0
        """,
    "its own seeded generators": """
        import random
        import numpy as np
        class Seeded:
            def __init__(self):
                self.one, self.two = random.Random(7), np.random.default_rng(7)
            def decide(self, obs):
                return self.one.random() * self.two.random() < 0.1
        """,
    "writes to its temporary folder": """
        import tempfile
        class Spool:
            def __init__(self):
                self.file = tempfile.TemporaryFile("w+")
            def decide(self, obs):
                self.file.write(f"{obs.in_flight} ")
                self.file.seek(0)
                return int(self.file.read().split()[-1]) < 4
        """,
    "threads that wait for a while": """
        import queue, threading
        class Waiting:
            def __init__(self):
                self.asked, self.said = queue.Queue(), queue.Queue()
                threading.Thread(target=self.work, daemon=True).start()
            def work(self):
                while True:
                    try:
                        in_flight = self.asked.get(timeout=0.01)
                    except queue.Empty:
                        continue
                    threading.Event().wait(0.001)
                    self.said.put(sum(1 for _ in range(2000)) + in_flight - 2000)
            def decide(self, obs):
                self.asked.put(obs.in_flight)
                return self.said.get() < 4
        """,
    "files and folders that it makes and clears away": """
        import glob, os, tempfile
        def decide(obs):
            with tempfile.TemporaryDirectory() as folder:
                for name in "ab":
                    os.makedirs(os.path.join(folder, name))
                    with open(os.path.join(folder, name, "x"), "w") as file: file.write("x" * obs.in_flight)
                assert sorted(os.listdir(folder)) == ["a", "b"] and len(glob.glob(folder + "/**/x")) == 2
                sizes = [e.stat().st_size for e in os.scandir(os.path.join(folder, "a")) if e.is_file()]
            assert not os.path.exists(folder)
            return sizes[0] < 4
        """,
    "a thread that computes": """
        from concurrent.futures import ThreadPoolExecutor
        class Threaded:
            def __init__(self):
                self.pool = ThreadPoolExecutor(2)
            def decide(self, obs):
                return sum(self.pool.map(int, [obs.in_flight, obs.queued])) < 4
        """,
}


#: Those that use what the sandbox changes: files, threads, generators, output, compiled code.
USING = {
    "uses its generator", "uses NumPy", "prints", "its own seeded generators", "writes to its temporary folder",
    "threads that wait for a while", "files and folders that it makes and clears away", "a thread that computes",
}  # fmt: skip


@pytest.mark.parametrize("name", confined(HONEST, USING))
def test_honest_schedulers_are_not_refused(judge: Judge, name: str) -> None:
    judged = judge(HONEST[name], "honest.py")
    assert not judged.refused, judged.reason
    gate = judged.certificate["claims"][0]["gates"][0]
    if judged.unsound:
        return
    assert gate["status"] == "passed", gate["reason"]
    assert judged.certificate["sentence"].startswith("Nothing is licensed about honest.py yet: G3")  # one seed only
    assert sum(map(len, judged.gaps)) > 2
    if name == "prints":
        assert "deciding at 9.408" in judged.log and "to stderr, too: é" in judged.log


@pytest.mark.confined
def test_slow_decisions_are_waited_for(judge: Judge) -> None:
    """5 ms a decision, with the time itself never looked at."""
    judged = judge("import time\ndef decide(obs):\n    time.sleep(0.005)\n    return obs.in_flight < 4\n")
    assert not judged.refused and judged.check("determinism")["status"] == "passed"


@pytest.mark.parametrize("name", ["baselines", "reports", "protocol"])
def test_its_own_helper_named_like_ours(judge: Judge, tmp_path: Path, name: str) -> None:
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / f"{name}.py").write_text("LIMIT = 4\n")
    code = f"from {name} import LIMIT\ndef decide(obs):\n    return obs.in_flight < LIMIT\n"
    judged = judge(code, "mine/honest.py")
    assert not judged.refused
    assert judged.certificate["contender"]["files"] == sorted([f"{name}.py", "honest.py"])
