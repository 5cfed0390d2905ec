"""One line a run beside the output, and a comparison that counts what it does not show."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from strategies import FunctionSource, head_for, quiet, ran, setting

from protocol.certificate import ledger
from protocol.certificate.assess import assess
from protocol.certificate.compare import compare
from protocol.certificate.model import Certificate, Head
from protocol.errors import BadInput

SETTINGS = [setting()]


def asked(**changes: object) -> Head:
    return head_for(FunctionSource(quiet), SETTINGS, **changes)


def certificate(**changes: object) -> Certificate:
    return assess(asked(**changes), ran(quiet))


def test_a_run_that_ended_and_one_that_did_not(tmp_path: Path) -> None:
    made = certificate()
    first = ledger.begin(asked(), tmp_path / "a")
    ledger.end(first, made, tmp_path / "a")
    ledger.begin(asked(), tmp_path / "b")
    ended, abandoned = ledger.entries(tmp_path / ledger.LEDGER)
    assert (ended.verdict, ended.root_seed, ended.folder, ended.claims) == (made.verdict, 7, "a", 1)
    assert (abandoned.verdict, abandoned.root_seed, abandoned.folder) == (ledger.ABANDONED, None, "b")


def test_the_root_is_not_there_while_a_run_goes_on(tmp_path: Path) -> None:
    ledger.begin(asked(root_seed=123456789012345), tmp_path / "a")
    assert "123456789012345" not in (tmp_path / ledger.LEDGER).read_text()


def test_lines_that_are_none_are_passed_over(tmp_path: Path) -> None:
    entry = ledger.begin(asked(), tmp_path / "a")
    with (tmp_path / ledger.LEDGER).open("a") as file:
        file.write('not json\n[1]\n{"id": "x", "began": "y"}\n{"id": 3}\n')
    assert ledger.entries(tmp_path / ledger.LEDGER) == [entry]
    assert ledger.entries(tmp_path / "nowhere") == []


def test_other_runs_of_the_same_scheduler(tmp_path: Path) -> None:
    made, digest = certificate(), "0" * 64
    for name, effect in (("shown", 0.25), ("hidden", 0.5), ("shown", 0.0)):  # the first in `shown` was replaced
        ledger.end(ledger.begin(asked(min_effect_pp=effect), tmp_path / name), made, tmp_path / name)
    found = ledger.others([tmp_path / "shown"], [digest])
    assert [e.folder for e in found] == ["shown", "hidden"]
    assert ledger.others([tmp_path / "shown"], ["1" * 64]) == []


def test_a_folder_that_was_renamed_is_the_same_run(tmp_path: Path) -> None:
    made = certificate()
    own, digest = made.head(), str(made.contender.described("digest"))
    ledger.end(ledger.begin(own, tmp_path / "before"), made, tmp_path / "before")
    other = own.model_copy(update={"settings": own.settings.model_copy(update={"draws": own.settings.draws + 1})})
    ledger.end(ledger.begin(other, tmp_path / "another"), made, tmp_path / "another")
    assert [e.folder for e in ledger.others([tmp_path / "after"], [digest], [made])] == ["another"]
    assert len(ledger.others([tmp_path / "after"], [digest])) == 2  # nothing says that it is the same


def test_another_world_of_the_same_name_is_another_run(tmp_path: Path) -> None:
    made, head = certificate(), asked()
    coarse = head.regimes[0].corridor.model_copy(update={"decision_steps": 128})
    worlds = ({}, {"digest": "a" * 64}, {"corridor": coarse})
    for name, change in zip(("shown", "file", "grid"), worlds, strict=True):
        other = head.model_copy(update={"regimes": (head.regimes[0].model_copy(update=change),)})
        ledger.end(ledger.begin(other, tmp_path / name), made, tmp_path / name)
    assert [e.folder for e in ledger.others([tmp_path / "shown"], ["0" * 64])] == ["file", "grid"]


def test_the_same_again_is_no_other_run(tmp_path: Path) -> None:
    """In simulation; a server gives another answer each time, and another number of seeds or draws is another try."""
    made, digest, folder = certificate(), ["0" * 64], tmp_path / "shown"
    for _ in range(2):
        ledger.end(ledger.begin(asked(), folder), made, folder)
    assert ledger.others([folder], digest) == []
    for changes in ({"draws": 20}, {"bounded": True}, {"back_end": "real"}, {"back_end": "real"}):
        ledger.end(ledger.begin(asked(**changes), tmp_path / "other"), made, tmp_path / "other")
    assert len(ledger.others([folder], digest)) == 4
    assert len(ledger.others([tmp_path / "other"], digest)) == 5  # another repeat on the server, and simulated ones


def test_an_interrupted_run_goes_on_in_its_line(tmp_path: Path) -> None:
    folder, mark = tmp_path / "a", tmp_path / "run"
    first = ledger.begin(asked(), folder, mark)
    again = ledger.begin(asked(), folder, mark)
    assert again == first and len(ledger.entries(tmp_path / ledger.LEDGER)) == 1
    ledger.end(again, certificate(), folder)
    assert ledger.begin(asked(), folder, mark).id != first.id  # that one has ended
    mark.unlink()
    assert ledger.begin(asked(), folder, mark).verdict == ledger.ABANDONED
    assert len(ledger.entries(tmp_path / ledger.LEDGER)) == 3


def test_what_else_was_tried_is_corrected_for(tmp_path: Path) -> None:
    made = certificate()
    alone = made.claims[0].envelope.p
    assert alone is not None and made.verdict == "PASS"
    entry = ledger.begin(asked(), tmp_path / "other")
    few = compare({"a": made}, [entry] * 2)
    assert few[0].p_overall == pytest.approx(3 * alone)
    many = compare({"a": made}, [entry] * 1000)
    assert many[0].p_overall == pytest.approx(min(1.0, 1001 * alone)) and many[0].verdict == "FAIL"


def test_one_certificate_alone_is_no_comparison() -> None:
    with pytest.raises(BadInput, match="at least two"):
        compare({"a": certificate()})


def test_other_roots_stand_side_by_side() -> None:
    one, other = certificate(), certificate(root_seed=8)
    rows = compare({"a": one, "b": other})
    assert [row.root_seed for row in rows] == [7, 8]
    assert json.loads(json.dumps([row.interval_pp for row in rows]))


def test_levels_must_agree() -> None:
    with pytest.raises(BadInput, match=r"a and b, min_effect_pp: found 0.0 and 0.5"):
        compare({"a": certificate(), "b": certificate(min_effect_pp=0.5)})
