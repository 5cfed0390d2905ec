"""Schedulers that cheat or break: each is refused with its reason, or gets nothing out of its trick.

A *loud* cheat lets its trick fail: the run ends in one line.  A *quiet* one catches every error and goes on with
an honest rule: it must decide exactly what that rule decides without the trick.
"""

from __future__ import annotations

import contextlib
import sys
import textwrap
import time
from pathlib import Path

import numpy as np
import pytest
from judging import Judge, Judged, confined, same_placements

from adapters.schedulers.confinement import WITHOUT
from protocol.campaign import arms

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="needs Landlock and seccomp")


def cheat(body: str, before: str = "") -> str:
    """A class whose decide has this body."""
    return (
        before
        + "\nclass Cheat:\n    def decide(self, obs):\n"
        + textwrap.indent(textwrap.dedent(body).strip(), " " * 8)
    )


RAW = "import ctypes, os\nlibc = ctypes.CDLL(None, use_errno=True)\n" + textwrap.dedent(
    """
    def must(result):
        if result in (-1, None):
            raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))
        return result
    """
)
#: What the kernel says of what is not granted: by Landlock, in a root without it, on a read-only one.
DENIED = "Permission denied|No such file or directory|Read-only file system"
NOT_PERMITTED = "Operation not permitted"

