"""Request traces: what arrives at the sidecars, and when."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from protocol.errors import BadInput

NS_PER_S = 1_000_000_000


def seconds_to_ns(seconds: float) -> int:
    """Whole nanoseconds nearest to `seconds`; every clock of the project counts these."""
    return int(round(seconds * NS_PER_S))


def frozen(values: object, dtype: type | str) -> NDArray[Any]:
    """A contiguous read-only copy, so that a value object cannot be changed through its arrays."""
    array = np.array(values, dtype=dtype, order="C")
    array.setflags(write=False)
    return array


def whole(where: str, column: str, values: object, dtype: str) -> NDArray[Any]:
    """The same for whole numbers from outside: nothing is rounded, wrapped or made up.

    Raises BadInput naming the row of the first value that `dtype` cannot hold exactly.
    """
    given = np.asarray(values)
    if given.ndim != 1 or given.dtype.kind not in "iufb":
        raise BadInput(f"{where}, {column}", f"{given.dtype} of shape {given.shape}", "one whole number a row")
    with np.errstate(invalid="ignore"):
        array = np.array(given, dtype=dtype, order="C")
    if given.dtype != array.dtype:
        bad = np.flatnonzero(array != given)
        if bad.size:
            limits = np.iinfo(dtype)
            expected = f"a whole number from {limits.min} to {limits.max}"
            raise BadInput(f"{where}, row {bad[0] + 1}, {column}", str(given[bad[0]]), expected)
    array.setflags(write=False)
    return array


@dataclass(frozen=True, eq=False)
class RequestTrace:
    """Requests in order of scheduled arrival.

    arrival_ns : int64, shape (n,), non-decreasing, >= 0; nanoseconds since the trace began.
    prompt_tokens : int32, shape (n,), >= 1.
    output_tokens : int32, shape (n,), >= 1.
    island : int16, shape (n,), the sidecar that serves the request, 0 .. n_islands - 1.

    Raises BadInput when lengths differ, a value is out of range or arrivals go backwards.
    """

    arrival_ns: NDArray[np.int64]
    prompt_tokens: NDArray[np.int32]
    output_tokens: NDArray[np.int32]
    island: NDArray[np.int16] = field(default=None)  # type: ignore[arg-type]  # filled in below
    n_islands: int = 1
    name: str = "trace"

    def __post_init__(self) -> None:
        n = len(self.arrival_ns)
        island = np.zeros(n, np.int16) if self.island is None else self.island
        for column, values, dtype in (
            ("arrival_ns", self.arrival_ns, "i8"),
            ("prompt_tokens", self.prompt_tokens, "i4"),
            ("output_tokens", self.output_tokens, "i4"),
            ("island", island, "i2"),
        ):
            if len(values) != n:
                raise BadInput(f"{self.name}, {column}", f"{len(values)} rows", f"{n} rows, as many as arrival_ns")
            object.__setattr__(self, column, whole(self.name, column, values, dtype))
        if n and self.arrival_ns[0] < 0:
            raise BadInput(f"{self.name}, row 1, arrival", f"{self.arrival_ns[0]} ns", "0 or later")
        backward = np.flatnonzero(np.diff(self.arrival_ns) < 0)
        if backward.size:
            raise BadInput(f"{self.name}, row {backward[0] + 2}, arrival", "a backward step", "non-decreasing times")
        for column in ("prompt_tokens", "output_tokens"):
            bad = np.flatnonzero(getattr(self, column) < 1)
            if bad.size:
                value = getattr(self, column)[bad[0]]
                raise BadInput(f"{self.name}, row {bad[0] + 1}, {column}", str(value), "at least 1")
        bad = np.flatnonzero((self.island < 0) | (self.island >= self.n_islands))
        if bad.size:
            where = f"{self.name}, row {bad[0] + 1}, island"
            raise BadInput(where, str(self.island[bad[0]]), f"0 to {self.n_islands - 1}")

    def __len__(self) -> int:
        return len(self.arrival_ns)

    @property
    def arrival_s(self) -> NDArray[np.float64]:
        """Scheduled arrivals in seconds, shape (n,)."""
        return self.arrival_ns / NS_PER_S

    @cached_property
    def digest(self) -> str:
        """SHA-256 of the requests themselves; the name takes no part."""
        sha = hashlib.sha256(f"request-trace/1 {len(self)} {self.n_islands}\n".encode())
        for array, dtype in (
            (self.arrival_ns, "<i8"),
            (self.prompt_tokens, "<i4"),
            (self.output_tokens, "<i4"),
            (self.island, "<i2"),
        ):
            sha.update(array.astype(dtype).tobytes())
        return sha.hexdigest()

    def window(self, start_ns: int, end_ns: int, name: str | None = None) -> RequestTrace:
        """Requests with start_ns <= arrival < end_ns, re-based so that the window begins at 0."""
        lo, hi = np.searchsorted(self.arrival_ns, [start_ns, end_ns], side="left")
        return RequestTrace(
            self.arrival_ns[lo:hi] - start_ns,
            self.prompt_tokens[lo:hi],
            self.output_tokens[lo:hi],
            self.island[lo:hi],
            self.n_islands,
            name or self.name,
        )

    def spliced(self, other: RequestTrace, at_ns: int) -> RequestTrace:
        """This trace before `at_ns`, the other one from then on."""
        lo = np.searchsorted(self.arrival_ns, at_ns, side="left")
        hi = np.searchsorted(other.arrival_ns, at_ns, side="left")
        columns = ("arrival_ns", "prompt_tokens", "output_tokens", "island")
        joined = {c: np.concatenate([getattr(self, c)[:lo], getattr(other, c)[hi:]]) for c in columns}
        return RequestTrace(**joined, n_islands=max(self.n_islands, other.n_islands), name=self.name)


@dataclass(frozen=True, eq=False)
class StepFunction:
    """A piecewise-constant signal: `values[i]` holds from `since_ns[i]` until the next edge.

    since_ns : int64, shape (n,), strictly increasing, first edge 0.  values : float64, shape (n,).
    """

    since_ns: NDArray[np.int64]
    values: NDArray[np.float64]

    def __post_init__(self) -> None:
        object.__setattr__(self, "since_ns", frozen(self.since_ns, "i8"))
        object.__setattr__(self, "values", frozen(self.values, "f8"))
        since = self.since_ns
        if not len(since) or len(since) != len(self.values) or since[0] != 0 or np.any(np.diff(since) <= 0):
            raise BadInput("signal", f"edges {since[:4].tolist()} ...", "one a value, rising from 0")

    @classmethod
    def constant(cls, value: float) -> StepFunction:
        return cls(np.array([0]), np.array([value]))

    def at(self, time_ns: int) -> float:
        return float(self.values[np.searchsorted(self.since_ns, time_ns, side="right") - 1])

    def spliced(self, other: StepFunction, at_ns: int) -> StepFunction:
        keep, take = self.since_ns < at_ns, other.since_ns > at_ns
        since = np.concatenate([self.since_ns[keep], [at_ns], other.since_ns[take]])
        values = np.concatenate([self.values[keep], [other.at(at_ns)], other.values[take]])
        return StepFunction(since, values)


@dataclass(frozen=True)
class Workload:
    """One seed's world: its requests and the pressures that the regime declares beside them (0 to 1)."""

    trace: RequestTrace
    network: StepFunction
    checkpoint: StepFunction

    def spliced(self, other: Workload, at_ns: int) -> Workload:
        """This world before `at_ns`, the other one's future from then on (the causality gate needs it)."""
        return Workload(
            self.trace.spliced(other.trace, at_ns),
            self.network.spliced(other.network, at_ns),
            self.checkpoint.spliced(other.checkpoint, at_ns),
        )
