"""Notes that a run might leave for a later one: whatever it remembers, it decides as one that forgot."""

from __future__ import annotations

import sys
import textwrap
from pathlib import Path

import pytest
from judging import Judge, Judged, same_placements

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="needs Landlock and seccomp")


#: Ways to leave a note: `recall() -> bool` and `remember()`.
CHANNELS = {
    "a global": "NOTES = []\nrecall = lambda: bool(NOTES)\nremember = lambda: NOTES.append(1)",
    "a file of its own folder": "recall = lambda: os.path.exists('note')\nremember = lambda: open('note', 'w')",
    "a file past Python": """
recall = lambda: libc.open(b'note', 0) >= 0
remember = lambda: libc.open(b'note', 65, 0o600)""",
    "the temporary folder": """
import tempfile
NOTE = os.path.join(tempfile.gettempdir(), 'note')
recall = lambda: os.path.exists(NOTE)
remember = lambda: open(NOTE, 'w').close()""",
    "beside the temporary folder": """
import tempfile
NOTE = os.path.join(os.path.dirname(tempfile.gettempdir()), 'note').encode()
recall = lambda: libc.access(NOTE, 0) == 0
remember = lambda: libc.open(NOTE, 65, 0o600)""",
    "/dev/shm": """
recall = lambda: libc.shm_open(b'/zoo', 0, 0) >= 0
remember = lambda: libc.shm_open(b'/zoo', 66, 0o600)""",
    "System V memory": "recall = lambda: libc.shmget(5150, 8, 0) >= 0\nremember = lambda: libc.shmget(5150, 8, 0o1666)",
    "System V messages": "recall = lambda: libc.msgget(5150, 0) >= 0\nremember = lambda: libc.msgget(5150, 0o1666)",
    "a keyring": """
recall = lambda: libc.syscall(250, 10, -4, b'user', b'zoo', 0) >= 0
remember = lambda: libc.syscall(248, b'user', b'zoo', b'1', 1, -4)""",
    "an attribute of its file": """
recall = lambda: 'user.zoo' in os.listxattr(__file__)
remember = lambda: os.setxattr(__file__, 'user.zoo', b'1')""",
    "the mode of its file": """
recall = lambda: os.stat(__file__).st_mode & 1
remember = lambda: os.chmod(__file__, 0o755)""",
    "the times of its file": """
recall = lambda: os.stat(__file__).st_mtime < 9
remember = lambda: os.utime(__file__, (1, 1))""",
    "flags of its file": """
import fcntl
recall = lambda: fcntl.ioctl(open(__file__), 0x80086601, bytes(8))[0] & 64
remember = lambda: fcntl.ioctl(open(__file__), 0x40086602, (64).to_bytes(8, 'little'))""",
    "a write hint of its file": """
import fcntl
recall = lambda: fcntl.fcntl(open(__file__), 1035, bytes(8))[0] == 5
remember = lambda: fcntl.fcntl(open(__file__), 1036, (5).to_bytes(8, 'little'))""",
    "its host's priority": """
recall = lambda: os.getpriority(0, os.getppid()) == 7
remember = lambda: os.setpriority(0, os.getppid(), 7)""",
    "its host's limits": """
import resource
recall = lambda: resource.prlimit(os.getppid(), 7)[0] == 77
remember = lambda: resource.prlimit(os.getppid(), 7, (77, 77))""",
    "its host's processors": """
recall = lambda: False
remember = lambda: os.sched_setaffinity(os.getppid(), {0}) or known.append(1)""",
    "the size of the log": "recall = lambda: os.fstat(1).st_size > 0\nremember = lambda: os.write(1, b'note')",
    "flags of its pipes": """
import fcntl
recall = lambda: any(fcntl.fcntl(fd, 1032) == 4096 for fd in (*range(3, 40),) if is_pipe(fd))
remember = lambda: [fcntl.fcntl(fd, 1031, 4096) for fd in range(3, 40) if is_pipe(fd)]
def is_pipe(fd):
    try: return os.fstat(fd).st_mode >> 12 == 1
    except OSError: return False""",
    "a process that stays": """
ADDRESS = b'\\x01\\x00\\0zoo-stays'
def recall():
    probe = libc.socket(1, 1, 0)
    return probe >= 0 and libc.connect(probe, ADDRESS, len(ADDRESS)) == 0
def remember():
    if libc.fork() == 0:
        libc.setsid()
        listening = libc.socket(1, 1, 0)
        libc.bind(listening, ADDRESS, len(ADDRESS))
        libc.listen(listening, 9)
        while True: libc.sleep(1000)""",
    "a socket of its host": """
def is_socket(fd):
    try: return os.fstat(fd).st_mode >> 12 == 12
    except OSError: return False
recall = lambda: any(map(is_socket, range(256)))
remember = lambda: None""",
}  # fmt: skip
QUIET = """
import ctypes, os
libc = ctypes.CDLL(None, use_errno=True)
known = []
{channel}
class Cheat:
    def __init__(self):
        try:
            self.known = bool(recall())
        except Exception:
            self.known = False
    def decide(self, obs):
        if not known:
            known.append(1)
            try:
                remember()
            except Exception:
                pass
        return self.known or obs.in_flight < 4
"""