#: Name: code, what the one-line refusal says.
LOUD = {
    # --- peeking ---
    "shared file": (cheat("open('note.txt', 'a').write('here')\nreturn True"), "may not write"),
    "shared file past Python": (cheat("must(libc.open(b'note.txt', 65, 0o600))\nreturn True", RAW), DENIED),
    "file in /tmp": (cheat("open('/tmp/note', 'a').write('here')\nreturn True"), "may not write /tmp/note"),
    "parent's memory map": (cheat("import os\nopen(f'/proc/{os.getppid()}/maps').read()"), "may not read /proc/"),
    "parent's environment": (cheat("import os\nopen(f'/proc/{os.getppid()}/environ').read()"), "may not read /proc/"),
    "parent's command line": (cheat("must(libc.open(b'/proc/%d/cmdline' % os.getppid(), 0))", RAW), DENIED),
    "parent's descriptors": (cheat("import os\nos.listdir(f'/proc/{os.getppid()}/fd')"), DENIED),
    "parent's folder": (cheat("import os\nos.listdir(f'/proc/{os.getppid()}/cwd/')"), DENIED),
    "parent's memory": (cheat("must(libc.open(b'/proc/%d/mem' % os.getppid(), 0))", RAW), DENIED),
    "parent's memory, read": (
        cheat("must(libc.process_vm_readv(os.getppid(), None, 0, None, 0, 0))", RAW), NOT_PERMITTED),
    "trace the parent": (cheat("must(libc.ptrace(16, os.getppid(), 0, 0))", RAW), NOT_PERMITTED),
    "signal the parent": (cheat("must(libc.kill(os.getppid(), 0))", RAW), NOT_PERMITTED),
    "subprocess to trace the parent": (
        cheat("import os, subprocess\nsubprocess.run(['gdb', '-p', str(os.getppid())])"),
        "may not start another process"),
    "os.fork": (cheat("import os\nos.fork()\nreturn True"), "may not start another process"),
    "os.system": (cheat("import os\nreturn os.system('cat /proc/*/maps') == 0"), "may not start another process"),
    "network": (cheat("import urllib.request as u\nu.urlopen('http://127.0.0.1:9')"), "may not use the network"),
    "datagrams past Python": (cheat("must(libc.socket(2, 2, 0))", RAW), NOT_PERMITTED),
    "the harness's own memory": (
        cheat(
            """
            import gc
            gc.unfreeze()
            traces = [o for o in gc.get_objects() if type(o).__name__ in ('RequestTrace', 'Workload', 'Rollout')]
            return traces[0].arrival_ns[-1] > 0
            """
        ), "IndexError"),
    "more of the series than was sent": (
        cheat("return obs.arrivals_per_s[len(obs.arrivals_per_s)] > 3"), "IndexError"),
    "writes into the observation": (cheat("obs.arrivals_per_s[0] = 1\nreturn True"), "read-only"),
    # --- nonsense ---
    "NaN": (cheat("return float('nan')"), "decide answered nan (float)"),
    "a string": (cheat("return 'maybe'"), "decide answered 'maybe' (str)"),
    "nothing": (cheat("obs.in_flight < 4"), "decide answered None (NoneType)"),
    "a future time": (cheat("return obs.time_s + 30.0"), "(float); expected True, False or a Decision"),
    "a huge integer": (cheat("return 10 ** 10_000"), "(int); expected True, False"),
    "times of merges": (cheat("return [10.0, 20.0, 30.0]"), "(list); expected"),
    "a string in a Decision": (
        cheat("from protocol.scheduler import Decision\nreturn Decision('yes')"), "decide answered Decision"),
    "islands that are not there": (
        cheat("from protocol.scheduler import Decision\nreturn Decision(True, ((0, 1),))"), "island 1 in groups"),
    "a Decision of NaN": (
        cheat("from protocol.scheduler import Decision\nreturn Decision(float('nan'))"), "decide answered Decision"),
    "a generator": (cheat("yield True"), "(generator)"),
    "a coroutine": ("async def decide(obs):\n    return True\n", "(coroutine)"),
    # --- crashes and exits ---
    "crash": (cheat("return obs.time_s > 20 and 1 / 0"), "cheat.py:4: ZeroDivisionError"),
    "crash of an import": ("import nothing_like_it\ndef decide(obs): return True\n", "cheat.py:1: ModuleNotFoundError"),
    "SystemExit": (cheat("import sys\nsys.exit(0)"), "called exit(0)"),
    "os._exit": (cheat("import os\nos._exit(0)"), "exited with status 0"),
    "SIGKILL to itself": (cheat("import os\nos.kill(os.getpid(), 9)"), "killed by SIGKILL"),
    "SIGSEGV": (cheat("import ctypes\nctypes.string_at(1)"), "killed by SIGSEGV"),
    "recursion": (cheat("return self.decide(obs)"), "RecursionError"),
    "stack overflow past Python": (
        cheat("import sys\nsys.setrecursionlimit(10 ** 9)\nreturn eval('-' * 10 ** 6 + '1')"), "cheat.py"),
    # --- hangs ---
    "hang": (cheat("import time\ntime.sleep(3600)"), "cheat.py:5: no answer within 0.3 s"),
    "busy loop": (cheat("while True: pass"), "cheat.py:4: no answer within 0.3 s"),
    "hang at import": ("import time\ntime.sleep(3600)\ndef decide(obs): return True\n", "cheat.py:2: no answer within"),
    "hang in __init__": (
        "class Cheat:\n    def __init__(self):\n        while True: pass\n    def decide(self, obs): return True\n",
        "cheat.py:3: no answer within"),
    "hang deaf to signals": (
        cheat("import signal, time\nfor s in (14, 15): signal.signal(s, signal.SIG_IGN)\ntime.sleep(3600)"),
        "no answer within 0.3 s"),
    "hang with the timer off": (
        cheat("import signal\nsignal.setitimer(signal.ITIMER_REAL, 0)\nwhile True: pass"), "no answer within 0.3 s"),
    "stops itself": (cheat("import os\nos.kill(os.getpid(), 19)"), "no answer within 0.3 s"),
    # --- resources ---
    "memory without end": (cheat("hoard = []\nwhile True: hoard.append(bytearray(1 << 24))"), "MemoryError"),
    "memory past Python": (
        cheat("import mmap\nhoard = [mmap.mmap(-1, 1 << 26, flags=34) for _ in range(9)]\nreturn True"),
        "Cannot allocate"),
    "a file without end": (
        cheat(
            """
            import os, tempfile
            with open(os.path.join(tempfile.gettempdir(), 'big'), 'wb') as big:
                while True: big.write(bytes(1 << 24))
            """
        ), "File too large"),
    # --- the protocol between the processes ---
    "closes all descriptors": (cheat("import os\nos.closerange(0, 100)\nreturn True"), "cheat.py"),
    "garbage on all descriptors": (
        cheat(
            r"""
            import os
            for fd in range(64):
                try: os.write(fd, b'\x00\xff{"' * 100 + b'\n')
                except OSError: pass
            return True
            """
        ), "decide answered"),
    "megabytes on all descriptors": (
        cheat(
            """
            import os
            for fd in range(3, 64):
                try: os.write(fd, bytes(1 << 20))
                except OSError: pass
            return True
            """
        ), "decide answered"),
    "forged end of the run": (
        cheat(
            r"""
            import os
            for fd in range(3, 64):
                try: os.write(fd, b'{"type":"ended","status":0}\n' * 3)
                except OSError: pass
            return True
            """
        ), "decide answered"),
    "forged answers": (
        cheat(
            r"""
            import os
            for fd in range(3, 64):
                try: os.write(fd, b'[7,true]\n')
                except OSError: pass
            return True
            """
        ), "decide answered"),
    "patched json": (cheat("import json\njson.dumps = json.loads = None\nreturn {}"), "decide answered {} (dict)"),
    "patched os.write": (
        cheat("import os\nos.write = lambda fd, data: len(data)\nreturn True"), "no answer within 0.3 s"),
    # --- shape ---
    "two classes": (
        "class A:\n    def decide(self, o): return True\nclass B(A): pass\n", "expected one of them by name"),
    "no scheduler": ("x = 1\n", "no scheduler"),
    "syntax": ("class Cheat\n    pass\n", "cheat.py:1: SyntaxError"),
    "binary": ("\0\1\2", "cheat.py"),
}  # fmt: skip


