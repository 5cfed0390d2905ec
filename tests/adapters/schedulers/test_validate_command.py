"""`protocol validate`: exit codes and what is printed."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import typer
from typer.testing import CliRunner

from protocol.cli import validate
from protocol.errors import SchedulerError


@pytest.fixture
def app() -> typer.Typer:
    app = typer.Typer()
    validate.register(app)
    app.callback()(lambda: None)  # keeps the command's own name
    return app


@pytest.mark.parametrize(
    ("code", "status", "said"),
    [
        ("def decide(obs):\n    return obs.in_flight < 3\n", 0, "nothing stands in the way"),
        ("def decide(obs):\n    return False\n", 0, "never merges in 50 decisions"),
        ("import random\ndef decide(obs):\n    return random.random() < 0.5\n", 1, "decisions differ in a second"),
        ("def decide(obs):\n    return [1]\n", 1, "decide answered [1] (list)"),
    ],
)
def test_exit_codes(app: typer.Typer, tmp_path: Path, code: str, status: int, said: str) -> None:
    path = tmp_path / "my_sched.py"
    path.write_text(code)
    result = CliRunner().invoke(app, ["validate", str(path), "--decisions", "50"], env={"COLUMNS": "200"})
    assert (result.exit_code, said in result.output) == (status, True), result.output
    assert ("not checked" in result.output) == ("import random" in code)
    result = CliRunner().invoke(app, ["validate", str(path), "--decisions", "50", "--json"])
    assert result.exit_code == status
    assert any(said in finding["message"] for finding in json.loads(result.output)) == ("nothing" not in said)


def test_what_cannot_run_is_an_error_for_the_command_line(app: typer.Typer, tmp_path: Path) -> None:
    path = tmp_path / "my_sched.py"
    path.write_text("class Mine\n    pass\n")
    result = CliRunner().invoke(app, ["validate", str(path)])
    assert isinstance(result.exception, SchedulerError)  # main() turns it into one line and exit code 2


def test_planners_and_logs(app: typer.Typer, tmp_path: Path) -> None:
    log = tmp_path / "a.csv"
    log.write_text("start_s\n10\n12\n")
    result = CliRunner().invoke(app, ["validate", str(log)], env={"COLUMNS": "200"})
    assert result.exit_code == 0 and "overlap: one busy interval of 10 s" in result.output
    log.write_text("start_s\n10\n32\n")  # nothing to say of it
    result = CliRunner().invoke(app, ["validate", str(log)], env={"COLUMNS": "200"})
    assert result.exit_code == 0 and "nothing stands in the way: protocol certify" in result.output
    planner = tmp_path / "plan.py"
    planner.write_text("class P:\n    def plan(self, trace, corridor, budget):\n        pass\n")
    result = CliRunner().invoke(app, ["validate", str(planner)], env={"COLUMNS": "200"})
    assert result.exit_code == 0 and "an upper bound at any tier" in result.output
