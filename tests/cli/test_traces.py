"""`protocol traces`."""

from __future__ import annotations

import json

import log_files as make
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


def notes(run, path, *options):
    return json.loads(run("inspect", path, "--json", *options).stdout)["report"]["notes"]


@pytest.mark.parametrize(
    ("column", "rows", "said"),
    [
        ("arrival_s", [f"{i / 500_000:.9f},5,{2 + i % 3}" for i in range(1000)], "in 0.001998 s, 500,000 requests/s"),
        ("arrival_s", [f"{i * 1800},5,{2 + i % 3}" for i in range(50)], "one request every 1,800 s over 1.0 days"),
        ("arrival_s", [f"{i / 900},5,{2 + i % 3}" for i in range(20_000)], "900 requests/s over 22.2211 s"),
        ("arrival_s", [f"{i},{20_000_000 + i},5" for i in range(30)], "is the column one of bytes?"),
        ("arrival_s", [f"{i},{5 + i},{5 + i}" for i in range(30)], "one column read twice?"),
        ("arrival_s", [f"{i},{5 + i},1" for i in range(30)], "is the column a flag?"),
    ],
)  # fmt: skip
def test_what_is_implausible_gets_a_note(run, tmp_path, column, rows, said):
    path = tmp_path / "t.csv"
    path.write_text("\n".join([f"{column},prompt_tokens,output_tokens", *rows]) + "\n")
    found = notes(run, path)
    assert any(said in note for note in found), found
    assert f"is the unit of the times really {column[-1]}?" in " ".join(found) or "column" in said


def test_a_plain_trace_gets_no_note(run, tmp_path):
    path = tmp_path / "t.csv"
    rows = (f"{i / 7 + i * i % 13 / 1000:.6f},{9 + i},5\n" for i in range(300))
    path.write_text("arrival_s,prompt_tokens,output_tokens\n" + "".join(rows))
    assert notes(run, path) == []


def test_identical_rows_are_told_apart_from_ties(run, tmp_path):
    path = tmp_path / "t.csv"
    rows = ["0,5,5", "1.25,5,5", "1.25,6,5", "2,7,7", "2,7,7", "2,7,7"]
    path.write_text("arrival_s,prompt_tokens,output_tokens\n" + "\n".join(rows) + "\n")
    report = json.loads(run("inspect", path, "--json").stdout)["report"]
    assert (report["ties"], report["identical"], report["rows_kept"]) == (3, 2, 6)
    assert "3, of which 2 equal in tokens too" in run("inspect", path).output


def test_a_log_without_tokens_can_be_inspected(run, tmp_path):
    path = make.save(tmp_path / "access.log", *(make.envoy(t / 4) for t in range(200)))
    done = run("inspect", path)
    assert done.exit_code == 0 and "absent" in done.output and "tokens, largest" not in done.output
    assert "declare them with --tokens" in done.output
    declared = run("inspect", path, "--tokens", "200,128")
    assert "declared" in declared.output and "200 tokens" in declared.output


def test_columns_that_were_not_read_are_named(run, tmp_path):
    path = tmp_path / "t.csv"
    path.write_text("arrival_s,prompt_tokens,output_tokens,user,model\n0,1,1,a,m\n1,2,2,b,m\n")
    assert "columns that were not read: model, user" in run("inspect", path).output
