"""The small inputs that broke other tools, and our own of their kinds, through `protocol certify`."""

from __future__ import annotations

import shutil
from pathlib import Path

import numpy as np
import pytest
from judging import Command, Judged, command

QUICK = ("--draws", 3, "--seeds", 2, "--jobs", 1)
DECIDE = "class Scheduler:\n    def decide(self, obs):\n        "
SCHEDULERS = {
    "crashes_midway": DECIDE
    + "if obs.time_s > 100:\n            raise ZeroDivisionError('boom')\n        return False\n",
    "hangs": "import time\n" + DECIDE + "time.sleep(3600)\n",
    "syntax_error": "class Scheduler\n    pass\n",
    "returns_nonsense": DECIDE + "return 'maybe'\n",
    "never_merges": DECIDE + "return False\n",
    "always_merges": DECIDE + "return True\n",
    "reads_the_clock": "import time\n" + DECIDE + "return int(time.time_ns() // 1000) % 7 == 0\n",
    "prints_and_exits": "import sys\nprint('hello from my scheduler')\n" + DECIDE + "print('deciding', flush=True)\n"
    "        if obs.time_s > 100:\n            sys.exit(0)\n        return False\n",
    "two_classes": "".join(f"class {name}:\n    def decide(self, obs): return True\n" for name in "AB"),
}
START, STOP = '{"event":"coordinator_start","elapsed_sec":0.0}\n', '{"event":"coordinator_end","elapsed_sec":150.0}\n'
LOGS = {
    "coordinator": START.replace('"elapsed_sec":0.0', '"ts_ms":1000')
    + "".join(f'{{"event":"merged","ts_ms":{t}}}\n' for t in (31_000, 61_000, 91_500, 123_000))
    + STOP.replace('"elapsed_sec":150.0', '"ts_ms":151000'),
    "no_merges": START + STOP,
    "overlapping": START + '{"event":"merged","elapsed_sec":50.0}\n{"event":"merged","elapsed_sec":53.0}\n' + STOP,
}


@pytest.fixture(params=["own", pytest.param("shared", marks=pytest.mark.slow)])
def case(request: pytest.FixtureRequest, tmp_path: Path) -> object:
    """The path of a case by its name: written here, or copied from the shared ones."""

    def path(name: str) -> Path:
        log = name in LOGS
        file = f"merge_log_{name}.jsonl" if log else f"sched_{name}.py"
        if request.param == "own":
            (tmp_path / file).write_text(LOGS[name] if log else SCHEDULERS[name])
        else:
            shutil.copyfile(request.getfixturevalue("shared_cases") / file, tmp_path / file)
        return tmp_path / file

    return path


def refused(judged: Judged, *words: str) -> None:
    assert judged.code == 2 and judged.refusal is not None
    assert len(judged.errors.strip().splitlines()) == 1
    for word in words:
        assert word in judged.refusal, judged.refusal


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("crashes_midway", ("sched_crashes_midway.py:4: ZeroDivisionError: boom, at the decision at 10",)),
        ("syntax_error", ("sched_syntax_error.py:1: SyntaxError",)),
        ("returns_nonsense", ("sched_returns_nonsense.py:", "decide answered 'maybe' (str)", "at the decision at 9.4")),
        ("two_classes", ("FILE:Class".replace("FILE", "sched_two_classes.py").replace("Class", "A"), ":B")),
    ],
)
def test_broken_schedulers(certify: Command, case: object, tmp_path: Path, name: str, words: tuple[str, ...]) -> None:
    refused(certify(case(name), tmp_path / "out", *QUICK), *words)  # type: ignore[operator]


def test_a_scheduler_that_hangs_meets_its_deadline(certify: Command, case: object, tmp_path: Path) -> None:
    refused(certify(case("hangs"), tmp_path / "out", *QUICK), "sched_hangs.py:4: no answer within 5 s, at the decision")  # type: ignore[operator]


