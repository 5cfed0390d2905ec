"""One load process: waits for windows on standard input, works inside them, and reports what really ran.

Input: one line a window, `BEGIN_NS END_NS` on the monotonic clock, which all processes of a host share.
Output: `ready` once, then a line a window, `BEGIN_NS END_NS UNITS`, as it really ran.
Run as `python -m adapters.merge_loads.worker KIND [key=value ...]`; it imports nothing of the harness, and begins no
window once the process that started it is gone.
"""

from __future__ import annotations

import http.client
import os
import shlex
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable
from urllib.parse import urlsplit

Unit = Callable[[int], None]
#: Seconds that a server may take to pause or to resume.
PATIENCE_S = 30.0


def host(matmul: int = 512, write_mb: int = 16) -> Unit:
    """Memory bandwidth and a core: float32 products; the first process also writes with fsync."""
    import numpy as np

    rng = np.random.default_rng(0)
    a, b = rng.random((2, matmul, matmul), dtype=np.float32)
    out = np.empty_like(a)
    write = disk(write_mb) if write_mb else None
    turn = 0

    def unit(end_ns: int) -> None:
        nonlocal turn
        np.matmul(a, b, out=out)
        turn += 1
        if write is not None and turn % 16 == 0:
            write(end_ns)

    return unit


def disk(write_mb: int = 16) -> Unit:
    """A checkpoint: `write_mb` MiB, then fsync, over the same file again and again."""
    file = tempfile.TemporaryFile()
    block = os.urandom(1 << 20)

    def unit(end_ns: int) -> None:
        file.seek(0)
        for _ in range(write_mb):
            if time.monotonic_ns() >= end_ns:
                return
            file.write(block)
        file.flush()
        os.fsync(file.fileno())

    return unit


def network(chunk_kb: int = 1024, peer: str = "") -> Unit:
    """Transfer of a payload: through loopback to a thread that discards it, or to `peer` (HOST:PORT)."""
    if peer:
        name, _, port = peer.rpartition(":")
        sender = socket.create_connection((name, int(port)), timeout=10)
    else:
        server = socket.create_server(("127.0.0.1", 0))
        sender = socket.create_connection(server.getsockname())
        receiver, _ = server.accept()

        def discard() -> None:
            while receiver.recv(1 << 20):
                pass

        threading.Thread(target=discard, daemon=True).start()
    block = bytes(chunk_kb << 10)

    def unit(end_ns: int) -> None:
        sender.sendall(block)

    return unit


def command(run: str = "") -> Unit:
    """The user's own merge: started at the window's beginning, terminated at its end if it still runs."""
    words = shlex.split(run)

    def unit(end_ns: int) -> None:
        process = subprocess.Popen(words, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL)
        left_s = (end_ns - time.monotonic_ns()) / 1e9
        try:
            process.wait(timeout=max(left_s, 0.0))
        except subprocess.TimeoutExpired:
            process.terminate()
            try:
                process.wait(timeout=1.0)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()

    return unit


def pausing(pause: str = "", resume: str = "") -> Unit:
    """The server itself stands still: a POST to `pause` at the window's beginning, one to `resume` at its end.

    The second is sent whatever happens, also when this process is terminated in between.
    """
    # It does nothing to a server that runs, heals one that was left paused, and finds out whether there is any.
    post(resume)
    paused, stopped = False, False

    def stop(*_: object) -> None:
        """Ends the process, but within a window only the window: whatever was raised there might skip the resuming."""
        nonlocal stopped
        stopped = True
        if not paused:
            sys.exit(128 + signal.SIGTERM)

    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, stop)

    def unit(end_ns: int) -> None:
        nonlocal paused
        paused = True
        try:
            post(pause)
            while not stopped and (left_ns := end_ns - time.monotonic_ns()) > 0:
                time.sleep(min(left_ns / 1e9, 0.01))
        finally:
            post(resume)
            paused = False
        if stopped:
            sys.exit(128 + signal.SIGTERM)

    return unit


def post(url: str) -> None:
    """An empty POST.  Raises OSError or HTTPException when nobody answers, RuntimeError on another status than 2xx."""
    parts = urlsplit(url)
    kind = http.client.HTTPSConnection if parts.scheme == "https" else http.client.HTTPConnection
    connection = kind(parts.hostname or "", parts.port, timeout=PATIENCE_S)
    headers = {"Content-Length": "0"}
    if os.environ.get("OPENAI_API_KEY"):
        headers["Authorization"] = f"Bearer {os.environ['OPENAI_API_KEY']}"
    try:
        connection.request("POST", (parts.path or "/") + (f"?{parts.query}" if parts.query else ""), headers=headers)
        answer = connection.getresponse()
        said = answer.read(300).decode("utf-8", "replace")
    finally:
        connection.close()
    if not 200 <= answer.status < 300:
        raise RuntimeError(f"POST {url}: HTTP {answer.status}: {' '.join(said.split())}")


def cuda(matmul: int = 4096, copy_mb: int = 64) -> Unit:
    """A GPU: bf16 products and copies to the host."""
    import torch

    a = torch.randn(matmul, matmul, device="cuda", dtype=torch.bfloat16)
    page = torch.empty(copy_mb << 20, dtype=torch.uint8, pin_memory=True)
    chunk = torch.empty(copy_mb << 20, dtype=torch.uint8, device="cuda")

    def unit(end_ns: int) -> None:
        torch.matmul(a, a)
        page.copy_(chunk, non_blocking=True)
        torch.cuda.synchronize()

    return unit


