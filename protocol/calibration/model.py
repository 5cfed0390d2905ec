"""What a calibration is: runs on a real server under randomised merges, and the model of it that was fitted to them."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from functools import cached_property
from typing import Annotated, Any, Final, Literal, Self

import numpy as np
from annotated_types import MaxLen, MinLen
from pydantic import Field, ValidationError, ValidatorFunctionWrapHandler, WrapValidator, model_validator

from protocol import seeds
from protocol.files import canonical_json
from protocol.merging.schedule import Schedule
from protocol.reading import Count, Finite, Listed, Model, Name, Range, Whole, refuse, shown
from protocol.replay.measurements import Measurements
from protocol.workload.trace import NS_PER_S, RequestTrace, seconds_to_ns

SCHEMA: Final = "protocol-calibration"
#: 1: percentiles of the requests that were served, interpolated; `exposed` and `unexposed` count those.
#: 2: the p95 of every tier (`Measurements.p95_ms`), to which a request that was not served is infinitely late;
#:    `exposed` and `unexposed` count all requests, and the failed ones among them are counted beside them.
SCHEMA_VERSION: Final = 2
#: Kinds of run: rates without merges, merges on and off at random, and the same trace without merges, repeated.
SWEEP, ON_OFF, IDLE = "sweep", "on-off", "idle"
#: Blocks that also hold a run without merges.
IDLE_BLOCKS = 2
#: What a slot leaves free after its merge, as a share of the merge.
_REST = 0.5

#: Milliseconds; None of no requests, and where one was served at a latency that nobody knows.
Ms = Finite | None
Tokens = Listed[Annotated[int, Range(1, 10_000_000)]]
Rate = Annotated[int | float, Range(0, 1e9, above=True)]
Seconds = Annotated[int | float, Range(0, 1e6, above=True)]


@dataclass(frozen=True, eq=False)
class CalibrationRun:
    """One run on a real server.

    label : unique.  kind : SWEEP, ON_OFF or IDLE.  load : name of the offered load.  rate_per_s : offered.
    measurements : rows as the client saw them.  merges : windows that really ran.
    """

    label: str
    kind: str
    load: str
    rate_per_s: float
    measurements: Measurements
    merges: Schedule

    @cached_property
    def trace(self) -> RequestTrace:
        """What was offered."""
        return self.measurements.offered(name=self.label)


class Provenance(Model):
    """The measurement that a model's parameters come from: which server, and the day (YYYY-MM-DD)."""

    server: Annotated[str, MinLen(1)]
    date: Annotated[str, MinLen(1)]


def _origin(value: Any, inner: ValidatorFunctionWrapHandler) -> Any:
    try:
        return inner(value)
    except ValidationError:
        raise refuse("", shown(value), "'uncalibrated', or a server and a date, both text") from None


Origin = Annotated[Provenance | Literal["uncalibrated"], WrapValidator(_origin)]


class Fitted(Model, extra="allow"):
    """A simulator's parameters as a calibration states them; which ones there are is the simulator's own business."""

    __pydantic_extra__: dict[str, Finite] = Field(init=False)
    name: Name
    provenance: Origin


