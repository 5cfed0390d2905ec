"""A scheduler of a session becomes a file that holds everything it names, and nothing that cannot be written."""

from __future__ import annotations

import linecache
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from adapters.schedulers.notebook import specification
from adapters.schedulers.opening import open_scheduler
from protocol.errors import BadInput

CELLS = """
import math
import numpy as np
from protocol.scheduler import Decision

LIMIT, WORDS = 4, {"quiet": [1, 2]}

def half(x):
    return math.floor(x / 2)

class Base:
    def limit(self):
        return half(2 * LIMIT)

@staticmethod
def unused():
    return 1

class Quiet(Base):
    '''Merges when few are served.'''

    def __init__(self, more=0):
        self.more = more

    def decide(self, obs):
        return Decision(bool(np.less(obs.in_flight, self.limit() + self.more)), reason=str(len(WORDS)))
"""


def session(text: str, name: str = "<ipython-input-1>") -> dict[str, Any]:
    """Names of a session in which this was typed, as IPython keeps it."""
    linecache.cache[name] = (len(text), None, text.splitlines(keepends=True), name)
    scope: dict[str, Any] = {"__name__": "__main__"}
    exec(compile(text, name, "exec"), scope)
    return scope


def test_a_class_with_everything_that_it_names(tmp_path: Path) -> None:
    found = specification(session(CELLS)["Quiet"], tmp_path)
    (file,) = tmp_path.glob("*/Quiet.py")
    assert found == f"{file}:Quiet"
    text = file.read_text()
    own: dict[str, Any] = {}
    exec(compile(text, "own", "exec"), own)
    decided = [own["Quiet"]().decide(SimpleNamespace(in_flight=n)) for n in (3, 4)]
    assert [(d.merge, d.reason) for d in decided] == [(True, "1"), (False, "1")]
    assert "unused" not in text and "Merges when few" in text


def test_it_runs_confined(tmp_path: Path) -> None:
    source = open_scheduler(specification(session(CELLS)["Quiet"], tmp_path))
    assert source.describe()["files"] == ["Quiet.py"] and source.kind == "scheduler"
    source.close()


def test_an_instance_stands_for_its_arguments(tmp_path: Path) -> None:
    made = session(CELLS)["Quiet"](more=3)
    made.learnt = [1, 2, 3]
    assert specification(made, tmp_path).endswith("/Quiet.py:Quiet(more=3)")


def test_the_definition_that_was_run_last_counts(tmp_path: Path) -> None:
    text = "".join(f"class A:\n    def decide(self, obs):\n        return {word}\n" for word in (True, False))
    specification(session(text, "<ipython-input-2>")["A"], tmp_path)
    (file,) = tmp_path.glob("*/A.py")
    assert "return False" in file.read_text() and "True" not in file.read_text()


def test_a_function(tmp_path: Path) -> None:
    found = specification(
        session("def decide(obs):\n    return obs.queued == 0\n", "<ipython-input-3>")["decide"], tmp_path
    )
    (file,) = tmp_path.glob("*/decide.py")
    assert found == f"{file}:decide" and "obs.queued == 0" in file.read_text()


def test_what_lies_in_a_file_is_run_from_there(tmp_path: Path) -> None:
    from baselines.fixed_h import FixedH

    path, _, name = specification(FixedH, tmp_path).partition(":")
    assert Path(path).name == "fixed_h.py" and name == "FixedH" and list(tmp_path.iterdir()) == []
    assert specification("wa-diloco", tmp_path) == "wa-diloco"


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("data = object()\nclass A:\n    def decide(self, obs):\n        return data\n",
         "scheduler, data: found object of the session; expected an import, a function"),
        ("class A:\n    def __init__(self, f):\n        self.f = f\n    def decide(self, obs):\n        return 1\n"
         "A = A(print)\n", "scheduler, f: found <built-in function print>; expected a number"),
        ("class A:\n    def __init__(self, f):\n        self.g = f\n    def decide(self, obs):\n        return 1\n"
         "A = A(1)\n", "scheduler, f: found no such attribute of A"),
        ("A = 3\n", "scheduler: found 3; expected a class or an instance"),
    ],
)  # fmt: skip
def test_what_cannot_be_written_down(tmp_path: Path, text: str, said: str) -> None:
    with pytest.raises(BadInput, match=said):
        specification(session(text, "<ipython-input-4>")["A"], tmp_path)


def test_code_without_source(tmp_path: Path) -> None:
    scope: dict[str, Any] = {"__name__": "__main__"}
    exec("class A:\n    def decide(self, obs):\n        return True\n", scope)
    with pytest.raises(BadInput, match="no source of A"):
        specification(scope["A"], tmp_path)
