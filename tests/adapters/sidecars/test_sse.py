"""Streams of completions: every body gives the same result however its bytes are cut."""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from sse_bodies import BODIES, ROUND_1, ROUND_2, pieces

from adapters.sidecars.sse import MAX_EVENT_BYTES, Completion, Events, message_of

#: A tick of the clock that stamps events, in ns: event k is complete at tick k.
TICK = 12_000_000


def read(events: Sequence[bytes], size: int) -> Completion:
    """Every event in pieces, all of them stamped with the event's tick."""
    cutter, said = Events(), Completion()
    for k, event in enumerate(events):
        for piece in pieces(event, size):
            for data in cutter.feed(piece):
                said.take(data, TICK * k)
    for data in cutter.end():
        said.cut(data, TICK * len(events))
    return said


@pytest.mark.parametrize("size", [1, 3, 7, 64, 1 << 20])
@pytest.mark.parametrize("name", BODIES)
def test_streams_of_every_server(name: str, size: int) -> None:
    expected = BODIES[name]
    said = read(expected.events, size)
    if expected.failure is not None:
        assert expected.failure in str(said.failure)
        return
    assert said.failure is None and said.tokens == expected.tokens and said.streamed
    assert (said.first_ns, said.last_ns) == (TICK * expected.first, TICK * expected.last)
    assert said.itl_ns() == [round(TICK * gap) for gap in expected.gaps]


@pytest.mark.parametrize("name", [*ROUND_1, *ROUND_2])
def test_shared_bodies(shared_cases: Path, name: str) -> None:
    """The files themselves; their events are cut at blank lines, and are as many as ours."""
    path = shared_cases / ("round2" if name in ROUND_2 else "") / name
    found = re.split(rb"(?<=\n\n)|(?<=\r\n\r\n)", path.read_bytes())
    events, expected = [event for event in found if event], BODIES[name]
    for size in (1, 3, 7, 64):
        said = read(events, size)
        if expected.failure is not None:
            assert expected.failure in str(said.failure)
            continue
        assert len(events) == len(expected.events)
        assert (said.failure, said.tokens) == (None, expected.tokens)
        assert (said.first_ns, said.last_ns) == (TICK * expected.first, TICK * expected.last)
        assert said.itl_ns() == [round(TICK * gap) for gap in expected.gaps]


def test_tokens_of_one_write_are_not_streamed() -> None:
    """Nine tokens within 0.4 ms came at once, whatever the number of reads; eight may have."""
    for apart, n, streamed in ((0, 9, False), (49_999, 9, False), (50_000, 9, True), (0, 8, True)):
        said = Completion()
        for k in range(n):
            said.take('{"choices":[{"text":"x"}]}', 1_000 + k * apart)
        said.take("[DONE]", 10**9)
        assert said.failure is None and said.streamed == streamed
    said.take('{"choices":[],"usage":{"completion_tokens":9}}', 10**9)
    assert not said.streamed


@pytest.mark.parametrize(
    ("said", "message"),
    [
        ({"error": {"message": "max_tokens is\n too large", "code": 400}}, "max_tokens is too large"),
        ({"error": "busy", "error_type": "overloaded"}, "busy"),
        ({"object": "error", "message": "no such model"}, "no such model"),
        ({"detail": "Not Found"}, "Not Found"),
        ({"detail": [{"loc": ["body", "ignore_eos"], "msg": "Extra inputs are not permitted"}]},
         "body.ignore_eos: Extra inputs are not permitted"),
    ],
)  # fmt: skip
def test_what_servers_say_of_an_error(said: dict[str, object], message: str) -> None:
    assert message_of(said) == message


def test_several_tokens_an_event_share_its_gap() -> None:
    said = Completion()
    for at in (1_000, 9_000, 17_000):
        said.take('{"choices":[{"text":"a b "}]}', at)
    said.take('{"choices":[],"usage":{"completion_tokens":6}}', 18_000)
    said.take("[DONE]", 18_000)
    assert said.itl_ns() == [0, 4_000, 4_000, 4_000, 4_000] and said.failure is None


def test_running_usage_counts_tokens_without_text() -> None:
    """A server asked not to detokenise sends empty texts; its running count still tells which event brought one."""
    said = Completion()
    for count in (1, 2, 4):
        said.take(json.dumps({"choices": [{"text": ""}], "usage": {"completion_tokens": count}}), count * 1_000)
    said.take("[DONE]", 5_000)
    assert said.tokens == 4 and said.event_ns == [1_000, 2_000, 4_000] and said.itl_ns() == [1_000, 1_000, 1_000]
    # Once there is text, it alone says when.
    said.take('{"choices":[{"text":"all"}]}', 9_000)
    assert said.event_ns == [9_000]


def test_large_event_and_endless_event() -> None:
    big = json.dumps({"choices": [{"text": "y" * 200_000}]}).encode()
    said = read((b"data: " + big + b"\n\n", b"data: [DONE]\n\n"), 1009)
    assert said.failure is None and said.tokens == 1
    with pytest.raises(ValueError, match="bytes"):
        Events().feed(b"data: " + b"z" * (MAX_EVENT_BYTES + 1))


@given(st.sampled_from(sorted(BODIES)), st.lists(st.integers(1, 40), min_size=1, max_size=400))
def test_any_cut_gives_the_same_events(name: str, cuts: list[int]) -> None:
    body = BODIES[name].body
    events, found, at = Events(), [], 0
    for size in [*cuts, len(body)]:
        found += events.feed(body[at : at + size])
        at += size
    assert found == Events().feed(body)


@given(st.binary(max_size=400))
def test_rubbish_is_a_failure_never_an_exception(body: bytes) -> None:
    said = read((body + b"\n\n",), 5)
    assert said.failure is not None
