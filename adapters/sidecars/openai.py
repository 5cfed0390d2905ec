"""A real sidecar: any server that speaks OpenAI's streaming completions, loaded open-loop.

Requests are sent when the trace says, whatever the server does meanwhile, and every latency counts from the
scheduled arrival, so neither client nor queue can hide a delay (no coordinated omission).
"""

from __future__ import annotations

import asyncio
import json
import os
import time
from collections import Counter
from collections.abc import Callable, Coroutine, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from typing import Any
from urllib.parse import urljoin, urlsplit

import numpy as np
from numpy.typing import NDArray

from adapters.sidecars.sse import Completion, Events, message_of
from protocol.errors import ProtocolError, SidecarError
from protocol.merging.schedule import Schedule
from protocol.replay.measurements import FAILED, REFUSED, SERVED, Measurements, exposure_ns
from protocol.replay.replay import SENT_SHARE, SENT_WITHIN_NS
from protocol.workload.trace import NS_PER_S, RequestTrace, frozen

#: Statuses by which a server turns a request away rather than failing on it.
_REFUSALS = {429, 503}
_REDIRECTS, _MOST_REDIRECTS = {301, 302, 307, 308}, 3
#: Statuses by which a server says that a request is not what it takes.
_NOT_TAKEN = ("HTTP 400", "HTTP 422")
#: Of the page that tells why, this much is read, for this long, and kept.
_REASON_BYTES, _REASON_S, _REASON_CHARACTERS = 1 << 16, 2.0, 200
#: What the loop's timers are rounded up to, and how long before a request it stays awake on cores of its own.
TICK_NS, SPIN_NS = 1_000_000, 3_000_000
#: Where the key is looked for; it is never stored, logged or certified.
API_KEY = "OPENAI_API_KEY"
#: What requests of token ids carry beside the usual fields: vLLM without a tokenizer needs it.
OF_TOKEN_IDS: Mapping[str, Any] = {"detokenize": False}
#: Fields that are left out where a server refuses them, those first that the fewest servers know.
OPTIONAL = ("detokenize", "ignore_eos", "stream_options.continuous_usage_stats", "stream_options", "temperature")
#: OpenAI's reasoning models know the second name alone.
_RENAMED = {"max_tokens": "max_completion_tokens"}


@dataclass(frozen=True)
class Target:
    """Where and how to ask.

    url : base address, without /v1.  chat : chat completions instead of completions.  token_ids : prompts as token
    ids below `vocabulary` (else as text of about the wanted length).  extra : further fields of every request.
    dropped : usual fields that are not sent, because the server refuses them.
    """

    url: str
    model: str
    chat: bool = False
    token_ids: bool = True
    vocabulary: int = 32_000
    extra: Mapping[str, Any] = field(default_factory=dict)
    dropped: tuple[str, ...] = ()

    def body(self, prompt_tokens: int, output_tokens: int, index: int, run: int = 0) -> dict[str, Any]:
        """Request `index` of a run; its prompt is its own, so that no prefix cache serves it."""
        salt = run + index
        fields: dict[str, Any] = {
            "model": self.model,
            "max_tokens": output_tokens,
            "stream": True,
            "stream_options": {"include_usage": True, "continuous_usage_stats": True},
            "ignore_eos": True,
            "temperature": 0.0,
            **self.extra,
        }
        for name in self.dropped:
            outer, _, inner = name.partition(".")
            if name in _RENAMED:
                fields[_RENAMED[name]] = fields.pop(name)
            elif not inner:
                fields.pop(outer, None)
            elif outer in fields:
                fields[outer] = {key: value for key, value in fields[outer].items() if key != inner}
        if self.token_ids and not self.chat:
            start = salt * 7919
            usable = self.vocabulary - 3
            return {**fields, "prompt": [3 + (start + 31 * i) % usable for i in range(prompt_tokens)]}
        text = f"{salt} " + "word " * max(prompt_tokens - 2, 1)
        if self.chat:
            return {**fields, "messages": [{"role": "user", "content": text}]}
        return {**fields, "prompt": text}

    def without(self, name: str) -> Target:
        """The same requests but for one field."""
        extra = {key: value for key, value in self.extra.items() if key != name}
        return replace(self, extra=extra, dropped=(*self.dropped, name))

    def blamed(self, run: Run) -> str | None:
        """The field to leave out next, after a run that was not served whole: one that the server's reason names, or
        else the first that is still sent; None where leaving one out cannot help."""
        left = [name for name in OPTIONAL if name not in self.dropped and (name in self.extra or name != OPTIONAL[0])]
        reasons = " ".join(cause for cause in run.failures if cause.startswith(_NOT_TAKEN))
        if not reasons:  # servers that cannot do without a tokenizer fail in ways of their own
            return OPTIONAL[0] if OPTIONAL[0] in left else None
        for name, known in _RENAMED.items():
            if name not in self.dropped and known in reasons:
                return name
        named = [name for name in left if name.rpartition(".")[2] in reasons]
        return next(iter([*named, *left]), None)

    @property
    def fields(self) -> dict[str, Any]:
        """What requests carry beside the usual fields, and which of those they lack, as a certificate states it."""
        return {**self.extra, **dict.fromkeys(self.dropped, "not sent: the server refuses it")}

    @property
    def path(self) -> str:
        return f"{self.url.rstrip('/')}/v1/{'chat/completions' if self.chat else 'completions'}"


