"""The coordinator: one decision for all replicas, the corridor whatever the scheduler says, and a log of it all."""

from __future__ import annotations

import http.server
import json
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import pytest

from adapters.schedulers.merge_logs import read_merge_log
from adapters.sidecars.watching import PageWatch, state_of
from adapters.torchft.client import Client
from adapters.torchft.coordinator import Coordinator, Decisions
from adapters.torchft.log import LoopLog
from protocol.errors import BadInput, ProtocolError, SchedulerError
from protocol.merging.practice import Practice
from protocol.regimes.regime import Regime
from protocol.replay.replay import Scrape
from protocol.scheduler import Decision, Observation

S = 1_000_000_000
#: Decisions at 10, 12, ... 40 steps.
REGIME = Regime.load("ordinary").replace(h_min=9, h_max=41, decision_steps=2)


class Run:
    """A scheduler of this process."""

    def __init__(self, rule: Callable[[Observation], bool]) -> None:
        self.rule, self.seen = rule, list[Observation]()

    def decide(self, observation: Observation) -> Decision:
        self.seen.append(observation)
        return Decision(self.rule(observation))

    def close(self) -> None:
        """Nothing runs."""


Maker = Callable[..., tuple[Decisions, Run]]


@pytest.fixture
def decisions(tmp_path: Path) -> Iterator[Maker]:
    logs: list[LoopLog] = []

    def make(rule: Callable[[Observation], bool], regime: Regime = REGIME) -> tuple[Decisions, Run]:
        run = Run(rule)
        logs.append(LoopLog(tmp_path / f"merges-{len(logs)}.jsonl", {}, regime))
        return Decisions(run, regime, logs[-1]), run

    yield make
    for log in logs:
        log.close()


def told(loss: float = 2.0) -> dict[str, float]:
    return {"loss": loss}


def first_merge(made: Decisions, replica: str, turn: tuple[int, int] = (0, 0)) -> int:
    return next(s for s in range(2, 100, 2) if made.ask(replica, turn, s, told()))


def test_whoever_comes_first_asks_for_all(decisions: Maker) -> None:
    """The second replica sees another loss, comes later, and merges at the same inner step."""
    made, run = decisions(lambda o: o.steps_since_merge >= 21 and o.loss < 3)
    assert first_merge(made, "a") == 22
    assert len(run.seen) == 7  # at 10, 12, ..., 22
    found = [(s, made.ask("b", (0, 0), s, told(9.0))) for s in range(10, 26, 2)]
    assert found == [(s, s >= 22) for s in range(10, 26, 2)] and len(run.seen) == 7
    assert made.merged("a", (1, 0), 1.5) is False and made.merged("b", (1, 0), 1.4) is False
    assert first_merge(made, "b", (1, 0)) == 22 and made.ask("a", (1, 0), 20, told()) is False
    last = run.seen[-1]
    assert (last.merges_so_far, last.h_min, last.h_max, last.loss_reduction) == (1, 9, 41, 0.0)


def test_h_min_and_h_max_hold(decisions: Maker) -> None:
    always, asked = decisions(lambda o: True)
    assert first_merge(always, "a") == 10 and len(asked.seen) == 1
    never, asked = decisions(lambda o: False)
    assert first_merge(never, "a") == 40
    assert asked.seen[-1].steps_since_merge == 38  # the one that H_max imposes is nobody's decision


def test_a_replica_that_joined_or_fell_behind_follows(decisions: Maker) -> None:
    made, run = decisions(lambda o: o.steps_since_merge >= 30)
    assert not made.ask("a", (5, 0), 10, told())
    made.joined("b")
    assert made.follows("b", (0, 0)) and not made.ask("b", (0, 0), 30, told())
    assert first_merge(made, "a", (5, 0)) == 30 and len(run.seen) == 11
    assert made.ask("b", (0, 0), 12, told())  # at once, whatever its own steps
    made.merged("a", (6, 0), 1.0)
    made.merged("b", (6, 0), 1.0)
    assert not made.follows("b", (6, 0)) and not made.ask("b", (6, 0), 12, told())
    assert made.ask("c", (4, 2), 12, told()) is False  # behind, and nothing is decided


