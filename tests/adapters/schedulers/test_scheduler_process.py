"""Schedulers that crash, hang or merely print, each in a process of its own."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from scheduler_files import FLEET, LATE_S, LINUX, SEEN, Opener, answers, failure, opened_in, scheduler

from adapters.conformance import synthetic_observations
from adapters.schedulers import open_scheduler
from adapters.schedulers.process import ProcessSource
from protocol.errors import BadInput, SchedulerError
from protocol.scheduler import Decision


@pytest.fixture
def opened(tmp_path: Path) -> Iterator[Opener]:
    yield from opened_in(tmp_path)


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
        scheduler("import os\nfor fd in range(3, 64):\n    try: os.write(fd, b'hello\\n')\n    except OSError: pass")
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


def test_a_scheduler_that_is_also_an_output_is_named(tmp_path: Path) -> None:
    """Not taken for one that reads what it may not."""
    (tmp_path / "mine.py").write_text("def decide(obs):\n    return True\n")
    with pytest.raises(BadInput, match="mine.py: found its own file among those that no scheduler may see"):
        open_scheduler(str(tmp_path / "mine.py"), hidden=[tmp_path / "mine.py"])
