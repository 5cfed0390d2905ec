"""One process an island, with real exchanges through ``torch.distributed``.

Gloo on CPUs, NCCL with a GPU for every process (same code; only gloo is tested).  The parent watches: a process that
dies, fails or falls silent ends the run with one error that names it, within the deadline.
"""

from __future__ import annotations

import multiprocessing
import os
import pickle
import signal
import socket
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import timedelta
from multiprocessing.connection import Connection, wait
from typing import Any

import numpy as np
from numpy.typing import NDArray

from adapters.learners.corpus import Corpus
from adapters.learners.framework import torch
from adapters.learners.islands import Islands, Mix, Outer, Recipe, check_rounds
from protocol.errors import BadInput, ProtocolError
from protocol.merging.peers.communication import Round

#: Importing torch and reading the corpus may take this long before the first sign of life.
START_S = 120.0
#: After the first failure, others that died of a signal have this long to be seen, for the cause to be named.
_GRACE_S = 1.0


@dataclass(frozen=True)
class Trained:
    """theta : float64, shape (n, P).  train_loss : float64, shape (rounds, n).  exchange_s : measured seconds of each
    exchange, waiting for the others included, float64, shape (rounds, n)."""

    theta: NDArray[np.float64]
    train_loss: NDArray[np.float64]
    exchange_s: NDArray[np.float64]


def train(
    recipe: Recipe,
    corpus: Corpus,
    outer: Outer,
    rounds: Sequence[Round],
    *,
    deadline_s: float = 60.0,
    backend: str = "gloo",
    started: Callable[[list[int]], None] | None = None,
) -> Trained:
    """Train every island in its own process on this machine.

    deadline_s : longest silence of a process within one outer round.  started : called with the process ids, in the
        order of islands, once all of them are connected.
    Raises ProtocolError naming the island and outer round when a process dies, fails or misses the deadline.
    """
    check_rounds(rounds, recipe)
    if not deadline_s > 0:
        raise BadInput("deadline", f"{deadline_s:g} s", "a positive number of seconds")
    n = len(rounds[0].mixing)
    method = "forkserver" if "forkserver" in multiprocessing.get_all_start_methods() else "spawn"
    context: Any = multiprocessing.get_context(method)
    if method == "forkserver":
        context.set_forkserver_preload(["adapters.learners.distributed"])
    with tempfile.TemporaryDirectory(prefix="protocol-train-", ignore_cleanup_errors=True) as folder:
        store = f"file://{folder}/store" if os.name == "posix" else f"file:///{folder}/store"
        job = pickle.dumps((recipe, corpus, outer, list(rounds)))
        watched = []
        try:
            for rank in range(n):
                ours, theirs = context.Pipe()
                process = context.Process(
                    target=_island, args=(rank, n, store, deadline_s, backend, theirs), daemon=True
                )
                process.start()
                theirs.close()
                watched.append(_Watched(rank, process, ours, time.monotonic() + START_S))
            for one in watched:
                one.hand_over(job)
            return _collect(watched, deadline_s, started)
        finally:
            for one in watched:
                if one.process.is_alive():
                    one.process.kill()
            for one in watched:
                one.process.join(5)
                one.pipe.close()


class _LostPeer(Exception):
    """An exchange broke off."""


@dataclass
class _Watched:
    """One process as the parent sees it.  progress counts what it reported: two signs a round after the first."""

    rank: int
    process: Any
    pipe: Connection
    due: float
    progress: int = 0
    failure: str | None = None
    #: The failure is that an exchange broke off, which is the others' fault as a rule.
    lost: bool = False
    result: Any = None

    def hand_over(self, job: bytes) -> None:
        try:
            self.pipe.send_bytes(job)
        except OSError:
            self.failure = "closed its pipe before it had its work"

    def read(self, deadline_s: float) -> None:
        try:
            while self.pipe.poll():
                kind, value = self.pipe.recv()
                self.due = time.monotonic() + deadline_s
                if kind in ("failed", "lost"):
                    self.failure, self.lost = value, kind == "lost"
                elif kind == "done":
                    self.result = value
                else:
                    self.progress += 1
        except (EOFError, OSError):
            if self.result is None and self.failure is None:
                self.process.join(_GRACE_S)
                self.failure = self.death() or "closed its pipe"

    def death(self) -> str | None:
        code = self.process.exitcode
        if not code:
            return None
        return f"was killed by {signal.Signals(-code).name}" if code < 0 else f"exited with status {code}"

    @property
    def round(self) -> int:
        """The outer round that it works on, from 1."""
        return max(0, self.progress - 1) // 2 + 1


def _collect(watched: list[_Watched], deadline_s: float, started: Callable[[list[int]], None] | None) -> Trained:
    while any(one.result is None for one in watched):
        waiting = [one for one in watched if one.result is None]
        left = min(one.due for one in waiting) - time.monotonic()
        wait([one.pipe for one in waiting], timeout=max(0.0, left))
        for one in waiting:
            one.read(deadline_s)
        if started is not None and all(one.progress for one in watched):
            started([one.process.pid for one in watched])
            started = None
        if any(one.failure for one in watched):
            raise _failed(watched, deadline_s)
        late = [one for one in waiting if one.result is None and one.due < time.monotonic()]
        if late:
            raise _silent(watched, deadline_s)
    parts = [one.result for one in watched]
    return Trained(*(np.stack([part[k] for part in parts], axis) for k, axis in ((0, 0), (1, 1), (2, 1))))


