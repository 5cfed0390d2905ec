"""The simulated sidecar: a model of a continuous-batching server, its parameters, and replays of a trace on it.

Per island one independent server.  Each iteration gives one token to every decoding sequence, then fills the
token budget with prompt chunks, first come first served; a request holds a slot and the KV memory of all its
tokens from admission to its last token.  `kernel` has the loop.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from functools import cached_property
from pathlib import Path
from typing import Annotated, Final, Literal, Self

import numpy as np
from numpy.typing import NDArray
from pydantic import model_validator

from adapters.sidecars import kernel
from protocol.calibration.model import Calibration, Fitted, Origin, Provenance
from protocol.calibration.store import FILE
from protocol.calibration.store import read as read_calibration
from protocol.errors import BadInput
from protocol.merging.schedule import Schedule
from protocol.reading import Model, Name, Range, Whole, near, parse_toml, read, refuse, text_of
from protocol.replay.measurements import REFUSED, SERVED, Measurements, exposure_ns
from protocol.replay.sidecar import ServingState
from protocol.workload.slo import Slo
from protocol.workload.trace import NS_PER_S, RequestTrace

PS_PER_S = 1_000_000_000_000
UNCALIBRATED: Final = "uncalibrated"
_FOLDER = Path(__file__).parent


class SidecarModel(Model):
    """Parameters of a simulated server.

    An iteration with n decoding sequences and k prefill tokens lasts a_s + b_s n + c_s k seconds; while a
    merge is active at its start, times prefill_slowdown when k > 0 and decode_slowdown when k = 0.
    max_num_seqs : requests admitted at a time.  max_batched_tokens : tokens of an iteration, decoded and
    prefilled, at least max_num_seqs.  kv_tokens : tokens, prompt and output, of all admitted requests.
    overhead_s, overhead_sigma : median and log-standard-deviation of the log-normal latency per request that
    is not the server's (client, network, tokeniser).
    provenance : the measurement that they come from, or UNCALIBRATED.
    """

    a_s: Annotated[float, Range(0, 10)]
    b_s: Annotated[float, Range(0, 1)]
    c_s: Annotated[float, Range(0, 0.1)]
    prefill_slowdown: Annotated[float, Range(1, 1000)]
    decode_slowdown: Annotated[float, Range(1, 1000)]
    max_num_seqs: Annotated[int, Range(1, 65_536)]
    max_batched_tokens: Annotated[int, Range(1, 1_048_576)]
    kv_tokens: Annotated[int, Range(2, 1 << 40)]
    overhead_s: Annotated[float, Range(0, 60)]
    overhead_sigma: Annotated[float, Range(0, 3)]
    name: Name
    provenance: Origin = UNCALIBRATED

    @model_validator(mode="after")
    def _whole_batch(self) -> Self:
        if self.max_batched_tokens < self.max_num_seqs:
            found = f"{self.max_batched_tokens}, less than max_num_seqs"
            raise refuse("max_batched_tokens", found, f"at least {self.max_num_seqs}")
        return self

    @property
    def label(self) -> str:
        return f"sidecar model {self.name}"

    @property
    def calibrated(self) -> bool:
        return isinstance(self.provenance, Provenance)

    @cached_property
    def digest(self) -> str:
        """SHA-256 of the parameters and their provenance; the name takes no part."""
        values = self.model_dump(exclude={"name"})
        return hashlib.sha256(f"sidecar-model/1 {json.dumps(values, sort_keys=True)}".encode()).hexdigest()

    def changed(self, overrides: Mapping[str, float]) -> SidecarModel:
        """The same model with some parameters changed.  A calibrated one is calibrated no more, and its name says so.

        Raises BadInput on an unknown parameter or a value out of range.
        """
        for key in overrides:
            if key not in PARAMETERS:
                expected = f"{', '.join(PARAMETERS)}{near(key, PARAMETERS)}"
                raise BadInput(self.label, f"unknown key {key!r}", expected)
        if not overrides:
            return self
        name = f"{self.name}-altered" if self.calibrated else self.name
        return self.replace(**overrides, name=name, provenance=UNCALIBRATED)

    def named(self, name: str) -> SidecarModel:
        """The same model under another name."""
        return self.replace(name=name)

    @classmethod
    def from_toml(cls, path: Path) -> SidecarModel:
        """Read a model file.  Raises BadInput naming the file and the key on anything unexpected."""
        file = parse_toml(text_of(path, "a sidecar model in TOML"), str(path), _File)
        return cls(**{name: getattr(file, name) for name in cls.model_fields})

    @classmethod
    def shipped(cls, name: str = "reference") -> SidecarModel:
        """A model that comes with the package.  Raises BadInput when there is none of that name."""
        uncalibrated = _uncalibrated()
        if name in uncalibrated:
            return cls.from_toml(uncalibrated[name])
        known = shipped_calibrations()
        if name not in known:
            names = shipped_names()
            raise BadInput("[sidecar] model", repr(name), f"one of {', '.join(names)}{near(name, names)}")
        return cls.from_calibration(read_calibration(known[name]))

    @classmethod
    def from_calibration(cls, calibration: Calibration) -> SidecarModel:
        """The model that was fitted in a calibration.  Raises BadInput when its parameters are not all there."""
        found = cls.fitted(calibration.model, f"calibration of {calibration.server}, model")
        return found.replace(provenance=Provenance(server=calibration.server, date=calibration.date))

    @classmethod
    def fitted(cls, parameters: Fitted, source: str) -> SidecarModel:
        """A model as a calibration states it.  Raises BadInput when its parameters are not all there, or no others."""
        return read(cls, parameters.plain(), source)


#: What a regime or a fit may change.
PARAMETERS = tuple(name for name in SidecarModel.model_fields if name not in ("name", "provenance"))


class _File(SidecarModel):
    """A model as its file has it."""

    format: Annotated[Literal[1], Whole]
    provenance: Origin


def _uncalibrated() -> dict[str, Path]:
    return {path.stem: path for path in _FOLDER.glob("*.toml")}


def shipped_names() -> list[str]:
    """Names of all models that come with the package, sorted."""
    return sorted({*_uncalibrated(), *shipped_calibrations()})


def shipped_calibrations() -> dict[str, Path]:
    """Folders of the calibrations that come with the package, by the name of their model."""
    return {path.parent.name: path.parent for path in (_FOLDER / "calibrations").glob(f"*/{FILE}")}


class SimulatedSidecar:
    """The default sidecar.  `model` defaults to the shipped, uncalibrated reference.

    >>> trace = RequestTrace(np.array([0]), np.array([100]), np.array([1]))
    >>> quiet = SidecarModel.shipped().changed({"a_s": 0.004, "c_s": 1e-5, "overhead_s": 0.0})
    >>> loaded = SimulatedSidecar(quiet).load(trace, np.random.default_rng(0))
    >>> loaded.replay(Schedule.empty()).e2e_ns.tolist()
    [5000000]
    """

    def __init__(self, model: SidecarModel | None = None) -> None:
        self.model = SidecarModel.shipped() if model is None else model
        self.name = f"simulated:{self.model.name}"
        self.calibrated = self.model.calibrated

    def load(self, trace: RequestTrace, rng: np.random.Generator) -> LoadedSimulation:
        """Draw each request's overhead from `rng`.  Raises BadInput when the trace is too long to simulate."""
        return LoadedSimulation(self.model, trace, rng)

    def describe(self) -> Mapping[str, object]:
        return {"kind": "simulated", **self.model.model_dump(), "digest": self.model.digest}