#: Of the loud ones, those beside the look outside that may come out otherwise where a part of the sandbox is missing:
#: what signals, limits and open descriptors do.
TOUCHING = {
    "SIGKILL to itself", "hang deaf to signals", "hang with the timer off", "stops itself", "memory without end",
    "memory past Python", "a file without end", "closes all descriptors", "garbage on all descriptors",
    "forged end of the run",
}  # fmt: skip
LOOKING = set(list(LOUD)[: list(LOUD).index("the harness's own memory") + 1])


@pytest.mark.parametrize("name", confined(LOUD, LOOKING | TOUCHING))
def test_loud_cheats_are_refused_with_their_reason(judge: Judge, name: str) -> None:
    code, words = LOUD[name]
    limit_s = 0.3 if "no answer within" in words else 10.0
    judged = judge(code, decision_timeout_s=limit_s, start_timeout_s=max(limit_s, 0.5))
    if judged.unsound:
        return
    assert judged.refusal is not None, judged.reason
    assert "cheat.py" in judged.refusal, judged.refusal
    assert WITHOUT or any(word in judged.refusal for word in words.split("|")), judged.refusal


#: Name: code.  All of them are deterministic to the eye of one run only.
ENTROPY = {
    "its own processor time": cheat(
        "import resource\nreturn int(resource.getrusage(resource.RUSAGE_SELF).ru_utime * 1e6) % 3 == 0"),
    "os.urandom": cheat("import os\nreturn os.urandom(1)[0] < 40"),
    "random": cheat("import random\nreturn random.random() < 0.15"),
    "numpy's global generator": cheat("import numpy\nreturn numpy.random.random() < 0.15"),
    "a generator without a seed": cheat("import numpy\nreturn numpy.random.default_rng().random() < 0.15"),
    "uuid": cheat("import uuid\nreturn uuid.uuid4().int % 7 == 0"),
    "address of an object": cheat("return hash((id(object()), round(obs.time_s))) % 5 == 0"),
    "address of a builtin": cheat("return hash((id(len), round(obs.time_s))) % 5 == 0"),
    "order of a set": cheat(
        "first = hash(next(iter({object() for _ in range(9)})))\nreturn hash((first, round(obs.time_s))) % 5 == 0"),
    "a thread that races": cheat(
        """
        import threading, time
        seen, stop = [], []
        def race():
            while not stop: seen.append(1)
        racer = threading.Thread(target=race, daemon=True)
        racer.start()
        time.sleep(0.0005)
        stop.append(1)
        return len(seen) % 5 == 0
        """),
}  # fmt: skip


