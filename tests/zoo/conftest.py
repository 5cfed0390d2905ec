"""The small world of the end-to-end tests, and a way to judge a scheduler in it within a second.

`ZOO_WITHOUT="landlock"` (seccomp, namespaces, clock; several with blanks between) runs every row as on a machine that
lacks it: what a row then gets out of its trick, no certificate may license.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest
from judging import INNOCENT, Command, Judge, Judged, command, small_world

from adapters.schedulers import confinement

confinement.WITHOUT.update(os.environ.get("ZOO_WITHOUT", "").split())

# The end-to-end tests import these names from whichever conftest was loaded last.
Protocol, refused = small_world.Protocol, small_world.refused
small, protocol = small_world.small, small_world.protocol


@pytest.fixture
def judge(small: Path, tmp_path: Path) -> Iterator[Judge]:
    judging = Judge(small, tmp_path)
    yield judging
    judging.close()


@pytest.fixture
def certify(small: Path) -> Command:
    """`protocol certify` with the command line's own entry point, in the small regime unless a trace is given."""

    def run(scheduler: object, out: Path, *options: object) -> Judged:
        world = () if "--trace" in options else ("--regime", small)
        return command(out, "certify", scheduler, *world, "--out", out, *options)

    return run


@pytest.fixture(scope="module")
def innocent(tmp_path_factory: pytest.TempPathFactory) -> Judged:
    folder = tmp_path_factory.mktemp("innocent")
    (folder / "small.toml").write_text(small_world.SMALL_REGIME)
    judging = Judge(folder / "small.toml", folder)
    judged = judging(INNOCENT)
    judging.close()
    assert not judged.refused and sum(map(len, judged.gaps)) > 2
    return judged