@dataclass(frozen=True)
class Deadlines:
    """Seconds after which a request, a silent stream, and the whole run past its last arrival are given up."""

    request_s: float = 60.0
    idle_s: float = 20.0
    drain_s: float = 60.0


@dataclass(frozen=True, eq=False)
class Run:
    """One replay on a real server.

    measurements : a row for every scheduled request.  itl_ns : inter-token latencies of each, empty where none or where
    the response was not streamed.
    failures : how many requests failed of each cause.
    send_delay_ns : int64, sent minus scheduled, -1 where never sent.
    """

    measurements: Measurements
    itl_ns: tuple[NDArray[np.int64], ...]
    failures: Mapping[str, int]
    send_delay_ns: NDArray[np.int64]

    @property
    def complaint(self) -> str:
        """Each cause of failure with the number of requests that it cost."""
        return ", ".join(f"{cause} ({n})" for cause, n in self.failures.items())

    @property
    def invalid(self) -> str | None:
        """Why the client did not offer the load that it was asked to, or None."""
        late = (self.send_delay_ns > SENT_WITHIN_NS) | (self.send_delay_ns < 0)
        share = 1.0 - float(late.mean()) if len(late) else 1.0
        if share < SENT_SHARE:
            return (
                f"{100 * share:.2f} % of requests were sent within {SENT_WITHIN_NS / 1e6:g} ms of schedule; "
                f"expected at least {100 * SENT_SHARE:g} %: the client could not offer this load"
            )
        return None

    def exposed_to(self, trace: RequestTrace, schedule: Schedule) -> Run:
        """The same run with its exposure counted against the merges of `schedule`."""
        exposed = exposure_ns(trace, self.measurements.e2e_ns, schedule)
        return replace(self, measurements=replace(self.measurements, exposure_ns=exposed))


class Row:
    """What is known of one request so far; times on the monotonic clock, -1 before they are known."""

    __slots__ = ("answered", "completion", "ended_ns", "failure", "refused", "sent_ns", "unreachable")

    def __init__(self) -> None:
        self.sent_ns = self.ended_ns = -1
        self.completion = Completion()
        self.failure: str | None = "not sent before the run's deadline"
        self.refused = self.unreachable = False
        #: Once the server has said anything, a redirect included, the request is out for good.
        self.answered = False


