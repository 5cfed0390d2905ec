"""`protocol logs inspect`: what it says of logs whose merges are known by hand."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from protocol.cli import main
from protocol.cli.logs import LINES, WIDTH, timeline
from protocol.merging.schedule import Schedule

S = 1_000_000_000


def said(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, *words: object) -> tuple[int, str, str]:
    monkeypatch.setenv("COLUMNS", "80")
    monkeypatch.setenv("NO_COLOR", "1")
    monkeypatch.setattr("sys.argv", ["protocol", "logs", "inspect", *map(str, words)])
    with pytest.raises(SystemExit) as ended:
        main()
    found = capsys.readouterr()
    return int(ended.value.code or 0), found.out, found.err


def test_what_a_log_says(tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    """Three merges of 2, 4 and 3 s, the second of fragment 1 and not committed; two begin before the last one ended."""
    log = tmp_path / "a.csv"
    log.write_text("start_s,duration_s,fragment,committed\n10,2,0,true\n11,4,1,false\n20,3,1,true\n")
    code, out, _ = said(capsys, monkeypatch, log, "--json")
    facts = json.loads(out)
    assert code == 0 and facts["lengths_s"] == [2.0, 3.0, 3.0] and facts["waits_s"] == [0.0, 2.5, 5.0]
    assert (facts["merges"], facts["not_committed"], facts["overlapping"], facts["fragments"]) == (3, 1, 1, 2)
    assert facts["busy_intervals_by_fragment"] == [1, 2] and facts["last_ends_s"] == 23.0 and facts["span_s"] is None
    code, out, _ = said(capsys, monkeypatch, log)
    assert code == 0 and all(len(row) <= 80 for row in out.splitlines()[1:] if "note: " not in row)
    assert "lengths (s)" in out and "2 to 3 (median 3)" in out and "0 s  " in out and "xxx" in out
    assert "does not say" not in out


@pytest.mark.parametrize(
    ("words", "said_of_lengths"),
    [
        ((), "1 of 2 merges are shown 8 s long, which the log does not say, as a regime would say; --log-merge-s for"),
        (("--fragments", 2), "each fragment without a length (1 of 2) is taken to be under way for 4 s"),
        (("--log-merge-s", 3), "1 of 2 merges are shown 3 s long, which the log does not say"),
    ],
)
def test_lengths_that_nobody_said(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, words: tuple[object, ...],
    said_of_lengths: str,
) -> None:  # fmt: skip
    log = tmp_path / "a.csv"
    log.write_text("start_s,duration_s\n10,2\n30,\n")
    code, out, _ = said(capsys, monkeypatch, log, "--json", *words)
    facts = json.loads(out)
    assert code == 0 and facts["lengths_said"] == 1
    assert facts["report"][-1].startswith(said_of_lengths)
    assert ("--log-merge-s" in words) == facts["report"][-1].endswith("does not say")
    assert sum("does not say" in line for line in facts["report"]) == ("--fragments" not in words)


def test_a_timeline_has_a_mark_for_each_second() -> None:
    made = Schedule(np.array([4, 10, 20]) * S, np.array([[2], [1], [4]]) * S, committed=np.array([True, False, True]))
    head, line = timeline(made)
    assert head.startswith("timeline, 0.375 s a cell (# a merge") and len(line.split()[-1]) == WIDTH
    cells = line.split()[-1]
    assert cells.count("x") in (2, 3, 4) and cells.index("#") == 11 - (cells[10] == "+") * 0
    long = timeline(Schedule(np.arange(1, 4000) * 10 * S, np.full((3999, 1), S)))
    assert len(long) == 1 + LINES and all(len(row) <= 80 for row in long)


def test_what_is_no_log_is_one_line(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    for words in ((tmp_path / "no.csv",), ("sched.py", "--fragments", 2), (tmp_path / "no.csv", "--corridor", "x")):
        code, out, err = said(capsys, monkeypatch, *words)
        assert code == 2 and not out and len(err.strip().splitlines()) == 1
