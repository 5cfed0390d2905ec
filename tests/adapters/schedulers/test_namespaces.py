"""Clean-up never walks into what is mounted in a host's namespace."""

from __future__ import annotations

import subprocess
import sys
import textwrap
from pathlib import Path

import pytest
from scheduler_files import LINUX

pytestmark = pytest.mark.skipif(not LINUX, reason="needs namespaces")

BEGIN = """
import os, sys
from adapters.schedulers import host, namespaces
scratch, mine = sys.argv[1:]
os.chdir(scratch)
refused = namespaces.enter()
if refused:
    print("refused", refused)
    raise SystemExit
"""


def said(code: str, tmp_path: Path) -> str:
    """What a process prints that has namespaces of its own; skips where there are none."""
    scratch, mine = tmp_path / "scratch", tmp_path / "mine"
    scratch.mkdir()
    (mine / "deep").mkdir(parents=True)
    (mine / "deep" / "paper.tex").write_text("years of work")
    script = BEGIN + textwrap.dedent(code)
    done = subprocess.run(
        [sys.executable, "-c", script, scratch, mine], capture_output=True, text=True, timeout=60, check=True
    )
    if done.stdout.startswith("refused"):
        pytest.skip(done.stdout)
    assert (mine / "deep" / "paper.tex").read_text() == "years of work"
    return done.stdout


def test_tidying_up_leaves_mounted_folders_alone(tmp_path: Path) -> None:
    """Once, a host that was ended removed what lay beneath its root, the user's folders mounted there among it."""
    told = said(
        """
        inside = scratch + "/root" + mine
        os.makedirs(inside)
        namespaces._mount(mine, inside, namespaces._BIND)
        os.makedirs(scratch + "/tmp-3/left")
        made = host.Host.__new__(host.Host)
        made.folder, made.above = scratch, os.open(os.path.dirname(scratch), os.O_RDONLY)
        made.name, made.refused, made.group = os.path.basename(scratch), "not asked", None
        made.tidy()
        print(os.listdir(scratch), os.path.exists(inside + "/deep/paper.tex"))
        """,
        tmp_path,
    )
    assert told.strip() == "['root'] True"  # writable and in reach, and still there


def test_a_root_that_cannot_be_made_leaves_nothing_mounted(tmp_path: Path) -> None:
    told = said(
        """
        why = namespaces.build(scratch + "/root", [mine], mine + "/deep", [], [], scratch + "/not-there")
        print(why is not None, os.listdir(scratch + "/root"))
        """,
        tmp_path,
    )
    assert told.strip() == "True []"


def test_ending_a_host_in_the_middle_of_a_run_loses_nothing(tmp_path: Path) -> None:
    """Whatever ends the harness's end of it, both clean-ups run: the host's own and the harness's."""
    from adapters.schedulers import open_scheduler

    folder = tmp_path / "mine"
    (folder / "data").mkdir(parents=True)
    (folder / "data" / "table.csv").write_text("1,2")
    (folder / "sched.py").write_text("def decide(obs):\n    return True\n")
    source = open_scheduler(str(folder / "sched.py"))
    source.start((1,))  # type: ignore[union-attr]
    host = source.host  # type: ignore[union-attr]
    assert host is not None
    host.process.terminate()
    host.process.wait(10)
    source.close()
    assert (folder / "data" / "table.csv").read_text() == "1,2" and (folder / "sched.py").exists()
    assert not Path(host.scratch).exists()