def remembering(name: str) -> str:
    return textwrap.indent(CHANNELS[name].strip(), "    ")


#: All channels at once: each in a function of its own, so that its names stay its own.
ALL = (
    "import ctypes, os\nlibc = ctypes.CDLL(None, use_errno=True)\nknown = []\n"
    + "".join(
        f"def channel_{k}():\n{remembering(name)}\n    return recall, remember\n" for k, name in enumerate(CHANNELS)
    )
    + f"""
def quietly(what):
    try:
        return what()
    except Exception:
        return None
WAYS = [quietly(globals()[f"channel_{{k}}"]) for k in range({len(CHANNELS)})]
class Cheat:
    def __init__(self):
        assert None not in WAYS
        self.known = any([bool(quietly(recall)) for recall, _ in WAYS])
    def decide(self, obs):
        if not known:
            known.append(1)
            for _, remember in WAYS:
                quietly(remember)
        return self.known or obs.in_flight < 4
"""
)


@pytest.mark.confined
def test_nothing_is_remembered_from_run_to_run(judge: Judge, innocent: Judged) -> None:
    """In two campaigns, one after the other: the second could otherwise know what the first one saw."""
    for _ in range(2):
        judged = judge(ALL)
        if judged.unsound:
            return
        assert not judged.refused, judged.reason
        assert same_placements(judged, innocent)


@pytest.mark.slow
@pytest.mark.parametrize("name", CHANNELS)
def test_nothing_is_remembered_by_each_way_alone(judge: Judge, innocent: Judged, name: str) -> None:
    for _ in range(2):
        judged = judge(QUIET.format(channel=CHANNELS[name]))
        if judged.unsound:
            return
        assert not judged.refused, judged.reason
        assert same_placements(judged, innocent)


def test_what_the_channels_could_do_without_the_sandbox(tmp_path: Path) -> None:
    """The notes above are real ones: run plainly, most of them are found again."""
    import subprocess

    working = []
    for name in (
        "a file of its own folder",
        "an attribute of its file",
        "the mode of its file",
        "the times of its file",
    ):
        path = tmp_path / "cheat.py"
        path.write_text(QUIET.format(channel=CHANNELS[name]))
        script = "import cheat, types; c = cheat.Cheat(); c.decide(types.SimpleNamespace(in_flight=9)); print(c.known)"
        said = [
            subprocess.run([sys.executable, "-c", script], cwd=tmp_path, capture_output=True, text=True).stdout.strip()
            for _ in range(2)
        ]
        working.append(said == ["False", "True"])
        (tmp_path / "note").unlink(missing_ok=True)
        path.unlink()
    assert sum(working) >= 3
