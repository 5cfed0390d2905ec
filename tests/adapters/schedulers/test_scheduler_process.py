"""Schedulers that crash, hang, cheat or merely print, each in a process of its own."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import textwrap
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import pytest

from adapters.conformance import synthetic_observations
from adapters.schedulers import open_scheduler
from adapters.schedulers.process import ProcessSource
from protocol.errors import BadInput, SchedulerError
from protocol.scheduler import Decision, Observation

SEEN = synthetic_observations(3, 60)
FLEET = synthetic_observations(3, 20, n_islands=4)
LATE_S = next(o.time_s for o in SEEN if o.time_s > 20)
LINUX = sys.platform == "linux"
Opener = Callable[..., ProcessSource]


@pytest.fixture
def opened(tmp_path: Path) -> Iterator[Opener]:
    """Write a scheduler and open it; everything is closed, and nothing may be left running."""
    sources: list[ProcessSource] = []

    def write(code: str, name: str = "my_sched.py", spec: str | None = None, **options: object) -> ProcessSource:
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(textwrap.dedent(code))
        options.setdefault("decision_timeout_s", 2.0)
        source = open_scheduler(spec or str(path), **options)  # type: ignore[arg-type]
        assert isinstance(source, ProcessSource)
        sources.append(source)
        return source

    yield write
    hosts = [s.host.process.pid for s in sources if s.host is not None]
    for source in sources:
        source.close()
    assert not [pid for pid in hosts if alive(pid)]


def alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return True


def scheduler(body: str) -> str:
    """A class whose decide has this body."""
    return "class Mine:\n    def decide(self, obs):\n" + textwrap.indent(textwrap.dedent(body).strip(), " " * 8) + "\n"


def answers(source: ProcessSource, seen: list[Observation] = SEEN, seed: int = 1) -> list[Decision]:
    run = source.start((seed,))
    try:
        return [run.decide(o) for o in seen]
    finally:
        run.close()


def failure(source: ProcessSource, seen: list[Observation] = SEEN) -> str:
    with pytest.raises(SchedulerError) as caught:
        answers(source, seen)
    message = str(caught.value)
    assert "\n" not in message and "Traceback" not in message
    return message


# --- honest schedulers --------------------------------------------------------------------------------------


def test_the_child_sees_exactly_the_observation(opened: Opener, tmp_path: Path) -> None:
    """Every field, every island and both series arrive bit for bit, message after message."""
    source = opened(
        """
        import dataclasses
        class Mine:
            def decide(self, obs):
                from protocol.scheduler import Decision
                plain = dataclasses.asdict(obs)
                for name in ("arrivals_per_s", "prompt_tokens_per_s"):
                    assert not plain[name].size or not getattr(obs, name).flags.writeable
                    plain[name] = plain[name].tolist()
                return Decision(True, reason=repr(sorted(plain.items()))[-900:])
        """
    )
    import dataclasses

    for seen in (SEEN, FLEET):
        run = source.start((1,))
        for o in seen:
            plain = dataclasses.asdict(o)
            for name in ("arrivals_per_s", "prompt_tokens_per_s"):
                plain[name] = plain[name].tolist()
            assert run.decide(o).reason == repr(sorted(plain.items()))[-900:]
        run.close()


def test_series_add_up_across_messages(opened: Opener) -> None:
    source = opened(
        scheduler("return len(obs.arrivals_per_s) == int(obs.time_s) and obs.arrivals_per_s.sum() % 2 == 0")
    )
    assert [d.merge for d in answers(source)] == [o.arrivals_per_s.sum() % 2 == 0 for o in SEEN]


def test_bool_numpy_bool_and_decision_are_answers(opened: Opener) -> None:
    source = opened(
        """
        import numpy as np
        from protocol.scheduler import Decision
        class Mine:
            n = -1
            def decide(self, obs):
                self.n += 1
                return [True, False, np.True_, Decision(False), Decision(True, ((0, 3), (1, 2)), "pairs")][self.n]
        """
    )
    assert answers(source, FLEET[:5]) == [
        Decision(True),
        Decision(False),
        Decision(True),
        Decision(False),
        Decision(True, ((0, 3), (1, 2)), "pairs"),
    ]


@pytest.mark.parametrize(
    "code",
    [
        "def decide(obs):\n    return obs.in_flight < 3\n",
        "def decide(obs, rng):\n    return obs.in_flight < 3\n",
        "class _Base:\n    def decide(self, o):\n        return o.in_flight < 3\nclass Mine(_Base):\n    pass\n",
        "class Mine:\n    def __init__(self, rng, limit=3):\n        self.k = limit\n"
        "    def decide(self, o):\n        return o.in_flight < self.k\n",
    ],
)
def test_forms_of_a_scheduler(opened: Opener, code: str) -> None:
    assert [d.merge for d in answers(opened(code))] == [o.in_flight < 3 for o in SEEN]


def test_the_generator_comes_from_the_seed_words(opened: Opener) -> None:
    source = opened(
        """
        class Mine:
            def __init__(self, rng):
                self.rng = rng
            def decide(self, obs):
                return self.rng.random() < 0.5
        """
    )
    expected = np.random.Generator(np.random.PCG64(np.random.SeedSequence((7,)))).random(len(SEEN)) < 0.5
    assert [d.merge for d in answers(source, seed=7)] == expected.tolist()
    source.close()  # a new process, the same numbers
    assert [d.merge for d in answers(source, seed=7)] == expected.tolist()
    assert [d.merge for d in answers(source, seed=8)] != expected.tolist()


def test_choosing_by_name_and_between_two(opened: Opener, tmp_path: Path) -> None:
    code = "class A:\n    def decide(self, o): return True\nclass B:\n    def decide(self, o): return False\n"
    with pytest.raises(BadInput, match=r"found 2 schedulers; expected one .*my_sched\.py:A or my_sched\.py:B"):
        opened(code)
    path = tmp_path / "my_sched.py"
    assert not answers(opened(code, spec=f"{path}:B"))[0].merge
    with pytest.raises(BadInput, match="found no C; expected A or B"):
        opened(code, spec=f"{path}:C")


def test_a_module_from_the_current_folder(opened: Opener, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "pack").mkdir()
    (tmp_path / "pack" / "__init__.py").write_text("")
    (tmp_path / "pack" / "limits.py").write_text("LIMIT = 3\n")
    code = "from .limits import LIMIT\nclass S:\n    def decide(self, o):\n        return o.in_flight < LIMIT\n"
    source = opened(code, "pack/inner.py", spec="pack.inner:S")
    assert [d.merge for d in answers(source)] == [o.in_flight < 3 for o in SEEN]
    assert source.describe()["files"] == ["__init__.py", "inner.py", "limits.py"]


@pytest.mark.parametrize("name", ["baselines", "reports", "adapters", "protocol"])
def test_own_modules_named_like_ours(opened: Opener, tmp_path: Path, name: str) -> None:
    (tmp_path / f"{name}.py").write_text("LIMIT = 3\n")
    source = opened(f"from {name} import LIMIT\ndef decide(obs):\n    return obs.in_flight < LIMIT\n")
    assert [d.merge for d in answers(source)] == [o.in_flight < 3 for o in SEEN]
    assert source.describe()["files"] == [*sorted([f"{name}.py", "my_sched.py"])]


@pytest.mark.parametrize("name", ["protocol.py", "baselines.py", "json.py", "numpy.py", "my-sched.py"])
def test_a_scheduler_file_named_like_something_else(opened: Opener, name: str) -> None:
    assert answers(opened(scheduler("return True"), name))[0].merge


def test_its_own_data_file_and_working_folder(opened: Opener, tmp_path: Path) -> None:
    (tmp_path / "limit.txt").write_text("3")
    source = opened("LIMIT = int(open('limit.txt').read())\ndef decide(obs):\n    return obs.in_flight < LIMIT\n")
    assert [d.merge for d in answers(source)] == [o.in_flight < 3 for o in SEEN]
    before = source.digest()
    assert source.describe()["files"] == ["limit.txt", "my_sched.py"] and source.undigested == set()
    (tmp_path / "limit.txt").write_text("4")
    assert source.digest() != before


def test_prints_go_to_the_log_and_a_storm_is_cut(
    opened: Opener, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    log = tmp_path / "log.txt"
    source = opened(
        scheduler("import os, sys\nprint('x' * 100_000)\nprint('err', file=sys.stderr)\nreturn True"), log_path=log
    )
    assert all(d.merge for d in answers(source))
    assert not log.exists()  # while runs may follow, nothing shows them what this one printed
    source.close()
    text = log.read_text()
    assert "[further output of this run dropped]" in text and len(text) < 4 << 20
    assert capfd.readouterr() == ("", "")


# --- digests ------------------------------------------------------------------------------------------------


def test_the_digest_covers_imports_of_its_own_and_nothing_else(opened: Opener, tmp_path: Path) -> None:
    (tmp_path / "deep").mkdir()
    (tmp_path / "deep" / "__init__.py").write_text("")
    (tmp_path / "deep" / "two.py").write_text("K = 1\n")
    (tmp_path / "one.py").write_text("from deep.two import K\n")
    (tmp_path / "late.py").write_text("K = 1\n")
    (tmp_path / "unrelated.py").write_text("K = 1\n")
    code = """
        import importlib, one
        class Mine:
            def decide(self, obs):
                return importlib.import_module("late").K == one.K
        """
    digest = opened(code).digest()
    assert opened(code).digest() == digest
    (tmp_path / "unrelated.py").write_text("K = 2\n")
    assert opened(code).digest() == digest
    for path in ("one.py", "deep/two.py", "late.py"):
        (tmp_path / path).write_text((tmp_path / path).read_text() + "# changed\n")
        changed = opened(code).digest()
        assert changed != digest
        digest = changed


def test_a_late_import_by_a_computed_name_has_every_module_digested(opened: Opener, tmp_path: Path) -> None:
    (tmp_path / "late.py").write_text("K = 1\n")
    source = opened(scheduler("import importlib\nreturn importlib.import_module('la' + 'te').K == 1"))
    assert all(d.merge for d in answers(source))
    assert source.describe()["files"] == ["late.py", "my_sched.py"] and source.undigested == set()


@pytest.mark.skipif(not LINUX, reason="needs Landlock or namespaces")
def test_what_the_digest_does_not_cover_cannot_be_read(opened: Opener, tmp_path: Path) -> None:
    (tmp_path / "notes.md").write_text("prose")
    (tmp_path / "other.py").write_text("K = 1\n")
    for body in ("return open('notes.md').read() == ''", "return 'K' in open('other.py').read()"):
        assert "may not read" in failure(opened(scheduler(body)))
    far = opened("import ctypes\nlibc = ctypes.CDLL(None)\n" + scheduler("return libc.open(b'other.py', 0) >= 0"))
    assert not any(d.merge for d in answers(far))


# --- crashes, hangs, nonsense -------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("body", "expected"),
    [
        ("if obs.time_s > 20:\n    raise ZeroDivisionError('boom')\nreturn False",
         f"my_sched.py:4: ZeroDivisionError: boom, at the decision at {LATE_S:g} s"),
        ("import os\nos._exit(3)", "my_sched.py: exited with status 3, at the decision at 9.408 s"),
        ("import sys\nsys.exit('bye')", "my_sched.py:4: called exit(bye), at the decision at 9.408 s"),
        ("import os, signal\nos.kill(os.getpid(), signal.SIGKILL)",
         "my_sched.py: killed by SIGKILL, at the decision at 9.408 s"),
        ("import ctypes\nctypes.string_at(0)", "my_sched.py: killed by SIGSEGV, at the decision at 9.408 s"),
        ("raise KeyboardInterrupt", "my_sched.py:3: KeyboardInterrupt, at the decision at 9.408 s"),
        ("def deeper(): return deeper()\nreturn deeper()", "my_sched.py:3: RecursionError"),
        ("raise ValueError('two\\nlines')", "my_sched.py:3: ValueError: two lines"),
        ("class E(Exception):\n    def __str__(self): raise E()\nraise E()", "my_sched.py:5: E: (its message"),
    ],
)  # fmt: skip
def test_crashes_name_file_line_and_moment(opened: Opener, body: str, expected: str) -> None:
    source = opened(scheduler(body))
    assert failure(source).startswith(expected)
    assert failure(source).startswith(expected)  # and the next run starts afresh


@pytest.mark.parametrize(
    ("value", "said"),
    [
        ("'maybe'", "'maybe' (str)"),
        ("None", "None (NoneType)"),
        ("float('nan')", "nan (float)"),
        ("1", "1 (int)"),
        ("obs.time_s + 30", "(float)"),
        ("{'merge': True}", "(dict)"),
        ("Decision('yes')", "Decision(merge='yes'"),
        ("Decision(True, ((0, 9),))", "island 9 in groups (the fleet has islands 0 to 3)"),
        ("Decision(True, ((0, 1), (1, 2)))", "island 1 twice in groups"),
        ("Decision(True, ((0, True),))", "island 'True' in groups"),
        ("Decision(True, 5)", "Decision(groups=5)"),
        ("Decision(True, ())", "groups []"),
        ("Decision(False, ((0, 1),))", "without a merge"),
    ],
)
def test_nonsense_is_quoted_with_what_is_allowed(opened: Opener, value: str, said: str) -> None:
    source = opened("from protocol.scheduler import Decision\n" + scheduler(f"return {value}"))
    message = failure(source, FLEET)
    assert message.startswith("my_sched.py:3: decide answered ") and said in message
    assert "expected True, False or a Decision(merge, groups), at the decision at" in message


def test_an_object_whose_repr_raises(opened: Opener) -> None:
    source = opened("class X:\n    def __repr__(self): raise OSError\n" + scheduler("return X()"))
    assert "<repr raised OSError>" in failure(source)


@pytest.mark.parametrize("body", ["import time\ntime.sleep(3600)", "x = 0\nwhile x is not None: x += 1"])
def test_a_hang_names_its_line(opened: Opener, body: str) -> None:
    source = opened(scheduler(body), decision_timeout_s=0.2)
    line = 4
    assert failure(source) == f"my_sched.py:{line}: no answer within 0.2 s, at the decision at 9.408 s"


def test_a_hang_that_blocks_its_alarm_is_ended_from_outside(opened: Opener) -> None:
    body = """
        import signal, time
        signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGALRM, signal.SIGTERM})
        while True:
            time.sleep(1)
        """
    source = opened(scheduler(body), decision_timeout_s=0.2)
    assert failure(source).endswith("no answer within 0.2 s, at the decision at 9.408 s")


def test_a_closed_or_polluted_pipe(opened: Opener) -> None:
    closes = opened(scheduler("import os\nos.closerange(3, 64)\nreturn True"))
    failure(closes)
    forges = opened(
        scheduler("import os\nfor fd in range(3, 9):\n    try: os.write(fd, b'hello\\n')\n    except OSError: pass")
    )
    assert "decide answered 'hello'" in failure(forges)


def test_the_deadline_of_a_run(opened: Opener) -> None:
    source = opened(scheduler("import time\ntime.sleep(0.05)\nreturn False"))
    run = source.start((1,), run_deadline_s=0.2)
    with pytest.raises(SchedulerError, match="took more than 0.2 s for the decisions of one run"):
        for o in SEEN:
            run.decide(o)
    with pytest.raises(SchedulerError, match="after its run had ended"):
        run.decide(SEEN[0])


@pytest.mark.parametrize(
    ("code", "expected"),
    [
        ("class Mine\n    pass\n", r"my_sched\.py:1: SyntaxError: expected ':'"),
        (
            "import nothing_like_it\ndef decide(obs): pass\n",
            r"my_sched\.py:1: ModuleNotFoundError: No module named 'nothing_like_it'",
        ),
        ("import helper\ndef decide(obs): pass\n", r"helper\.py:1: ZeroDivisionError"),
        ("import sys\nsys.exit(4)\ndef decide(obs): pass\n", r"my_sched\.py:2: called exit\(4\)"),
        ("import os\nos._exit(4)\ndef decide(obs): pass\n", r"my_sched\.py: exited with status 4"),
        ("import time\ntime.sleep(60)\ndef decide(obs): pass\n", r"my_sched\.py:2: no answer within 1 s"),
        (
            "class A:\n    def __init__(self): 1/0\n    def decide(self, o): pass\n",
            r"my_sched\.py:2: ZeroDivisionError",
        ),
    ],
)
def test_a_scheduler_that_does_not_load(opened: Opener, tmp_path: Path, code: str, expected: str) -> None:
    (tmp_path / "helper.py").write_text("1/0\n")
    with pytest.raises(SchedulerError, match=f"^{expected}.*, while starting$"):
        opened(code, start_timeout_s=1.0)


@pytest.mark.parametrize(
    ("code", "expected"),
    [
        ("x = 1\n", "found no scheduler; expected a class with decide"),
        (
            "class A:\n    def __init__(self, k): pass\n    def decide(self, o): pass\n",
            r"found A\(k\); expected defaults",
        ),
        ("def decide(): pass\n", r"found decide\(\); expected one observation"),
    ],
)
def test_a_scheduler_of_the_wrong_shape(opened: Opener, code: str, expected: str) -> None:
    with pytest.raises(BadInput, match=expected):
        opened(code)


# --- isolation ----------------------------------------------------------------------------------------------


def test_nothing_learned_in_a_run_reaches_another(opened: Opener) -> None:
    source = opened(
        """
        import mmap, tempfile, pathlib
        SEEN = []
        SHARED = mmap.mmap(-1, 16)
        NOTE = pathlib.Path(tempfile.gettempdir(), "note")
        class Mine:
            runs = 0
            def __init__(self):
                Mine.runs += 1
                self.first = not SEEN and SHARED[0] == 0 and not NOTE.exists() and Mine.runs == 1
            def decide(self, obs):
                SEEN.append(obs)
                SHARED[0] = 1
                NOTE.write_text("been here")
                return self.first
        """
    )
    for _ in range(3):
        assert all(d.merge for d in answers(source))


def test_what_cannot_be_deleted_is_out_of_reach_all_the_same(opened: Opener) -> None:
    source = opened(
        """
        import os, pathlib, tempfile
        class Mine:
            def __init__(self):
                note = pathlib.Path(tempfile.gettempdir(), "note")
                self.fresh = not note.exists()
                note.mkdir()
                (note / "inner").mkdir(mode=0)  # not even to be listed
            def decide(self, obs):
                return self.fresh
        """
    )
    for _ in range(2):
        assert all(d.merge for d in answers(source))


def test_an_output_folder_around_the_scheduler_does_not_hide_it(opened: Opener, tmp_path: Path) -> None:
    (tmp_path / "helper.py").write_text("LIMIT = 3\n")
    code = "from helper import LIMIT\ndef decide(obs):\n    return obs.in_flight < LIMIT\n"
    assert answers(opened(code, hidden=[tmp_path, tmp_path.parent]))


def test_unseeded_entropy_differs_between_runs(opened: Opener) -> None:
    for draw in ("import random\nreturn random.random() < 0.5", "import numpy as np\nreturn np.random.random() < 0.5"):
        source = opened(scheduler(draw))
        assert answers(source) != answers(source)


def test_hash_order_is_the_same_in_every_process(opened: Opener) -> None:
    source = opened(scheduler("return next(iter({str(obs.time_s), 'a', 'b', 'c'})) in 'abc'"))
    first = answers(source)
    source.close()
    assert answers(source) == first


@pytest.mark.skipif(not LINUX, reason="needs Landlock")
@pytest.mark.parametrize(
    ("body", "expected"),
    [
        ("return open('{secret}').read() == ''", "PermissionError: a scheduler may not read"),
        ("return open('trace.csv').read() == ''", "PermissionError: a scheduler may not read"),
        ("return open(f'/proc/{{os.getppid()}}/maps').read() == ''", "PermissionError: a scheduler may not read"),
        ("return bool(open('note', 'w').write('x'))", "PermissionError: a scheduler may not write"),
        ("return bool(subprocess.run(['true']).returncode)", "PermissionError: a scheduler may not start another"),
        ("return bool(socket.create_connection(('127.0.0.1', 9)))", "PermissionError: a scheduler may not use"),
        # The same past Python's own audit hook: the kernel refuses.
        ("f = libc.open(b'{secret}', 0)\nraise SystemExit(f)", "called exit(-1)"),
        ("f = libc.open(b'trace.csv', 0)\nraise SystemExit(f)", "called exit(-1)"),
        ("f = libc.open(b'note', 65, 0o600)\nraise SystemExit(f)", "called exit(-1)"),
        ("f = libc.open(b'/proc/%d/mem' % {parent}, 0)\nraise SystemExit(f)", "called exit(-1)"),
        ("raise SystemExit(libc.ptrace(16, {parent}, 0, 0))", "called exit(-1)"),
        ("raise SystemExit(libc.kill({parent}, 0))", "called exit(-1)"),
    ],
)  # fmt: skip
def test_what_the_sandbox_refuses(
    opened: Opener, tmp_path_factory: pytest.TempPathFactory, tmp_path: Path, body: str, expected: str
) -> None:
    secret = tmp_path_factory.mktemp("elsewhere") / "secret.csv"
    for path in (secret, tmp_path / "trace.csv"):
        path.write_text("the future")
    filled = body.format(secret=secret, parent=os.getpid())
    code = "import ctypes, os, socket, subprocess\nlibc = ctypes.CDLL(None)\n" + scheduler(filled)
    message = failure(opened(code, hidden=[tmp_path / "trace.csv"]))
    assert expected in message, message
    assert not (tmp_path / "note").exists()


def test_the_child_inherits_neither_files_nor_settings(
    opened: Opener, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("PROTOCOL_TRACE", "secret")
    with (tmp_path / "held.txt").open("w") as held:
        os.set_inheritable(held.fileno(), True)
        source = opened(
            scheduler(
                f"""
                import os, sys
                names = [k for k in os.environ if k.startswith("PROTOCOL_")]
                def same(fd):
                    try: return os.fstat(fd).st_ino == {os.fstat(held.fileno()).st_ino}
                    except OSError: return False
                return not names and not any(same(fd) for fd in range(256)) and len(sys.argv) == 1
                """
            )
        )
        assert answers(source)[0].merge


def test_memory_without_end(opened: Opener) -> None:
    source = opened(scheduler("hoard = []\nwhile True:\n    hoard.append(bytearray(1 << 24))"), memory_limit_mb=256)
    assert failure(source) == "my_sched.py:5: MemoryError: more than 256 MB, at the decision at 9.408 s"


def test_forked_children_are_cleaned_up(opened: Opener, tmp_path: Path) -> None:
    """Three children, one of them in a session of its own, started past the audit hook."""
    source = opened(
        """
        import ctypes, os, signal, time
        libc = ctypes.CDLL(None)
        class Mine:
            def __init__(self):
                self.children = []
                for k in range(3):
                    pid = libc.fork()
                    if pid == 0:
                        if k == 2:
                            os.setsid()
                        signal.signal(signal.SIGTERM, signal.SIG_IGN)
                        while True:
                            time.sleep(1)
                    self.children.append(pid)
            def decide(self, obs):
                from protocol.scheduler import Decision
                return Decision(True, reason=repr(self.children))
        """
    )
    for orderly in (True, False):
        run = source.start((1,))
        children = eval(run.decide(SEEN[0]).reason)
        assert len(children) == 3 and all(map(alive, children))
        if orderly:
            run.close()
        else:
            source.close()
        assert not any(map(alive, children))


def test_a_host_that_was_killed_is_replaced(opened: Opener) -> None:
    source = opened(scheduler("return True"))
    assert source.host is not None
    os.kill(source.host.process.pid, signal.SIGKILL)
    source.host.process.wait()
    assert answers(source)[0].merge
    run = source.start((1,))
    os.kill(source.host.process.pid, signal.SIGKILL)
    with pytest.raises(SchedulerError, match="^my_sched.py: .* at the decision at"):
        for o in SEEN:
            run.decide(o)
            time.sleep(0.01)


def test_the_child_imports_little() -> None:
    heavy = {"pandas", "pyarrow", "scipy", "numba", "typer"}
    code = f"import sys, adapters.schedulers.host; print(*{heavy} & set(sys.modules))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "\n"


@pytest.mark.skipif(not LINUX, reason="needs the parent-death signal")
def test_everything_ends_with_the_harness(tmp_path: Path) -> None:
    (tmp_path / "my_sched.py").write_text(scheduler("return True"))
    script = textwrap.dedent(
        f"""
        import time
        from adapters.schedulers import open_scheduler
        source = open_scheduler({str(tmp_path / "my_sched.py")!r})
        run = source.start((1,))
        print(source.host.process.pid, source.host.scratch, flush=True)
        time.sleep(60)
        """
    )
    with subprocess.Popen([sys.executable, "-c", script], stdout=subprocess.PIPE, text=True) as harness:
        assert harness.stdout is not None
        pid, scratch = harness.stdout.readline().split()
        host = int(pid)
        assert alive(host)
        harness.kill()
    deadline = time.monotonic() + 5
    while alive(host) and time.monotonic() < deadline:
        time.sleep(0.02)
    assert not alive(host) and not os.path.exists(scratch)


def test_no_zombies(opened: Opener) -> None:
    for body in ("return True", "import os\nos._exit(1)"):
        source = opened(scheduler(body))
        for _ in range(3):
            try:
                answers(source)
            except SchedulerError:
                pass
        source.close()
    with pytest.raises(ChildProcessError):
        os.waitpid(-1, os.WNOHANG)


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


# --- the shared cases ---------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("sched_crashes_midway.py", "sched_crashes_midway.py:4: ZeroDivisionError: boom, at the decision at 10"),
        ("sched_hangs.py", "sched_hangs.py:4: no answer within 0.3 s"),
        ("sched_syntax_error.py", "sched_syntax_error.py:1: SyntaxError: expected ':'"),
        ("sched_returns_nonsense.py", "sched_returns_nonsense.py:2: decide answered 'maybe' (str)"),
        ("sched_never_merges.py", None),
        ("sched_always_merges.py", None),
        ("sched_prints_and_exits.py", "sched_prints_and_exits.py:7: called exit(0)"),
        ("sched_two_classes.py", "sched_two_classes.py:A or sched_two_classes.py:B"),
    ],
)
def test_shared_cases(shared_cases: Path, tmp_path: Path, name: str, expected: str | None) -> None:
    log = tmp_path / "log.txt"
    seen = synthetic_observations(1, 400)

    def run() -> list[Decision]:
        source = open_scheduler(str(shared_cases / name), decision_timeout_s=0.3, log_path=log)
        assert isinstance(source, ProcessSource)
        with source:
            return answers(source, seen)

    if expected is None:
        assert {d.merge for d in run()} == {name == "sched_always_merges.py"}
        return
    with pytest.raises((SchedulerError, BadInput)) as caught:
        run()
    assert expected in str(caught.value)
    if name == "sched_prints_and_exits.py":
        assert "hello from my scheduler\n" in log.read_text() and "deciding\n" in log.read_text()