async def replay_open_loop(
    target: Target,
    trace: RequestTrace,
    deadlines: Deadlines,
    begin: Callable[[int], None] = lambda start_ns: None,
    lead_s: float = 0.5,
    salt: int | None = None,
    spin_ns: int = TICK_NS,
    beside: Callable[[Any, Sequence[Row], int], Coroutine[Any, Any, None]] | None = None,
) -> tuple[list[Row], int]:
    """Send every request at its time; rows in the order of the trace, and the clock reading of the trace's start.

    begin : called once with the monotonic clock reading at which the trace starts, `lead_s` ahead of it.
    spin_ns : before each request the loop does not sleep for so long: it costs a core, and wakes up in time.
    salt : what tells this run's prompts from those of others, `salt` to `salt` + n - 1; None takes the clock.
    beside : runs meanwhile, given the HTTP session, the rows as they fill and that clock reading.  It is waited for;
        an error of it ends the replay at once and is raised.
    """
    aiohttp = http_library()
    rows = [Row() for _ in range(len(trace))]
    headers = {"Content-Type": "application/json"}
    if os.environ.get(API_KEY):
        headers["Authorization"] = f"Bearer {os.environ[API_KEY]}"
    # Prompts differ from run to run, or a prefix cache would serve the second replay of a trace faster than the first.
    run = time.monotonic_ns() // 1_000_000 if salt is None else salt
    bodies = [
        json.dumps(target.body(int(p), int(o), i, run)).encode()
        for i, (p, o) in enumerate(zip(trace.prompt_tokens, trace.output_tokens, strict=True))
    ]
    hooks = aiohttp.TraceConfig()

    async def on_sent(session: Any, context: Any, params: Any) -> None:
        row: Row = context.trace_request_ctx
        if not row.answered:
            row.sent_ns = time.monotonic_ns()

    # Headers wait for the body, and the body for the loop's next turn: its last piece is when a request is out.
    hooks.on_request_chunk_sent.append(on_sent)
    # Shorter than servers keep an idle connection (5 s is common), or one would close while a request is on its way.
    connector = aiohttp.TCPConnector(limit=0, keepalive_timeout=2)
    timeout = aiohttp.ClientTimeout(total=deadlines.request_s, sock_read=deadlines.idle_s)
    async with aiohttp.ClientSession(
        connector=connector, timeout=timeout, headers=headers, trace_configs=[hooks], read_bufsize=1 << 16
    ) as session:
        start_ns = time.monotonic_ns() + int(lead_s * NS_PER_S)
        begin(start_ns)
        sending = asyncio.create_task(
            _send(session, target.path, bodies, rows, trace, start_ns, deadlines.drain_s, spin_ns)
        )
        tasks = [sending, *([asyncio.create_task(beside(session, rows, start_ns))] if beside else [])]
        try:
            await asyncio.gather(*tasks)
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
    return rows, start_ns


async def _send(
    session: Any,
    path: str,
    bodies: Sequence[bytes],
    rows: Sequence[Row],
    trace: RequestTrace,
    start_ns: int,
    drain_s: float,
    spin_ns: int,
) -> None:
    """Every request at its time, then what is still running for at most `drain_s`; nothing runs on afterwards."""
    running: set[asyncio.Task[None]] = set()
    try:
        for row, body, arrival_ns in zip(rows, bodies, trace.arrival_ns.tolist(), strict=True):
            await until(start_ns + arrival_ns, spin_ns)
            task = asyncio.create_task(_one(session, path, body, row))
            running.add(task)
            task.add_done_callback(running.discard)
        if running:
            await asyncio.wait(running, timeout=drain_s)
    finally:
        late = list(running)
        for task in late:
            task.cancel()
        await asyncio.gather(*late, return_exceptions=True)


async def until(deadline_ns: int, spin_ns: int = TICK_NS) -> None:
    """Sleep but for the last `spin_ns`, then yield in small steps: late by far less than a tick of the loop."""
    while (left := deadline_ns - time.monotonic_ns()) > 0:
        await asyncio.sleep((left - spin_ns) / NS_PER_S if left > spin_ns else 0)


