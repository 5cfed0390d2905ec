"""A server that speaks streaming completions and misbehaves on purpose; the prompt's first token says how."""

from __future__ import annotations

import asyncio
import json
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass

import numpy as np
from aiohttp import web
from sse_bodies import BODIES, pieces

from adapters.sidecars.openai import Target, until
from protocol.workload.trace import NS_PER_S, RequestTrace

#: What a prompt that begins with this token id asks for.  BODY: the second token is the number of a body of
#: `sse_bodies`, the third the size of the pieces that it comes in.
(
    GOOD, REFUSE, HANG, CUT, ERROR, SEVERAL, SPLIT, SLOW, BUSY, BROKEN, HANG_UP, SILENT, DRIP, BIG, PAGE, LINGER, BODY,
    AT_ONCE, MOVED, AWAY, ROUND, FEWER, WRONG, TALKATIVE,
) = range(24)  # fmt: skip
_STATUS = {REFUSE: 429, BUSY: 503, BROKEN: 500, TALKATIVE: 500}
#: Time from one event of a body to the next.
DISTANCE_NS = 20_000_000
#: How long a redirect takes.
MOVING_S = 0.1


class FaultServer:
    """Counts what is open, so that a test can see that nothing is left."""

    def __init__(self) -> None:
        self.url = ""
        #: Streams that are being sent, and addresses that requests came from.
        self.open = 0
        self.peers: set[tuple[str, int]] = set()
        self.requests: list[dict] = []
        self.headers: list[str | None] = []
        self.runner: web.AppRunner | None = None
        #: While this says so, every request is turned away.
        self.refusing: Callable[[], bool] = lambda: False
        #: Once this says so, it drops every connection, as a server does that has died.
        self.dead: Callable[[], bool] = lambda: False
        #: While this says so, the metrics page fails.
        self.blind: Callable[[], bool] = lambda: False
        #: What it says, with status 400, of a request that it does not take; None of one that it takes.
        self.objects: Callable[[dict], object] = lambda asked: None
        #: When each event of a body, by the body's number and the size of its pieces, was complete.
        self.complete_ns: dict[tuple[int, int], list[int]] = {}
        #: Seconds by which every answer is late.
        self.delay_s: Callable[[], float] = lambda: 0.0

    @property
    def connections(self) -> int:
        """Open connections, idle ones included."""
        assert self.runner is not None and self.runner.server is not None
        return len(self.runner.server.connections)

    async def metrics(self, request: web.Request) -> web.Response:
        """A page as vLLM writes it."""
        if self.blind():
            return web.Response(status=500)
        lines = ["# HELP vllm:num_requests_running Running.", "# TYPE vllm:num_requests_running gauge"]
        lines += [f'vllm:num_requests_{what}{{engine="0",model_name="m"}} {n}.0' for what, n in self.gauges().items()]
        return web.Response(text="\n".join(lines) + "\n")

    def gauges(self) -> dict[str, int]:
        return {"running": self.open, "waiting": 0}

    async def complete(self, request: web.Request) -> web.StreamResponse:
        if self.dead():
            assert request.transport is not None
            request.transport.abort()
        asked = await request.json()
        self.requests.append(asked)
        self.headers.append(request.headers.get("Authorization"))
        assert request.transport is not None
        self.peers.add(request.transport.get_extra_info("peername"))
        how, tokens = asked["prompt"][0], asked.get("max_tokens", asked.get("max_completion_tokens"))
        if self.refusing():
            return web.Response(status=429, text="busy")
        if (wrong := self.objects(asked)) is not None:
            return web.json_response(wrong, status=400)
        if how in _STATUS:
            return web.Response(status=_STATUS[how], text="no" * 5000 if how == TALKATIVE else "")
        if how == WRONG:
            return web.json_response({"error": {"message": f"max_tokens {tokens}\n is too large \x1b[2J"}}, status=400)
        if how in (MOVED, ROUND) and (how == ROUND or request.path.startswith("/v1")):
            await asyncio.sleep(MOVING_S if how == MOVED else 0)
            return web.Response(status=307 if how == ROUND else 302, headers={"Location": "/moved/v1/completions"})
        if how == AWAY:
            return web.Response(status=308, headers={"Location": "http://user:key@elsewhere.test:8000/v1/x?key=1"})
        if how == HANG_UP:
            request.transport.close()
        if how == PAGE:
            return web.Response(text="<html>a proxy's page</html>", content_type="text/html")
        await asyncio.sleep(0.3 if how == SLOW else self.delay_s())
        response = web.StreamResponse(headers={"Content-Type": "text/event-stream"})
        await response.prepare(request)
        self.open += 1
        try:
            if how == BODY:
                await self._body(response, *asked["prompt"][1:3])
            else:
                await self._stream(response, how, tokens)
        finally:
            self.open -= 1
        return response

    async def about(self, request: web.Request) -> web.StreamResponse:
        """Its models and version."""
        if self.dead():
            assert request.transport is not None
            request.transport.abort()
        said = {"/version": {"version": "1.2"}, "/v1/models": {"data": [{"id": "m", "owned_by": "mock"}]}}
        return web.json_response(said[request.path])

    async def _body(self, response: web.StreamResponse, number: int, size: int) -> None:
        """Events that are complete at equal distances; all but the last piece of each comes before."""
        began_ns, complete_ns = time.monotonic_ns(), self.complete_ns.setdefault((number, size), [])
        complete_ns.clear()
        for k, event in enumerate(list(BODIES.values())[number].events, 1):
            *early, last = pieces(event, size)
            for piece in early:
                await response.write(piece)
            await until(began_ns + k * DISTANCE_NS)
            complete_ns.append(time.monotonic_ns())
            await response.write(last)

    async def _stream(self, response: web.StreamResponse, how: int, tokens: int) -> None:
        async def say(value: object) -> None:
            body = f"data: {value if isinstance(value, str) else json.dumps(value)}\n\n".encode()
            for piece in [body[i : i + 1] for i in range(len(body))] if how == SPLIT else [body]:
                await response.write(piece)

        if how == HANG:
            await asyncio.sleep(30)
        if how == ERROR:
            await say({"error": {"message": "engine dead", "code": 500}})
            await say("[DONE]")
            return
        if how == AT_ONCE:
            await asyncio.sleep(0.05)
            said = json.dumps({"choices": [{"index": 0, "text": "x"}]})
            await response.write(f"data: {said}\n\n".encode() * tokens + b"data: [DONE]\n\n")
            return
        each, tokens = 4 if how == SEVERAL else 1, tokens // 2 if how == FEWER else tokens
        text = "y" * 200_000 if how == BIG else "x " * each
        for _ in range(tokens // each):
            await say({"choices": [{"index": 0, "text": text}]})
            await asyncio.sleep(0.2 if how == DRIP else 0.002)
            if how == CUT:
                await response.write(b'data: {"choices":[{"te')
                return
            if how == SILENT:
                await asyncio.sleep(30)
        await say({"choices": [], "usage": {"completion_tokens": tokens}})
        await say("[DONE]")
        if how == LINGER:
            await asyncio.sleep(30)


@dataclass(frozen=True)
class Told(Target):
    """Prompts whose first tokens tell the server what to do with each request."""

    hows: tuple[tuple[int, ...], ...] = ()

    def body(self, prompt_tokens: int, output_tokens: int, index: int, run: int = 0) -> dict:
        asked = super().body(prompt_tokens, output_tokens, index, run)
        how = self.hows[index]
        asked["prompt"][: len(how)] = how
        return asked


def told(url: str, *hows: int | tuple[int, ...]) -> Told:
    return Told(url, "m", hows=tuple(how if isinstance(how, tuple) else (how,) for how in hows))


def evenly(n: int, gap_s: float, output: int = 8) -> RequestTrace:
    """Requests of 8 prompt and 8 output tokens, `gap_s` apart."""
    return RequestTrace(np.arange(n) * int(gap_s * NS_PER_S), np.full(n, 8), np.full(n, output))


class Good(Target):
    """No prompt tells the server to misbehave."""

    def body(self, prompt_tokens: int, output_tokens: int, index: int, run: int = 0) -> dict:
        asked = super().body(prompt_tokens, output_tokens, index, run)
        asked["prompt"][0] = GOOD
        return asked


@contextmanager
def serving(late_s: float = 0.0) -> Iterator[FaultServer]:
    """The server in a thread of its own, on a free port, where nobody listens before `late_s`."""
    server, loop, ready = FaultServer(), asyncio.new_event_loop(), threading.Event()

    async def start() -> web.AppRunner:
        app = web.Application()
        for path in ("/v1/completions", "/moved/v1/completions"):
            app.router.add_post(path, server.complete)
        app.router.add_get("/metrics", server.metrics)
        app.router.add_get("/v1/models", server.about)
        app.router.add_get("/version", server.about)
        server.runner = runner = web.AppRunner(app, handler_cancellation=True)
        await runner.setup()
        site = web.TCPSite(runner, "127.0.0.1", 0)
        await site.start()
        host, port = runner.addresses[0]
        server.url = f"http://{host}:{port}"
        if late_s:
            await site.stop()
        ready.set()
        if late_s:
            await asyncio.sleep(late_s)
            await web.TCPSite(runner, host, port).start()
        return runner

    runner = loop.create_task(start())
    thread = threading.Thread(target=loop.run_forever, daemon=True)
    thread.start()
    assert ready.wait(10)
    try:
        yield server
    finally:
        asyncio.run_coroutine_threadsafe(runner.result().cleanup(), loop).result(10)
        loop.call_soon_threadsafe(loop.stop)
        thread.join(10)
        loop.close()
