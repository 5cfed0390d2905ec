"""Bodies of streamed completions that broke other clients, and what each must give."""

from __future__ import annotations

TOKEN = '{"choices":[{"index":0,"text":"x"}]}'
#: body, tokens, failure (a part of it, None for success), and the number of the event that is the first token.
BODIES = {
    "sse_error_after_200.txt": (
        b'data: {"error":{"message":"engine dead","code":500}}\n\ndata: [DONE]\n\n', 0, "engine dead"),
    "sse_delta_without_content.txt": (
        b'data: {"choices":[{"delta":{"role":"assistant"}}]}\n\ndata: {"choices":[{"delta":{"content":"hi"}}]}\n\n'
        b'data: {"choices":[{"delta":{},"finish_reason":"stop"}]}\n\n'
        b'data: {"choices":[],"usage":{"completion_tokens":1}}\n\ndata: [DONE]\n\n', 1, None),
    "sse_only_done.txt": (b"data: [DONE]\n\n", 0, "no token"),
    "sse_several_tokens_per_event.txt": (
        b'data: {"choices":[{"text":"a b c d "}],"usage":null}\n\n' * 4
        + b'data: {"choices":[],"usage":{"completion_tokens":16}}\n\ndata: [DONE]\n\n', 16, None),
    "sse_comments_and_crlf.txt": (
        f": ping\r\n\r\nevent: message\r\ndata:{TOKEN}\r\n\r\ndata: [DONE]\r\n\r\n".encode(), 1, None),
    "sse_cut_midway.txt": (f'data: {TOKEN}\n\ndata: {{"choices":[{{"index":0,"te'.encode(), 1, "ended early"),
}  # fmt: skip
