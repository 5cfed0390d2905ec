"""What runs the processes of a campaign: this machine (loky), a Dask cluster or a Ray runtime, through joblib.

Results depend on none of them.  Schedulers keep their confinement: a worker, wherever it is, starts theirs.
"""

from __future__ import annotations

import contextlib
import logging
import socket
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from importlib import import_module
from typing import Annotated, Any

import joblib
import typer

from protocol.campaign.run import dismiss_workers, end_worker
from protocol.certificate.model import versions
from protocol.errors import BadInput, ProtocolError

#: Seconds within which a cluster must answer, and have its first worker.
ANSWER_S, WORKER_S = 10, 60
BACKENDS = ("loky", "dask", "ray")
_SCHEMES = ("tcp://", "tls://", "ucx://", "ws://", "wss://")


@dataclass(frozen=True)
class Backend:
    """What runs the processes, and where."""

    backend: Annotated[
        str, typer.Option(help="what runs the processes: loky (this machine), dask or ray; no result depends on it")
    ] = "loky"
    address: Annotated[
        str | None,
        typer.Option(help="with --backend dask or ray: a running cluster (default: a local one of --jobs workers)"),
    ] = None

    def __post_init__(self) -> None:
        if self.backend not in BACKENDS:
            raise BadInput("--backend", repr(self.backend), f"one of {', '.join(BACKENDS)}")
        if self.address is not None and self.backend == "loky":
            raise BadInput("--address", f"{self.address!r} without a cluster", "--backend dask or ray beside it")
        if self.address is not None and self.backend == "dask" and not self.address.startswith(_SCHEMES):
            raise BadInput("--address", repr(self.address), "a Dask scheduler's, e.g. tcp://HOST:8786")

    @contextlib.contextmanager
    def started(self, jobs: int) -> Iterator[None]:
        """Inside, joblib works there; what was started is ended afterwards.

        Raises BadInput when the cluster cannot be reached or its workers have other versions, and ProtocolError when
        the package is missing.
        """
        with {"loky": _loky, "dask": _dask, "ray": _ray}[self.backend](self.address, jobs):
            yield


@contextlib.contextmanager
def _loky(_: str | None, jobs: int) -> Iterator[None]:
    yield
    if jobs > 1:
        dismiss_workers()


@contextlib.contextmanager
def _dask(address: str | None, jobs: int) -> Iterator[None]:
    distributed = _package("distributed", "dask")
    logging.getLogger("distributed").setLevel(logging.CRITICAL)  # a lost worker is Dask's to replace
    with contextlib.ExitStack() as stack:
        if address is None:
            scratch = stack.enter_context(tempfile.TemporaryDirectory(prefix="protocol-dask-"))
            # One thread each, as elsewhere: a process holds one opened scheduler.  Without the limit that Dask would
            # choose, which pauses a worker; what bounds its memory is the work itself.
            where: Any = distributed.LocalCluster(
                n_workers=jobs, threads_per_worker=1, processes=True, host="127.0.0.1", dashboard_address=None,
                memory_limit=None, local_directory=scratch, silence_logs=logging.CRITICAL,
            )  # fmt: skip
            stack.enter_context(where)
        else:
            where = address
        try:
            client = stack.enter_context(distributed.Client(where, timeout=ANSWER_S))
            client.wait_for_workers(1, timeout=WORKER_S)
        except (OSError, ValueError, TimeoutError) as error:
            raise BadInput("--address", _unreachable(where, error), "a Dask cluster with workers") from None
        _refuse_others(client.run(versions, on_error="return"))
        with joblib.parallel_config(backend="dask", client=client):
            try:
                yield
            except distributed.KilledWorker as error:
                found = f"{error.last_worker.address} and others were lost with the same seed (out of memory?)"
                raise ProtocolError(
                    f"Dask workers: {found}; finished seeds are kept, the same command goes on"
                ) from None
        ending = [client.submit(end_worker, workers=[w], pure=False) for w in client.scheduler_info()["workers"]]
        with contextlib.suppress(TimeoutError):  # a worker that was lost meanwhile
            distributed.wait(ending, timeout=ANSWER_S)


@contextlib.contextmanager
def _ray(address: str | None, jobs: int) -> Iterator[None]:
    ray = _package("ray", "ray")
    base = import_module("ray.util.joblib.ray_backend").RayBackend
    local = {"num_cpus": jobs, "include_dashboard": False} if address is None else {"address": address}
    try:
        if address not in (None, "auto"):  # Ray itself tries for minutes
            host, _, port = address.removeprefix("ray://").rpartition(":")
            socket.create_connection((host, int(port)), timeout=ANSWER_S).close()
        ray.init(log_to_driver=False, logging_level=logging.CRITICAL, configure_logging=True, **local)
    except (OSError, ValueError, RuntimeError, AssertionError) as error:
        raise BadInput("--address", _unreachable(address, error), "a Ray cluster, e.g. ray://HOST:10001") from None
    joblib.register_parallel_backend("ray", _streaming(base, ray))
    try:
        with joblib.parallel_config(backend="ray"):
            if address is not None:
                told = ray.get([ray.remote(versions).remote() for _ in range(jobs)])
                _refuse_others({f"Ray task {k + 1}": found for k, found in enumerate(told)})
            yield
    finally:
        ray.shutdown()


def _streaming(base: Any, ray: Any) -> Any:
    """As `ray.util.joblib.register_ray` has it, but handing over results as they come, so that finished seeds are kept,
    and ending what its workers opened before it kills them."""

    class Streaming(base):
        supports_return_generator = True

        def terminate(self) -> None:
            if self._pool is not None:
                with contextlib.suppress(ray.exceptions.RayError):
                    # One to each worker: chunks go round.
                    self._pool.map_async(_end, range(self._n_jobs), chunksize=1).wait(ANSWER_S)
            super().terminate()

        def effective_n_jobs(self, n_jobs: int) -> int:
            self._n_jobs = super().effective_n_jobs(n_jobs)
            return self._n_jobs

    return Streaming


def _end(_: int) -> None:
    end_worker()


def _package(name: str, extra: str) -> Any:
    try:
        return import_module(name)
    except ImportError:
        raise ProtocolError(f"--backend {extra}: needs {name}: pip install 'diloco-protocol[{extra}]'") from None


def _unreachable(where: object, error: Exception) -> str:
    why = " ".join(str(error).split())[:200] or type(error).__name__
    return f"{where}, which cannot be used ({why})"


def _refuse_others(told: dict[str, Any]) -> None:
    """Workers of other versions could make other numbers.  Raises BadInput naming the first of them."""
    own = versions()
    for worker, theirs in sorted(told.items()):
        if isinstance(theirs, BaseException):
            raise BadInput(worker, f"a worker that cannot run protocol ({theirs})", "the same packages as here")
        for name, version in own.items():
            if theirs.get(name) != version:
                raise BadInput(worker, f"{name} {theirs.get(name)}", f"{version}, as here")
