"""Two replicas of torchft's DiLoCo on CPU, merging when a scheduler says so; needs the extra `torchft`."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import threading
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from fault_server import Good, serving
from strategies import LEARNER, FunctionRun

from adapters.merge_loads.runner import MergeLoad
from protocol.merging.corridor import Corridor
from protocol.merging.practice import Practice
from protocol.placement.rollout import ControlLoop
from protocol.regimes.regime import Regime
from protocol.workload.trace import RequestTrace, StepFunction, Workload

ROOT = Path(__file__).resolve().parents[2]
torch = pytest.importorskip("torch", reason="torch is not installed; to run this test: pip install -e '.[torchft]'")
torchft = pytest.importorskip("torchft", reason="NO TORCHFT: pip install -e '.[torchft]'")
from torchft.coordination import LighthouseServer  # noqa: E402
from torchft.local_sgd import DiLoCo  # noqa: E402

from adapters.torchft.client import Client  # noqa: E402
from adapters.torchft.coordinator import Coordinator  # noqa: E402
from adapters.torchft.diloco import Decided  # noqa: E402

pytestmark = pytest.mark.filterwarnings("ignore::UserWarning", "ignore::DeprecationWarning", "ignore::ResourceWarning")
STEPS, H = 48, 8


class Trained:
    """What one replica saw: its losses, and its parameters after each merge."""

    def __init__(self) -> None:
        self.losses: list[float] = []
        self.merged: list[Any] = []
        self.error: BaseException | None = None


def train(number: int, lighthouse: str, made: Callable[..., Any], found: Trained, fragments: int, delay: int) -> None:
    stream = torch.Generator().manual_seed(7)
    model = torch.nn.Sequential(*(torch.nn.Linear(6, 6) for _ in range(2)))
    with torch.no_grad():
        for p in model.parameters():
            p.copy_(torch.randn(p.shape, generator=stream))
    parts = [model] if fragments == 1 else list(model)
    inner = torch.optim.AdamW(model.parameters(), lr=0.02)
    outer = [torch.optim.SGD(p.parameters(), lr=0.7, momentum=0.9, nesterov=True) for p in parts]
    store = torch.distributed.TCPStore("localhost", 0, is_master=True, wait_for_workers=False)
    manager = torchft.Manager(
        pg=torchft.ProcessGroupGloo(timeout=timedelta(seconds=20)), min_replica_size=2, use_async_quorum=False,
        init_sync=False, state_dict=dict, load_state_dict=lambda _: None, replica_id=f"replica_{number}",
        store_addr="localhost", store_port=store.port, rank=0, world_size=1, lighthouse_addr=lighthouse,
        timeout=timedelta(seconds=30), quorum_timeout=timedelta(seconds=60), connect_timeout=timedelta(seconds=30),
    )  # fmt: skip
    data = torch.Generator().manual_seed(number)
    try:
        with made(number, manager, parts, inner, outer, lambda: found.losses[-1], delay):
            for _ in range(STEPS):
                x = torch.randn(4, 6, generator=data)
                loss = ((model(x) - x.flip(1)) ** 2).mean()
                inner.zero_grad()
                loss.backward()
                found.losses.append(loss.item())
                before = manager.current_step()
                inner.step()
                if manager.current_step() > before:
                    flat = torch.cat([p.detach().flatten() for p in parts[before % len(parts)].parameters()])
                    found.merged.append(flat.clone())
    except BaseException as error:
        found.error = error
    finally:
        manager.shutdown(wait=False)


def both(made: Callable[..., Any], fragments: int, delay: int) -> list[Trained]:
    lighthouse = LighthouseServer(bind="127.0.0.1:0", min_replicas=2, join_timeout_ms=60_000, quorum_tick_ms=5)
    found = [Trained(), Trained()]
    threads = [
        threading.Thread(target=train, args=(k, lighthouse.address(), made, found[k], fragments, delay))
        for k in range(2)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(120)
    lighthouse.shutdown()
    for one in found:
        if one.error is not None:
            raise one.error
    return found


def plain(number: int, manager: Any, parts: Any, inner: Any, outer: Any, loss: Any, delay: int) -> Any:
    every = H * len(parts)
    return DiLoCo(manager, parts, inner, outer, sync_every=every, fragment_sync_delay=delay)


@pytest.mark.parametrize(("fragments", "delay"), [(1, 0), (2, 0), (2, 3)])
def test_fixed_h_is_plain_diloco_and_replicas_are_equal(tmp_path: Path, fragments: int, delay: int) -> None:
    """Same losses to the last bit, step by step; a scheduler that merges every H steps against `sync_every`."""
    (tmp_path / "fixed.py").write_text(f"def decide(obs):\n    return obs.steps_since_merge >= {H - delay}\n")
    world = Regime.load("ordinary").replace(
        h_min=2 * fragments, h_max=100 * fragments, decision_steps=1,
        merge=Practice(fragments=fragments),
    )  # fmt: skip
    expected = both(plain, fragments, delay)
    with Coordinator(str(tmp_path / "fixed.py"), world, tmp_path / "merges.jsonl") as coordinator:

        def decided(number: int, manager: Any, parts: Any, inner: Any, outer: Any, loss: Any, delay: int) -> Any:
            clients.append(Client(coordinator.address, f"replica_{number}"))
            return Decided(manager, parts, inner, outer, clients[-1], loss, fragment_sync_delay=delay)

        clients: list[Client] = []
        found = both(decided, fragments, delay)
        for client in clients:
            client.close()
    for one, other in zip(found, expected, strict=True):
        assert one.losses == other.losses and len(one.losses) == STEPS
    assert found[0].losses != found[1].losses and found[0].losses[-1] < found[0].losses[0]
    assert len(found[0].merged) == len(found[1].merged) == STEPS // H
    for mine, theirs in zip(*(f.merged for f in found), strict=True):
        assert torch.equal(mine, theirs)
    rows = [json.loads(line) for line in (tmp_path / "merges.jsonl").read_text().splitlines()]
    merges = [r for r in rows if r["event"] == "merge"]
    assert [m["fragment"] for m in merges] == [k % fragments for k in range(STEPS // H)]
    each = 2 * 42 * 4 // fragments
    assert all(m["committed"] and m["bytes"] == each and m["steps"] == H - delay for m in merges)
    assert all(m["participants"] == ["replica_0", "replica_1"] for m in merges)


def test_without_its_coordinator_training_goes_on_at_h_max(tmp_path: Path) -> None:
    (tmp_path / "always.py").write_text("def decide(obs):\n    return True\n")
    world = Regime.load("ordinary").replace(h_min=4, h_max=12, decision_steps=2)
    coordinator = Coordinator(str(tmp_path / "always.py"), world, tmp_path / "merges.jsonl")
    clients = [Client(coordinator.address, f"replica_{k}") for k in range(2)]
    for client in clients:
        client.close(bye=False)
    coordinator.close()

    def decided(number: int, manager: Any, parts: Any, inner: Any, outer: Any, loss: Any, delay: int) -> Any:
        return Decided(manager, parts, inner, outer, clients[number], loss)

    found = both(decided, 1, 0)
    assert len(found[0].merged) == STEPS // 12
    assert all(torch.equal(mine, theirs) for mine, theirs in zip(*(f.merged for f in found), strict=True))


def test_merges_of_the_loop_run_beside_a_served_model() -> None:
    """Tier 4 with `--merge-load torchft` on a stub server: merges begin when they are decided, and end in time."""
    pytest.importorskip("aiohttp", reason="real sidecars need aiohttp")
    from adapters.sidecars.live import LiveServer
    from adapters.sidecars.openai import Deadlines

    ms = 1_000_000
    corridor = Corridor(h_min=40, h_max=60, decision_steps=5, step_ns=10 * ms, merge_ns=300 * ms, horizon_ns=1900 * ms)
    arrival = np.linspace(0, 1900 * ms, 30).astype(np.int64)
    trace = RequestTrace(arrival, np.full(30, 8), np.full(30, 8))
    world = Workload(trace, StepFunction.constant(0.0), StepFunction.constant(0.0))
    run = FunctionRun(lambda seen, rng: True)
    with serving() as server:
        load = MergeLoad.parse("torchft:payload_mb=1")
        assert load.processes == 2
        live = LiveServer(Good(server.url, "m"), load, 10, Deadlines(2.0, 1.0, 1.0), scrape_s=0.1, lead_s=0.1)
        served = live.serve(world, ControlLoop(world, corridor, LEARNER), 2000 * ms, run, ())
    assert served.died is None and served.n_merges == 2 and served.failures == {}
    assert np.abs(served.ran_ns - served.planned_ns).max() < 150 * ms
    assert [obs.merges_so_far for obs in run.seen] == [0, 1]


@pytest.mark.slow
def test_the_example_loses_a_replica_and_certifies_its_log(tmp_path: Path) -> None:
    words = [sys.executable, "examples/torchft_loop.py", "--out", str(tmp_path / "loop")]
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    ended = subprocess.run(words, cwd=ROOT, env=environment, capture_output=True, text=True, timeout=300)
    assert ended.returncode == 0, ended.stdout + ended.stderr
    rows = [json.loads(line) for line in (tmp_path / "loop" / "merges.jsonl").read_text().splitlines()]
    merges = [r for r in rows if r["event"] == "merge"]
    assert len(merges) > 20 and any(m["participants"] == ["replica_0"] for m in merges)
    assert all(10 <= m["steps"] <= 40 for m in merges)
    (lost,) = [r for r in rows if r["event"] == "left" and "steps_lost_at_least" in r]
    (caught_up,) = [r for r in rows if r["event"] == "healed"]
    assert lost["replica"] == caught_up["replica"] == "replica_1" and caught_up["steps_lost"] >= 10
    after = [m for m in merges if m["start_s"] > caught_up["at_s"]]
    assert after and all(m["participants"] == ["replica_0", "replica_1"] for m in after)
    certificate = json.loads((tmp_path / "loop" / "certificate" / "certificate.json").read_text())
    (claim,) = certificate["claims"]
    status = {g["gate"]: g["status"] for g in claim["gates"]}
    # No real server was calibrated, so G1 says nothing; every other gate has its verdict.
    assert status.pop("G1") == "undecidable" and status.keys() >= {"G0", "G2", "G3", "G4"}
    assert set(status.values()) <= {"passed", "failed"}, status
    assert claim["verdict"] in ("PASS", "FAIL")
