"""Merge logs read as recorded schedules."""

from __future__ import annotations

import json
import re
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from strategies import setting

from adapters.schedulers import RecordedSource, open_scheduler, read_merge_log
from adapters.schedulers.log_fit import fit_of
from adapters.schedulers.log_formats import read_log
from adapters.schedulers.merge_logs import LogReading
from adapters.schedulers.recorded import spec_of
from protocol.errors import BadInput, SchedulerError
from protocol.merging.corridor import Corridor
from protocol.merging.logged import merges_of, snapped
from protocol.merging.practice import Practice, Timing
from protocol.merging.schedule import Schedule
from protocol.regimes.regime import Regime
from protocol.workload.trace import NS_PER_S, RequestTrace

TRACE = RequestTrace(np.array([0]), np.array([1]), np.array([1]))


def jsonl(path: Path, *records: dict[str, object]) -> Path:
    path.write_text("".join(json.dumps(r) + "\n" for r in records))
    return path


def start(**fields: object) -> dict[str, object]:
    return {"event": "coordinator_start", **fields}


def merged(**fields: object) -> dict[str, object]:
    return {"event": "merged", **fields}


def stop(**fields: object) -> dict[str, object]:
    return {"event": "coordinator_stop", **fields}


def test_coordinator_milliseconds_count_from_its_start(tmp_path: Path) -> None:
    log = jsonl(
        tmp_path / "a.jsonl", start(ts_ms=1000), merged(ts_ms=61_000), merged(ts_ms=200_500), stop(ts_ms=300_000)
    )
    recorded = read_merge_log(log, 8.0, n_islands=2)
    assert recorded.schedule.start_s.tolist() == [60.0, 199.5]
    assert recorded.schedule.busy_ns.tolist() == [[8 * NS_PER_S] * 2] * 2
    assert (recorded.span_s, recorded.merges_logged, recorded.format) == (299.0, 2, "coordinator")


def test_epoch_milliseconds_keep_their_precision(tmp_path: Path) -> None:
    epoch = 1_767_225_600_123
    log = jsonl(tmp_path / "a.jsonl", start(ts_ms=epoch), merged(ts_ms=epoch + 60_001), stop(ts_ms=epoch + 90_000))
    assert read_merge_log(log, 8.0).schedule.start_ns.tolist() == [60_001_000_000]


def test_the_stamp_as_the_end_of_a_merge(tmp_path: Path) -> None:
    log = jsonl(
        tmp_path / "a.jsonl", start(elapsed_sec=0), merged(elapsed_sec=5), merged(elapsed_sec=60), stop(elapsed_sec=90)
    )
    recorded = read_merge_log(log, 8.0, stamp="end")
    assert recorded.schedule.start_s.tolist() == [0.0, 52.0]
    assert recorded.schedule.busy_ns[:, 0].tolist() == [5 * NS_PER_S, 8 * NS_PER_S]
    assert any("began before the log" in line for line in recorded.report)


def test_no_merges_is_a_no_sync_arm(tmp_path: Path) -> None:
    log = jsonl(tmp_path / "a.jsonl", start(elapsed_sec=0.0, ts_ms=0), stop(elapsed_sec=600.0, ts_ms=600_000))
    recorded = read_merge_log(log, 8.0)
    assert (len(recorded.schedule), recorded.span_s, recorded.merges_logged) == (0, 600.0, 0)
    assert recorded.schedule.n_islands == 1 and "no merge: a no-sync arm" in recorded.report


def test_overlapping_merges_are_one_busy_interval(tmp_path: Path) -> None:
    log = jsonl(
        tmp_path / "a.jsonl",
        start(elapsed_sec=0),
        merged(elapsed_sec=50),
        merged(elapsed_sec=53),
        stop(elapsed_sec=100),
    )
    recorded = read_merge_log(log, 8.0)
    assert recorded.schedule.start_s.tolist() == [50.0]
    assert recorded.schedule.busy_ns.sum() == 11 * NS_PER_S
    assert recorded.merges_logged == 2
    assert "merges at 50 s and 53 s overlap: one busy interval of 11 s" in recorded.report


