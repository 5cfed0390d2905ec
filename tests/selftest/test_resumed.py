"""A selftest of an hour may be stopped: what is done is kept, and nothing else is made again."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import pytest

from protocol.cli.selftest import Kept, Task, _run
from protocol.selftest import synthetic
from protocol.selftest.counts import Row


def row(family: str) -> Row:
    return Row("w", family, "20 seeds", 1.5, "certified", 3, 10, "false")


def test_families_that_are_done_are_not_made_again(tmp_path: Path) -> None:
    made: list[str] = []

    def task(family: str, stops: bool = False) -> tuple[str, Task]:
        def run() -> Sequence[Row]:
            if stops:
                raise KeyboardInterrupt
            made.append(family)
            return [row(family)]

        return family, run

    kept = Kept(tmp_path / "kept.jsonl", "protocol selftest --seed 1")
    with pytest.raises(KeyboardInterrupt):
        _run(iter([task("a"), task("b", stops=True)]), 2, 1, kept)
    with (tmp_path / "kept.jsonl").open("a") as file:
        file.write('\n{"command": "protocol selftest --seed 1", "label": "b", "ro')
    rows, cpu_s = _run(iter([task("a"), task("b"), task("c")]), 3, 1, kept)
    assert made == ["a", "b", "c"] and rows == [row("a"), row("b"), row("c")] and cpu_s >= 0
    assert set(kept.read()) == {"a", "b", "c"}
    other = Kept(tmp_path / "kept.jsonl", "protocol selftest --seed 2")
    assert not other.read() and _run(iter([task("a")]), 1, 1, other)[0] == [row("a")] and made[-1] == "a"


def test_no_two_families_have_one_name() -> None:
    """What is kept is found again by its name."""
    names = [f"{c.family}, {c.design}, gain {c.effect_pp:g}" for c in synthetic.cells(1, 20, 10, 4, 20, 19, 99)]
    assert len(set(names)) == len(names) > 40