async def _one(session: Any, path: str, body: bytes, row: Row) -> None:
    """One request from sending to its last event; every way it can end is a value in its row."""
    row.failure = "given up at the run's deadline"
    try:
        for _ in range(_MOST_REDIRECTS + 1):
            async with session.post(path, data=body, trace_request_ctx=row, allow_redirects=False) as response:
                row.answered = True
                moved = response.headers.get("Location") if response.status in _REDIRECTS else None
                if moved is None:
                    await _take(response, row)
                    return
                before, path = path, urljoin(path, moved)
                if urlsplit(before).netloc != urlsplit(path).netloc:
                    # What is measured there is another server, which may be further away, or see the key.
                    row.failure = f"HTTP {response.status}: redirected to {_place(path)}; give that address"
                    return
        row.failure = f"redirected more than {_MOST_REDIRECTS} times, at last to {_place(path)}"
    except asyncio.CancelledError:
        raise
    except TimeoutError:
        _fail(row, "timed out" if row.sent_ns >= 0 else "timed out before it was sent")
    except ValueError as error:
        _fail(row, f"unreadable stream: {error}")
    except Exception as error:  # every failure of a server is a row, whatever its class; none may end the run
        _fail(row, type(error).__name__)
        if "ConnectionRefused" in repr(error) or "ClientConnectorError" in type(error).__name__:
            # Turned away at the door: the client did offer it, so this counts against the server alone.
            row.refused = row.unreachable = True
            row.sent_ns = time.monotonic_ns()
    finally:
        row.ended_ns = time.monotonic_ns()


async def _take(response: Any, row: Row) -> None:
    """Read an answer to its end, past [DONE], or the connection could not be used again."""
    if response.status != 200:
        row.refused = response.status in _REFUSALS
        row.failure = f"HTTP {response.status}"
        with suppress(Exception):  # the status is the failure, whether or not a reason can be read
            async with asyncio.timeout(_REASON_S):
                row.failure += _reason(await _some(response))
        return
    events, said, now_ns = Events(), row.completion, 0
    async for piece in response.content.iter_any():
        now_ns = time.monotonic_ns()
        for data in events.feed(piece):
            said.take(data, now_ns)
        if said.done:
            row.failure = said.failure
    for data in events.end():
        said.cut(data, now_ns)
    row.failure = said.failure


async def _some(response: Any) -> bytes:
    page = b""
    async for piece in response.content.iter_any():
        page += piece
        if len(page) >= _REASON_BYTES:
            break
    return page


def _reason(page: bytes) -> str:
    """What a server's page says of its refusal, one line without control characters and keys; empty for HTML."""
    text = page.decode("utf-8", "replace").strip()
    try:
        said = json.loads(text)
    except (ValueError, RecursionError):
        said = None
    words = message_of(said) if isinstance(said, dict) else " ".join(text.split())
    if not words or words.startswith("<"):
        return ""
    if key := os.environ.get(API_KEY):
        words = words.replace(key, "...")
    return ": " + "".join(c if c.isprintable() else "?" for c in words[:_REASON_CHARACTERS])


def _place(url: str) -> str:
    """An address that may be shown: without credentials and query."""
    parts = urlsplit(url)
    return f"{parts.scheme}://{parts.netloc.rpartition('@')[2]}{parts.path}"


def _fail(row: Row, why: str) -> None:
    """What goes wrong after [DONE] changes nothing."""
    if not row.completion.done:
        row.failure = why


def replay(
    target: Target,
    trace: RequestTrace,
    schedule: Schedule,
    deadlines: Deadlines | None = None,
    begin: Callable[[int], None] = lambda start_ns: None,
    spin_ns: int = TICK_NS,
) -> Run:
    """Replay a trace on a live server.  `schedule` says which merges ran, for the exposure.

    Raises SidecarError when the server cannot be reached at all.
    """
    rows, start_ns = asyncio.run(replay_open_loop(target, trace, deadlines or Deadlines(), begin, spin_ns=spin_ns))
    if rows and all(row.unreachable for row in rows):
        raise SidecarError(f"{target.url}: nobody answers there; expected a server that speaks OpenAI's completions")
    return run_of(rows, start_ns, trace, schedule)