def test_merges_that_touch_stay_two(tmp_path: Path) -> None:
    log = jsonl(
        tmp_path / "a.jsonl",
        start(elapsed_sec=0),
        merged(elapsed_sec=50),
        merged(elapsed_sec=58),
        stop(elapsed_sec=100),
    )
    assert len(read_merge_log(log, 8.0).schedule) == 2


def test_a_log_without_its_end_says_so(tmp_path: Path) -> None:
    recorded = read_merge_log(jsonl(tmp_path / "a.jsonl", start(ts_ms=5), merged(ts_ms=10_005)), 8.0)
    assert recorded.span_s is None and any("cut short" in line for line in recorded.report)


@given(st.lists(st.tuples(st.integers(0, 500), st.integers(1, 40)), max_size=12))
def test_busy_time_equals_the_union(tmp_path_factory: pytest.TempPathFactory, merges: list[tuple[int, int]]) -> None:
    """Brute force on a grid of seconds: the seconds covered by at least one merge."""
    log = tmp_path_factory.mktemp("log") / "a.csv"
    log.write_text("start_s,duration_s\n" + "".join(f"{t},{d}\n" for t, d in merges))
    busy = np.zeros(600, bool)
    for t, d in merges:
        busy[t : t + d] = True
    schedule = read_merge_log(log, 8.0).schedule
    covered = np.zeros(600, bool)
    for begin, end in zip(*(w // NS_PER_S for w in schedule.windows_ns(0)), strict=True):
        assert not covered[begin:end].any()
        covered[begin:end] = True
    assert np.array_equal(covered, busy)


def test_csv_of_merge_times(tmp_path: Path) -> None:
    log = tmp_path / "a.csv"
    log.write_text("\ufeffstart_s, duration_s\r\n10.5,\r\n30,2.25\r\n")
    recorded = read_merge_log(log, 8.0)
    assert recorded.schedule.start_s.tolist() == [10.5, 30.0]
    assert (recorded.schedule.busy_ns[:, 0] / NS_PER_S).tolist() == [8.0, 2.25]


def commit(second: float, step: int, replica: str, result: bool = True) -> str:
    """A record as OpenTelemetry's console exporter prints it: pretty-printed JSON."""
    return json.dumps(
        {
            "body": "",
            "severity_text": "INFO",
            "attributes": {
                "job_id": "unknown",
                "replica_id": replica,
                "rank": 0,
                "quorum_id": 1,
                "step": step,
                "commit_result": result,
            },
            "timestamp": f"2026-01-01T00:01:{second:09.6f}Z",
        },
        indent=4,
    )


def test_torchft_commits_count_once_a_step(tmp_path: Path) -> None:
    log = tmp_path / "a.jsonl"
    events = [
        commit(1, 0, "a"),
        commit(1.5, 0, "b"),
        commit(20, 1, "a", False),
        commit(30, 1, "a"),
        commit(30.25, 1, "b"),
    ]
    log.write_text("\n".join(events))
    recorded = read_merge_log(log, 4.0)
    assert (recorded.format, recorded.merges_logged, recorded.failed) == ("torchft", 3, 1)
    # Ends at 1.5, 20 and 30.25 s; the log begins the median interval of 14.375 s before the first of them.
    assert recorded.schedule.windows_ns(0)[1].tolist() == [14_375_000_000, 32_875_000_000, 43_125_000_000]
    assert "1 of 3 merges were not committed: busy, without progress" in recorded.report


def test_a_step_that_is_tried_again_is_another_merge(tmp_path: Path) -> None:
    log = tmp_path / "a.jsonl"
    log.write_text("\n".join(commit(s, 4, r, s > 20) for s in (10, 20, 40) for r in "ab"))
    recorded = read_merge_log(log, 2.0)
    assert (recorded.merges_logged, recorded.failed, len(recorded.schedule)) == (3, 2, 3)


def test_commits_of_fragments_are_not_merges_that_never_end(tmp_path: Path) -> None:
    log = tmp_path / "a.jsonl"
    log.write_text("\n".join(commit(5 * k, k, "a") for k in range(1, 11)))
    with pytest.raises(BadInput, match="10 torchft merges that leave 0 % of 50 s between them, as commits of single"):
        read_merge_log(log, 5.0)
    assert len(read_merge_log(log, 4.0).schedule) == 10


def test_weight_updates_are_stamped_at_their_ends(tmp_path: Path) -> None:
    key = "watcher/last_update_weights_time"
    log = jsonl(
        tmp_path / "a.jsonl",
        {"_timestamp": 1_760_000_060, key: 2.5},
        {"_timestamp": 1_760_000_020, key: 2},
        {"loss": 1},
    )
    recorded = read_merge_log(log, 8.0)
    assert (recorded.format, recorded.schedule.start_s.tolist()) == ("watcher", [38.0, 77.5])
    assert (recorded.schedule.busy_ns[:, 0] / NS_PER_S).tolist() == [2.0, 2.5]


#: The beginning of a training loop's log.
LOOP = '{"event":"begin","time":"2026-03-01T10:00:00","decision_steps":2}\n'
CORRIDOR = Corridor(
    h_min=10, h_max=40, decision_steps=5, step_ns=NS_PER_S // 10, merge_ns=2 * NS_PER_S, horizon_ns=60 * NS_PER_S
)


@given(st.lists(st.floats(0.3, 6.0), min_size=1, max_size=8))
def test_stamps_of_a_wall_clock_are_moved_to_the_grid(waits: list[float]) -> None:
    """Decisions every 0.5 s, beginning anew where a merge ended: no start moves by more than a quarter of a second."""
    starts = np.cumsum([round(1e9 * (w + 2.0)) for w in waits]) - 2 * NS_PER_S
    timing = Timing(CORRIDOR, Practice())
    moved, most = snapped(Schedule.all_islands(starts, CORRIDOR.merge_ns), timing)
    assert CORRIDOR.gaps(moved.start_ns).min() >= 0
    assert most == np.abs(moved.start_ns - starts).max() <= CORRIDOR.grid_ns // 2
    again, none = snapped(moved, timing)
    assert none == 0 and again.start_ns.tolist() == moved.start_ns.tolist()


def test_a_log_says_how_far_it_was_moved(tmp_path: Path) -> None:
    log = tmp_path / "a.csv"
    log.write_text("start_s,end_s\n1.1,3.1\n5.3,7.3\n")
    source = open_scheduler(str(log))
    assert isinstance(source, RecordedSource)
    assert source.report(setting(corridor=CORRIDOR)) == [
        "judged with 10 to 40 inner steps of 0.1 s between merges of 2 s, decided on every 5",
        "starts were moved to the decision grid, by 0.200 s at most",
        "in generated load every seed has the whole log, so nothing can be told of following the load; --trace FILE "
        "judges it on the load that it saw",
    ]
    assert not any("generated" in line for line in source.report(setting(corridor=CORRIDOR, begins_ns=(0, 1))))
    logged = source.plan(TRACE, CORRIDOR, 0, ())
    assert logged.start_s.tolist() == [1.1, 5.3]
    assert snapped(logged, Timing(CORRIDOR, Practice()))[0].start_s.tolist() == [1.0, 5.5]


@pytest.mark.parametrize(
    ("name", "text", "expected"),
    [
        ("a.jsonl", "", "an empty file"),
        ("a.jsonl", '{"event": "merged"', "line 1: found text that is not JSON"),
        ("a.jsonl", '{"event":"coordinator_start","ts_ms":1}\n[1]\n', "line 2: found a JSON list"),
        ("a.jsonl", '{"x": 1}\n', "found no start_s and no event of a coordinator or of torchft; expected lines with"),
        ("a.jsonl", '{"event":"merged","ts_ms":1}\n', "no coordinator_start"),
        ("a.jsonl", '{"event":"coordinator_start","ts_ms":9}\n{"event":"merged","ts_ms":"9"}\n', "2, ts_ms: found '9'"),
        ("a.jsonl", '{"event":"coordinator_start","ts_ms":9}\n{"event":"merged","ts_ms":NaN}\n', "2, ts_ms: found nan"),
        ("a.jsonl", '{"event":"coordinator_start","ts_ms":9}\n{"event":"merged"}\n', "line 2: found no ts_ms"),
        ("a.jsonl", '{"event":"coordinator_start","ts_ms":9000}\n{"event":"merged","ts_ms":1}\n', "8.999 s before"),
        ("a.jsonl", '{"event":"coordinator_start","ts_ms":1}\n' * 2, "line 2: found a second coordinator_start"),
        ("a.jsonl", LOOP + '{"event":"merge","end_s":2}\n', "line 2: found no start_s"),
        ("a.jsonl", LOOP + '{"event":"merge","start_s":2,"end_s":1}\n', "line 2, end_s: found 1"),
        ("a.jsonl", LOOP + '{"event":"left","at_s":"x"}\n', "line 2, at_s: found 'x'"),
        ("a.jsonl", LOOP.replace("2026", "year"), "line 1, time: found 'year-03-01T10:00:00'"),
        ("a.csv", "time\n1\n", "header: found 'time'; expected start_s and, optionally, duration_s or end_s"),
        ("a.csv", "start_s,stop_s\n1,2\n", "header: found 'stop_s'; expected start_s and, optionally"),
        ("a.csv", "start_s,Fragment\n1,2\n", "'Fragment'; expected start_s and, optionally, duration_s or end_s, "
         "fragment, committed, bytes; did you mean fragment?"),
        ("a.csv", "start_s,bytes,bytes\n1,2,3\n", "header: found bytes twice; expected each once"),
        ("a.csv", "start_s,bytes\n1,2,3\n", "line 2: found 3 values; expected 2, one a column"),
        ("a.csv", "start_s,bytes\n1,many\n", "line 2, bytes: found 'many'; expected a number"),
        ("a.jsonl", '{"start_s":1,"bytes":-1}\n', "line 1, bytes: found -1; expected at least 0"),
        ("a.csv", "end_s,bytes\n1,2\n", "header: found no start_s, but end_s, bytes; expected start_s and"),
        ("a.csv", "start_s,end_s,duration_s\n1,2,1\n", "header: found duration_s and end_s; expected one of the two"),
        ("a.jsonl", '{"start_s":1}\n{"start_s":2,"commited":true}\n', "line 2: found 'commited'; expected start_s"),
        ("a.jsonl", '{"start_s":1,"duration":2,"host":"a"}\n', "bytes; did you mean duration_s?"),
        ("a.jsonl", '{"start_s":1}\n{"duration_s":2}\n', "line 2: found no start_s, but duration_s; expected"),
        ("a.jsonl", '{"start_s":1,"end_s":2,"duration_s":1}\n', "line 1: found duration_s and end_s; expected one"),
        ("a.csv", "start_s,end_s\n1,1\n", "line 2, end_s: found 1; expected more than start_s, 1"),
        ("a.jsonl", '{"watcher/last_update_weights_time": 3}\n', "line 1: found no _timestamp"),
        ("a.csv", "start_s\n1\nx\n", "line 3, start_s: found 'x'"),
        ("a.csv", "start_s,duration_s\n1,2\n5\n", "line 3: found 1 values; expected 2, one a column"),
        ("a.csv", "start_s\n-1\n", "line 2, start_s: found -1.0; expected at least 0"),
        ("a.csv", "start_s,duration_s\n1,0\n", "line 2, duration_s: found 0"),
        ("a.csv", "start_s\ninf\n", "line 2, start_s: found inf"),
    ],
)  # fmt: skip
def test_refusals_name_the_row(tmp_path: Path, name: str, text: str, expected: str) -> None:
    (tmp_path / name).write_text(text)
    with pytest.raises(BadInput) as caught:
        open_scheduler(str(tmp_path / name))
    message = str(caught.value)
    assert expected in message and "\n" not in message


def test_a_log_is_a_source_that_cannot_run(tmp_path: Path) -> None:
    log = jsonl(tmp_path / "a.jsonl", start(ts_ms=1000), merged(ts_ms=61_000), stop(ts_ms=300_000))
    source = open_scheduler(str(log))
    assert isinstance(source, RecordedSource) and (source.kind, source.deployable) == ("recorded", False)
    assert len(source.schedule(8.0, 3).schedule) == 1
    digest = source.digest()
    with pytest.raises(SchedulerError, match="judged as it happened"):
        source.start((1,))
    log.write_text(log.read_text() + "\n")
    assert source.digest() != digest


@pytest.mark.parametrize(
    ("name", "starts", "busy_s", "span_s"),
    [
        ("merge_log_coordinator.jsonl", [60.0, 130.0, 199.5, 262.0], 32.0, 299.0),
        ("merge_log_no_merges.jsonl", [], 0.0, 600.0),
        ("merge_log_overlapping.jsonl", [50.0], 11.0, 100.0),
    ],
)
def test_shared_cases(shared_cases: Path, name: str, starts: list[float], busy_s: float, span_s: float) -> None:
    recorded = read_merge_log(shared_cases / name, 8.0)
    assert recorded.schedule.start_s.tolist() == starts
    assert recorded.schedule.busy_ns.sum() / NS_PER_S == busy_s
    assert recorded.span_s == span_s


@pytest.mark.parametrize(
    ("name", "merges", "busy_s"),
    [
        ("merge_log_torchft_failed_commits.jsonl", 18, [8.0] * 18),
        ("merge_log_end_stamped.jsonl", 5, [3.3, 3.4, 3.5, 3.6, 3.7]),
        ("merge_log_end_column.csv", 3, [50.0, 30.0]),
        ("merge_log_off_grid.csv", 17, [12.0] * 17),
        ("merge_log_growing_durations.csv", 6, [5.0, 150.0, 180.0, 400.0, 900.0, 1500.0]),
    ],
)
def test_shared_cases_of_the_second_round(shared_cases: Path, name: str, merges: int, busy_s: list[float]) -> None:
    recorded = read_merge_log(shared_cases / "round2" / name, 8.0)
    assert recorded.merges_logged == merges
    assert (recorded.schedule.busy_ns[:, 0] / NS_PER_S).tolist() == pytest.approx(busy_s)
    if "failed" in name:
        assert recorded.failed == 6 and recorded.schedule.start_ns[0] > 0


def test_a_streaming_log_asks_for_its_fragments(shared_cases: Path) -> None:
    """72 commits 8 s apart: of 4 fragments, each under way for a quarter of a merge, in turn."""
    log = shared_cases / "round2" / "merge_log_torchft_4_fragments.jsonl"
    with pytest.raises(BadInput, match="72 torchft merges .* single fragments .*expected --fragments N"):
        read_merge_log(log, 8.0)
    recorded = read_merge_log(log, 2.0, reading=LogReading(fragments=4))
    assert recorded.fragments == 4 and "72 merges of 4 fragments: 18 whole rounds" in recorded.report
    assert recorded.schedule.fragment.tolist() == [0, 1, 2, 3] * 18
    assert set((recorded.schedule.busy_ns[:, 0] / NS_PER_S).tolist()) == {2.0}
    assert set(np.diff(recorded.schedule.start_s).tolist()) == {8.0}


def test_tables_say_fragment_and_outcome(tmp_path: Path) -> None:
    """One in flight at a time: the second is sent when the first is there."""
    log = tmp_path / "a.csv"
    log.write_text("start_s,end_s,fragment,committed,bytes\n10,14,0,true,5\n12,16,1,FALSE,5\n20,22,1,,5\n")
    lines = jsonl(
        tmp_path / "a.jsonl",
        {"start_s": 10, "duration_s": 4, "fragment": 0, "committed": True, "bytes": 5},
        {"start_s": 12, "duration_s": 4, "fragment": 1, "committed": False},
        {"start_s": 20, "end_s": 22, "fragment": 1, "committed": None, "bytes": None},
    )
    for path, kind in ((log, "csv"), (lines, "lines")):
        recorded = read_merge_log(path, 8.0)
        made = recorded.schedule
        assert (recorded.format, recorded.fragments, recorded.failed) == (kind, 2, 1)
        assert [w.tolist() for w in (made.start_s, made.busy_ns[:, 0] / NS_PER_S)] == [[10, 14, 20], [4, 2, 2]]
        assert made.fragment.tolist() == [0, 1, 1] and made.committed.tolist() == [True, False, True]
        assert any("one is in flight at a time" in line for line in recorded.report)
        assert "1 of 3 merges were not committed: busy, without progress" in recorded.report


def test_fragments_that_failed_are_due_again(shared_cases: Path) -> None:
    log = shared_cases / "round2" / "merge_log_torchft_failed_commits.jsonl"
    made = read_merge_log(log, 8.0, reading=LogReading(fragments=3)).schedule
    due = 0
    for fragment, committed in zip(made.fragment.tolist(), made.committed.tolist(), strict=True):
        assert fragment == due
        due = (due + committed) % 3


@pytest.mark.parametrize(
    ("zero", "starts"),
    [(None, [28, 58, 98]), ("20", [8, 38, 78]), ("-10.5", [38.5, 68.5, 108.5]), ("2026-04-03T12:00:00Z", [13, 43, 83])],
)
def test_the_trace_s_beginning_in_the_log(tmp_path: Path, zero: str | None, starts: list[float]) -> None:
    """Commits 20, 50 and 90 s after noon, each at the end of a merge of 7 s; the log begins a median wait before."""
    votes = [
        {"timestamp": f"2026-04-03T12:{s // 60:02}:{s % 60:02}Z",
         "attributes": {"step": k, "replica_id": "r", "quorum_id": 1, "commit_result": True}}
        for k, s in enumerate((20, 50, 90))
    ]  # fmt: skip
    log = jsonl(tmp_path / "a.jsonl", *votes)
    made = read_merge_log(log, 7.0, reading=LogReading(zero=zero)).schedule
    assert made.start_s.tolist() == starts


def test_reading_travels_with_the_name(tmp_path: Path) -> None:
    log = tmp_path / "a.csv"
    log.write_text("start_s\n10\n20\n30\n")
    reading = LogReading(fragments=2, stamp="end", zero="-3.5", merge_s=2.5)
    source = open_scheduler(spec_of(str(log), reading))
    assert isinstance(source, RecordedSource) and source.reading == reading and source.name == "a.csv"
    assert source.describe()["reading"] == {"fragments": 2, "stamp": "end", "zero": "-3.5", "merge_s": 2.5}
    assert source.schedule(8.0).schedule.start_s.tolist() == [11.0, 21.0, 31.0]
    assert spec_of("a.csv", LogReading()) == "a.csv"
    for query in ("stamp=middle", "fragments=0", "fragments=x", "what=1", "merge_s=-1"):
        with pytest.raises(BadInput):
            open_scheduler(f"{log}?{query}")
    with pytest.raises(BadInput, match="expected seconds of the log's time, or an ISO 8601 time"):
        open_scheduler(f"{log}?zero=noon")
    with pytest.raises(BadInput, match="arguments of a merge log"):
        open_scheduler(f"{log}(x=1)")
    with pytest.raises(BadInput, match="has no calendar"):
        open_scheduler(f"{log}?zero=2026-04-03").close()


def test_the_corridor_of_a_log(shared_cases: Path) -> None:
    """Waits of 300, 300, 300, 300, 300 and 300 s in steps of 0.0735 s, eight to a decision: 510.2 decisions."""
    log = shared_cases / "round2" / "merge_log_growing_durations.csv"
    with pytest.raises(BadInput, match="merge 1 at 0 s, with no decision since time 0"):
        fitted(str(log))
    regime = fitted(f"{log}?zero=-300")
    assert (regime.h_min, regime.h_max, regime.merge_s) == (4080, 4088, 290.0)
    assert regime.name == "ordinary with merge_log_growing_durations.csv"
    # 510 decisions six times and 3135 s of merges; the end in wall-clock seconds is 4935.
    assert regime.horizon_s == pytest.approx(4935, abs=0.588)
    assert fitted(str(log), whole=False).h_max == 4088


def fitted(spec: str, whole: bool = True) -> Regime:
    fit = fit_of(spec, True)
    assert fit is not None
    return fit.applied(Regime.load("ordinary"), whole)


def test_fragments_are_as_long_when_judged_as_when_their_corridor_was_taken(tmp_path: Path) -> None:
    """Ten commits of four fragments: a quarter of 8 s each, whether the regime or the log has the corridor."""
    log = tmp_path / "a.jsonl"
    log.write_text("\n".join(commit(8 * k % 60, k, "a").replace("00:01", f"00:{8 * k // 60:02}") for k in range(1, 11)))
    for own in (True, False):
        fit = fit_of(f"{log}?fragments=4", own)
        assert fit is not None and fit.source is not None
        regime = fit.applied(Regime.load("ordinary"), True)
        made = fit.source.schedule(regime.merge_s).schedule
        assert regime.merge_s == 2.0 and set((made.busy_ns[:, 0] / NS_PER_S).tolist()) == {2.0}
        timing = Timing(regime.corridor(), regime.merge)
        moved = snapped(made, timing)[0]
        assert not own or timing.violation(moved.start_ns, merges_of(moved, timing)) is None
    streaming = Regime.load("streaming-4-fragments")
    assert fit_of(f"{log}?fragments=4", False).applied(streaming, True).merge_s == streaming.merge_s  # type: ignore[union-attr]


def test_fragments_of_a_log_are_the_regime_s(shared_cases: Path) -> None:
    log = f"{shared_cases / 'round2' / 'merge_log_torchft_4_fragments.jsonl'}?fragments=4"
    regime = fitted(log)
    assert regime.merge.fragments == 4
    # 6 s of steps between two fragments of 2 s: 10.2 decisions, and four turns between two of the same one.
    assert (regime.corridor().h_min, regime.corridor().h_max) == (80, 88) and regime.h_min == 320
    two = Regime.load("ordinary").replace(merge=Practice(fragments=2))
    with pytest.raises(BadInput, match="found 4 fragments of merge_log_torchft_4_fragments.jsonl; expected 2"):
        fit_of(log, False).applied(two, True)  # type: ignore[union-attr]


@pytest.mark.parametrize(
    ("name", "text", "words"),
    [
        ("huge.csv", "start_s\n1e308\n2e308\n", "line 2, start_s: found 1e+308; expected at most 9e+09"),
        ("deep.jsonl", "[" * 100_000, "line 1: found JSON too deeply nested"),
        ("digits.jsonl", '{"start_s": ' + "9" * 5000 + "}", "line 1: found JSON with a number of thousands of digits"),
    ],
)
def test_numbers_and_nesting_beyond_all_sense(tmp_path: Path, name: str, text: str, words: str) -> None:
    (tmp_path / name).write_text(text)
    with pytest.raises(BadInput, match=re.escape(words)):
        read_log(tmp_path / name)


def test_seconds_since_1970_are_a_calendar(tmp_path: Path) -> None:
    log = tmp_path / "a.csv"
    log.write_text("start_s,duration_s\n1767225600,5\n1767225650,5\n")
    (note,) = read_merge_log(log, 8.0).report
    assert note.startswith("times are seconds since 1970: --log-zero 1767225600, or an ISO 8601 time")
    for zero in ("1767225590", "2025-12-31T23:59:50Z"):
        made = read_merge_log(log, 8.0, reading=LogReading(zero=zero)).schedule
        assert made.start_s.tolist() == [10.0, 60.0]


def test_a_merge_without_a_length_is_as_long_as_the_log_s_others_in_its_own_corridor(tmp_path: Path) -> None:
    """5, 6 and 7 s are said: the fourth is 6 s, when the corridor is taken and when it is judged."""
    log = tmp_path / "a.csv"
    log.write_text("start_s,duration_s\n10,5\n40,7\n80,6\n120,\n")
    fit = fit_of(str(log), True)
    assert fit is not None and fit.source is not None
    regime = Regime.load("bursty-aperiodic")
    changes = fit.changes(regime, whole=True)
    assert changes["merge_s"] == 6.0
    made = fit.source.schedule(changes["merge_s"]).schedule
    assert (made.busy_ns[:, 0] / NS_PER_S).tolist() == [5, 7, 6, 6]
