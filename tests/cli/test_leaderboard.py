"""`protocol leaderboard` and `protocol export` as a user runs them."""

from __future__ import annotations

import importlib
import json
import re
import shutil
import time
from html import unescape
from pathlib import Path

import pytest
from strategies import FunctionSource, head_for, quiet, ran, setting, write_folder
from typer.testing import CliRunner

from adapters import exports
from protocol.certificate.model import plain
from protocol.cli import export
from protocol.cli.main import build
from protocol.errors import BadInput, ProtocolError
from reports import format as fmt
from reports import leaderboard

NASTY = "<script>alert(1)</script> & 100% $x_$"


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two certificates, one of a scheduler with a nasty name, and one that was edited."""
    folder = tmp_path_factory.mktemp("runs")
    head = head_for(FunctionSource(quiet, name=NASTY), [setting()])
    write_folder(folder / "nasty", head, ran())
    fresh = head_for(FunctionSource(quiet, name="edited.py"), [setting()])
    write_folder(folder / "below" / "edited", fresh, ran())
    path = folder / "below" / "edited" / "certificate.json"
    path.write_text(
        path.read_text().replace('"verdict": "PASS"', '"verdict": "FAIL"').replace('"gain_pp": ', '"gain_pp": 1')
    )
    return folder


def text_of(page: Path) -> str:
    body = re.sub(r"<(style)[^>]*>.*?</\1>", " ", page.read_text("utf-8"), flags=re.S)
    return " ".join(unescape(re.sub(r"<[^>]*>", " ", body)).split())


def test_entries_are_verified_and_only_those_are_ranked(runs: Path, tmp_path: Path) -> None:
    out = tmp_path / "board.html"
    done = CliRunner().invoke(build(["leaderboard"]), ["leaderboard", str(runs), "--out", str(out)])
    assert done.exit_code == 1, done.output
    assert "nasty: verified" in done.stdout and "below/edited: not verified: " in done.stdout
    page, text = out.read_text("utf-8"), text_of(out)
    assert (
        "<script" not in page
        and NASTY in text
        and page.count("&lt;script&gt;alert(1)&lt;/script&gt; &amp; 100% $x_$") >= 2
    )
    assert "1 of 2 certificates verified" in text and "not verified" in text
    made = json.loads((runs / "nasty" / "certificate.json").read_text())
    envelope = made["claims"][0]["envelope"]
    table = page[: page.index('id="entries"')]
    assert table.count('<td class="name"') == 1 and "edited" not in table
    gain = f"{fmt.pp(envelope['gain_pp'], sign=True)} {fmt.interval(envelope['interval_pp'])}"
    assert " ".join(gain.split()) in text
    assert "toy, e2e<=1000ms" in text and "public" in text and made["sentence"] in text
    assert "that this scheduler took these decisions" in text and "it is not signed" in text
    again = CliRunner().invoke(build(["leaderboard"]), ["leaderboard", str(runs), "--out", str(out)])
    assert again.exit_code == 1 and out.read_text("utf-8") == page


def test_what_is_no_leaderboard_stays(runs: Path, tmp_path: Path) -> None:
    mine = tmp_path / "mine.html"
    mine.write_text("mine")
    with pytest.raises(BadInput, match="it was not touched"):
        CliRunner().invoke(
            build(["leaderboard"]), ["leaderboard", str(runs), "--out", str(mine)], catch_exceptions=False
        )
    assert mine.read_text() == "mine"
    with pytest.raises(BadInput, match=r"no certificate\.json below it"):
        CliRunner().invoke(build(["leaderboard"]), ["leaderboard", str(tmp_path)], catch_exceptions=False)


def test_regimes_of_one_name_stand_apart_and_the_largest_gain_first(runs: Path) -> None:
    made = json.loads((runs / "nasty" / "certificate.json").read_text())
    better, other = json.loads(json.dumps(made)), json.loads(json.dumps(made))
    better["claims"][0]["envelope"] |= {"gain_pp": made["claims"][0]["envelope"]["gain_pp"] + 1, "interval_pp": None}
    other["regimes"][0]["digest"] = "2" * 64
    unknown = json.loads(json.dumps(made))
    unknown["claims"][0]["envelope"] |= {"gain_pp": None, "interval_pp": None}
    entries = [leaderboard.Entry(str(k), c) for k, c in enumerate((unknown, made, better, other))]
    entries.append(leaderboard.Entry("x", made, ["wrong"]))
    one, two = leaderboard.boards(entries)
    assert [row["entry"] for row in one["rows"]] == ["entry-3", "entry-2", "entry-1"]
    assert [row["entry"] for row in two["rows"]] == ["entry-4"]
    assert {one["regime"], two["regime"]} == {"toy (11111111)", "toy (22222222)"}
    places = [row["at"] for row in one["rows"]]
    assert places[0]["gain"] > places[1]["gain"] > places[1]["zero"] and places[2]["gain"] is None
    assert places[1]["ends"][0] < places[1]["gain"] < places[1]["ends"][1] and places[0]["ends"] is None


# Export ----------------------------------------------------------------------------------------------------------


def test_numbers_for_other_tools(runs: Path) -> None:
    made = json.loads((runs / "nasty" / "certificate.json").read_text())
    found = exports.metrics(made)
    assert found["toy/e2e-at-most-1000ms/gain_pp"] == made["claims"][0]["envelope"]["gain_pp"]
    assert found["toy/e2e-at-most-1000ms/interval_low_pp"] == made["claims"][0]["envelope"]["interval_pp"][0]
    assert all(re.fullmatch(r"[\w./ -]+", name) for name in found)
    assert exports.parameters(made)["scheduler"] == NASTY


def test_a_missing_extra_is_one_line(runs: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    found = importlib.import_module

    def missing(name: str) -> object:
        if name.partition(".")[0] in ("mlflow", "wandb", "rocrate"):
            raise ImportError(name)
        return found(name)

    monkeypatch.setattr(exports.importlib, "import_module", missing)
    monkeypatch.setattr(export, "all_wrong", lambda folder: [])  # made by hand, from no root
    for target in ("mlflow", "wandb", "ro-crate"):
        with pytest.raises(
            ProtocolError, match=rf"^--{target} needs the extra: pip install 'diloco-protocol\[{target}\]'$"
        ):
            CliRunner().invoke(
                build(["export"]), ["export", str(runs / "nasty"), f"--{target}"], catch_exceptions=False
            )


def test_what_does_not_verify_is_not_exported(runs: Path, tmp_path: Path) -> None:
    with pytest.raises(BadInput, match="a certificate that verifies"):
        CliRunner().invoke(
            build(["export"]), ["export", str(runs / "below" / "edited"), "--ro-crate"], catch_exceptions=False
        )
    with pytest.raises(BadInput, match="no target"):
        CliRunner().invoke(build(["export"]), ["export", str(runs / "nasty")], catch_exceptions=False)


def test_ro_crate_holds_the_run_and_says_what_it_is(runs: Path, tmp_path: Path) -> None:
    pytest.importorskip("rocrate")
    out = tmp_path / "crate"
    shutil.copytree(runs / "nasty", tmp_path / "run")
    (tmp_path / "run" / "notes.txt").write_text("somebody's own")
    made = plain(write_folder(tmp_path / "run2", head_for(FunctionSource(quiet, name=NASTY), [setting()]), ran()))
    exports.to_ro_crate(made, tmp_path / "run2", out)
    graph = {part["@id"]: part for part in json.loads((out / "ro-crate-metadata.json").read_text())["@graph"]}
    assert graph["./"]["description"] == made["sentence"]
    assert graph["raw/placements.parquet"]["sha256"] == made["files"]["placements.parquet"]
    assert graph["#run"]["instrument"] == {"@id": "#diloco-protocol"} and len(graph["#run"]["result"]) == 6
    assert (out / "raw" / "placements.parquet").read_bytes() == (
        tmp_path / "run2" / "raw" / "placements.parquet"
    ).read_bytes()
    with pytest.raises(BadInput, match="already"):
        exports.to_ro_crate(made, tmp_path / "run2", out)
    assert "notes.txt" not in {name for name in exports._files(made, tmp_path / "run")}


def test_mlflow_has_one_run_with_numbers_and_files(runs: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    mlflow = pytest.importorskip("mlflow")
    monkeypatch.setenv("MLFLOW_ALLOW_FILE_STORE", "true")
    mlflow.set_tracking_uri(f"file:{tmp_path / 'store'}")
    made = json.loads((runs / "nasty" / "certificate.json").read_text())
    assert "experiment 'mine'" in exports.to_mlflow(made, runs / "nasty", "mine")
    (run,) = mlflow.MlflowClient().search_runs([mlflow.get_experiment_by_name("mine").experiment_id])
    assert run.data.metrics["toy/e2e-at-most-1000ms/gain_pp"] == made["claims"][0]["envelope"]["gain_pp"]
    assert run.data.params["verdict"] == made["verdict"] and run.data.tags["sentence"] == made["sentence"]
    names = {f.path for f in mlflow.MlflowClient().list_artifacts(run.info.run_id)}
    assert names == {"certificate.json", "raw"}


def test_what_mlflow_refuses_is_one_line(runs: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    mlflow = pytest.importorskip("mlflow")
    monkeypatch.setenv("MLFLOW_ALLOW_FILE_STORE", "false")
    mlflow.set_tracking_uri(f"file:{tmp_path / 'refused'}")
    made = json.loads((runs / "nasty" / "certificate.json").read_text())
    with pytest.raises(ProtocolError, match="^--mlflow: The filesystem tracking backend") as raised:
        exports.to_mlflow(made, runs / "nasty", "mine")
    assert "\n" not in str(raised.value)


def test_wandb_offline_keeps_numbers_and_files(runs: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("wandb")
    for name, value in (("WANDB_MODE", "offline"), ("WANDB_DIR", str(tmp_path)), ("WANDB_SILENT", "true")):
        monkeypatch.setenv(name, value)
    monkeypatch.setenv("WANDB_DATA_DIR", str(tmp_path / "staged"))
    monkeypatch.setenv("WANDB_CACHE_DIR", str(tmp_path / "cache"))
    made = json.loads((runs / "nasty" / "certificate.json").read_text())
    where = Path(exports.to_wandb(made, runs / "nasty", "mine"))
    assert where.is_relative_to(tmp_path)
    (log,) = tmp_path.rglob("*.wandb")
    wanted = (b"toy/e2e-at-most-1000ms/gain_pp", made["sentence"][:40].encode())
    end_s = time.monotonic() + 30  # a process of its own writes the log
    while not all(words in log.read_bytes() for words in wanted) and time.monotonic() < end_s:
        time.sleep(0.1)
    assert all(words in log.read_bytes() for words in wanted)