def _failed(watched: list[_Watched], deadline_s: float) -> ProtocolError:
    """When one process is lost, the exchanges of others break off too: name the cause, not its effects."""

    def causes() -> list[tuple[_Watched, str]]:
        deaths = [(one, text) for one in watched if (text := one.death())]
        return deaths or [(one, f"failed: {one.failure}") for one in watched if one.failure and not one.lost]

    _listen(watched, deadline_s, lambda: bool(causes()))
    for one, text in causes():
        return ProtocolError(f"in outer round {one.round}, island {one.rank} {text}")
    if any(one.failure is None and one.result is None for one in watched):
        return _silent(watched, deadline_s)
    first = next(one for one in watched if one.failure)
    return ProtocolError(f"in outer round {first.round}, island {first.rank} failed: {first.failure}")


def _silent(watched: list[_Watched], deadline_s: float) -> ProtocolError:
    """Partners of a silent process wait as long as it is silent, but then they say so."""
    _listen(watched, deadline_s, lambda: False)
    mute = [one for one in watched if one.failure is None and one.result is None] or watched
    behind = min(one.progress for one in mute)
    who = [one for one in mute if one.progress == behind]
    names = ", ".join(str(one.rank) for one in who)
    if behind == 0:
        return ProtocolError(f"island {names} did not start within {START_S:g} s")
    return ProtocolError(f"in outer round {who[0].round}, no sign of island {names} for {deadline_s:g} s")


def _listen(watched: list[_Watched], deadline_s: float, enough: Callable[[], bool]) -> None:
    """Read what still comes in for a moment, or until it is enough."""
    until = time.monotonic() + _GRACE_S
    while time.monotonic() < until and not enough():
        living = [one.pipe for one in watched if not one.failure and one.result is None]
        wait([*living, *(one.process.sentinel for one in watched if one.process.is_alive())], timeout=0.1)
        for one in watched:
            if not one.failure:
                one.read(deadline_s)


def _island(rank: int, n: int, store: str, deadline_s: float, backend: str, pipe: Connection) -> None:
    """The life of one process."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        job: tuple[Recipe, Corpus, Outer, list[Round]] = pickle.loads(pipe.recv_bytes())
        pipe.send(("done", _train(rank, n, store, deadline_s, backend, pipe, *job)))
    except EOFError:
        sys.exit(1)
    except Exception as problem:  # whatever it is, the parent must hear of it
        text = " ".join(f"{type(problem).__name__}: {problem}".split())[:300]
        pipe.send(("lost" if isinstance(problem, _LostPeer) else "failed", text))


def _train(
    rank: int, n: int, store: str, deadline_s: float, backend: str, pipe: Connection,
    recipe: Recipe, corpus: Corpus, outer: Outer, rounds: list[Round],
) -> tuple[NDArray[np.float64], NDArray[np.float64], NDArray[np.float64]]:  # fmt: skip
    dist = torch.distributed
    torch.set_num_threads(1)
    device = "cpu"
    if backend == "nccl":
        device = f"cuda:{rank % torch.cuda.device_count()}"
        torch.cuda.set_device(device)
    elif "GLOO_SOCKET_IFNAME" not in os.environ:
        # All processes are on this machine, whose own name may not resolve.
        loopback = [name for _, name in socket.if_nameindex() if name.startswith("lo")]
        if loopback:
            os.environ["GLOO_SOCKET_IFNAME"] = loopback[0]
    dist.init_process_group(backend, init_method=store, rank=rank, world_size=n, timeout=timedelta(seconds=deadline_s))
    islands = Islands(recipe, corpus, [rank], device)
    losses, waited = [], []
    pipe.send(("ready", None))
    for one in rounds:
        spent = [0.0]
        mix = _exchange(dist, one, rank, spent)
        own = slice(rank, rank + 1)
        before = islands.theta.clone()
        by_gradient = outer.averages == "gradients"
        losses.append(float(islands.inner(one.steps[own], one.first_step[own], mix if by_gradient else None)[0]))
        pipe.send(("computed", None))
        islands.outer(before, outer, mix, one.exchanging[own])
        waited.append(spent[0])
        pipe.send(("exchanged", None))
    dist.barrier()
    dist.destroy_process_group()
    theta = islands.theta.cpu().numpy().astype(np.float64)[0]
    return theta, np.array(losses), np.array(waited)


def _exchange(dist: Any, one: Round, rank: int, spent: list[float]) -> Mix:
    """x -> sum_j W_ij x_j with the other processes; adds its seconds to `spent`."""
    weights = one.mixing[rank]
    near = [j for j in np.flatnonzero(weights).tolist() if j != rank]

    def mix(x: Any) -> Any:
        began = time.perf_counter()
        try:
            return exchanged(x.contiguous())
        except RuntimeError as problem:
            raise _LostPeer(str(problem)) from None
        finally:
            spent[0] += time.perf_counter() - began

    def exchanged(x: Any) -> Any:
        if one.collective:
            total = x.clone()
            dist.all_reduce(total)
            total /= len(weights)
        else:
            received = [torch.empty_like(x) for _ in near]
            sends = [dist.P2POp(dist.isend, x, j) for j in near]
            gets = [dist.P2POp(dist.irecv, buffer, j) for j, buffer in zip(near, received, strict=True)]
            for request in dist.batch_isend_irecv(sends + gets) if near else ():
                request.wait()
            total = float(weights[rank]) * x
            for j, buffer in zip(near, received, strict=True):
                total += float(weights[j]) * buffer
        return total

    return mix