def test_prints_go_to_the_log_and_the_exit_is_an_error(
    certify: Command, case: object, tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    path = case("prints_and_exits")  # type: ignore[operator]
    # The shared one exits after 200 s, past the small regime's horizon.
    path.write_text(path.read_text().replace("> 200", "> 100"))
    judged = certify(path, tmp_path / "out", *QUICK)
    refused(judged, "sched_prints_and_exits.py:7: called exit(0), at the decision at 10")
    assert "hello from my scheduler\n" in judged.log and "deciding\n" in judged.log


@pytest.mark.parametrize("name", ["never_merges", "always_merges"])
def test_the_corridor_holds_whatever_is_decided(certify: Command, case: object, tmp_path: Path, name: str) -> None:
    judged = certify(case(name), tmp_path / "out", *QUICK)  # type: ignore[operator]
    check = judged.check("corridor")
    assert judged.code == 3 and check["status"] == "passed"
    merges, forced = check["details"]["merges"], check["details"]["forced"]
    # 150 s: at most 3 gaps of 512 steps (37.6 s) and merges of 8 s; at least 8 gaps of 128 steps (9.4 s).
    assert (merges, forced) == ((2 * 3, 2 * 3) if name == "never_merges" else (2 * 8, 0))
    assert f"{forced} of them forced by H_max" in check["reason"]


def test_the_clock_fails_determinism(certify: Command, case: object, tmp_path: Path) -> None:
    judged = certify(case("reads_the_clock"), tmp_path / "out", *QUICK)  # type: ignore[operator]
    assert (
        judged.code == 1
        and judged.check("determinism")["status"] == "failed"
        and "a second run differs" in judged.reason
    )


# --- merge logs -----------------------------------------------------------------------------------------------------


def test_a_log_off_the_grid_is_moved_to_it(
    certify: Command, case: object, tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    """Ours fits the corridor then; the shared one waits for longer than H_max, which no control can match."""
    judged = certify(case("coordinator"), tmp_path / "out", *QUICK)  # type: ignore[operator]
    own = "[own]" in request.node.name
    assert judged.code == 3 and judged.check("corridor")["status"] == ("passed" if own else "undecidable")
    assert own or "merge 1 starts 816 inner steps after time 0; H_max is 512" in judged.reason
    assert "starts were moved to the decision grid, by 0." in judged.errors
    contender = judged.certificate["contender"]
    assert (contender["kind"], contender["deployable"], contender["merges_logged"]) == ("recorded", False, 4)


def test_a_log_without_merges_is_a_no_sync_arm(certify: Command, case: object, tmp_path: Path) -> None:
    judged = certify(case("no_merges"), tmp_path / "out", *QUICK)  # type: ignore[operator]
    assert judged.code == 3 and not judged.refused and judged.certificate["verdict"] == "INCONCLUSIVE"
    assert judged.check("corridor")["status"] == "undecidable" and "valid no-sync arm" in judged.reason
    assert judged.certificate["regimes"][0]["seeds"][0]["merges"] == 0
    assert "merge log: no merge: a no-sync arm" in judged.errors


def test_overlapping_merges_are_one_busy_interval(certify: Command, case: object, tmp_path: Path) -> None:
    judged = certify(case("overlapping"), tmp_path / "out", *QUICK)  # type: ignore[operator]
    said = "merges at 50 s and 53 s overlap: one busy interval of 11 s"
    assert said in judged.errors and said in judged.certificate["contender"]["read_as"]["small"]
    assert judged.code == 3 and "starts 680 inner steps after time 0; H_max is 512" in judged.reason


def test_a_log_inside_the_corridor_is_an_upper_bound(certify: Command, tmp_path: Path) -> None:
    """32 decisions of 8 steps before each merge: 18.816 s apart from the end of the last one."""
    starts = [k * (32 * 8 * 0.0735 + 8.0) - 8.0 for k in range(1, 6)]
    log = tmp_path / "merges.csv"
    log.write_text("start_s\n" + "".join(f"{t:.9f}\n" for t in starts))
    judged = certify(log, tmp_path / "out", "--draws", 3, "--jobs", 1)
    assert judged.check("corridor")["status"] == judged.check("causality")["status"] == "passed"
    assert "that it is causal is not known" in judged.check("causality")["reason"]
    assert "a log is read, not run again" in judged.check("determinism")["reason"]
    assert judged.certificate["tier"]["upper_bound"] and judged.certificate["tier"]["number"] == 1
    assert judged.code in (1, 3)  # one schedule for eight loads: no better than chance


def test_a_log_in_its_own_corridor_with_its_own_lengths(certify: Command, tmp_path: Path) -> None:
    """Four merges of 4 to 11 s, one of them not committed: every gate but the effect has what it needs."""
    log = tmp_path / "merges.csv"
    log.write_text("start_s,duration_s,committed\n20,4,true\n50,11,true\n82.1,6,false\n110,5,true\n")
    judged = certify(log, tmp_path / "out", "--draws", 3, "--jobs", 1, "--corridor", "from-log")
    for gate, check in (("G0", "corridor"), ("G0", "budget"), ("G4", "inner steps"), ("G4", "staleness")):
        assert judged.check(check, gate)["status"] == "passed", judged.check(check, gate)
    assert "merge log: judged with 272 to 360 inner steps of 0.0735 s between merges of 4 to 11 s" in judged.errors
    (regime,) = judged.certificate["regimes"]
    assert regime["name"] == "small with merges.csv" and regime["seeds"][0]["busy_s"] == 26.0
    assert judged.check("inner steps", "G4")["details"]["committed_by_fragment"] == [[3]] * 8
    assert judged.code in (1, 3)
    again = certify_again(tmp_path / "out")
    assert again.code == 0


def certify_again(folder: Path) -> Judged:
    """`protocol verify FOLDER --all`, which has no certificate of its own."""
    return command(folder, "verify", folder, "--all")


def test_windows_of_one_trace_are_the_seeds_of_a_log(certify: Command, small: Path, tmp_path: Path) -> None:
    """Merges of 3 to 6 s, 20 to 24 s apart; each window begins where one ended, and the exchange moves windows."""
    rng = np.random.default_rng(3)
    arrivals = np.sort(rng.uniform(0, 1500, 4500))
    trace = tmp_path / "requests.csv"
    trace.write_text("arrival_s,prompt_tokens,output_tokens\n" + "".join(f"{t:.6f},64,64\n" for t in arrivals))
    took = rng.uniform(3, 6, 55)
    starts = np.cumsum(rng.uniform(20, 24, 55)) + np.cumsum(took) - took
    log = tmp_path / "merges.csv"
    log.write_text("start_s,duration_s\n" + "".join(f"{s:.3f},{d:.3f}\n" for s, d in zip(starts, took, strict=True)))
    judged = certify(
        log, tmp_path / "out", "--trace", trace, "--regime", small, "--corridor", "from-log", "--draws", 3, "--jobs", 1
    )
    assert judged.check("corridor")["status"] == judged.check("budget")["status"] == "passed", judged.reason
    (regime,) = judged.certificate["regimes"]
    assert len(regime["seeds"]) == 8 and regime["name"] == "small on requests.csv"
    ends = np.round((starts + took) * 1e9)
    begins = regime["trace"]["log"]["begins_ns"]
    assert all(np.abs(ends - b).min() < 2e6 for b in begins) and np.diff(begins).min() >= 170e9
    assert len({seed["busy_s"] for seed in regime["seeds"]}) == 8
    again = command(tmp_path / "out", "verify", tmp_path / "out", "--trace", trace, "--regime", small, "--all")
    assert again.code == 0, again.errors
