"""Server-sent events, fed in pieces of any size, and what one streamed completion said.

Only the fields that completions use are read (WHATWG HTML, section 9.2.6: `data` lines, comments, CRLF).  The
kept libraries either take whole responses of their own HTTP client or whole lines; the client here feeds raw
pieces as they come off the socket, and stamps them.
"""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any

#: A single event longer than this is not a completion's; the stream is given up as broken.
MAX_EVENT_BYTES = 1 << 22
DONE = "[DONE]"


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
        found = []
        for line in lines:
            if not line:
                if self._data:
                    found.append("\n".join(self._data))
                    self._data = []
            elif line.startswith(b"data:"):
                self._data.append(line[5:].removeprefix(b" ").decode("utf-8", "replace"))
        return found


@dataclass
class Completion:
    """What a streamed completion has said so far.

    event_ns : when each event that brought tokens arrived.  event_tokens : tokens of each, where the server counts
    them (None until the final usage says how many there were).
    """

    event_ns: list[int] = field(default_factory=list)
    event_tokens: list[int | None] = field(default_factory=list)
    usage_tokens: int | None = None
    error: str | None = None
    done: bool = False

    def take(self, data: str, now_ns: int) -> None:
        """Read one event's data that arrived at `now_ns`."""
        if data == DONE:
            self.done = True
            return
        try:
            said: Any = json.loads(data)
        except ValueError:
            self.error = self.error or "an event that is not JSON"
            return
        if not isinstance(said, dict):
            self.error = self.error or "an event that is not an object"
            return
        if said.get("error") is not None or said.get("object") == "error":
            wrong = said.get("error", said)
            message = wrong.get("message", wrong) if isinstance(wrong, dict) else wrong
            self.error = self.error or f"server error: {message}"
            return
        before, usage = self.usage_tokens, said.get("usage")
        if isinstance(usage, dict) and isinstance(usage.get("completion_tokens"), int):
            self.usage_tokens = usage["completion_tokens"]
        counted = None if self.usage_tokens is None else self.usage_tokens - (before or 0)
        choices = said.get("choices") or []
        if any(self._brings(choice, counted) for choice in choices if isinstance(choice, dict)):
            self.event_ns.append(now_ns)
            self.event_tokens.append(counted)

    @staticmethod
    def _brings(choice: dict[str, Any], counted: int | None) -> bool:
        """Whether a choice brought tokens: by the server's running count, else by any text or token ids in it."""
        if counted is not None:
            return counted > 0
        delta = choice.get("delta")
        holder = delta if isinstance(delta, dict) else choice
        return any(holder.get(name) for name in ("text", "content", "reasoning_content", "token_ids", "tool_calls"))

    @property
    def tokens(self) -> int:
        """Output tokens: by the server's usage, else one an event."""
        return self.usage_tokens if self.usage_tokens is not None else len(self.event_ns)

    @property
    def failure(self) -> str | None:
        """Why this is no success once the stream is over, or None."""
        if self.error:
            return self.error
        if not self.event_ns:
            return "no token"
        return None if self.done else "the stream ended early"

    def itl_ns(self) -> list[int]:
        """Time between consecutive tokens, tokens - 1 of them: an event's gap is shared by the tokens it brought."""
        sizes = self._sizes()
        gaps = [0] * (sizes[0] - 1) if sizes else []
        for (before, now), size in zip(pairwise(self.event_ns), sizes[1:], strict=True):
            gaps += [(now - before) // size] * size
        return gaps

    def _sizes(self) -> list[int]:
        if all(size is not None for size in self.event_tokens):
            return [max(size or 0, 1) for size in self.event_tokens]
        events, total = len(self.event_ns), max(self.tokens, len(self.event_ns))
        return [total // events + (i < total % events) for i in range(events)]
