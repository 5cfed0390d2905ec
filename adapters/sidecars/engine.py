"""Start an inference server as a child with a log, wait until it is healthy, and always end it."""

from __future__ import annotations

import json
import os
import shlex
import shutil
import signal
import socket
import subprocess
import time
import urllib.error
import urllib.request
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass
from pathlib import Path

from adapters.cores import pinned
from protocol.errors import BadInput, ProtocolError, SidecarError
from protocol.files import write_text

#: What `start` leaves for `stop`, beside the log.
STATE = "sidecar.json"
_GRACE_S = 10.0


@dataclass(frozen=True)
class Server:
    """A running server.  started_ticks : the kernel's start time of the process, so that a reused pid is not killed.

    cores : to which it was restricted, None for all.
    """

    pid: int
    started_ticks: int
    url: str
    engine: str
    model: str
    log: str
    cores: list[int] | None = None


def command_for(
    engine: str, model: str, port: int, executable: str | None = None, extra: Sequence[str] = ()
) -> list[str]:
    """The command line of an engine: `vllm`, or `command:WORDS` with {model} and {port} in it.

    Raises BadInput on another engine, ProtocolError when its executable is not there.
    """
    if engine.startswith("command:"):
        words = shlex.split(engine.removeprefix("command:"))
        if not words:
            raise BadInput("--engine", "no command", "command:WORDS")
        return [word.replace("{model}", model).replace("{port}", str(port)) for word in words] + list(extra)
    if engine != "vllm":
        raise BadInput("--engine", repr(engine), "vllm or command:WORDS")
    found = executable or shutil.which("vllm")
    if found is None or not os.access(found, os.X_OK):
        raise ProtocolError(
            f"engine vllm: no executable {executable or 'vllm'}; install it in an environment of its own and give "
            "--executable PATH/bin/vllm"
        )
    words = [found, "serve", model, "--host", "127.0.0.1", "--port", str(port)]
    if (
        not any((Path(model) / name).exists() for name in ("model.safetensors", "pytorch_model.bin"))
        and Path(model).is_dir()
    ):
        # A folder with a configuration alone: random weights, prompts as token ids.
        words += ["--load-format", "dummy", "--skip-tokenizer-init", "--dtype", "float32", "--enforce-eager"]
        words += ["--max-model-len", "1024"]
    return words + list(extra)


def start(
    engine: str,
    model: str,
    folder: Path,
    *,
    port: int | None = None,
    executable: str | None = None,
    extra: Sequence[str] = (),
    patience_s: float = 300.0,
    cores: Sequence[int] | None = None,
) -> Server:
    """Start a server and wait until /health answers.  Its log and state lie in `folder`.  cores : None for all.

    What another one left in the folder by dying is ended first.  Raises BadInput when the port is taken; SidecarError,
    with the log's last line, when the server ends or does not answer in time; nothing is left running.
    """
    folder.mkdir(parents=True, exist_ok=True)
    old = running_in(folder)
    if old is not None and _ticks(old.pid) is not None:
        raise SidecarError(f"{folder}: a server is already running there (pid {old.pid}, {old.url}); stop it first")
    stop(folder)
    at = port or free_port()
    _refuse_taken(at)
    words = command_for(engine, model, at, executable, extra)
    log = folder / "sidecar.log"
    environment = {"HF_HUB_OFFLINE": "1", "VLLM_CPU_KVCACHE_SPACE": "1", **os.environ}
    with log.open("wb") as sink:
        try:
            with pinned(cores):  # inherited by all that it starts
                child = subprocess.Popen(
                    words, stdin=subprocess.DEVNULL, stdout=sink, stderr=sink, start_new_session=True, env=environment
                )
        except OSError as error:
            raise SidecarError(f"engine {words[0]}: {error.strerror or error}") from None
    server = Server(
        child.pid, _ticks(child.pid) or 0, f"http://127.0.0.1:{at}", engine, model, str(log),
        None if cores is None else list(cores),
    )  # fmt: skip
    write_text(folder / STATE, json.dumps(asdict(server), indent=2) + "\n")
    deadline = time.monotonic() + patience_s
    try:
        while True:
            up = healthy(server.url)
            if child.poll() is not None:  # asked afterwards: somebody else may be what answers
                raise SidecarError(f"engine {words[0]}: ended with code {child.returncode}: {_last_line(log)}")
            if up:
                break
            if time.monotonic() > deadline:
                raise SidecarError(f"engine {words[0]}: not healthy after {patience_s:g} s: {_last_line(log)}")
            time.sleep(0.2)
    except BaseException:
        stop(folder)
        raise
    finally:
        # It may outlive this process, so nobody here has to wait for it; `stop` reaps it where it can.
        child.returncode = child.returncode or 0
    return server


def running_in(folder: Path) -> Server | None:
    """The server that `start` left in this folder, if it or any process of its session still runs."""
    try:
        server = Server(**json.loads((folder / STATE).read_text("utf-8")))
    except (OSError, ValueError, TypeError):
        return None
    leader = _ticks(server.pid)
    # No pid is used again while it is the name of a group, so without a leader the group is what it left.
    ours = leader == server.started_ticks if leader is not None else _group_alive(server.pid)
    return server if server.started_ticks and ours else None


def stop(folder: Path) -> bool:
    """End the folder's server and every process of its session; False when none was running."""
    server = running_in(folder)
    if server is not None:
        for how in (signal.SIGTERM, signal.SIGKILL):
            try:
                os.killpg(server.pid, how)
            except ProcessLookupError:
                break
            deadline = time.monotonic() + _GRACE_S
            while _group_alive(server.pid) and time.monotonic() < deadline:
                time.sleep(0.05)
        with suppress(ChildProcessError):  # another process started it
            os.waitpid(server.pid, os.WNOHANG)
    (folder / STATE).unlink(missing_ok=True)
    return server is not None


@contextmanager
def serving(
    engine: str, model: str, folder: Path, executable: str | None = None, cores: Sequence[int] | None = None
) -> Iterator[Server]:
    """A server for the length of a block; it is ended however the block ends."""
    try:
        yield start(engine, model, folder, executable=executable, cores=cores)
    finally:
        stop(folder)


def healthy(url: str, patience_s: float = 2.0) -> bool:
    """Whether /health answers 200."""
    try:
        with urllib.request.urlopen(f"{url}/health", timeout=patience_s) as answer:
            return int(answer.status) == 200
    except (urllib.error.URLError, OSError, ValueError):
        return False


def _refuse_taken(port: int) -> None:
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)  # as servers do: what has closed is free
        try:
            probe.bind(("127.0.0.1", port))
        except OSError as error:
            raise BadInput("--port", f"{port} ({error.strerror})", "a free one") from None


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def _group_alive(group: int) -> bool:
    """Whether any process of the group runs; one that has ended but was not yet waited for does not."""
    for entry in Path("/proc").glob("[0-9]*/stat"):
        try:
            fields = entry.read_text().rpartition(")")[2].split()
        except OSError:
            continue
        if int(fields[2]) == group and fields[0] != "Z":
            return True
    return False


def _ticks(pid: int) -> int | None:
    """Start time of a process in clock ticks since boot; None when it does not run."""
    try:
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return None
    return None if fields[0] == "Z" else int(fields[19])


def _last_line(log: Path) -> str:
    lines = [line for line in log.read_text("utf-8", "replace").splitlines() if line.strip()]
    return lines[-1].strip()[:300] if lines else "its log is empty"
