"""Streams of completions, event by event, and what each must give: hand-written, none recorded from anybody.

The first table holds bodies that broke clients, under the names of their files; the second what each server of its
kind sends, in its own field names and habits.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True)
class Stream:
    """events : the bytes of each event, sent at equal distances.  tokens : output tokens.

    first, last : numbers of the events with the first and the last token.  gaps : inter-token latencies, in distances.
    failure : a part of what is wrong, None for success.
    """

    events: tuple[bytes, ...]
    tokens: int
    first: int = 0
    last: int = 0
    gaps: tuple[float, ...] = ()
    failure: str | None = None

    @property
    def body(self) -> bytes:
        return b"".join(self.events)


def sse(*said: object, end: str = "\n\n") -> tuple[bytes, ...]:
    """An event of each value; text stands for itself."""
    return tuple(f"data: {s if isinstance(s, str) else json.dumps(s)}{end}".encode() for s in said)


def lines(*said: object) -> tuple[bytes, ...]:
    return tuple(json.dumps(s).encode() + b"\n" for s in said)


def text(said: str, finish: str | None = None, **beside: object) -> dict[str, object]:
    return {"object": "text_completion", "choices": [{"index": 0, "text": said, "finish_reason": finish}], **beside}


def chat(finish: str | None = None, usage: int | None = None, /, **delta: object) -> dict[str, object]:
    said: dict[str, object] = {
        "object": "chat.completion.chunk",
        "choices": [{"index": 0, "delta": delta, "finish_reason": finish}],
    }
    return said if usage is None else {**said, "usage": used(usage)}


def used(n: int) -> dict[str, int]:
    return {"prompt_tokens": 5, "completion_tokens": n, "total_tokens": 5 + n}


def usage_of(n: int, **beside: object) -> dict[str, object]:
    return {"choices": [], "usage": used(n), **beside}


def call(**function: str) -> list[dict[str, object]]:
    return [{"index": 0, "function": function}]


DONE = "[DONE]"
ROLE = chat(role="assistant", content="")
STOP = chat("stop")
BROKEN = {
    "sse_error_after_200.txt": Stream(
        sse({"error": {"message": "engine dead", "code": 500}}, DONE), 0, failure="server error: engine dead"),
    "sse_delta_without_content.txt": Stream(
        sse(chat(role="assistant"), chat(content="hi"), STOP, usage_of(1), DONE), 1, 1, 1),
    "sse_only_done.txt": Stream(sse(DONE), 0, failure="no token"),
    "sse_several_tokens_per_event.txt": Stream(
        sse(*[text("a b c d ", usage=None)] * 4, usage_of(16), DONE), 16, 0, 3, (0,) * 3 + (0.25,) * 12),
    "sse_comments_and_crlf.txt": Stream(
        (b": ping\r\n\r\n", b'event: message\r\ndata:{"choices":[{"index":0,"text":"x"}]}\r\n\r\n',
         b"data: [DONE]\r\n\r\n"), 1, 1, 1),
    "sse_cut_midway.txt": Stream(
        (*sse(text("x")), b'data: {"choices":[{"index":0,"te'), 1, failure="the stream ended early"),
    "sse_usage_on_first_chunk_only.txt": Stream(
        sse(chat(None, 1, role="assistant", content=""), chat(content="a"), chat(content="b"), chat(content="c"), STOP,
            DONE), 3, 1, 3, (1, 1)),
    "sse_usage_zero_until_last.txt": Stream(
        sse(chat(None, 0, role="assistant", content=""), chat(None, 0, content="a"), chat(None, 0, content="b"),
            chat("stop", 2), DONE), 2, 1, 2, (1,)),
    "sse_reasoning.txt": Stream(
        sse(ROLE, chat(reasoning="x"), chat(reasoning="y"), chat(content="a"), STOP, DONE), 3, 1, 3, (1, 1)),
    "sse_usage_in_finish_chunk.txt": Stream(
        sse(chat(content="a"), chat(content="b"), chat("length", 2), DONE), 2, 0, 1, (1,)),
    "sse_finished_without_done.txt": Stream(sse(chat(content="a"), chat(content="b"), STOP), 2, 0, 1, (1,)),
    "sse_finish_reason_abort.txt": Stream(
        sse(chat(content="a"), chat("abort"), DONE), 1, failure="finish reason abort"),
    # Ours, of the same kinds.
    "finish reason error": Stream(sse(chat(content="a"), chat("error"), DONE), 1, failure="finish reason error"),
    "one newline after DONE": Stream((*sse(text("a"), text("b")), b"data: [DONE]\n"), 2, 0, 1, (1,)),
    "no newline after DONE": Stream((*sse(text("a"), text("b")), b"data: [DONE]"), 2, 0, 1, (1,)),
    "a blank after DONE": Stream((*sse(text("a"), text("b")), b"data: [DONE] \n\n"), 2, 0, 1, (1,)),
    "no newline after the finish": Stream((*sse(text("a"), text("b")), *sse(text("", "stop"), end="")), 2, 0, 1, (1,)),
    "finished twice as late": Stream(
        (*sse(text("a"), text("b")), b": ping\n\n", b": ping\n\n", *sse(text("", "length", usage=used(2)))),
        2, 0, 1, (1,)),
    "text held back": Stream(  # half a character is a token without text, the other half brings two
        sse(*(text(said, usage=used(n)) for n, said in enumerate(("a", "", "é", "b"), 1)), text("", "stop"), DONE),
        4, 0, 3, (1, 1, 1)),
    "neither end": Stream(sse(text("a"), text("b")), 2, failure="the stream ended early"),
    "never any text": Stream(sse(text(""), text("", "stop"), DONE), 0, failure="no token"),
}  # fmt: skip
DIALECTS = {
    "vLLM chat": Stream(  # include_usage and continuous_usage_stats
        sse(chat(None, 0, role="assistant", content=""), *(chat(None, n, content="x") for n in (1, 2, 3)),
            chat("length", 4, content="x"), usage_of(4), DONE), 4, 1, 4, (1, 1, 1)),
    "vLLM without a tokenizer": Stream(  # texts are empty, counts and token ids are not
        sse(*(text("", usage=used(n)) for n in (1, 2)), text("", "length", usage=used(3)), usage_of(3), DONE),
        3, 0, 2, (1, 1)),
    "vLLM token ids": Stream(
        sse(*({"choices": [{"index": 0, "text": "", "token_ids": [7]}]} for _ in range(3)), STOP, DONE),
        3, 0, 2, (1, 1)),
    "vLLM reasoning and a tool call": Stream(
        sse(ROLE, chat(reasoning_content="hm"), chat(tool_calls=call(name="f")), chat(tool_calls=call(arguments="{")),
            chat(tool_calls=call(arguments="}")), chat("tool_calls"), DONE), 4, 1, 4, (1, 1, 1)),
    "vLLM several tokens at a step": Stream(
        sse(text("a b ", usage=used(2)), text("c ", usage=used(3)), text("d e f ", "length", usage=used(6)), DONE),
        6, 0, 2, (0, 1, 1 / 3, 1 / 3, 1 / 3)),
    "vLLM error in the stream": Stream(
        sse(text("a"), {"object": "error", "message": "EngineCore died", "code": 500}, DONE), 1,
        failure="server error: EngineCore died"),
    "SGLang": Stream(  # the role may come with a null content, and every chunk names the stop that matched
        sse({**chat(role="assistant", content=None, reasoning_content=None, tool_calls=None)},
            chat(None, 1, content="a", reasoning_content=None), chat(None, 2, content="b", reasoning_content=None),
            {"choices": [{"index": 0, "delta": {"content": ""}, "finish_reason": "stop", "matched_stop": "</s>"}]},
            usage_of(3), DONE), 3, 1, 2, (1,)),
    "SGLang aborted": Stream(
        sse(chat(content="a"), {"choices": [{"delta": {}, "finish_reason": {"type": "abort", "message": "no"}}]}, DONE),
        1, failure="finish reason abort"),
    "llama.cpp": Stream(
        sse(chat(role="assistant", content=None), chat(content="a"), chat(content="b"), STOP,
            usage_of(2, timings={"prompt_n": 5, "predicted_n": 2, "predicted_ms": 40.0}), DONE), 2, 1, 2, (1,)),
    "llama.cpp of its own": Stream(
        sse({"content": "a", "stop": False, "tokens_predicted": 1}, {"content": "b", "stop": False,
            "tokens_predicted": 2}, {"content": "", "stop": True, "stop_type": "limit", "tokens_predicted": 2}),
        2, 0, 1, (1,)),
    "llama.cpp error": Stream(
        (*sse(text("a")), b'error: {"code": 500, "message": "context is full"}\n\n'), 1,
        failure="server error: context is full"),
    "ik_llama.cpp": Stream(  # a finish reason on every chunk, and no end
        sse(*(text("", "length", usage=used(n)) for n in (1, 2, 3))), 3, 0, 2, (1, 1)),
    "Ollama": Stream(
        sse(*(chat(role="assistant", content=said) for said in "ab"), chat("stop", role="assistant", content=""),
            usage_of(2), DONE), 2, 0, 1, (1,)),
    "Ollama thinking": Stream(
        sse(chat(role="assistant", content="", reasoning="x"), chat(role="assistant", content="a"),
            chat("stop", role="assistant", content=""), DONE), 2, 0, 1, (1,)),
    "Ollama generate": Stream(
        lines(*({"model": "m", "created_at": "2026-11-29T10:00:00Z", "response": s, "done": False} for s in "abc"),
              {"model": "m", "response": "", "done": True, "done_reason": "length", "eval_count": 3}),
        3, 0, 2, (1, 1)),
    "Ollama chat": Stream(
        lines({"model": "m", "message": {"role": "assistant", "content": "", "thinking": "x"}, "done": False},
              {"model": "m", "message": {"role": "assistant", "content": "a"}, "done": False},
              {"model": "m", "message": {"role": "assistant", "content": ""}, "done": True, "eval_count": 2}),
        2, 0, 1, (1,)),
    "Ollama error": Stream(
        lines({"response": "a", "done": False}, {"error": "model runner has stopped"}), 1,
        failure="server error: model runner has stopped"),
    "TGI": Stream(  # the last text comes with the finish; usage in a chunk of its own
        sse(chat(role="assistant", content="a"), chat(role="assistant", content="b"),
            chat("length", role="assistant", content="c"), usage_of(3), DONE), 3, 0, 2, (1, 1)),
    "TGI of its own": Stream(
        sse({"index": 1, "token": {"id": 5, "text": "a", "special": False}, "generated_text": None, "details": None},
            {"index": 2, "token": {"id": 6, "text": "b", "special": False}, "generated_text": "ab",
             "details": {"finish_reason": "length", "generated_tokens": 2}}), 2, 0, 1, (1,)),
    "TGI overloaded": Stream(
        sse({"error": "Model is overloaded", "error_type": "overloaded"}), 0,
        failure="server error: Model is overloaded"),
    "LiteLLM": Stream(  # a proxy: fields of its own, and the usage beside a choice without anything
        sse(chat(role="assistant", content="a", provider_specific_fields={"citations": None}),
            chat(content="b", provider_specific_fields={"trace": "t"}),
            chat(content=None, provider_specific_fields={"trace": "t"}), STOP, chat(None, 2, content=None), DONE),
        2, 0, 1, (1,)),
    "LiteLLM thinking": Stream(
        sse(chat(role="assistant", content="", reasoning_content="x",
                 thinking_blocks=[{"type": "thinking", "thinking": "x"}]),
            chat(content="", thinking_blocks=[{"type": "thinking", "thinking": "", "signature": "s"}]),
            chat(content="a"), STOP, DONE), 2, 0, 2, (2,)),
    "OpenAI": Stream(  # usage is null until the last chunk
        sse(*({**said, "usage": None} for said in (
            chat(role="assistant", content="", refusal=None), chat(content="a"), chat(content="b"), STOP)),
            usage_of(2), DONE), 2, 1, 2, (1,)),
    "OpenAI refusal": Stream(
        sse(chat(role="assistant", content="", refusal=None), chat(refusal="I"), chat(refusal=" can't"), STOP,
            usage_of(2), DONE), 2, 1, 2, (1,)),
    "OpenAI reasoning that is not shown": Stream(  # counted, but never sent: the counts are spread over what was
        sse(ROLE, chat(content="a"), chat(content="b"), STOP, usage_of(6), DONE), 6, 1, 2, (0, 0) + (1 / 3,) * 3),
    "Azure": Stream(  # the first chunk is about the prompt, others about filters
        sse({"choices": [], "prompt_filter_results": [{"content_filter_results": {"hate": {"severity": "safe"}}}]},
            ROLE, chat(content="a"),
            {"choices": [{"index": 0, "delta": {}, "content_filter_results": {"hate": {"severity": "safe"}}}]},
            chat(content="b"), STOP, DONE), 2, 2, 4, (2,)),
}  # fmt: skip
BODIES = {**BROKEN, **DIALECTS}
#: Bodies that lie beside the shared cases, by the folder that they are in.
ROUND_2 = tuple(name for name in BROKEN if name.startswith(("sse_usage", "sse_reasoning", "sse_finish")))
ROUND_1 = tuple(name for name in BROKEN if name.startswith("sse_") and name not in ROUND_2)


def pieces(event: bytes, size: int) -> Sequence[bytes]:
    return [event[begin : begin + size] for begin in range(0, len(event), size)]