def test_a_try_that_was_not_committed_is_another_turn(decisions: Maker) -> None:
    made, run = decisions(lambda o: o.steps_since_merge >= 20)
    assert first_merge(made, "a") == 20
    made.merged("a", (0, 1), 2.0)
    assert not made.ask("a", (0, 1), 18, told()) and made.ask("a", (0, 1), 20, told())
    assert run.seen[-1].merges_so_far == 1


def test_training_ends_for_all_with_the_same_merge(decisions: Maker) -> None:
    made, _ = decisions(lambda o: True)
    assert first_merge(made, "a") == 10
    made.merged("a", (1, 0), 1.0)
    made.finish()  # b has not reported yet: this merge is not the last
    assert made.merged("b", (1, 0), 1.0) is False
    first_merge(made, "b", (1, 0))
    assert made.merged("b", (2, 0), 1.0) is True and made.merged("a", (2, 0), 1.0) is True


def test_a_scheduler_that_fails_leaves_h_max(tmp_path: Path, decisions: Maker) -> None:
    def fails(_: Observation) -> bool:
        raise SchedulerError("it is broken")

    made, run = decisions(fails)
    assert first_merge(made, "a") == 40 and len(run.seen) == 1
    made.log.close()
    (line,) = [
        r
        for r in map(json.loads, (tmp_path / "merges-0.jsonl").read_text().splitlines())
        if r["event"] == "scheduler_failed"
    ]
    assert line["why"] == "it is broken"


def test_fragments_are_due_in_turn(decisions: Maker) -> None:
    world = REGIME.replace(h_min=36, h_max=164, merge=Practice(fragments=4))
    made, run = decisions(lambda o: True, world)
    made.ask("a", (6, 0), 10, {"loss": 1.0, "fragment_steps": 44})
    seen = run.seen[-1]
    assert (seen.fragment, seen.fragments, seen.fragment_steps, seen.steps_since_merge) == (2, 4, 44, 10)
    assert (seen.h_min, seen.h_max) == (9, 41)


SCHEDULER = "def decide(obs):\n    return obs.steps_since_merge >= 14\n"


@pytest.fixture
def coordinator(tmp_path: Path) -> Iterator[Coordinator]:
    (tmp_path / "at_14.py").write_text(SCHEDULER)
    with Coordinator(str(tmp_path / "at_14.py"), REGIME, tmp_path / "merges.jsonl") as made:
        yield made


def ends(client: Client, turn: tuple[int, int], **changes: object) -> bool:
    values = {"committed": True, "healed": False, "bytes": 8, "loss": 1.0, **changes}
    return bool(client.say("end", turn=turn, **values)["over"])


def test_over_the_wire_and_into_the_log(tmp_path: Path, coordinator: Coordinator) -> None:
    """Two replicas, a merge, one that is not committed, a replica that is lost and comes back."""
    a, b = Client(coordinator.address, "a"), Client(coordinator.address, "b")
    assert (a.first, a.last, a.grid) == (10, 40, 2)
    asked = [a.say("ask", turn=(0, 0), steps=s, told=told())["merge"] for s in (10, 12, 14)]
    assert asked == [False, False, True]
    for client in (a, b):
        client.say("begin", turn=(0, 0), fragment=0, steps=14)
    assert not ends(a, (1, 0)) and not ends(b, (1, 0))
    for s in (10, 12, 14):
        b.say("ask", turn=(1, 0), steps=s, told=told())
    a.say("begin", turn=(1, 0), fragment=0, steps=14)
    b.close(bye=False)
    ends(a, (1, 1), committed=False)
    while coordinator.replicas != {"a"}:
        pass
    again = Client(coordinator.address, "b")
    again.say("begin", turn=(0, 0), fragment=0, steps=12)  # it waits for the fleet
    a.say("begin", turn=(1, 1), fragment=0, steps=20)
    coordinator.finish()
    assert ends(a, (2, 0)) and ends(again, (2, 0), healed=True)
    a.close()
    again.close()
    coordinator.close()
    rows = [json.loads(line) for line in (tmp_path / "merges.jsonl").read_text().splitlines()]
    merges = [r for r in rows if r["event"] == "merge"]
    assert [(m["participants"], m["committed"], m["steps"]) for m in merges] == [
        (["a", "b"], True, 14), (["a"], False, 14), (["a", "b"], True, 20),
    ]  # fmt: skip
    assert merges[1]["steps_lost"] == {"a": 14} and all(m["bytes"] == 8 for m in merges)
    assert [r["steps_lost_at_least"] for r in rows if r["event"] == "left" and "steps_lost_at_least" in r] == [14]
    found = read_merge_log(tmp_path / "merges.jsonl", 1.0)
    assert (found.format, found.merges_logged, found.failed) == ("loop", 3, 1) and found.span_s == rows[-1]["at_s"]
    report = "\n".join(found.report)
    assert "a lost 14 inner steps" in report and "b was lost at" in report and "b caught up at" in report
    assert found.schedule.committed.tolist() == [True, False, True]