class CalibrationPlan(Model):
    """rates_per_s : swept.  loads_per_s : the two rates of the on-off runs, or None to take shares of the knee.
    sweep_s, idle_s : seconds of those runs.  slots : of an on-off run, even.  blocks : on-off runs at either load.
    prompt_tokens, output_tokens : values drawn from.
    """

    seed: Count
    merge_s: Seconds
    rates_per_s: Annotated[Listed[Rate], MinLen(1)]
    prompt_tokens: Annotated[Tokens, MinLen(1)]
    output_tokens: Annotated[Tokens, MinLen(1)]
    loads_per_s: Annotated[Listed[Rate], MinLen(2), MaxLen(2)] | None = None
    blocks: Annotated[int, Range(2, 1_000_000)] = 6
    slots: Annotated[int, Range(2, 1_000_000)] = 4
    sweep_s: Seconds = 15.0
    idle_s: Seconds = 40.0

    @model_validator(mode="after")
    def _halves(self) -> Self:
        if self.slots % 2:
            raise refuse("slots", f"{self.slots}", "an even number of slots, half of which have a merge")
        return self

    @property
    def slot_s(self) -> float:
        return self.merge_s * (1 + _REST)

    @property
    def on_off_s(self) -> float:
        """Seconds of an on-off run: its slots, and as much again as one rest at the beginning."""
        return self.slots * self.slot_s + self.merge_s * _REST

    @property
    def seconds(self) -> float:
        """Offered load in all, without the drain and set-up of each run."""
        return len(self.rates_per_s) * self.sweep_s + 2 * (self.blocks * self.on_off_s + IDLE_BLOCKS * self.idle_s)

    def trace(self, label: str, rate_per_s: float, length_s: float) -> RequestTrace:
        """Poisson arrivals with independent lengths."""
        rng = seeds.generator(self.seed, "calibration", label)
        n = int(rng.poisson(rate_per_s * length_s))
        arrival = np.sort(rng.uniform(0, length_s, n))
        prompt, output = rng.choice(self.prompt_tokens, n), rng.choice(self.output_tokens, n)
        return RequestTrace((arrival * NS_PER_S).astype(np.int64), prompt, output, name=label)

    def merges(self, label: str) -> Schedule:
        """One merge in each of a random half of the slots."""
        rng = seeds.generator(self.seed, "calibration", "merges", label)
        on = np.sort(rng.choice(self.slots, self.slots // 2, replace=False))
        start_s = self.merge_s * _REST + on * self.slot_s
        return Schedule.all_islands((start_s * NS_PER_S).astype(np.int64), seconds_to_ns(self.merge_s))


class IdleRow(Model):
    """A run without merges: requests, served ones, and its latencies; p50 is of the served ones."""

    run: str
    load: str
    rate_per_s: Finite
    requests: Count
    served: Count
    answered_per_s: Finite | None
    p50_ms: Ms
    p95_ms: Ms
    ttft_p95_ms: Ms


class OnOffRow(Model):
    """What G1 reads of an on-off run: requests that met a merge (exposed) and those that did not, real and simulated.

    half : the model of the calibration's `halves` that did not see this run, and made the simulated side.
    A percentile is infinite where it falls on a request that was not served, as it does once about a twentieth of a
    side failed (`exposed_failed`, `unexposed_failed`).  JSON has no infinity; what is stated then is the time in which
    the run's requests arrived, later than any that was served while it mattered: G1 sees a server that drops requests.
    Version 1 counts served requests alone, and failed ones of both sides together in `failed`.
    """

    run: str
    load: str
    rate_per_s: Finite
    half: Count
    exposed: Count
    exposed_failed: Count = 0
    exposed_p95_ms: Ms
    exposed_ttft_p95_ms: Ms
    exposed_max_itl_p95_ms: Ms
    unexposed: Count
    unexposed_failed: Count = 0
    unexposed_p95_ms: Ms
    unexposed_ttft_p95_ms: Ms
    unexposed_max_itl_p95_ms: Ms
    failed: Count = 0
    simulated_exposed: Count
    simulated_exposed_failed: Count = 0
    simulated_exposed_p95_ms: Ms
    simulated_exposed_ttft_p95_ms: Ms
    simulated_exposed_max_itl_p95_ms: Ms
    simulated_unexposed: Count
    simulated_unexposed_failed: Count = 0
    simulated_unexposed_p95_ms: Ms
    simulated_unexposed_ttft_p95_ms: Ms
    simulated_unexposed_max_itl_p95_ms: Ms
    simulated_failed: Count = 0


class Calibration(Model):
    """A server's calibration, as `calibration.json` states it.

    served_model : its name, and what else is known of it.  host : the machine that it was measured on.
    plan : what was asked.  model : fitted to all runs, `halves` to all but every other on-off run of each load.
    intervals : 95 % limits of the fitted parameters.  residual : root mean square of the relative quantile errors.
    files : SHA-256 of the raw rows by file name.
    """

    schema_name: Literal["protocol-calibration"] = Field(alias="schema")
    schema_version: Annotated[Literal[1, 2], Whole]
    server: Annotated[str, MinLen(1)]
    served_model: str | None = None
    date: Annotated[str, MinLen(1)]
    host: dict[str, Any] | None = None
    merge_load: str
    merge_s: Seconds
    plan: CalibrationPlan
    model: Fitted
    halves: Annotated[Listed[Fitted], MinLen(2), MaxLen(2)]
    intervals: dict[str, Annotated[Listed[Finite], MinLen(2), MaxLen(2)]]
    residual: Finite
    sweep: Listed[IdleRow]
    idle: Listed[IdleRow]
    runs: Listed[OnOffRow]
    files: dict[str, str]

    @model_validator(mode="after")
    def _predicted(self) -> Self:
        for i, row in enumerate(self.runs):
            if row.half >= len(self.halves):
                raise refuse(f"runs[{i}].half", f"{row.half}", "0 or 1, one of the halves")
        return self

    @property
    def label(self) -> str:
        return f"calibration of {self.server}"

    def stated(self) -> dict[str, Any]:
        """What a certificate repeats of it: whose it is, what G1 reads, and the digest of the whole; plain values."""
        plain = self.plain()
        keys = ("server", "served_model", "host", "date", "merge_load", "merge_s", "runs", "files")
        digest = hashlib.sha256(canonical_json(plain).encode()).hexdigest()
        return {"name": self.model.name, **{key: plain.get(key) for key in keys}, "digest": digest}
