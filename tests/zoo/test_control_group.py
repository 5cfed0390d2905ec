"""The control group of a host's runs, in a folder that looks like the unified hierarchy."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from adapters.schedulers import cgroups


@pytest.fixture
def hierarchy(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Of a session whose manager hands memory on: this process is in app.slice/shell.scope."""
    (tmp_path / "app.slice" / "shell.scope").mkdir(parents=True)
    (tmp_path / "app.slice" / "cgroup.subtree_control").write_text("cpu memory pids\n")
    own = tmp_path / "own"
    own.write_text("4:devices:/\n0::/app.slice/shell.scope\n")
    monkeypatch.setattr(cgroups, "MOUNT", str(tmp_path))
    monkeypatch.setattr(cgroups, "OWN", str(own))
    return tmp_path


def test_it_lies_beside_its_own_and_caps_what_joins(hierarchy: Path) -> None:
    group = cgroups.make()
    made = hierarchy / "app.slice" / f"protocol-{os.getpid()}"
    assert group is not None and made.is_dir()
    assert not group.join() and group.killed() == 0  # no such files: nothing is made up
    for name in ("memory.max", "memory.swap.max", "cgroup.procs"):
        (made / name).touch()
    (made / "memory.events").write_text("low 0\noom 3\noom_kill 2\n")
    group.limit(7 << 20)
    assert group.join() and group.killed() == 2
    read = {name: (made / name).read_text() for name in ("memory.max", "memory.swap.max", "cgroup.procs")}
    assert read == {"memory.max": str(7 << 20), "memory.swap.max": "0", "cgroup.procs": "0"}
    for path in made.iterdir():
        path.unlink()
    group.remove()
    assert not made.exists()


def test_without_memory_handed_on_or_leave_to_make_one_there_is_none(hierarchy: Path) -> None:
    (hierarchy / "app.slice" / "cgroup.subtree_control").write_text("cpu pids\n")
    assert cgroups.make() is None
    (hierarchy / "app.slice" / "cgroup.subtree_control").unlink()
    assert cgroups.make() is None
    (hierarchy / "own").write_text("4:memory:/somewhere\n")  # version 1
    assert cgroups.make() is None
    assert [p.name for p in (hierarchy / "app.slice").iterdir()] == ["shell.scope"]
