"""Two replicas train with torchft's DiLoCo, a certified scheduler decides when they merge, and its log is certified.

    pip install 'diloco-protocol[torchft]'
    python examples/torchft_loop.py --out runs/torchft-loop

In one go, in under a minute, on two CPU cores: a lighthouse and the coordinator in this process, two replicas over gloo
in processes of their own, and a metrics page that plays a trace of requests on the simulated server in real time (with
`--sidecar URL`, a real server's page).  One replica is killed on the way and comes back.  Then `protocol certify`
judges the log that the loop wrote, window by window, on the trace that the scheduler saw.
"""

from __future__ import annotations

import argparse
import contextlib
import csv
import http.server
import multiprocessing
import os
import subprocess
import sys
import threading
import time
from multiprocessing.synchronize import Event
from pathlib import Path

import numpy as np

from adapters.sidecars.simulated import SidecarModel, SimulatedSidecar
from adapters.torchft.coordinator import Coordinator
from adapters.traces.generators import workload
from protocol.regimes.regime import Regime
from protocol.workload.trace import Workload

HERE = Path(__file__).parent
REGIME = HERE / "torchft.toml"
#: Symbols of a text in a batch: sequences, and their length.
BATCH, LENGTH = 8, 32
#: Bytes a second of the network that the exchange is slowed to: so small a model would not be seen on any real one.
BANDWIDTH = 2e6


# One replica ---------------------------------------------------------------------------------------------------------


def replica(name: str, lighthouse: str, coordinator: str, step_s: float, begin: Event) -> None:
    """Train from `begin` until the coordinator says that training is over."""
    import logging
    import warnings
    from datetime import timedelta

    warnings.filterwarnings("ignore", module="torch")
    import torch
    from torch.distributed import TCPStore
    from torchft import Manager, ProcessGroupGloo

    from adapters.learners.corpus import VOCABULARY, standard_library
    from adapters.torchft.client import Client
    from adapters.torchft.diloco import Decided

    class Slow(ProcessGroupGloo):
        def allreduce(self, tensors: list[torch.Tensor], opts: object) -> object:
            time.sleep(sum(t.numel() * t.element_size() for t in tensors) / BANDWIDTH)
            return super().allreduce(tensors, opts)

    # A merge that loses a replica is in the log of merges; torchft would print a traceback for each of its tensors.
    logging.getLogger("torchft.manager").setLevel(logging.CRITICAL)
    torch.set_num_threads(1)
    torch.manual_seed(0)  # all begin alike
    model = torch.nn.Sequential(
        torch.nn.Embedding(VOCABULARY, 64), torch.nn.Linear(64, 256), torch.nn.GELU(), torch.nn.Linear(256, VOCABULARY)
    )
    inner = torch.optim.AdamW(model.parameters(), lr=2e-3)
    outer = torch.optim.SGD(model.parameters(), lr=0.7, momentum=0.7, nesterov=True)
    store = TCPStore("localhost", 0, is_master=True, wait_for_workers=False)
    manager = Manager(
        init_sync=False, pg=Slow(timeout=timedelta(seconds=5)), min_replica_size=1, use_async_quorum=False,
        state_dict=lambda: {"model": model.state_dict(), "inner": inner.state_dict()},
        load_state_dict=lambda s: (model.load_state_dict(s["model"]), inner.load_state_dict(s["inner"])),
        replica_id=name, store_addr="localhost", store_port=store.port, rank=0, world_size=1,
        lighthouse_addr=lighthouse, timeout=timedelta(seconds=10), quorum_timeout=timedelta(seconds=30),
    )  # fmt: skip
    text = torch.from_numpy(standard_library().train.astype(np.int64))
    batches = torch.Generator().manual_seed(int(name.split("_")[1]) + 1)
    last = {"loss": float(np.log(VOCABULARY))}
    client = Client(coordinator, name)
    begin.wait()
    with Decided(manager, [model], inner, outer, client, lambda: last["loss"]) as loop:
        while not loop.over:
            due = time.monotonic() + step_s
            at = torch.randint(len(text) - LENGTH - 1, (BATCH, 1), generator=batches) + torch.arange(LENGTH + 1)
            seen = text[at]
            loss = torch.nn.functional.cross_entropy(model(seen[:, :-1]).flatten(0, 1), seen[:, 1:].flatten())
            inner.zero_grad()
            loss.backward()
            last["loss"] = loss.item()
            inner.step()  # Decided merges here
            time.sleep(max(due - time.monotonic(), 0))  # a step of a real model takes longer
    client.close()
    manager.shutdown(wait=False)


# The server beside it ------------------------------------------------------------------------------------------------


class Page(http.server.BaseHTTPRequestHandler):
    """The metrics of a simulated server to which a trace is sent in real time."""

    def do_GET(self) -> None:
        page: Server = self.server  # type: ignore[assignment]
        body = page.metrics().encode()
        with contextlib.suppress(ConnectionError):  # who asked has gone, as at the end
            self.send_response(200)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

    def log_message(self, *_: object) -> None:
        """Not on the terminal."""


