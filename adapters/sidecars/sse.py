"""Streams of generated text, fed in pieces of any size, and what one streamed completion said.

Only the fields that completions use are read (WHATWG HTML, section 9.2.6: `data` lines, comments, CRLF), and lines
of JSON, as Ollama sends them.  The kept libraries either take whole responses of their own HTTP client or whole
lines; the client here feeds raw pieces as they come off the socket, and stamps them.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any

#: A single event longer than this is not a completion's; the stream is given up as broken.
MAX_EVENT_BYTES = 1 << 22
DONE = "[DONE]"
#: Ends of a completion that are failures of the server.
FAILURES = ("abort", "aborted", "cancelled", "error")
#: No single stream is generated faster; a response whose tokens come closer together was held back and sent at once.
FASTEST_NS = 50_000
#: Tokens up to which a response may well come in one piece, as servers that decode several at a time send it.
FEW_TOKENS = 8
#: Where servers count what they have generated: OpenAI's dialects, TGI, SGLang, llama.cpp, Ollama.
_COUNTS = (
    ("usage", "completion_tokens"), ("usage", "output_tokens"), ("details", "generated_tokens"),
    ("meta_info", "completion_tokens"), ("timings", "predicted_n"), ("", "tokens_predicted"), ("", "eval_count"),
)  # fmt: skip
#: Of a choice, where what was generated may lie ...
_GENERATED = ("delta", "message", "text", "token_ids")
#: ... and of that, and of a whole event of a server's own format, what says something else.
_ABOUT = frozenset(
    "annotations created_at finish_reason format id index logprobs model object provider_specific_fields role "
    "signature stop_reason tool_call_id type".split()
)


class Events:
    """Cut a byte stream into the `data` of its events.

    >>> events = Events()
    >>> events.feed(b": ping\\r\\n\\r\\ndata: a\\r") + events.feed(b"\\ndata: b\\n\\n")
    ['a\\nb']
    """

    def __init__(self) -> None:
        self._tail = b""
        self._data: list[str] = []

    def feed(self, piece: bytes) -> list[str]:
        """The events that this piece completes.  Raises ValueError when an event grows without end."""
        self._tail += piece
        # A carriage return at the very end may be half of a CRLF: leave it for the next piece.
        held = b"\r" if self._tail.endswith(b"\r") else b""
        lines = self._tail.removesuffix(held).replace(b"\r\n", b"\n").replace(b"\r", b"\n").split(b"\n")
        self._tail = lines.pop() + held
        if len(self._tail) > MAX_EVENT_BYTES:
            raise ValueError(f"an event of more than {MAX_EVENT_BYTES} bytes")
        return [event for line in lines for event in self._take(line)]

    def end(self) -> list[str]:
        """What the end of the stream completes: a last event need not be followed by an empty line."""
        return self.feed(b"\n\n")

    def _take(self, line: bytes) -> Iterator[str]:
        if not line:
            if self._data:
                yield "\n".join(self._data)
                self._data = []
        elif line.startswith(b"data:"):
            said = line[5:].removeprefix(b" ").decode("utf-8", "replace")
            if not self._data and said.strip() == DONE:  # some servers leave it at this line
                yield DONE
            else:
                self._data.append(said)
        elif line.startswith(b"error:"):  # llama.cpp before 2025
            yield f'{{"error": {line[6:].decode("utf-8", "replace")}}}'
        elif line.startswith(b"{"):  # JSON lines
            yield line.decode("utf-8", "replace")


@dataclass
class Completion:
    """What a streamed completion has said so far.

    A token event is one that brought text, whatever its field is called; of a server that sends no text at all, one
    at which its count of tokens grew.
    """

    error: str | None = None
    done: bool = False
    finished: bool = False
    #: When each event that brought text, or a larger count, arrived, and the server's count then (0: it did not say).
    _text: list[tuple[int, int]] = field(default_factory=list)
    _grew: list[tuple[int, int]] = field(default_factory=list)
    #: The last count that the server gave, and the text events that it had sent by then.
    _count: int = 0
    _counted: int = 0

    def take(self, data: str, now_ns: int) -> None:
        """Read one event's data that arrived at `now_ns`."""
        if data.strip() == DONE:
            self.done = True
            return
        try:
            said: Any = json.loads(data)
        except (ValueError, RecursionError):
            self.error = self.error or "an event that is not JSON"
            return
        if not isinstance(said, dict):
            self.error = self.error or "an event that is not an object"
            return
        if said.get("error") is not None or said.get("object") == "error":
            self.error = self.error or f"server error: {message_of(said)}"
            return
        choices = said.get("choices")
        listed = choices if isinstance(choices, list) else [said]
        count = _count(said)
        for choice in listed:
            self._end_of(choice)
        if any(_brings(choice, own=choices is None) for choice in listed):
            self._text.append((now_ns, count))
        if count > self._count:
            self._grew.append((now_ns, count))
        if count:
            self._count, self._counted = count, len(self._text)

    def cut(self, data: str, now_ns: int) -> None:
        """Read what was left without an end when the stream ended; half an event is none."""
        if data.strip() != DONE:
            try:
                json.loads(data)
            except (ValueError, RecursionError):
                return
        self.take(data, now_ns)

    def _end_of(self, choice: Any) -> None:
        if not isinstance(choice, dict):
            return
        details = choice.get("details")
        for holder in (choice, details if isinstance(details, dict) else {}):
            reason = holder.get("finish_reason") or holder.get("done_reason")
            reason = reason.get("type") if isinstance(reason, dict) else reason
            if isinstance(reason, str) and reason:
                self.finished = True
                if reason.lower() in FAILURES:
                    self.error = self.error or f"finish reason {reason}"
        if choice.get("done") is True or choice.get("stop") is True:  # Ollama, llama.cpp
            self.finished = True

    @property
    def _events(self) -> list[tuple[int, int]]:
        return self._text or self._grew

    @property
    def event_ns(self) -> list[int]:
        """When each event that brought tokens arrived."""
        return [now_ns for now_ns, _ in self._events]

    @property
    def first_ns(self) -> int:
        """When the first token arrived; -1 while there is none."""
        return self._events[0][0] if self._events else -1

    @property
    def last_ns(self) -> int:
        """When the last token arrived; -1 while there is none."""
        return self._events[-1][0] if self._events else -1

    @property
    def tokens(self) -> int:
        """Output tokens: by the server's count, and one for each event that came after it."""
        if not self._text:
            return self._count
        # A count that came before any text says nothing of the text.
        return (self._count if self._counted else 0) + len(self._text) - self._counted

    @property
    def failure(self) -> str | None:
        """Why this is no success once the stream is over, or None."""
        if self.error:
            return self.error
        if not self._events:
            return "no token"
        return None if self.done or self.finished else "the stream ended early"

    @property
    def streamed(self) -> bool:
        """False when more than a few tokens came as if in one write: their times are not those of the tokens."""
        if self.tokens <= FEW_TOKENS:
            return True
        return self.last_ns - self.first_ns >= FASTEST_NS * (self.tokens - 1)

    def itl_ns(self) -> list[int]:
        """Time between consecutive tokens: an event's gap is shared by the tokens that it brought."""
        sizes = self._sizes()
        gaps = [0] * (sizes[0] - 1) if sizes else []
        for (before, now), size in zip(pairwise(self.event_ns), sizes[1:], strict=True):
            gaps += [(now - before) // size] * size
        return gaps

    def _sizes(self) -> list[int]:
        """Tokens of each event: between two counts they are spread evenly, at least one an event."""
        known = [(n, count) for n, (_, count) in enumerate(self._events, 1) if count]
        if not known or known[-1][0] < len(self._events):
            known.append((len(self._events), self.tokens))
        sizes: list[int] = []
        so_far = 0
        for n, count in known:
            events = n - len(sizes)
            tokens = max(count - so_far, events)
            sizes += [tokens // events + (i < tokens % events) for i in range(events)] if events else []
            so_far += tokens
        return sizes


def message_of(said: dict[str, Any]) -> str:
    """What a server says is wrong, one line: OpenAI's, FastAPI's and other shapes of an error."""
    wrong = said.get("error") or said.get("detail") or said
    if isinstance(wrong, list) and wrong and isinstance(wrong[0], dict):  # pydantic: where, and what of it
        wrong = "; ".join(f"{'.'.join(map(str, w.get('loc', ())))}: {w.get('msg', w)}" for w in wrong[:5])
    if isinstance(wrong, dict):
        wrong = wrong.get("message") or wrong.get("msg") or said.get("message") or wrong
    return " ".join(str(wrong).split())


def _count(said: dict[str, Any]) -> int:
    """Tokens generated so far, where the server says so; 0 where it does not."""
    for where, name in _COUNTS:
        holder = said.get(where) if where else said
        value = holder.get(name) if isinstance(holder, dict) else None
        if isinstance(value, int) and not isinstance(value, bool) and value > 0:
            return value
    return 0


def _brings(choice: Any, own: bool) -> bool:
    """Whether a choice brought text or token ids; `own`: an event of a server's own format, without choices."""
    if not isinstance(choice, dict):
        return False
    if not own:
        return any(_said(choice.get(name)) for name in _GENERATED)
    token, message = choice.get("token"), choice.get("message")
    if isinstance(token, dict):  # TGI, whose last `generated_text` repeats them all
        return bool(token.get("text"))
    return any(_said(choice.get(name)) for name in ("response", "thinking", "content")) or (
        isinstance(message, dict) and _said(message)
    )


def _said(value: Any, depth: int = 0) -> bool:
    """Whether anything but names and kinds is in it."""
    if isinstance(value, dict):
        return depth < 8 and any(_said(v, depth + 1) for k, v in value.items() if k not in _ABOUT)
    if isinstance(value, list):
        return depth < 8 and any(_said(v, depth + 1) or isinstance(v, int) for v in value)
    return isinstance(value, str) and bool(value)