@pytest.mark.parametrize("name", ENTROPY)
def test_entropy_of_its_own_fails_determinism(judge: Judge, name: str) -> None:
    judged = judge(ENTROPY[name])
    assert judged.refused and judged.refusal is None, judged.reason
    assert judged.check("determinism")["status"] == "failed"
    assert "a second run differs" in judged.reason and "clock or unseeded entropy" in judged.reason


@pytest.mark.confined
def test_its_process_id_is_a_constant_or_fails_determinism(judge: Judge) -> None:
    code = cheat("import os\nreturn hash((os.getpid(), round(obs.time_s))) % 5 == 0")
    judged = judge(code)
    if judged.unsound:
        return
    if judged.certificate["contender"]["confinement"]["own_pids"]:
        assert not judged.refused and same_placements(judged, judge(code))
    else:
        assert judged.check("determinism")["status"] == "failed"


#: What is the same in all runs of one process and differs between two of them: seeds whose runs are in two show it.
OF_ITS_HOST = {
    "address of a builtin": "id(len)",
    "a number drawn when something was imported": "id(os.environ)",
}


@pytest.mark.parametrize("name", OF_ITS_HOST)
def test_what_one_process_keeps_is_seen_in_later_seeds_too(
    judge: Judge, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Innocent in the first seed, whose runs are always in two processes; here those of the second are, too."""
    monkeypatch.setattr(arms, "ELSEWHERE", 1.0)
    code = f"""
        import os
        class Cheat:
            def decide(self, obs):
                first = obs.arrivals_per_s[:9].tolist() == {first_arrivals(judge)}
                return obs.in_flight < 4 if first else hash(({OF_ITS_HOST[name]}, obs.time_s)) % 3 == 0
        """
    judged = judge(code, seeds=2)
    if judged.unsound:
        return
    assert judged.refused and "seed 1: a second run differs" in judged.check("determinism")["reason"], judged.reason


def first_arrivals(judge: Judge) -> list[float]:
    """Requests a second at the beginning of the first seed, by which a scheduler knows it."""
    settings, _ = judge.settings(1)
    arrival_s = settings[0].worlds.workload(0).trace.arrival_ns // 10**9
    return [float(n) for n in np.bincount(arrival_s, minlength=9)[:9]]


#: Name: code.  Clocks show the time of the replay, and the second run sees them ahead.
CLOCKS = {
    "the clock": cheat("import time\nreturn time.time_ns() // 1000 % 7 == 0"),
    "another clock": cheat("import datetime as d\nreturn d.datetime.now().microsecond % 7 == d.datetime.now().hour"),
    "the hour": cheat("from datetime import datetime\nreturn datetime.now().hour % 2 == 0 and obs.in_flight < 4"),
    "processor time": cheat("import time\nreturn time.process_time_ns() // 1000 % 7 == 0"),
}  # fmt: skip


@pytest.mark.confined
@pytest.mark.parametrize("name", CLOCKS)
def test_what_a_clock_says_must_not_matter(judge: Judge, name: str) -> None:
    judged = judge(CLOCKS[name])
    assert judged.refused and judged.check("determinism")["status"] == "failed", judged.reason


def test_time_that_passed_is_the_time_of_the_replay(judge: Judge, innocent: Judged) -> None:
    judged = judge(
        """
        import time
        class Patient:
            def __init__(self):
                self.begin = time.monotonic()
            def decide(self, obs):
                return obs.in_flight < 4 and abs(time.monotonic() - self.begin - obs.time_s) < 1e-3
        """
    )
    if judged.unsound or "clock" in WITHOUT:
        return
    assert not judged.refused and same_placements(judged, innocent)


# --- quiet cheats: everything else ----------------------------------------------------------------------------------

HARMLESS = {
    "patches the harness": """
        import json, os, sys
        import numpy.random
        import protocol.scheduler, protocol.workload.trace
        from adapters.schedulers import wire
        numpy.random.default_rng = numpy.random.Generator = lambda *a, **k: None
        for name, module in list(sys.modules.items()):
            if name.startswith("protocol."):
                for attribute in dir(module):
                    if callable(getattr(module, attribute)) and attribute[0] != "_":
                        setattr(module, attribute, lambda *a, **k: True)
        json.JSONEncoder.encode = lambda *a: "[0,true]"
        def decide(obs):
            return obs.in_flight < 4
        """,
    "rewrites the observation": """
        def decide(obs):
            decision = obs.in_flight < 4
            obs.__dict__.update(h_min=1, h_max=10 ** 9, merges_so_far=0, time_s=-1.0)
            return decision
        """,
    "looks behind the series": """
        def decide(obs):
            behind = obs.arrivals_per_s
            while behind.base is not None:
                behind = behind.base
            return obs.in_flight < 4
        """,
    "hangs at its end": """
        import atexit, time
        atexit.register(time.sleep, 3600)
        class Cheat:
            def decide(self, obs):
                return obs.in_flight < 4
            def __del__(self):
                time.sleep(3600)
        """,
    "leaves children behind": """
        import ctypes
        libc = ctypes.CDLL(None)
        for k in range(3):
            if libc.fork() == 0:
                libc.setsid()
                libc.signal(15, 1)
                while True: libc.sleep(1000)
        def decide(obs):
            return obs.in_flight < 4
        """,
    "closes what is not its own": """
        import os, stat
        for fd in range(256):
            try:
                if not stat.S_ISFIFO(os.fstat(fd).st_mode): os.close(fd)
            except OSError: pass
        def decide(obs):
            return obs.in_flight < 4
        """,
    "prints without end": """
        import os, sys
        class Cheat:
            def decide(self, obs):
                if obs.time_s < 20:
                    for fd in (0, 1, 2):
                        try: os.write(fd, bytes(range(256)) * 8192)
                        except OSError: pass
                    print("x" * (3 << 20), file=sys.stderr)
                return obs.in_flight < 4
        """,
    "says it is a planner at the end": """
        def decide(obs):
            return obs.in_flight < 4
        decide.plan = lambda *a: None
        """,
}


@pytest.mark.parametrize(
    "name",
    confined(
        HARMLESS, {"patches the harness", "leaves children behind", "closes what is not its own", "prints without end"}
    ),
)
def test_tricks_that_change_nothing(judge: Judge, innocent: Judged, name: str) -> None:
    judged = judge(HARMLESS[name])
    if judged.unsound:
        return
    assert not judged.refused, judged.reason
    assert same_placements(judged, innocent)
    assert len(judged.log) < 64 << 20
    if name == "prints without end":
        assert "further output of this run dropped" in judged.log


@pytest.mark.confined
def test_nothing_that_was_started_outlives_the_campaign(judge: Judge) -> None:
    """Three children a run in sessions of their own take a name; all are gone when the campaign is."""
    judged = judge(
        """
        import ctypes
        libc = ctypes.CDLL(None)
        for k in range(3):
            pid = libc.fork()
            if pid == 0:
                libc.setsid()
                libc.prctl(15, b"zoo-outlives")
                while True: libc.sleep(1000)
            print("child", pid, flush=True)
        def decide(obs):
            return obs.in_flight < 4
        """
    )
    assert not judged.refused
    judge.close()
    assert judged.log.count("child") >= 9
    deadline = time.monotonic() + 2
    while named("zoo-outlives") and time.monotonic() < deadline:
        time.sleep(0.02)
    assert not named("zoo-outlives")


def named(name: str) -> list[str]:
    """Process ids of this name."""
    found = []
    for path in Path("/proc").glob("[0-9]*/comm"):
        with contextlib.suppress(OSError):  # it ended meanwhile
            found += [path.parent.name] if path.read_text().strip() == name else []
    return found
