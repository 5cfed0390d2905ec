"""`protocol regime`."""

from __future__ import annotations

import tomllib
from pathlib import Path

import log_files as make
import pytest
import typer
from typer.testing import CliRunner

from protocol.cli import regime
from protocol.errors import BadInput
from protocol.regimes.regime import Arrivals, Head, Lengths, Pace, Regime
from protocol.workload.learner import ModelledLearner


@pytest.fixture
def run():
    app = typer.Typer()
    regime.register(app)

    @app.callback()
    def root() -> None: ...

    return lambda *args: CliRunner().invoke(app, ["regime", *map(str, args)])


def test_new_writes_a_file_that_loads(run, tmp_path: Path) -> None:
    path = tmp_path / "my-fleet.toml"
    done = run("new", path)
    assert done.exit_code == 0 and done.output == f"wrote {path}\n"
    assert Regime.load(path).name == "my-fleet"
    assert "--regime my-fleet.toml --trace FILE" in path.read_text()
    assert run("new").output == run("new").output and "mycluster" in run("new").output
    with pytest.raises(BadInput, match="there already"):
        raise run("new", path).exception
    with pytest.raises(BadInput, match="--name"):
        raise run("new", "--name", "a b").exception


def test_every_key_is_there_and_has_its_comment(run) -> None:
    text = run("new").output
    found = tomllib.loads(text)
    assert set(found["regime"]) == set(Head.model_fields) and set(found["pace"]) == set(Pace.model_fields)
    assert set(found["learner"]) == set(ModelledLearner.model_fields)
    # A phase is the trap of the published replay, and `most` bounds a spread that is 0 here: neither is suggested.
    assert set(found["arrivals"]) == set(Arrivals.model_fields) - {"phase_s"}
    assert set(found["tokens"]["prompt"]) == set(Lengths.model_fields) - {"weights", "most"}
    assert "weights = [...]" in text
    numbers = [line for line in text.splitlines() if "_s = " in line or "h_m" in line]
    assert numbers and all("#" in line for line in numbers if "offset_steps" not in line)


def test_fit_proposes_tables_that_fit_into_a_new_file(run, tmp_path: Path) -> None:
    rows = [make.litellm(t / 4, 100 if t % 2 else 300, 50) for t in range(400) for _ in range(1 + 3 * (t // 100 % 2))]
    trace = make.save(tmp_path / "spend.json", *rows)
    done = run("fit", "--trace", trace)
    assert done.exit_code == 0, done.output
    parts = tomllib.loads(done.output)
    assert set(parts) == {"arrivals", "tokens"} and parts["tokens"]["prompt"]["values"] == [100, 300]
    head, _, rest = run("new").output.partition("[arrivals]")
    tail = rest[rest.index("[pressure.network]"):]  # fmt: skip
    assert Regime.parse(head + done.output + tail, "x").output.values == (50,)
    out = tmp_path / "load.toml"
    assert run("fit", "--trace", trace, "--out", out).output == f"wrote {out}\n" and out.read_text() == done.output


def test_fit_takes_every_way_of_reading(run, tmp_path: Path) -> None:
    path = make.save(tmp_path / "a.csv", "t_ms,in,out", *(f"{t * 100},5,6" for t in range(150)))
    done = run("fit", "--trace", path, "--columns", "time=t_ms,prompt_tokens=in,output_tokens=out")
    assert done.exit_code == 0 and 'process = "steady"' in done.output and "rate_per_s = 10 " in done.output
    with pytest.raises(BadInput, match="--columns"):
        raise run("fit", "--trace", path, "--columns", "t_ms").exception
