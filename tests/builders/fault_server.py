"""A server that speaks streaming completions and misbehaves on purpose; the prompt's first token says how."""

from __future__ import annotations

import asyncio
import json
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import numpy as np
from aiohttp import web
from sse_bodies import BODIES

from adapters.sidecars.openai import Target
from protocol.workload.trace import NS_PER_S, RequestTrace

#: What a prompt that begins with this token id asks for.  BODY: the second token is the number of a body of
#: `sse_bodies`, the third the size of the pieces that it comes in.
(
    GOOD, REFUSE, HANG, CUT, ERROR, SEVERAL, SPLIT, SLOW, BUSY, BROKEN, HANG_UP, SILENT, DRIP, BIG, PAGE, LINGER, BODY
) = range(17)  # fmt: skip
_STATUS = {REFUSE: 429, BUSY: 503, BROKEN: 500}


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
        how, tokens = asked["prompt"][0], asked["max_tokens"]
        if self.refusing():
            return web.Response(status=429, text="busy")
        if how in _STATUS:
            return web.Response(status=_STATUS[how], text="no")
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
                body, size = list(BODIES.values())[asked["prompt"][1]][0], asked["prompt"][2]
                for begin in range(0, len(body), size):
                    await response.write(body[begin : begin + size])
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
        each = 4 if how == SEVERAL else 1
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


class Told(Target):
    """Prompts whose first tokens tell the server what to do with each request."""

    hows: tuple[tuple[int, ...], ...] = ()

    def body(self, prompt_tokens: int, output_tokens: int, index: int, run: int = 0) -> dict:
        asked = super().body(prompt_tokens, output_tokens, index, run)
        how = self.hows[index]
        asked["prompt"][: len(how)] = how
        return asked


def told(url: str, *hows: int | tuple[int, ...]) -> Told:
    target = Told(url, "m")
    object.__setattr__(target, "hows", tuple(how if isinstance(how, tuple) else (how,) for how in hows))
    return target


def evenly(n: int, gap_s: float) -> RequestTrace:
    """Requests of 8 prompt and 8 output tokens, `gap_s` apart."""
    return RequestTrace(np.arange(n) * int(gap_s * NS_PER_S), np.full(n, 8), np.full(n, 8))


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
        app.router.add_post("/v1/completions", server.complete)
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