class Server(http.server.ThreadingHTTPServer):
    """It does not know of the merges: what they do to it is simulated afterwards, when the log is judged."""

    daemon_threads = True

    def __init__(self, regime: Regime, world: Workload) -> None:
        super().__init__(("127.0.0.1", 0), Page)
        model = SidecarModel.shipped(regime.sidecar).changed(regime.sidecar_overrides)
        self.trace = world.trace
        self.session = SimulatedSidecar(model).load(world.trace, np.random.default_rng(2)).session()
        self.session.advance(1)  # compiled before time 0
        self.lock, self.began_ns = threading.Lock(), 0
        threading.Thread(target=self.serve_forever, daemon=True).start()

    def begin(self) -> None:
        """Now is time 0 of the trace."""
        self.began_ns = time.monotonic_ns()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_address[1]}"

    def metrics(self) -> str:
        with self.lock:
            now_ns = time.monotonic_ns() - self.began_ns if self.began_ns else 1
            self.session.advance(now_ns)
            state = self.session.observe(now_ns)[0]
        tokens = int(self.trace.prompt_tokens[: state.completed].sum())
        return (
            f"vllm:num_requests_running {state.in_flight}\nvllm:num_requests_waiting {state.queued}\n"
            f"vllm:e2e_request_latency_seconds_count {state.completed}\nvllm:prompt_tokens_total {tokens}\n"
        )

    def save(self, path: Path) -> None:
        """What was played so far."""
        played = self.trace.window(0, time.monotonic_ns() - self.began_ns)
        with path.open("w", newline="") as file:
            rows = csv.writer(file, lineterminator="\n")
            rows.writerow(["arrival_s", "prompt_tokens", "output_tokens"])
            rows.writerows(zip(played.arrival_ns / 1e9, played.prompt_tokens, played.output_tokens, strict=True))


# All of it -----------------------------------------------------------------------------------------------------------


class Fleet:
    """Two replicas in processes of their own."""

    def __init__(self, coordinator: Coordinator, lighthouse: str, step_s: float) -> None:
        self.coordinator, self.lighthouse, self.step_s = coordinator, lighthouse, step_s
        self.context = multiprocessing.get_context("forkserver")
        self.context.set_forkserver_preload(["torch", "torchft", "adapters.torchft.diloco"])
        self.begin = self.context.Event()
        self.running: dict[str, multiprocessing.process.BaseProcess] = {}

    def start(self, *names: str) -> None:
        """Start replicas, and wait until they have joined."""
        for name in names:
            words = (name, self.lighthouse, self.coordinator.address, self.step_s, self.begin)
            self.running[name] = self.context.Process(target=replica, args=words)
            self.running[name].start()
        while not self.coordinator.replicas >= set(names):
            if not all(process.is_alive() for process in self.running.values()):
                sys.exit("a replica ended before it had joined")
            time.sleep(0.01)

    def kill(self, name: str) -> None:
        self.running[name].kill()
        self.running[name].join()
        while name in self.coordinator.replicas:
            time.sleep(0.01)

    def train(self, seconds: float) -> None:
        """One replica is lost on the way, and comes back."""
        over = time.monotonic() + seconds
        self.begin.set()
        time.sleep(seconds * 0.4)
        self.kill("replica_1")
        self.start("replica_1")
        time.sleep(max(over - time.monotonic(), seconds * 0.2))
        self.coordinator.finish()
        for process in self.running.values():
            process.join(30)
        if any(process.exitcode != 0 for process in self.running.values()):
            sys.exit("a replica failed")


def certify(out: Path, zero_s: float) -> int:
    """What `protocol` says of the log; zero_s : where the trace begins in it."""
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, (str(HERE.parent), *sys.path)))}
    protocol, log = [sys.executable, "-m", "protocol"], str(out / "merges.jsonl")
    subprocess.run([*protocol, "logs", "inspect", log], env=environment, check=True)
    how = ["--corridor", "from-log", "--log-zero", f"{zero_s:.6f}", "--draws", "199", "--jobs", "1"]
    world = ["--trace", str(out / "trace.csv"), "--regime", str(REGIME), "--out", str(out / "certificate")]
    ended = subprocess.run([*protocol, "certify", log, *world, *how], env=environment)
    # 0 passed, 1 failed, 3 undecidable: each is a verdict.
    return 0 if ended.returncode in (0, 1, 3) else ended.returncode


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--scheduler", default=str(HERE / "when_idle.py"))
    parser.add_argument("--seconds", type=float, default=25.0, help="of training")
    parser.add_argument("--sidecar", help="a real server (http://HOST:PORT); nothing is certified then")
    parser.add_argument("--out", type=Path, default=Path("runs/torchft-loop"))
    asked = parser.parse_args()
    log, regime, page = asked.out / "merges.jsonl", Regime.load(str(REGIME)), None
    if log.exists():
        sys.exit(f"{log}: found a log of an earlier loop; expected another --out")
    asked.out.mkdir(parents=True, exist_ok=True)
    os.environ.setdefault("RUST_LOG", "error")  # torchft's own log
    from torchft.coordination import LighthouseServer

    if asked.sidecar is None:
        world = regime.replace(horizon_s=asked.seconds + 60.0)  # more than is played
        page = Server(regime, workload(world, np.random.default_rng(1)))
    lighthouse = LighthouseServer(
        bind="127.0.0.1:0", min_replicas=1, join_timeout_ms=3000, quorum_tick_ms=10, heartbeat_timeout_ms=1000
    )
    url = asked.sidecar or page.url
    with Coordinator(asked.scheduler, regime, log, sidecar=url, slots=16, scrape_s=0.05) as coordinator:
        fleet = Fleet(coordinator, lighthouse.address(), regime.step_s)
        fleet.start("replica_0", "replica_1")
        if page is not None:
            page.begin()
        fleet.train(asked.seconds)
    lighthouse.shutdown()
    if page is None:
        return 0
    page.save(asked.out / "trace.csv")
    return certify(asked.out, (page.began_ns - coordinator.log.began_ns) / 1e9)


if __name__ == "__main__":
    sys.exit(main())