def that_serves(
    target: Target,
    trace: RequestTrace,
    offer: Callable[[Target, RequestTrace], Run] = lambda target, trace: replay(target, trace, Schedule.empty()),
) -> Target:
    """The target with the fields under which most of four requests are served, the trace's smallest and largest among
    them.  Fields that the server refuses are left out one by one, and `Target.fields` says so.

    offer : replays a trace without merges.  Raises SidecarError when the server serves none of them.
    """
    size = trace.prompt_tokens.astype(np.int64) + trace.output_tokens
    picked = np.argsort(size, kind="stable")[[0, len(size) // 4, len(size) // 2, -1]]
    every_ns = np.arange(len(picked)) * (NS_PER_S // 10)
    sample = RequestTrace(every_ns, trace.prompt_tokens[picked], trace.output_tokens[picked])
    tried: list[tuple[int, Target, str]] = []
    of_ids = OF_TOKEN_IDS if target.token_ids and not target.chat else {}
    candidate: Target | None = replace(target, extra={**of_ids, **target.extra})
    while candidate is not None:
        run = offer(candidate, sample)
        tried.append((int(np.count_nonzero(run.measurements.outcome == SERVED)), candidate, run.complaint))
        if tried[-1][0] == len(sample):
            return candidate
        name = candidate.blamed(run)
        candidate = None if name is None else candidate.without(name)
    served, best, _ = max(tried, key=lambda t: t[0])
    if not served:
        raise SidecarError(
            f"{target.url}: served none of {len(sample)} first requests ({tried[0][2]}); "
            f"expected a server that completes prompts with the model {target.model!r}"
        )
    return best


def run_of(rows: Sequence[Row], start_ns: int, trace: RequestTrace, schedule: Schedule) -> Run:
    """What the rows of a finished replay say, whose trace began at clock reading `start_ns`."""
    origin = start_ns + trace.arrival_ns
    served = np.array([row.failure is None for row in rows], bool)
    # Of a response that came in one write nobody knows when its tokens were there, but for the last.
    streamed = np.array([row.failure is None and row.completion.streamed for row in rows], bool)
    first = np.array([row.completion.first_ns for row in rows], np.int64)
    last = np.array([row.completion.last_ns for row in rows], np.int64)
    sent = np.array([row.sent_ns for row in rows], np.int64)
    itl = tuple(frozen(r.completion.itl_ns() if known else [], "i8") for r, known in zip(rows, streamed, strict=True))
    longest = np.array([int(gaps.max()) if len(gaps) else 0 for gaps in itl], np.int64)
    e2e = np.where(served, np.maximum(last - origin, 1), -1)
    outcome = np.where(served, SERVED, np.where([row.refused for row in rows], REFUSED, FAILED))
    measurements = Measurements(
        arrival_ns=trace.arrival_ns,
        sent_ns=np.where(sent >= 0, sent - start_ns, -1),
        ttft_ns=np.where(streamed, np.maximum(first - origin, 1), -1),
        e2e_ns=e2e,
        max_itl_ns=np.where(served & ~streamed, -1, longest),
        prompt_tokens=trace.prompt_tokens,
        output_tokens=np.array([row.completion.tokens if row.failure is None else 0 for row in rows], np.int32),
        outcome=outcome,
        island=trace.island,
        exposure_ns=exposure_ns(trace, e2e, schedule),
        asked_tokens=trace.output_tokens,
    )
    failures = Counter(row.failure for row in rows if row.failure is not None)
    return Run(measurements, itl, dict(sorted(failures.items())), np.where(sent >= 0, sent - origin, -1))


def http_library() -> Any:
    """aiohttp.  Raises ProtocolError when the extra is not installed."""
    try:
        import aiohttp
    except ImportError:
        raise ProtocolError("real sidecars need the extra: pip install 'diloco-protocol[sidecar]'") from None
    return aiohttp
