"""A small, fast server of streaming completions, for measuring clients: it logs when each request arrives.

One process, one thread, pre-built pieces: what it says costs it as little as it can.  A stream brings one token
every `GAP_S`, the first after one gap, then the usage and `[DONE]`.
"""

from __future__ import annotations

import asyncio
import json
import multiprocessing
import time
from collections.abc import Iterator
from contextlib import contextmanager
from multiprocessing.connection import Connection

GAP_S = 0.005


def _piece(body: bytes) -> bytes:
    return b"%x\r\n%s\r\n" % (len(body), body)


_HEAD = b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nTransfer-Encoding: chunked\r\n\r\n"
_TOKEN = _piece(
    b'data: {"id":"c","object":"text_completion","model":"mock","choices":[{"index":0,"text":" x",'
    b'"logprobs":null,"finish_reason":null}],"usage":null}\n\n'
)


def _last(prompt: int, output: int) -> bytes:
    usage = {"prompt_tokens": prompt, "completion_tokens": output, "total_tokens": prompt + output}
    said = {"id": "c", "object": "text_completion", "model": "mock", "choices": [], "usage": usage}
    return _piece(f"data: {json.dumps(said)}\n\n".encode()) + _piece(b"data: [DONE]\n\n") + b"0\r\n\r\n"


def _plain(status: str, body: bytes) -> bytes:
    head = f"HTTP/1.1 {status}\r\nContent-Type: application/json\r\nContent-Length: {len(body)}\r\n\r\n"
    return head.encode() + body


class _Connection(asyncio.Protocol):
    """Requests of one connection, one after another."""

    def __init__(self, log: list[tuple[int, int]]) -> None:
        self.log, self.got, self.began_ns = log, b"", 0

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self.transport = transport

    def data_received(self, data: bytes) -> None:
        if not self.got:
            self.began_ns = time.monotonic_ns()
        self.got += data
        head, found, body = self.got.partition(b"\r\n\r\n")
        if not found:
            return
        length = next((int(v) for k, _, v in (line.partition(b":") for line in head.lower().split(b"\r\n"))
                       if k == b"content-length"), 0)  # fmt: skip
        if len(body) < length:
            return
        self.got = b""
        if head.startswith(b"POST") and b"completions" in head.split(b"\r\n", 1)[0]:
            asked = json.loads(body)
            self.transport.write(_HEAD)
            self.left, self.last = asked["max_tokens"], _last(len(asked["prompt"]), asked["max_tokens"])
            self.at_s = asyncio.get_running_loop().time()
            self._next()
        else:
            models = b'{"object":"list","data":[{"id":"mock","object":"model","owned_by":"mock","root":"mock"}]}'
            self.transport.write(_plain("200 OK", models if b"/models" in head.split(b"\r\n", 1)[0] else b"{}"))

    def _next(self) -> None:
        self.at_s += GAP_S
        asyncio.get_running_loop().call_at(self.at_s, self._token)

    def _token(self) -> None:
        self.left -= 1
        self.transport.write(_TOKEN)
        if self.left > 0:
            self._next()
            return
        self.transport.write(self.last)
        self.log.append((self.began_ns, time.monotonic_ns()))


def _serve(pipe: Connection) -> None:
    async def run() -> None:
        log: list[tuple[int, int]] = []
        ended = asyncio.Event()
        loop = asyncio.get_running_loop()
        server = await loop.create_server(lambda: _Connection(log), "127.0.0.1", 0, backlog=4096)

        def asked() -> None:
            try:
                pipe.recv()
            except EOFError:
                ended.set()
                loop.remove_reader(pipe.fileno())
                return
            pipe.send(sorted(log))
            log.clear()

        loop.add_reader(pipe.fileno(), asked)
        pipe.send(server.sockets[0].getsockname()[1])
        await ended.wait()

    asyncio.run(run())


class Served:
    """The running server: its address, and what it logged since it was last asked."""

    def __init__(self, pipe: Connection) -> None:
        self._pipe = pipe
        self.url = f"http://127.0.0.1:{pipe.recv()}"

    def take(self) -> list[tuple[int, int]]:
        """(arrived, answered) of every finished request in the order of arrival, on the monotonic clock, ns."""
        self._pipe.send("log")
        found: list[tuple[int, int]] = self._pipe.recv()
        return found


@contextmanager
def serving() -> Iterator[Served]:
    """The server in a process of its own for the length of a block."""
    spawn = multiprocessing.get_context("spawn")
    ours, its = spawn.Pipe()
    process = spawn.Process(target=_serve, args=(its,), daemon=True)
    process.start()
    its.close()
    try:
        yield Served(ours)
    finally:
        ours.close()
        process.join(5)
        if process.is_alive():
            process.kill()
            process.join()
