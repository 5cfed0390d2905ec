"""Does an open-loop client send when it should?  Ours and public ones, in one run, on one server, by one plan.

    python benchmarks/client.py --vllm VENV/bin/vllm --aiperf VENV/bin/aiperf

Bar: at 200 requests/s of short streams on two cores, 99 % are sent within 5 ms of schedule; above its limit a run
says so and is invalid.  Every client replays the same Poisson arrivals (whole milliseconds, which all formats hold)
with the same lengths, in processes of its own.  What is judged is the arrivals that the *server* logged, the same
way for all: the k-th arrival against the k-th planned time, where the clocks are aligned at the 1st percentile of
the differences.  That order of matching favours a client that overtakes itself.  CPU time is that of all of a client's
processes between the first and the last arrival.  The public clients are optional: what is missing is said.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from stream_server import Served, serving

from adapters.sidecars.openai import Target, replay
from protocol.merging.schedule import Schedule
from protocol.replay.replay import SENT_SHARE, SENT_WITHIN_NS
from protocol.workload.trace import RequestTrace

PROMPT, OUTPUT = 32, 16
SEED = 7
RAMP_S = 8.0
MS = 1_000_000


def arrivals_ms(rate: float, seconds: float) -> NDArray[np.int64]:
    """Poisson arrivals, whole milliseconds from 0 on, conditioned on their number."""
    n = round(rate * seconds)
    times = np.sort(np.random.default_rng([SEED, round(rate)]).uniform(0, seconds * 1000, n))
    return (times - times[0]).astype(np.int64)


@dataclass(frozen=True)
class Client:
    """name ; command : words that replay the plan in a folder on the server at a URL ; e2e_ms : reads the p50 and
    p95 that it reports from that folder, with what else it says."""

    name: str
    command: Callable[[Path, str], Sequence[str]]
    e2e_ms: Callable[[Path], tuple[float, float, str]]


def ours() -> Client:
    def read(folder: Path) -> tuple[float, float, str]:
        found = json.loads((folder / "ours.json").read_text())
        return found["p50_ms"], found["p95_ms"], found["said"]

    return Client("ours", lambda folder, url: [sys.executable, __file__, "--replay", str(folder), url], read)


def replay_here(folder: Path, url: str) -> None:
    """Our client, called in a process of its own."""
    at_ms = np.array(json.loads((folder / "plan.json").read_text()))
    n = len(at_ms)
    trace = RequestTrace(at_ms * MS, np.full(n, PROMPT), np.full(n, OUTPUT))
    run = replay(Target(url, "mock"), trace, Schedule.empty())
    e2e_ms = run.measurements.e2e_ns[run.measurements.e2e_ns > 0] / MS
    late = run.send_delay_ns / MS
    said = (
        f"{100 * np.mean((late >= 0) & (late <= SENT_WITHIN_NS / MS)):.2f} % within 5 ms, p50 "
        f"{np.percentile(late, 50):.2f} ms, p99 {np.percentile(late, 99):.2f} ms"
        + (f", {sum(run.failures.values())} failed" if run.failures else "")
        + (f"; invalid: {run.invalid}" if run.invalid else "")
    )
    p50, p95 = np.percentile(e2e_ms, [50, 95])
    (folder / "ours.json").write_text(json.dumps({"p50_ms": p50, "p95_ms": p95, "said": said}))


def write_tokenizer(folder: Path) -> None:
    """A tokenizer of a thousand words, for clients that insist on one; the plan's prompts are token ids."""
    special = {"id": 0, "content": "[UNK]", "special": True, "single_word": False, "lstrip": False,
               "rstrip": False, "normalized": False}  # fmt: skip
    vocabulary = {"[UNK]": 0, **{f"w{i}": i for i in range(1, 1000)}}
    model = {"type": "WordLevel", "vocab": vocabulary, "unk_token": "[UNK]"}
    whole = {"version": "1.0", "added_tokens": [special], "pre_tokenizer": {"type": "Whitespace"}, "model": model}
    (folder / "tokenizer.json").write_text(json.dumps(whole))
    settings = {"tokenizer_class": "PreTrainedTokenizerFast", "unk_token": "[UNK]"}
    (folder / "tokenizer_config.json").write_text(json.dumps(settings))


