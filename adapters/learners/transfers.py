"""The communication model against real transfers: bytes through TCP sockets on this machine.

Every island has an interface of its own: all that it sends, and all that it receives, passes a pacer of B_i bytes/s,
so that a share of the bandwidth means on loopback what it means on a network.  Island threads run the algorithms that
the model describes: a ring all-reduce in 2 (n - 1) steps of a chunk, and exchanges of whole payloads with neighbours.
"""

from __future__ import annotations

import socket
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial

import numpy as np
from numpy.typing import NDArray

from protocol.errors import ProtocolError
from protocol.merging.peers.communication import LinkFit, Network, fit_link
from protocol.merging.peers.topology import Matrix, averaging, complete, neighbours

_CHUNK = 1 << 15
#: Of each socket.  Large ones would swallow whole chunks of these small payloads, so that islands far from a slow
#: interface run ahead of it; with payloads of a real model no buffer is large.
_BUFFER = 1 << 14
_TIMEOUT_S = 60.0


class _Pacer:
    """Lets bytes pass at a rate; shared by all connections of one direction of one interface."""

    def __init__(self, rate: float) -> None:
        self._rate, self._lock, self._free = rate, threading.Lock(), 0.0

    def passed(self, size: int) -> None:
        with self._lock:
            self._free = max(self._free, time.perf_counter()) + size / self._rate
            until = self._free
        time.sleep(max(0.0, until - time.perf_counter()))


class _Mesh:
    """One TCP connection for each ordered pair of islands that talk."""

    def __init__(self, network: Network, links: Sequence[tuple[int, int]]) -> None:
        self._out = [_Pacer(rate) for rate in network.bandwidth]
        self._in = [_Pacer(rate) for rate in network.bandwidth]
        self._sockets: dict[tuple[int, int], tuple[socket.socket, socket.socket]] = {}
        with socket.socket() as server:
            server.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, _BUFFER)  # inherited by what it accepts
            server.bind(("127.0.0.1", 0))
            server.listen()
            for link in links:
                near = socket.socket()
                near.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, _BUFFER)
                near.connect(server.getsockname())
                far, _ = server.accept()
                for end in (near, far):
                    end.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
                    end.settimeout(_TIMEOUT_S)
                self._sockets[link] = near, far

    def send(self, i: int, j: int, size: int) -> None:
        block = bytes(_CHUNK)
        for at in range(0, size, _CHUNK):
            part = min(_CHUNK, size - at)
            self._out[i].passed(part)
            self._sockets[i, j][0].sendall(block[:part])

    def receive(self, i: int, j: int, size: int) -> None:
        """Island j takes what i sent."""
        buffer = bytearray(_CHUNK)
        while size:
            got = self._sockets[i, j][1].recv_into(buffer, min(_CHUNK, size))
            if not got:
                raise ProtocolError(f"the connection from island {i} to {j} closed early")
            self._in[j].passed(got)
            size -= got

    def close(self) -> None:
        for ends in self._sockets.values():
            for end in ends:
                end.close()


def _together(tasks: Sequence[Callable[[], None]]) -> None:
    """Run all at once in threads; the first error is raised here."""
    failed: list[BaseException] = []

    def guarded(task: Callable[[], None]) -> None:
        try:
            task()
        except Exception as problem:
            failed.append(problem)

    threads = [threading.Thread(target=guarded, args=(task,), daemon=True) for task in tasks]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    if failed:
        raise ProtocolError(f"a transfer failed: {failed[0]}")


def transfer_s(network: Network, payload_bytes: int, mixing: Matrix, collective: bool) -> NDArray[np.float64]:
    """Seconds that each island was occupied in one real exchange, float64, shape (n,)."""
    n = network.n
    near = [[(i + 1) % n] if collective else [int(j) for j in k] for i, k in enumerate(neighbours(mixing))]
    mesh = _Mesh(network, [(i, j) for i in range(n) for j in near[i]])
    took = np.zeros(n)
    go = threading.Barrier(n)

    def ring(i: int) -> None:
        # Chunks as equal as whole bytes allow; what is sent on was received the step before.
        chunks = [payload_bytes * (k + 1) // n - payload_bytes * k // n for k in range(n)]
        before, after = (i - 1) % n, (i + 1) % n
        for step in range(2 * (n - 1)):
            mine, theirs = chunks[(i - step) % n], chunks[(i - 1 - step) % n]
            _together([partial(mesh.send, i, after, mine), partial(mesh.receive, before, i, theirs)])

    def gossip(i: int) -> None:
        sends = [partial(mesh.send, i, j, payload_bytes) for j in near[i]]
        _together(sends + [partial(mesh.receive, j, i, payload_bytes) for j in near[i]])

    def island(i: int) -> None:
        go.wait(_TIMEOUT_S)
        began = time.perf_counter()
        (ring if collective else gossip)(i)
        took[i] = time.perf_counter() - began

    try:
        _together([partial(island, i) for i in range(n)])
    finally:
        mesh.close()
    return took


@dataclass(frozen=True)
class Checked:
    """One exchange: predicted and measured seconds of its slowest and of its fastest occupied island."""

    exchange: str
    islands: int
    slow_share: float
    payload_bytes: int
    predicted_s: float
    measured_s: float
    predicted_fastest_s: float
    measured_fastest_s: float

    @property
    def error(self) -> float:
        return self.predicted_s / self.measured_s - 1


def check_model(
    n: int = 8, bandwidth: float = 8e6, payloads: Sequence[int] = (1 << 18, 1 << 19, 1 << 20),
    slow_shares: Sequence[float] = (1.0, 0.2, 0.1), repeats: int = 3,
) -> tuple[LinkFit, list[Checked]]:  # fmt: skip
    """Bandwidth and latency from pairs of equal islands, then every kind of exchange as the model predicts it.

    Other work on the machine only ever adds time, so the best of the repeats counts, island by island.  The fit sees
    two islands without a straggler; everything else is prediction.
    """
    pair, two = averaging(2, [(0, 1)]), Network.of(2, bandwidth)
    sizes = [payloads[0] // 2, *payloads]
    fit = fit_link(sizes, [min(transfer_s(two, s, pair, False).max() for _ in range(2 * repeats)) for s in sizes])
    ring = np.eye(n) / 3 + sum(np.roll(np.eye(n), shift, 1) for shift in (1, -1)) / 3
    pairs = averaging(n, [(k, k + 1) for k in range(0, n - 1, 2)])
    kinds = (("all-reduce", complete(n), True), ("1-peer", pairs, False), ("2-peer", ring, False))
    found = []
    for share in slow_shares:
        model = Network.of(n, fit.bandwidth, fit.latency_s, {0: share})
        real = Network.of(n, bandwidth, 0.0, {0: share})
        for name, mixing, collective in kinds:
            for size in payloads:
                predicted = model.exchange_ns(size, mixing, collective) / 1e9
                measured = np.min([transfer_s(real, size, mixing, collective) for _ in range(repeats)], axis=0)
                found.append(
                    Checked(
                        name, n, share, size, float(predicted.max()), float(measured.max()),
                        float(predicted.min()), float(measured.min()),
                    )
                )  # fmt: skip
    return fit, found