class LoadedSimulation:
    """A trace ready to be replayed; every arm goes through the same compiled loop with the same noise.

    Requests that could never fit the KV memory are refused on arrival: they take no part in serving and
    count as violations.
    """

    def __init__(self, model: SidecarModel, trace: RequestTrace, rng: np.random.Generator) -> None:
        self.model = model
        self.trace = trace
        noise = np.exp(model.overhead_sigma * rng.standard_normal(len(trace)))
        self.overhead_ns: NDArray[np.int64] = np.rint(model.overhead_s * NS_PER_S * noise).astype(np.int64)
        tokens = trace.prompt_tokens.astype(np.int64) + trace.output_tokens
        self.refused: NDArray[np.bool_] = tokens > model.kv_tokens
        # Rows grouped by island, in order of arrival within each.
        served = np.flatnonzero(~self.refused)
        self._rows: NDArray[np.int64] = served[np.argsort(trace.island[served], kind="stable")]
        self._offsets = np.searchsorted(trace.island[self._rows], np.arange(trace.n_islands + 1)).astype(np.int64)
        self._requests = kernel.Requests(
            trace.arrival_ns[self._rows], trace.prompt_tokens[self._rows], trace.output_tokens[self._rows]
        )
        self._overhead = self.overhead_ns[self._rows]
        running = np.arange(model.max_num_seqs + 1, dtype=np.int64)
        self._base_ps = round(model.a_s * PS_PER_S) + running * round(model.b_s * PS_PER_S)
        self._model = self._slowed(None)
        self._check_range(max(model.prefill_slowdown, model.decode_slowdown))

    def _slowed(self, send_slowdown: float | None) -> kernel.Model:
        """The model of a server that merges slow down this much while they send; None: as they do otherwise."""
        model = self.model
        sending = (send_slowdown or model.decode_slowdown, send_slowdown or model.prefill_slowdown)
        if send_slowdown is not None:
            self._check_range(max(*sending, model.prefill_slowdown, model.decode_slowdown))
        factors = np.array([[1.0], [model.decode_slowdown], [sending[0]]]) / 1000
        return kernel.Model(
            slots=model.max_num_seqs,
            budget_tokens=model.max_batched_tokens,
            kv_tokens=model.kv_tokens,
            prefill_ps=round(model.c_s * PS_PER_S),
            shift=max(len(self._rows), 1).bit_length(),
            decode_ns=np.maximum(np.rint(self._base_ps * factors), 1).astype(np.int64),
            base_ps=self._base_ps,
            prefill_factor=np.array([1.0, model.prefill_slowdown, sending[1]]) / 1000,
        )

    def _check_range(self, slowest: float) -> None:
        """Times and iteration numbers must fit their integers, whatever the schedule."""
        if not len(self._rows):
            return
        arrival, prompt, output = self._requests
        prompts, outputs = int(prompt.sum(dtype=np.int64)), int(output.sum(dtype=np.int64))
        iterations = outputs + len(self._rows) + prompts // self.model.max_batched_tokens
        model = self.model
        busy_s = slowest * (model.a_s * iterations + model.b_s * outputs + model.c_s * prompts) + iterations * 2e-9
        end_s = int(arrival.max()) / NS_PER_S + busy_s
        if end_s * NS_PER_S > kernel.NEVER / 4 or iterations >> (62 - max(len(self._rows), 1).bit_length()):
            found = f"up to {end_s:.3g} s and {iterations} iterations of simulated serving"
            raise BadInput(f"trace {self.trace.name}", found, "a shorter trace: cut a window from it")

    def replay(self, schedule: Schedule) -> Measurements:
        """One row a request.  Raises BadInput when the schedule has another number of islands."""
        self._check_islands(schedule)
        session = SimulatedSession(self, max(len(schedule), 1), schedule.send_slowdown)
        session.add_schedule(schedule)
        return session.finish()

    def violations(self, schedules: list[Schedule], slo: Slo) -> NDArray[np.int64]:
        """Requests that violate the SLO under each schedule, shape (len(schedules),).

        Raises BadInput when they have other islands, or send with slowdowns of their own.
        """
        for schedule in schedules:
            self._check_islands(schedule)
        if not schedules:
            return np.zeros(0, np.int64)
        slowdowns = {schedule.send_slowdown for schedule in schedules if len(schedule)} or {None}
        if len(slowdowns) > 1:
            raise BadInput("schedules, send_slowdown", f"{len(slowdowns)} values", "one")
        parts = [_windows(schedule) for schedule in schedules]
        offsets = np.zeros(len(schedules) + 1, np.int64)
        np.cumsum([len(starts) for starts, _, _ in parts], out=offsets[1:])
        starts, busy, kinds = (np.concatenate(columns) for columns in zip(*parts, strict=True))
        due, flags = self._terms(slo)
        model = self._slowed(slowdowns.pop())
        missed = kernel.count(self._offsets, self._requests, due, model, starts, busy, kinds, offsets, flags)
        return missed + int(self.refused.sum())

    def session(self, send_slowdown: float | None = None) -> SimulatedSession:
        return SimulatedSession(self, send_slowdown=send_slowdown)

    def merge_cost(
        self, start_ns: NDArray[np.int64], merge_ns: int, slo: Slo, like: Schedule | None = None
    ) -> NDArray[np.float64]:
        """Extra violations that one all-islands merge of `merge_ns` causes at each start, shape of `start_ns`.

        Relative to the no-sync run, for planners that add up merges.  A merge is simulated from the moment it
        starts until its aftermath is over: exactly, when the server next starts an iteration from idle at an
        arrival that also finds it idle without the merge; or, when it is never idle, once 2 x max_num_seqs
        requests in a row finish within one full-batch decode iteration of their no-sync finish.  In the
        second case later requests, whose iterations are shifted by less than that, are taken as unchanged.

        like : one merge at time 0 whose windows and slowdown it has, in place of merge_ns.

        Raises BadInput when a start is negative or the merge takes no time.
        """
        starts = np.array(start_ns, np.int64)
        if starts.ndim != 1 or np.any(starts < 0) or np.any(starts > kernel.NEVER // 2):
            raise BadInput("merge starts", "a negative or multidimensional start", "times from 0 on")
        if not 0 < merge_ns < kernel.NEVER // 2:
            raise BadInput("merge duration", f"{merge_ns} ns", "a positive time")
        due, flags = self._terms(slo)
        distinct, where = np.unique(starts, return_inverse=True)
        windows, model = np.array([[0, merge_ns, kernel.WHOLE]], np.int64), self._model
        if like is not None:
            begin, busy, kinds = _windows(like)
            windows, model = np.stack([begin, begin + busy[:, 0], kinds], axis=1), self._slowed(like.send_slowdown)
        added = kernel.price(self._offsets, self._requests, due, model, distinct, windows, flags)
        return added[where].astype(np.float64)

    def _check_islands(self, schedule: Schedule) -> None:
        if schedule.n_islands != self.trace.n_islands:
            found = f"{schedule.n_islands} islands"
            raise BadInput("schedule", found, f"{self.trace.n_islands}, as many as trace {self.trace.name}")

    def _terms(self, slo: Slo) -> tuple[kernel.Deadlines, int]:
        """The SLO as latest server times per request and limits between tokens, and kernel flags."""
        arrival, _, output = self._requests

        def latest(limit_ns: int | None) -> NDArray[np.int64]:
            if limit_ns is None:
                return np.full(len(arrival), kernel.NEVER, np.int64)
            return arrival + min(limit_ns, kernel.NEVER // 2) - self._overhead

        longest = kernel.NEVER // int(output.max(initial=1))  # times any number of tokens still fits
        due = kernel.Deadlines(
            finish_by=latest(slo.e2e_ns),
            first_by=latest(slo.ttft_ns),
            tpot_ns=longest if slo.tpot_ns is None else min(slo.tpot_ns, longest),
            itl_ns=kernel.NEVER if slo.itl_ns is None else min(slo.itl_ns, kernel.NEVER),
        )
        every_limit = any(limit is not None for limit in (slo.ttft_ns, slo.tpot_ns, slo.itl_ns))
        return due, every_limit * kernel.EVERY_LIMIT + (slo.itl_ns is not None) * kernel.GAPS


def _windows(schedule: Schedule) -> tuple[NDArray[np.int64], NDArray[np.int64], NDArray[np.int64]]:
    """Begin, duration by island and kind of the windows of a schedule, in order of time."""
    sent = np.full(len(schedule), kernel.WHOLE if schedule.send_slowdown is None else kernel.SENDING, np.int64)
    if schedule.applied_ns is None:
        return schedule.start_ns, schedule.busy_ns, sent
    lasts = (schedule.applied_ns[:, 1] - schedule.applied_ns[:, 0])[:, None]
    begin = np.stack([schedule.start_ns, schedule.applied_ns[:, 0]], axis=1).ravel()
    busy = np.stack([schedule.busy_ns, np.where(schedule.busy_ns > 0, lasts, 0)], axis=1)
    kinds = np.stack([sent, np.full(len(schedule), kernel.WHOLE)], axis=1).ravel()
    return begin, busy.reshape(-1, schedule.n_islands), kinds


class SimulatedSession:
    """A replay in progress (see `protocol.replay.sidecar.Session`).  Raises BadInput on a merge in the past.

    In `observe`, queued requests are those that no iteration begun before `now_ns` has admitted; in flight
    are those that have arrived and whose last token has not been made, queued ones included; completed and
    recent requests are those whose answer, overhead included, has reached the client.
    """

    def __init__(self, loaded: LoadedSimulation, merges: int = 64, send_slowdown: float | None = None) -> None:
        self._loaded = loaded
        self._send_slowdown = send_slowdown
        self._now_ns = 0
        islands, n = loaded.trace.n_islands, len(loaded._rows)
        self._starts: list[int] = []
        self._busy: list[NDArray[np.int64]] = []
        self._applied: list[tuple[int, int]] = []
        self._windows = np.zeros((3, islands, merges), np.int64)
        self._n_merges = np.zeros(islands, np.int64)
        slots = loaded.model.max_num_seqs
        self._server = kernel.Server(
            state=np.zeros((islands, kernel.STATE_SIZE), np.int64),
            heap=np.zeros((islands, slots), np.int64),
            stack=np.zeros((n, 2), np.int64),
        )
        self._times = kernel.new_times(n, n)
        model = loaded._model if send_slowdown is None else loaded._slowed(send_slowdown)
        # Without their names; see `kernel.advance`.
        self._run = tuple(tuple(one) for one in (loaded._requests, model, self._server, self._times))
        self._seen = np.zeros((islands, 7), np.int64)

    def add_schedule(self, schedule: Schedule) -> None:
        """Every merge of a schedule, in order."""
        applied = [None] * len(schedule) if schedule.applied_ns is None else schedule.applied_ns.tolist()
        for start, busy, window in zip(schedule.start_ns.tolist(), schedule.busy_ns, applied, strict=True):
            self.add_merge(start, busy, window)

    def add_merge(self, start_ns: int, busy_ns: NDArray[np.int64], applied_ns: tuple[int, int] | None = None) -> None:
        earliest = max(self._now_ns, self._starts[-1] if self._starts else 0)
        if start_ns < earliest:
            raise BadInput("merge", f"a start at {start_ns} ns", f"a start from {earliest} ns on")
        busy = np.asarray(busy_ns, np.int64)
        if busy.shape != self._n_merges.shape or np.any(busy < 0) or not np.any(busy > 0):
            found = f"{busy.tolist()} ns of busy time"
            raise BadInput("merge", found, f"{len(self._n_merges)} durations, none negative and one positive")
        takes_part = np.flatnonzero(busy)
        for island in takes_part:
            count = self._n_merges[island]
            if count and start_ns < self._windows[1, island, count - 1]:
                raise BadInput(f"merge, island {island}", f"a start at {start_ns} ns inside another", "merges apart")
        if applied_ns is not None and applied_ns[0] < start_ns + busy.max():
            found = f"applied from {applied_ns[0]} ns on"
            raise BadInput("merge", found, f"after it was sent, {start_ns + busy.max()} ns")
        if self._n_merges.max() + 2 > self._windows.shape[2]:
            self._windows = np.concatenate([self._windows, np.zeros_like(self._windows)], axis=2)
        sent = kernel.WHOLE if self._send_slowdown is None else kernel.SENDING
        for island in takes_part:
            self._windows[:, island, self._n_merges[island]] = start_ns, start_ns + busy[island], sent
            if applied_ns is not None:
                self._windows[:, island, self._n_merges[island] + 1] = *applied_ns, kernel.WHOLE
        self._n_merges[takes_part] += 1 if applied_ns is None else 2
        self._starts.append(int(start_ns))
        self._busy.append(busy)
        if applied_ns is not None:
            self._applied.append((int(applied_ns[0]), int(applied_ns[1])))

    def advance(self, until_ns: int) -> None:
        if until_ns <= self._now_ns:
            return
        self._now_ns = until_ns
        kernel.advance(self._loaded._offsets, *self._run, self._windows, self._n_merges, until_ns)

    def observe(self, now_ns: int) -> tuple[ServingState, ...]:
        """Raises ValueError unless the session was advanced to exactly `now_ns`."""
        if now_ns != self._now_ns:
            raise ValueError(f"advanced to {self._now_ns} ns, asked to observe {now_ns} ns")
        loaded = self._loaded
        kernel.observe(now_ns, loaded._offsets, *self._run, loaded._overhead, self._seen)
        slot_ns = loaded.model.max_num_seqs * min(now_ns, kernel.RECENT_NS)
        return tuple(
            ServingState(
                serving_pressure=used / slot_ns if slot_ns else 0.0,
                in_flight=in_flight,
                queued=queued,
                completed=completed,
                recent_e2e_s=e2e / recent / NS_PER_S if recent else None,
                recent_ttft_s=ttft / recent / NS_PER_S if recent else None,
            )
            for in_flight, queued, completed, recent, e2e, ttft, used in self._seen.tolist()
        )

    def finish(self) -> Measurements:
        self.advance(kernel.NEVER)
        loaded, trace = self._loaded, self._loaded.trace
        rows, overhead = loaded._rows, loaded._overhead
        ttft, e2e, max_itl = (np.full(len(trace), -1, np.int64) for _ in range(3))
        ttft[rows] = self._times.first - trace.arrival_ns[rows] + overhead
        e2e[rows] = self._times.finished - trace.arrival_ns[rows] + overhead
        max_itl[rows] = self._times.gap
        busy = np.array(self._busy, np.int64).reshape(-1, trace.n_islands)
        applied = np.array(self._applied, np.int64) if self._applied else None
        schedule = Schedule(np.array(self._starts, np.int64), busy, applied_ns=applied)
        return Measurements(
            arrival_ns=trace.arrival_ns,
            sent_ns=trace.arrival_ns,
            ttft_ns=ttft,
            e2e_ns=e2e,
            max_itl_ns=max_itl,
            prompt_tokens=trace.prompt_tokens,
            output_tokens=np.where(loaded.refused, 0, trace.output_tokens),
            outcome=np.where(loaded.refused, REFUSED, SERVED),
            island=trace.island,
            exposure_ns=exposure_ns(trace, e2e, schedule),
            asked_tokens=trace.output_tokens,
        )