def test_refusals(tmp_path: Path, coordinator: Coordinator) -> None:
    with pytest.raises(BadInput, match="a file that is there already"):
        Coordinator(str(tmp_path / "at_14.py"), REGIME, tmp_path / "merges.jsonl")
    with pytest.raises(BadInput, match="all merge together"):
        Coordinator(str(tmp_path / "at_14.py"), "islands-offset", tmp_path / "other.jsonl")
    with pytest.raises(BadInput, match="a planner schedule"):
        Coordinator("optimum", REGIME, tmp_path / "other.jsonl")
    with pytest.raises(ProtocolError, match="coordinator nowhere"):
        Client("nowhere", "a")


# What is seen of the server ------------------------------------------------------------------------------------------


def test_the_state_is_that_of_live_mode() -> None:
    looks = [Scrape(1 * S, 4, 0, 4), Scrape(7 * S, 6, 3, 9)]
    found = state_of(looks, 8 * S, 8, 10, 20, 0.5, None)
    assert (found.queued, found.in_flight, found.completed, found.telemetry_age_s) == (3, 7, 20, 1.0)
    assert found.serving_pressure == 6 / 8  # of the last 5 s only
    stale = state_of(looks, 20 * S, 8, 10, 20, None, None)
    assert (stale.queued, stale.in_flight, stale.telemetry_age_s) == (0, 10, 0.0)


def page(running: int, waiting: int, done: int, e2e_s: float) -> str:
    return (
        f'vllm:num_requests_running{{engine="0"}} {running}\nvllm:num_requests_waiting{{engine="0"}} {waiting}\n'
        f'vllm:e2e_request_latency_seconds_bucket{{le="1.0"}} {done}\nvllm:e2e_request_latency_seconds_count {done}\n'
        f"vllm:e2e_request_latency_seconds_sum {e2e_s}\nvllm:prompt_tokens_total {64 * done}\n"
    )


def test_a_page_alone_tells_what_arrived() -> None:
    said = [page(2, 1, 100, 50.0)]

    class Handler(http.server.BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.send_response(200)
            self.end_headers()
            self.wfile.write(said[0].encode())

        def log_message(self, *_: object) -> None:
            """Not in the tests' output."""

    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    watch = PageWatch(f"http://127.0.0.1:{server.server_address[1]}", 8, scrape_s=600)
    while not watch.arrivals(1)[0].any():
        pass
    assert watch.state().completed == 0 and watch.state().in_flight == 2
    said[0] = page(4, 0, 103, 52.4)
    watch.look()
    seen = watch.state()
    assert (seen.completed, seen.in_flight, seen.queued) == (3, 4, 0)
    assert seen.recent_e2e_s == pytest.approx(0.8) and seen.recent_ttft_s is None
    arrived, prompts = watch.arrivals(3600)
    assert arrived.sum() == 7 and prompts.sum() == 3 * 64 and np.isfinite(arrived).all()
    server.shutdown()
    server.server_close()
    watch.look()  # nobody answers: what was known stays, and has an age
    late = watch.state()
    assert (late.completed, late.in_flight) == (3, 4) and late.telemetry_age_s > 0
    watch.close()
