"""What a run could learn from its host, its harness or the shell, or leave for the next run, by roads found later."""

from __future__ import annotations

import ctypes
import os
import stat
import sys
from pathlib import Path

import pytest
from test_unrecorded_inputs import LACKING, decided, opened

from adapters.schedulers import open_scheduler
from adapters.schedulers.confinement import WITHOUT
from adapters.schedulers.process import ProcessSource
from protocol.errors import SchedulerError

pytestmark = [
    pytest.mark.skipif(sys.platform != "linux", reason="needs Landlock, namespaces or seccomp"),
    pytest.mark.confined,
]


def needs(part: str) -> pytest.MarkDecorator:
    return pytest.mark.skipif(part in WITHOUT, reason=f"{part} is taken away: nothing is said of this row then")


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "mine").mkdir()
    return tmp_path / "mine"


def merges(source: ProcessSource) -> int:
    return sum(d.merge for d in decided(source))


def test_what_lies_on_the_python_path_is_executed_by_no_host(
    folder: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A module by the name of one that hosts load beforehand: it is loaded by the run, confined, and named."""
    shims, secret = tmp_path / "path", tmp_path / "logs" / "root"
    shims.mkdir()
    secret.parent.mkdir()
    secret.write_text("17")
    (shims / "sklearn.py").write_text(
        f"try:\n    FOUND = open({str(secret)!r}).read()\nexcept OSError:\n    FOUND = ''\n"
    )
    monkeypatch.setenv("PYTHONPATH", str(shims))
    code = "import sklearn\ndef decide(obs):\n    return bool(sklearn.FOUND)\n"
    with opened(folder, code, hidden=[secret.parent]) as source:
        assert merges(source) == 0
        assert shims / "sklearn.py" in source.files


@needs("landlock")
def test_no_frame_tells_where_results_go(folder: Path, tmp_path: Path) -> None:
    hidden = tmp_path / "results-of-this-run"
    hidden.mkdir()
    code = """
        import sys
        def told(value, depth):
            if isinstance(value, (str, bytes)):
                return "results-of-this" + "-run" in str(value)
            if isinstance(value, dict):
                return depth and any(told(v, depth - 1) for pair in list(value.items()) for v in pair)
            if isinstance(value, (list, tuple, set, frozenset)):
                return depth and any(told(v, depth - 1) for v in list(value))
            return depth and hasattr(value, "__dict__") and told(vars(value), depth - 1)
        def decide(obs):
            frame, found = sys._getframe(1), False
            while frame is not None:
                found = found or any(told(v, 5) for v in (frame.f_locals, frame.f_globals.get("request")))
                frame = frame.f_back
            return found
    """
    with opened(folder, code, hidden=[hidden]) as source:
        assert merges(source) == 0


@pytest.mark.parametrize("lacking", [w for w in LACKING if w != "nothing"])
def test_the_shell_does_not_show(
    folder: Path,
    monkeypatch: pytest.MonkeyPatch,
    lacking: str,
) -> None:
    """Neither where the interpreter finds libraries, nor how it is scheduled, whatever part is missing."""
    monkeypatch.setattr("adapters.schedulers.process.WITHOUT", LACKING[lacking])
    monkeypatch.setenv("LD_LIBRARY_PATH", "/nonexistent/t-9")
    code = """
        import os
        def decide(obs):
            try:
                policy = os.sched_getscheduler(0)
            except OSError:
                policy = 0
            return policy != 0 or "LD_LIBRARY_PATH" in os.environ
    """
    os.sched_setscheduler(0, os.SCHED_BATCH, os.sched_param(0))
    try:
        with opened(folder, code) as source:
            assert merges(source) == 0
    finally:
        os.sched_setscheduler(0, os.SCHED_OTHER, os.sched_param(0))


def test_modes_of_data_are_in_the_digest_or_do_not_show(folder: Path) -> None:
    data = folder / "data.txt"
    data.write_text("1")
    code = """
        import os
        MODE = os.stat(os.path.join(os.path.dirname(os.path.abspath(__file__)), "data.txt")).st_mode & 0o777
        def decide(obs):
            return MODE != 0o444
    """
    digests = []
    for mode in (0o644, 0o600, 0o664):
        data.chmod(mode)
        with opened(folder, code) as source:
            shows = merges(source)
            namespaces = bool(source.confinement and source.confinement.namespaces)
            assert shows == 0 or not namespaces
            digests.append(source.digest())
    data.chmod(data.stat().st_mode | stat.S_IXUSR)
    with opened(folder, code) as source:
        assert len(set(digests)) == 1 and source.digest() != digests[0]


@pytest.mark.parametrize("lacking", LACKING)
def test_the_flags_of_an_input_do_not_last(
    folder: Path,
    monkeypatch: pytest.MonkeyPatch,
    lacking: str,
) -> None:
    monkeypatch.setattr("adapters.schedulers.process.WITHOUT", LACKING[lacking])
    code = """
        import fcntl, os
        before = fcntl.fcntl(0, fcntl.F_GETFL)
        fcntl.fcntl(0, fcntl.F_SETFL, before | os.O_NONBLOCK | os.O_APPEND)
        try:
            signal = fcntl.fcntl(0, 11)
            fcntl.fcntl(0, 10, 12)
        except OSError:
            signal = 0
        def decide(obs):
            return signal != 0 or bool(before & (os.O_NONBLOCK | os.O_APPEND))
    """
    with opened(folder, code) as source:
        assert [merges(source), merges(source), merges(source)] == [0, 0, 0]


@needs("seccomp")
def test_nothing_is_dropped_from_the_cache_of_files(folder: Path) -> None:
    code = """
        import mmap, os
        refused = 0
        with open(__file__, "rb") as mine:
            for ask in (lambda: os.posix_fadvise(mine.fileno(), 0, 0, os.POSIX_FADV_DONTNEED),
                        lambda: mmap.mmap(mine.fileno(), 0, prot=mmap.PROT_READ).madvise(21)):
                try:
                    ask()
                except OSError:
                    refused += 1
        def decide(obs):
            return refused != 2
    """
    with opened(folder, code) as source:
        assert merges(source) == 0


def command(folder: Path, ready: str) -> ProcessSource:
    answers = """for line in sys.stdin:\n    print('{"merge": false}', flush=True)\n"""
    (folder / "run.py").write_text(f"import sys\nprint({ready!r}, flush=True)\n{answers}")
    source = open_scheduler(f"cmd:{sys.executable} {folder / 'run.py'}")
    assert isinstance(source, ProcessSource)
    return source


def test_a_run_is_not_granted_what_it_says_it_has_read(folder: Path, tmp_path: Path) -> None:
    secret = tmp_path / "elsewhere.txt"
    secret.write_text("of the user")
    said = f'{{"type":"ready","version":1,"opened":["{secret}","/etc/shadow"],"sources":["{secret}"]}}'
    with command(folder, said) as source:
        decided(source)
        assert secret not in source.files and Path("/etc/shadow") not in source.files
        source.restart()
        decided(source)
        assert secret not in source.files and not source.undigested


@pytest.mark.parametrize("value", ["5", "true", '{"a": 1}', '"text"'])
def test_no_list_of_files_is_one_line(folder: Path, value: str) -> None:
    said = f'{{"type":"ready","version":1,"opened":{value}}}'
    with pytest.raises(SchedulerError, match="expected lists of paths"):
        command(folder, said)


def test_no_kernel_of_the_shells_choice(folder: Path) -> None:
    """`setarch --uname-2.6` tells a process of another kernel, and `-R` lays out its memory otherwise."""
    libc = ctypes.CDLL(None)
    before = libc.personality(0xFFFFFFFF)
    libc.personality(before | 0x0020000)
    try:
        assert os.uname().release.startswith("2.6")
        code = 'import os\ndef decide(obs):\n    return os.uname().release.startswith("2.6")\n'
        with opened(folder, code) as source:
            assert merges(source) == 0
    finally:
        libc.personality(before)