def collective(rank: int = 0, world: int = 1, port: int = 0, payload_mb: int = 16, backend: str = "gloo") -> Unit:
    """All-reduce of a model's bytes between real processes."""
    import torch
    import torch.distributed as dist

    dist.init_process_group(backend, init_method=f"tcp://127.0.0.1:{port}", rank=rank, world_size=world)
    device = (
        torch.device("cuda", rank % max(torch.cuda.device_count(), 1)) if backend == "nccl" else torch.device("cpu")
    )
    payload = torch.ones(payload_mb << 18, dtype=torch.float32, device=device)
    again = torch.ones(1, device=device)

    def unit(end_ns: int) -> None:
        # All ranks agree on going on, or one would wait for ever for a round that the others left out.
        again.fill_(1.0 if time.monotonic_ns() < end_ns else 0.0)
        dist.all_reduce(again, op=dist.ReduceOp.MIN)
        if again.item():
            dist.all_reduce(payload)

    return unit


def torchft(
    rank: int = 0, world: int = 1, port: int = 0, payload_mb: int = 16, bandwidth_mb_s: int = 0, timeout_s: int = 60
) -> Unit:
    """Merges of torchft's DiLoCo between real replicas: quorum, exchange over gloo, vote, outer step.

    The first replica also runs the lighthouse.  `bandwidth_mb_s` slows the exchange to that of a network, 0 does not.
    """
    import logging
    from datetime import timedelta

    os.environ.setdefault("RUST_LOG", "error")
    import torch
    from torch.distributed import ReduceOp, TCPStore
    from torchft import Manager, ProcessGroupGloo
    from torchft.coordination import LighthouseServer
    from torchft.local_sgd import DiLoCo

    logging.getLogger("torchft.manager").setLevel(logging.ERROR)
    lighthouse = LighthouseServer(bind=f"127.0.0.1:{port}", min_replicas=world, quorum_tick_ms=1) if rank == 0 else None
    torch.set_num_threads(1)
    patience = timedelta(seconds=timeout_s)
    model = torch.nn.Linear(1024, payload_mb * 256, bias=False)
    inner, outer = (torch.optim.SGD(model.parameters(), lr=lr) for lr in (1e-3, 0.7))
    store = TCPStore("localhost", 0, is_master=True, wait_for_workers=False)
    manager = Manager(
        pg=ProcessGroupGloo(timeout=patience), min_replica_size=world, use_async_quorum=False, init_sync=False,
        state_dict=dict, load_state_dict=lambda _: None, replica_id=f"replica_{rank}", store_addr="localhost",
        store_port=store.port, rank=0, world_size=1, lighthouse_addr=f"http://127.0.0.1:{port}", timeout=patience,
        quorum_timeout=patience, connect_timeout=patience,
    )  # fmt: skip
    kept = (lighthouse, DiLoCo(manager, [model], inner, outer, sync_every=1).__enter__())
    again, longest_ns = torch.ones(1), 0

    def merge() -> None:
        for p in model.parameters():
            p.grad = torch.full_like(p, 1e-3)
        if bandwidth_mb_s:
            time.sleep(payload_mb / bandwidth_mb_s)
        inner.step()  # DiLoCo merges after it

    def unit(end_ns: int, kept: object = kept) -> None:
        nonlocal longest_ns
        # All replicas agree on going on, as in `collective`, and begin no merge that would end late.
        manager.start_quorum()
        begun_ns = time.monotonic_ns()
        again.fill_(1.0 if begun_ns + longest_ns < end_ns else 0.0)
        manager.allreduce(again, reduce_op=ReduceOp.MIN).wait()
        if again.item():
            merge()
            longest_ns = max(longest_ns, time.monotonic_ns() - begun_ns)
        else:
            time.sleep(max(end_ns - time.monotonic_ns(), 0) / 1e9)

    merge()  # the first one meets the others and sets everything up
    return unit


KINDS: dict[str, Callable[..., Unit]] = {
    "host": host, "disk": disk, "network": network, "command": command, "cuda": cuda, "collective": collective,
    "pause": pausing, "torchft": torchft,
}  # fmt: skip
#: Kinds that do one thing a window instead of repeating until it ends.
ONCE = ("command",)


def main() -> None:
    parent = os.getppid()
    kind, options = sys.argv[1], dict(word.split("=", 1) for word in sys.argv[2:])
    unit = KINDS[kind](**{key: int(value) if value.lstrip("-").isdigit() else value for key, value in options.items()})
    sys.stdout.write("ready\n")
    sys.stdout.flush()
    for line in sys.stdin:
        begin_ns, end_ns = map(int, line.split())
        time.sleep(max(begin_ns - time.monotonic_ns(), 0) / 1e9)
        if os.getppid() != parent:
            return
        began_ns, units = time.monotonic_ns(), 0
        while time.monotonic_ns() < end_ns:
            unit(end_ns)
            units += 1
            if kind in ONCE:
                break
        sys.stdout.write(f"{began_ns} {time.monotonic_ns()} {units}\n")
        sys.stdout.flush()


if __name__ == "__main__":
    main()
