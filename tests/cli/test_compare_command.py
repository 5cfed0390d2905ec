"""`protocol compare` as a user runs it."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from strategies import FunctionSource, head_for, quiet, ran, setting
from typer.testing import CliRunner

from protocol.certificate.assess import assess
from protocol.certificate.model import plain
from protocol.certificate.reading import CERTIFICATE
from protocol.cli.main import build
from protocol.errors import BadInput
from protocol.files import canonical_json, write_text


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> list[str]:
    """Two certificates without raw files."""
    values = plain(assess(head_for(FunctionSource(quiet), [setting()]), ran()))
    made = []
    for name in ("mine", "another"):
        folder = tmp_path_factory.mktemp(name)
        (claim,) = values["claims"]
        changed = {"contender": {**values["contender"], "name": f"{name}_scheduler.py"}, "claims": [claim]}
        write_text(folder / CERTIFICATE, canonical_json({**values, **changed}))
        made.append(str(folder))
    return made


def test_table_and_files(folders: list[str], tmp_path: Path) -> None:
    out = tmp_path / "tables"
    done = CliRunner().invoke(build(["compare"]), ["compare", *folders, "--out", str(out)])
    assert done.exit_code in (0, 1), done.output
    assert done.stdout.startswith("2 claims tried, one Holm correction\n")
    assert "mine_scheduler.py" in done.stdout and "95 % interval" in done.stdout
    names = {"": "csv md pdf svg tex", "-gains": "csv md tex", "-runs": "csv md tex"}
    names |= dict.fromkeys(("-load", "-seeds", "-budget"), "pdf svg")
    wanted = {f"comparison{name}.{s}" for name, suffixes in names.items() for s in suffixes.split()}
    assert {p.name for p in out.iterdir()} == {*wanted, ".comparison.json"}
    again = ["compare", *folders, "--out", str(out)]
    assert CliRunner().invoke(build(["compare"]), again).exit_code in (0, 1)  # nobody has changed them
    (out / "comparison.tex").write_text("my own table")
    with pytest.raises(BadInput, match="comparison.tex: found something that no certificate here lists"):
        CliRunner().invoke(build(["compare"]), again, catch_exceptions=False)
    assert (out / "comparison.tex").read_text() == "my own table"
    assert "another_scheduler.py" in (out / "comparison.csv").read_text()


def test_json_is_nothing_but_json(folders: list[str], tmp_path: Path) -> None:
    done = CliRunner().invoke(build(["compare"]), ["compare", *folders, "--json", "--out", str(tmp_path / "t")])
    assert [row["scheduler"] for row in json.loads(done.stdout)["claims"]] == [
        "mine_scheduler.py",
        "another_scheduler.py",
    ]
    assert (tmp_path / "t" / "comparison.tex").is_file()


def test_a_pair_has_no_files(folders: list[str], tmp_path: Path) -> None:
    done = CliRunner().invoke(build(["compare"]), ["compare", "--paired", *folders, "--out", str(tmp_path / "t")])
    assert isinstance(done.exception, BadInput) and "--paired as well" in str(done.exception)
    assert not (tmp_path / "t").exists()