def vllm(executable: str) -> Client:
    def command(folder: Path, url: str) -> list[str]:
        plan = json.loads((folder / "plan.json").read_text())
        rows = [{"timestamp": t, "input_length": PROMPT, "output_length": OUTPUT, "hash_ids": [i]}
                for i, t in enumerate(plan)]  # fmt: skip
        (folder / "trace.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
        write_tokenizer(folder)
        return [
            executable, "bench", "serve", "--backend", "openai", "--base-url", url, "--endpoint", "/v1/completions",
            "--model", "mock", "--tokenizer", str(folder), "--dataset-name", "timed_trace",
            "--dataset-path", str(folder / "trace.jsonl"), "--timed-trace-sec-multiplier", "0.001",
            "--timed-trace-chunk-hash-size", str(PROMPT), "--num-prompts", str(len(plan)), "--disable-tqdm",
            "--percentile-metrics", "e2el", "--metric-percentiles", "50,95",
            "--save-result", "--result-dir", str(folder), "--result-filename", "vllm.json",
        ]  # fmt: skip

    def read(folder: Path) -> tuple[float, float, str]:
        found = json.loads((folder / "vllm.json").read_text())
        return found["p50_e2el_ms"], found["p95_e2el_ms"], f"{found['completed']} completed"

    return Client("vllm bench serve", command, read)


def aiperf(executable: str) -> Client:
    def command(folder: Path, url: str) -> list[str]:
        plan = json.loads((folder / "plan.json").read_text())
        fields = {"model": "mock", "max_tokens": OUTPUT, "stream": True, "stream_options": {"include_usage": True}}
        rows = [{"timestamp": t, "payload": {**fields, "prompt": [i % 900 + 1] * PROMPT}} for i, t in enumerate(plan)]
        write_tokenizer(folder)
        (folder / "aiperf.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
        return [
            executable, "profile", "--model", "mock", "--url", url, "--endpoint-type", "completions", "--streaming",
            "--input-file", str(folder / "aiperf.jsonl"), "--custom-dataset-type", "mooncake_trace",
            "--fixed-schedule", "--fixed-schedule-auto-offset", "--tokenizer", str(folder), "--use-server-token-count",
            "--artifact-dir", str(folder / "aiperf"), "--ui", "none", "--no-server-metrics", "--no-gpu-telemetry",
        ]  # fmt: skip

    def read(folder: Path) -> tuple[float, float, str]:
        found = json.loads((folder / "aiperf" / "profile_export_aiperf.json").read_text())
        latency = found["request_latency"]
        return latency["p50"], latency["p95"], f"{found['request_count']['avg']:.0f} completed"

    return Client("aiperf", command, read)


class Cpu(threading.Thread):
    """CPU seconds of all processes of a session, sampled four times a second."""

    def __init__(self, session: int) -> None:
        super().__init__(daemon=True)
        self.session, self.samples, self.ended = session, [(time.monotonic_ns(), 0.0)], threading.Event()

    def run(self) -> None:
        ticks = os.sysconf("SC_CLK_TCK")
        used: dict[str, int] = {}
        while not self.ended.wait(0.25):
            for entry in Path("/proc").glob("[0-9]*/stat"):
                try:
                    values = entry.read_text().rpartition(")")[2].split()
                except OSError:
                    continue
                if int(values[3]) == self.session:
                    used[entry.parts[2]] = int(values[11]) + int(values[12])
            self.samples.append((time.monotonic_ns(), sum(used.values()) / ticks))

    def between(self, begin_ns: int, end_ns: int) -> float:
        at, seconds = zip(*self.samples, strict=True)
        return float(np.interp(end_ns, at, seconds) - np.interp(begin_ns, at, seconds))


@dataclass(frozen=True)
class Result:
    """What the server saw of a client.  delay_ms : per request, aligned at the 1st percentile."""

    delay_ms: NDArray[np.float64]
    rate: float
    server_ms: tuple[float, float]
    e2e_ms: tuple[float, float]
    cpu_s: float
    said: str

    @property
    def share(self) -> float:
        return float(np.mean(np.abs(self.delay_ms) <= SENT_WITHIN_NS / MS))


def measure(client: Client, server: Served, plan_ms: NDArray[np.int64], patience_s: float) -> Result | str:
    """Let a client replay a plan; why it did not, where it did not."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        (folder / "plan.json").write_text(json.dumps(plan_ms.tolist()))
        server.take()
        words = list(client.command(folder, server.url))
        with (folder / "log").open("wb") as log:
            child = subprocess.Popen(
                words, stdin=subprocess.DEVNULL, stdout=log, stderr=log, start_new_session=True, cwd=folder
            )
            cpu = Cpu(child.pid)
            cpu.start()
            try:
                code: int | str = child.wait(patience_s)
            except subprocess.TimeoutExpired:
                os.killpg(child.pid, 9)
                child.wait()
                code = f"none within {patience_s:g} s"
            cpu.ended.set()
            cpu.join()
        arrived, answered = np.array(server.take()[-len(plan_ms) :], np.int64).reshape(-1, 2).T
        if code != 0 or len(arrived) != len(plan_ms):
            lines = (folder / "log").read_text("utf-8", "replace").strip().splitlines() or [""]
            return f"{len(arrived)} of {len(plan_ms)} requests, exit code {code}: {lines[-1].strip()[:200]}"
        offset_ms = arrived / MS - plan_ms
        e2e = client.e2e_ms(folder)
    p50, p95 = np.percentile(answered - arrived, [50, 95]) / MS
    return Result(
        offset_ms - np.percentile(offset_ms, 1),
        float((len(arrived) - 1) / (arrived[-1] - arrived[0]) * 1e9),
        (p50, p95),
        e2e[:2],
        cpu.between(int(arrived[0]), int(arrived[-1])),
        e2e[2],
    )


HEAD = (
    "client", "asked, 1/s", "within 5 ms, %", "delay p50, ms", "p99, ms", "sent, 1/s", "E2E p50 / p95 by client, ms",
    "by server, ms", "CPU, s", "the client says",
)  # fmt: skip


def line(*cells: object) -> None:
    print("| " + " | ".join(map(str, cells)) + " |", flush=True)


def row(name: str, rate: float, found: Result | str) -> None:
    if isinstance(found, str):
        line(name, f"{rate:g}", *[""] * (len(HEAD) - 3), f"did not finish: {found}")
        return
    p50, p99 = np.percentile(found.delay_ms, [50, 99])
    client, server = (f"{p50:.1f} / {p95:.1f}" for p50, p95 in (found.e2e_ms, found.server_ms))
    line(name, f"{rate:g}", f"{100 * found.share:.2f}", f"{p50:.2f}", f"{p99:.2f}", f"{found.rate:.1f}", client, server,
         f"{found.cpu_s:.1f}", found.said)  # fmt: skip


def main() -> int:
    options = argparse.ArgumentParser(description="How well open-loop clients keep their schedule.")
    options.add_argument("--vllm", default=shutil.which("vllm"), help="executable of vLLM")
    options.add_argument("--aiperf", default=shutil.which("aiperf"), help="executable of AIPerf")
    options.add_argument("--rate", type=float, default=200.0, help="requests per second for all clients")
    options.add_argument("--seconds", type=float, default=20.0)
    options.add_argument("--ramp", type=float, nargs="*", default=[400.0, 800.0, 1200.0, 1600.0], help="for ours alone")
    options.add_argument("--replay", nargs=2, metavar=("FOLDER", "URL"), help=argparse.SUPPRESS)
    asked = options.parse_args()
    if asked.replay:
        replay_here(Path(asked.replay[0]), asked.replay[1])
        return 0
    clients = [ours()]
    for name, executable, make in (("vllm", asked.vllm, vllm), ("aiperf", asked.aiperf, aiperf)):
        if executable and os.access(executable, os.X_OK):
            clients.append(make(executable))
        else:
            print(
                f"{name}: not found; `pip install {name}` in an environment of its own, then --{name} VENV/bin/{name}"
            )
    print(
        f"{os.cpu_count()} cores, load average {os.getloadavg()[0]:.1f}, Python {sys.version.split()[0]}\n"
        f"Poisson arrivals, seed {SEED}, {asked.seconds:g} s; {PROMPT} prompt and {OUTPUT} output tokens, "
        "one event a token\n"
    )
    line(*HEAD)
    line(*["---"] * len(HEAD))
    with serving() as server:
        at_rate = {}
        for client in clients:
            at_rate[client.name] = measure(client, server, arrivals_ms(asked.rate, asked.seconds), 120 + asked.seconds)
            row(client.name, asked.rate, at_rate[client.name])
        for rate in asked.ramp:
            row("ours", rate, measure(ours(), server, arrivals_ms(rate, min(asked.seconds, RAMP_S)), 120))
    first = at_rate["ours"]
    met = not isinstance(first, str) and first.share >= SENT_SHARE and "invalid" not in first.said
    print(f"\nbar: {100 * SENT_SHARE:g} % within 5 ms at {asked.rate:g} requests/s: {'met' if met else 'MISSED'}")
    return 0 if met else 1


if __name__ == "__main__":
    sys.exit(main())
