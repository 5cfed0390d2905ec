"""Certificates whose own fields would switch off what makes their rows again, on every road that trusts a folder."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from conftest import Protocol, refused

from protocol import files
from protocol.certificate.assess import assess
from protocol.certificate.model import Head, plain
from protocol.certificate.reading import read_json
from protocol.certificate.verify import asked_of
from protocol.evidence import store
from protocol.evidence.model import Evidence
from protocol.regimes.regime import Regime
from protocol.replay.replay import UNIFORM


def forge(
    run: Path, edit: Callable[[dict[str, Any]], None], rows: Callable[[Evidence], Evidence] = lambda e: e
) -> Path:
    """A copy, edited by somebody who knows the format, with everything else recomputed."""
    made = run.with_name("forged")
    shutil.rmtree(made, ignore_errors=True)
    shutil.copytree(run, made)
    asked = asked_of(made).plain()
    edit(asked)
    head, evidence = Head.model_validate(asked), [rows(e) for e in store.read(made / "raw")]
    store.write(evidence, made / "raw")
    (made / "raw" / store.ASKED).write_text(files.canonical_json(head.plain()))
    certificate = plain(assess(head, evidence))
    certificate["files"] = {n: files.sha256(made / "raw" / n) for n in read_json(made)["files"]}
    for name in ("tables", "figures"):
        shutil.rmtree(made / name)
    (made / "report.html").unlink()
    (made / "certificate.json").write_text(files.canonical_json(certificate))
    return made


def dearer(e: Evidence) -> Evidence:
    """Every draw made to cost a fifth of the requests more."""
    drawn = e.placed[UNIFORM]
    return e.with_placed(UNIFORM, replace(drawn, violations=drawn.violations + e.n_requests // 5))


def test_no_field_switches_off_what_makes_rows_again(
    protocol: Protocol, inside: Protocol, small: Path, aware: Path, tmp_path: Path
) -> None:
    out = tmp_path / "out"
    named = small.with_name("own.toml")
    named.write_text(small.read_text().replace('"small"', '"bursty-aperiodic"'))
    protocol("certify", aware, "--regime", named, "--seeds", 8, "--draws", 9, "--jobs", 1, "--out", out)

    def shipped(regime: dict[str, Any]) -> str:
        own = {"seeds": regime["n_seeds"], "decision_steps": regime["corridor"]["decision_steps"]}
        return Regime.load("bursty-aperiodic").replace(**own).digest

    def measured(asked: dict[str, Any]) -> None:
        regime = asked["regimes"][0]
        regime["digest"] = shipped(regime)
        regime["learner"] = {"kind": "measured", "modelled": regime["learner"]}

    def on_trace(asked: dict[str, Any]) -> None:
        regime = asked["regimes"][0]
        regime["digest"] = shipped(regime)
        regime["trace"] = {"file": "bursty-aperiodic", "sha256": "0" * 64}

    said = inside("verify", forge(out, measured))
    assert said.returncode == 1 and "bursty-aperiodic, digest: not that of the fields beside it" in said.stdout
    said = inside("verify", forge(out, on_trace, dearer))
    assert said.returncode == 1 and "a regime of this name does not take its load from" in said.stdout
    assert "digest: that of a shipped regime" in said.stdout
    # Prices that `verify` counts again are not taken on trust elsewhere.
    forged = forge(out, lambda asked: None, dearer)
    assert "violations, counted" in inside("verify", forged).stdout
    refused(inside("compare", forged, out), "not bear out", "counted")
    refused(inside("export", forged, "--ro-crate"), "counted", "a certificate that verifies")
    # What is not said is named.
    silent = forge(out, lambda asked: asked["contender"].pop("confinement"))
    assert "not shown: what the scheduler's process could reach" in inside("verify", silent).stdout
    (silent / "report.html").symlink_to(aware)
    refused(inside("export", silent, "--ro-crate"), "report.html", "a link")


def test_brackets_without_end_are_refused(inside: Protocol, tmp_path: Path) -> None:
    endless = "[" * 100_000
    with pytest.raises(ValueError, match="nested too deeply"):
        files.from_json(endless)
    kept = Path(__file__).parents[2] / "docs" / "results" / "live-session"
    run = tmp_path / "run"
    shutil.copytree(kept, run)
    (tmp_path / "ledger.jsonl").write_text(endless + "\n")
    # A line of the ledger that is none is passed over.
    refused(inside("compare", run), "found 1 certificate, and no other run of its scheduler")


def test_no_folder_of_somebody_else_s_is_taken_for_an_unfinished_run(tmp_path: Path) -> None:
    for name, mine in ((".protocol-writing", "mine.tex"), (".partial", "seed-1")):
        folder = tmp_path / name.strip(".")
        (folder / name / mine).mkdir(parents=True)
        with pytest.raises(Exception, match=r"is not ours|without the plan of a run of ours"):
            files.claim_folder(folder)
        assert (folder / name / mine).is_dir()


@pytest.mark.parametrize("name", ["0123456789ab.77.tmp", "0123456789abcdef01234567.json", "asked.json"])
def test_what_other_runs_of_ours_leave_is_no_stranger_s(tmp_path: Path, name: str) -> None:
    """A run that was killed before its plan was written; training, whose finished cells have no plan; a calibration."""
    (tmp_path / ".partial").mkdir()
    (tmp_path / ".partial" / f".{name}" if name.endswith("tmp") else tmp_path / ".partial" / name).touch()
    files.claim_folder(tmp_path)


def test_a_figure_of_one_s_own_is_not_drawn_over(
    protocol: Protocol, inside: Protocol, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    asked = ("simulate", "fixed-h", "--regime", "ordinary")
    assert protocol(*asked).returncode == 0 and Path("timeline.svg").is_file()
    assert protocol(*asked).returncode == 0  # its own it draws again
    Path("timeline.svg").write_text("<svg>mine</svg>")
    refused(inside(*asked), "timeline.svg", "--out FILE; it was not touched")
    assert Path("timeline.svg").read_text() == "<svg>mine</svg>"
