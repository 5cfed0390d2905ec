"""Schedulers in other languages, and words that mean none."""

from __future__ import annotations

import shutil
import sys
import textwrap
from collections.abc import Iterator
from pathlib import Path

import pytest
from scheduler_files import FLEET, SEEN, Opener, answers, failure, opened_in

from adapters.schedulers import open_scheduler
from protocol.errors import BadInput


@pytest.fixture
def opened(tmp_path: Path) -> Iterator[Opener]:
    yield from opened_in(tmp_path)


# --- other languages ----------------------------------------------------------------------------------------


def python_command(tmp_path: Path, code: str) -> str:
    (tmp_path / "other.py").write_text(textwrap.dedent(code))
    return f"cmd:{sys.executable} -u {tmp_path / 'other.py'}"


READY = "import json, sys\nprint(json.dumps({'type': 'ready', 'version': 1}), flush=True)\ninput()\n"


def test_a_command_sees_named_fields_and_what_is_new(opened: Opener, tmp_path: Path) -> None:
    code = READY + (
        "total = 0\n"
        "for line in sys.stdin:\n"
        "    m = json.loads(line)\n"
        "    if m['type'] == 'stop': break\n"
        "    total += sum(m['arrivals_per_s'])\n"
        "    assert len(m.get('islands', [])) != 1 and m['h_max'] == 512\n"
        "    print(json.dumps({'id': m['id'], 'merge': total % 2 == 0}), flush=True)\n"
    )
    for seen in (SEEN, FLEET):
        source = opened("", spec=python_command(tmp_path, code))
        assert [d.merge for d in answers(source, seen)] == [o.arrivals_per_s.sum() % 2 == 0 for o in seen]


@pytest.mark.parametrize(
    ("loop", "expected"),
    [
        ("print('maybe')", "decide answered 'maybe'; expected True, False"),
        ("print(json.dumps({'merge': 1}))", "decide answered merge = 1"),
        ("print(json.dumps({'id': 99, 'merge': True}))", "decide answered {'id': 99, 'merge': True}"),
        ("print(json.dumps({'merge': True, 'groups': [[0, 7]]}))", "island 7 in groups (the fleet has islands 0 to 0)"),
        ("print(json.dumps([1, 2, 3]))", "decide answered '[1, 2, 3]'"),
        ("print('NaN')", "decide answered 'NaN'"),
        ("sys.exit(5)", "exited with status 5"),
        ("sys.stdout.write('x' * 100_000)", "decide answered 'xxx"),
        ("import time; time.sleep(60)", "no answer within 0.5 s"),
    ],
)
def test_a_command_that_misbehaves(opened: Opener, tmp_path: Path, loop: str, expected: str) -> None:
    code = READY + f"for line in sys.stdin:\n    if 'stop' in line: break\n    {loop}\n    sys.stdout.flush()\n"
    source = opened("", spec=python_command(tmp_path, code), decision_timeout_s=0.5)
    assert expected in failure(source)


@pytest.mark.skipif(shutil.which("node") is None, reason="no Node.js on PATH")
def test_the_javascript_example(opened: Opener) -> None:
    example = Path(__file__).parents[3] / "examples" / "node_scheduler.mjs"
    source = opened("", spec=f"cmd:node {example}")
    expected = [o.arrivals_per_s[-10:].sum() / 10 < o.arrivals_per_s.mean() for o in SEEN]
    assert [d.merge for d in answers(source)] == expected
    assert source.describe()["language"] == "command"


@pytest.mark.parametrize(
    ("spec", "expected"),
    [
        ("nowhere.py", "nowhere.py: found no such file"),
        ("cmd:", "found no command"),
        ("cmd:no-such-program x", "found no program 'no-such-program'"),
        ("cmd:'", "found a command that does not parse"),
        ("fixed-", "did you mean fixed-h"),
        ("no_such_package.module:Attribute", "found no module 'no_such_package'"),
    ],
)
def test_words_that_mean_no_scheduler(spec: str, expected: str) -> None:
    with pytest.raises(BadInput) as caught:
        open_scheduler(spec)
    assert expected in str(caught.value)
