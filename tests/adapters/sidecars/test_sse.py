"""Streams of completions: every body gives the same result however its bytes are cut."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from sse_bodies import BODIES

from adapters.sidecars.sse import MAX_EVENT_BYTES, Completion, Events


def read(body: bytes, size: int) -> Completion:
    """Every event stamped with the time of the piece that completed it: 1000 ns a byte."""
    events, said = Events(), Completion()
    for begin in range(0, len(body), size):
        piece = body[begin : begin + size]
        for data in events.feed(piece):
            said.take(data, 1000 * (begin + len(piece)))
    return said


@pytest.mark.parametrize("size", [1, 3, 7, 64, 1 << 20])
@pytest.mark.parametrize("name", BODIES)
def test_bodies(name: str, size: int) -> None:
    body, tokens, failure = BODIES[name]
    said = read(body, size)
    assert said.tokens == tokens
    assert (said.failure is None) if failure is None else failure in str(said.failure)


@pytest.mark.parametrize("name", BODIES)
def test_shared_bodies(shared_cases: Path, name: str) -> None:
    _, tokens, failure = BODIES[name]
    for size in (1, 3, 7, 64):
        said = read((shared_cases / name).read_bytes(), size)
        assert said.tokens == tokens
        assert (said.failure is None) if failure is None else failure in str(said.failure)


@pytest.mark.parametrize("size", [1, 3, 7, 64])
def test_first_token_is_the_first_event_that_brings_one(size: int) -> None:
    """The role comes first and is no token; the time is that of the piece that completed the event."""
    body = BODIES["sse_delta_without_content.txt"][0]
    said = read(body, size)
    complete = body.index(b"\n\n", body.index(b"hi")) + 2
    assert said.event_ns == [1000 * min(-(-complete // size) * size, len(body))]


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


def test_large_event_and_endless_event() -> None:
    big = json.dumps({"choices": [{"text": "y" * 200_000}]}).encode()
    said = read(b"data: " + big + b"\n\ndata: [DONE]\n\n", 1009)
    assert said.failure is None and said.tokens == 1
    with pytest.raises(ValueError, match="bytes"):
        Events().feed(b"data: " + b"z" * (MAX_EVENT_BYTES + 1))


@given(st.sampled_from(sorted(BODIES)), st.lists(st.integers(1, 40), min_size=1, max_size=400))
def test_any_cut_gives_the_same_events(name: str, cuts: list[int]) -> None:
    body = BODIES[name][0]
    events, found, at = Events(), [], 0
    for size in [*cuts, len(body)]:
        found += events.feed(body[at : at + size])
        at += size
    assert found == Events().feed(body)


@given(st.binary(max_size=400))
def test_rubbish_is_a_failure_never_an_exception(body: bytes) -> None:
    said = read(body + b"\n\n", 5)
    assert said.failure is not None
