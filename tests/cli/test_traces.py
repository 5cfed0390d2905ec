"""`protocol traces`."""

from __future__ import annotations

import json

import pytest
import typer
from typer.testing import CliRunner

from protocol.cli import traces
from protocol.errors import BadInput


@pytest.fixture
def run(monkeypatch):
    monkeypatch.setenv("COLUMNS", "200")
    app = typer.Typer()
    traces.register(app)

    @app.callback()
    def root() -> None: ...

    return lambda *args: CliRunner().invoke(app, ["traces", *map(str, args)])


@pytest.fixture
def trace(tmp_path):
    path = tmp_path / "t.csv"
    rows = "".join(f"{i * 3},{10 + i % 7},{i % 5}\n" for i in range(200))
    path.write_text("arrival_s,prompt_tokens,output_tokens\n" + rows)
    return path


def test_inspect_prints_the_report(run, trace):
    done = run("inspect", trace)
    assert done.exit_code == 0, done.output
    assert "200 = 160 kept + 40 dropped" in done.output
    assert "below the resolution of the stamps, 3 s" in done.output
    assert "EWMA" in done.output and "generic, s" in done.output


def test_inspect_json(run, trace):
    done = run("inspect", trace, "--json")
    found = json.loads(done.stdout)
    assert found["report"]["rows_kept"] == 160 and found["report"]["dropped"] == {"failed in source": 40}
    figures = {s["name"]: s for s in found["statistics"]}
    assert figures["index of dispersion at 1 s"]["value"] is None
    assert figures["mean rate"]["value"] == pytest.approx(159 / (3 * 198))


def test_options_reach_the_reader(run, tmp_path):
    path = tmp_path / "t.csv"
    path.write_text("timestamp,prompt_tokens,output_tokens\n0,1,1\n1500,1,1\nx,1,1\n")
    assert isinstance(run("inspect", path, "--drop-bad-rows").exception, BadInput)
    assert isinstance(run("inspect", path, "--time-unit", "ms").exception, BadInput)
    done = run("inspect", path, "--time-unit", "ms", "--drop-bad-rows", "--json")
    assert json.loads(done.stdout)["report"]["span_s"] == 1.5
    assert isinstance(run("inspect", path, "--format", "azure").exception, BadInput)


def test_a_single_request_can_be_inspected(run, tmp_path):
    path = tmp_path / "t.csv"
    path.write_text("arrival_s,prompt_tokens,output_tokens\n5,1,1\n")
    done = run("inspect", path)
    assert done.exit_code == 0, done.output
    assert "unknown" in done.output


def test_formats(run):
    done = run("formats")
    assert done.exit_code == 0
    assert all(name in done.output for name in ("azure", "burstgpt", "mooncake", "vidur", "generic"))
    assert set(json.loads(run("formats", "--json").stdout)) >= {"azure", "generic"}
