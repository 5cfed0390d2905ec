"""A server that speaks streaming completions and misbehaves on purpose; the prompt's first token says how."""

from __future__ import annotations

import asyncio
import json
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from aiohttp import web

#: What a prompt that begins with this token id asks for.
GOOD, REFUSE, HANG, CUT, ERROR, SEVERAL, SPLIT, SLOW, RUDE = range(9)


class FaultServer:
    """Counts open connections, so that a test can see that none is left."""

    def __init__(self) -> None:
        self.url = ""
        self.open = 0
        self.requests: list[dict] = []
        self.headers: list[str | None] = []
        #: While this says so, every request is turned away.
        self.refusing: Callable[[], bool] = lambda: False

    async def complete(self, request: web.Request) -> web.StreamResponse:
        asked = await request.json()
        self.requests.append(asked)
        self.headers.append(request.headers.get("Authorization"))
        how, tokens = asked["prompt"][0], asked["max_tokens"]
        if self.refusing() or how == REFUSE:
            return web.Response(status=429, text="busy")
        if how == SLOW:
            await asyncio.sleep(0.3)
        response = web.StreamResponse(headers={"Content-Type": "text/event-stream"})
        await response.prepare(request)
        self.open += 1
        try:
            await self._stream(response, how, tokens)
        finally:
            self.open -= 1
        return response

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
        for _ in range(tokens // each):
            await say({"choices": [{"index": 0, "text": "x " * each}]})
            await asyncio.sleep(0.002)
            if how == CUT:
                await response.write(b'data: {"choices":[{"te')
                return
        await say({"choices": [], "usage": {"completion_tokens": tokens}})
        await say("[DONE]")


@contextmanager
def serving() -> Iterator[FaultServer]:
    """The server in a thread of its own, on a free port."""
    server, loop, ready = FaultServer(), asyncio.new_event_loop(), threading.Event()

    async def start() -> web.AppRunner:
        app = web.Application()
        app.router.add_post("/v1/completions", server.complete)
        runner = web.AppRunner(app, handler_cancellation=True)
        await runner.setup()
        site = web.TCPSite(runner, "127.0.0.1", 0)
        await site.start()
        server.url = f"http://127.0.0.1:{runner.addresses[0][1]}"
        ready.set()
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
