"""Regimes: the declared worlds in which a scheduler is judged (TOML, versioned, hashed into the certificate)."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from importlib.resources import files
from pathlib import Path
from typing import Annotated, Any, Final, Literal, Self

import numpy as np
from annotated_types import MinLen
from pydantic import AfterValidator, Field, model_validator

from protocol.errors import BadInput
from protocol.files import canonical_json
from protocol.merging.corridor import MOST_MERGES, Corridor
from protocol.merging.peers.schedules import OWN, Merging, Peers
from protocol.merging.practice import Practice
from protocol.reading import Finite, Listed, Model, Name, Range, near, parse_toml, read, refuse, text_of
from protocol.workload.learner import ModelledLearner
from protocol.workload.slo import Slo
from protocol.workload.trace import NS_PER_S, seconds_to_ns

STEADY: Final = "steady"
PERIODIC: Final = "bursts-periodic"
APERIODIC: Final = "bursts-aperiodic"
CONSTANT: Final = "constant"
BUSY: Final = "busy"
WAVE: Final = "wave"
PULSE: Final = "pulse"
#: What a regime may ask for: a week; seeds; and in each seed requests (some 100 bytes a row) and decisions.
MOST_S, MOST_SEEDS, MOST_REQUESTS, MOST_DECISIONS = 7 * 86_400.0, 10_000, 10_000_000, 2_000_000

_SHIPPED = files("protocol") / "regimes"


class Arrivals(Model):
    """Requests per second and sidecar, and how they come.

    process : `steady` (one rate), `bursts-periodic` (busy for `busy_s` of every `busy_s + quiet_s`, phase
        random per seed) or `bursts-aperiodic` (busy and quiet spells of random length with those means).
    rate_per_s : the only rate of `steady`, the quiet rate of the others; busy_rate_per_s : during bursts.
    cv : coefficient of variation of the gaps between arrivals (1 is Poisson, below 1 more regular).
    spell_cv : coefficient of variation of the spells of `bursts-aperiodic`.
    phase_s : seconds into the first burst at time 0, the same for every seed of `bursts-periodic`; negative (the
        default) draws it anew for each seed.  A fixed phase is the trap of the published bursty replay.
    """

    process: Literal["steady", "bursts-periodic", "bursts-aperiodic"]
    rate_per_s: Annotated[float, Range(0, 1e5, above=True)]
    cv: Annotated[float, Range(0.01, 10)] = 1.0
    busy_rate_per_s: Annotated[float, Range(0, 1e5)] = 0.0
    busy_s: Annotated[float, Range(0, 1e5)] = 0.0
    quiet_s: Annotated[float, Range(0, 1e5)] = 0.0
    spell_cv: Annotated[float, Range(0.01, 10)] = 1.0
    phase_s: Annotated[float, Range(-1, 2e5)] = -1.0

    @model_validator(mode="after")
    def _bursts(self) -> Self:
        if self.process != STEADY:
            Range(self.rate_per_s, 1e5).check("busy_rate_per_s", self.busy_rate_per_s)
            Range(0.1, 1e5).check("busy_s", self.busy_s)
            Range(0.1, 1e5).check("quiet_s", self.quiet_s)
            Range(-1, self.busy_s + self.quiet_s).check("phase_s", self.phase_s)
        return self

    @property
    def mean_rate_per_s(self) -> float:
        """Long-run requests per second of one sidecar."""
        if self.process == STEADY:
            return self.rate_per_s
        spent = self.busy_s + self.quiet_s
        return (self.busy_rate_per_s * self.busy_s + self.rate_per_s * self.quiet_s) / spent


class Lengths(Model):
    """Token counts: one of `values` (chosen by `weights`, equal ones when empty) times a log-normal spread.

    sigma : standard deviation of the logarithm; 0 leaves the values exact.  Clipped to 1 .. most.
    """

    values: Annotated[Listed[Annotated[int, Range(1, 10_000_000)]], MinLen(1)]
    weights: Listed[Annotated[float, Range(0, 1e9)]] = ()
    sigma: Annotated[float, Range(0, 5)] = 0.0
    most: Annotated[int, Range(1, 10_000_000)] = 100_000

    @model_validator(mode="after")
    def _fitting(self) -> Self:
        Range(1, self.most).check("values", max(self.values), whole=True)
        if self.weights and len(self.weights) != len(self.values):
            raise refuse("weights", f"{len(self.weights)} weights", f"{len(self.values)}, one a value")
        if self.weights and not any(self.weights):
            raise refuse("weights", "only zeros", "a positive weight")
        return self


class Pressure(Model):
    """A signal between 0 and 1 that the regime declares.

    follows : `constant` (always `low`), `busy` (`high` while the arrivals are in a burst), `wave` (a sine
        between `low` and `high`, phase random per seed) or `pulse` (`high` for `high_s` of every `period_s`).
    """

    follows: Literal["constant", "busy", "wave", "pulse"] = CONSTANT
    low: Annotated[float, Range(0, 1)] = 0.0
    high: Annotated[float, Range(0, 1)] = 0.0
    period_s: Annotated[float, Range(0, 1e5)] = 0.0
    high_s: Annotated[float, Range(0, 1e5)] = 0.0

    @model_validator(mode="after")
    def _shape(self) -> Self:
        if self.follows != CONSTANT:
            Range(self.low, 1).check("high", self.high)
        if self.follows in (WAVE, PULSE):
            Range(1, 1e5).check("period_s", self.period_s)
        if self.follows == PULSE:
            Range(0, self.period_s).check("high_s", self.high_s)
        return self


def _slo(text: str) -> str:
    try:
        Slo.parse(text)
    except BadInput as error:
        raise refuse("", error.found, error.expected) from None
    return text


class Head(Model):
    """The table [regime]."""

    name: Name
    version: Annotated[int, Range(1, 1_000_000)]
    summary: str
    slo: Annotated[str, AfterValidator(_slo)]
    horizon_s: Annotated[float, Range(1, MOST_S)] = 600.0
    cooldown_s: Annotated[float, Range(0, MOST_S)] = 30.0
    islands: Annotated[int, Range(1, 1024)] = 1
    seeds: Annotated[int, Range(1, MOST_SEEDS)] = 20
    planner_budget: Annotated[int, Range(1, 1_000_000)] = 16


class Pace(Model):
    """The table [pace]."""

    step_s: Annotated[float, Range(1e-6, 1e4)]
    h_min: Annotated[int, Range(1, 10_000_000)] = 128
    h_max: Annotated[int, Range(1, 10_000_000)] = 512
    decision_steps: Annotated[int, Range(1, 1_000_000)] = 8
    merge_s: Annotated[float, Range(1e-3, 1e4)] = 8.0

    @model_validator(mode="after")
    def _steps(self) -> Self:
        Range(self.h_min, 10_000_000).check("h_max", self.h_max, whole=True)
        if -(-self.h_min // self.decision_steps) > self.h_max // self.decision_steps:
            found = f"{self.decision_steps}, no multiple of which lies between {self.h_min} and {self.h_max}"
            raise refuse("decision_steps", found, "at least one decision in the corridor")
        return self


class _Tokens(Model):
    prompt: Lengths
    output: Lengths


class _Pressures(Model):
    network: Pressure = Pressure()
    checkpoint: Pressure = Pressure()


class _Sidecar(Model, extra="allow"):
    """The table [sidecar]: beside `model`, any of its parameters, kept as they were written."""

    __pydantic_extra__: dict[str, Finite] = Field(init=False)
    model: str = "reference"


class _File(Model):
    """A regime's file, table by table."""

    regime: Head
    pace: Pace
    arrivals: Arrivals
    tokens: _Tokens
    learner: ModelledLearner
    pressure: _Pressures = _Pressures()
    sidecar: _Sidecar = _Sidecar()
    peer: Merging | None = None
    merge: Practice = Practice()

    @model_validator(mode="after")
    def _merge_s(self) -> Self:
        if self.peer is not None and "merge_s" in self.pace.model_fields_set:
            raise refuse("pace.merge_s", "a value beside [peer]", "none: it follows from the network")
        return self

    @model_validator(mode="after")
    def _durations(self) -> Self:
        lengths = self.merge.duration
        if lengths is None:
            return self
        for name in lengths.unused:
            expected = f"no {name}: follows = {lengths.follows!r} does not use it"
            raise refuse(f"merge.duration.{name}", f"{getattr(lengths, name)!r}", expected)
        return self


class Regime(Head, Pace):
    """One declared world.  Every field takes part in the digest.

    horizon_s : seconds in which merges may run.  cooldown_s : seconds that the trace goes on after it, so
        that the aftermath of the last merge is measured like that of the others.
    step_s : seconds an inner step takes (the pace).  merge_s : seconds a merge occupies its islands.
    planner_budget : merges that an offline planner is given.
    peer : what groups of islands that merge on their own send over which network; None where all islands merge.  With
        it, `merge_s` follows from the network.
    merge : how long merges take, which fragment each moves, whether it is committed; by default all are alike.  With
        `duration`, `merge_s` is only what schedulers are told.
    sidecar : name of a shipped simulated model; sidecar_overrides : its parameters that this regime changes.

    What cannot be judged is refused before any work: a horizon of more than a week, more than MOST_SEEDS seeds, merges
    longer than the horizon, and in a seed more than MOST_REQUESTS requests, MOST_DECISIONS decisions or MOST_MERGES
    merges that nobody could avoid.
    """

    arrivals: Arrivals
    prompt: Lengths
    output: Lengths
    learner: ModelledLearner
    network: Pressure = Pressure()
    checkpoint: Pressure = Pressure()
    sidecar: str = "reference"
    sidecar_overrides: dict[str, Finite] = {}
    peer: Merging | None = None
    merge: Practice = Practice()

    @model_validator(mode="after")
    def _world(self) -> Self:
        if self.peer is not None:
            self._with_peers(self.peer)
        self._practised()
        for name, signal in (("network", self.network), ("checkpoint", self.checkpoint)):
            where = f"pressure.{name}.follows"
            if signal.follows == BUSY and self.arrivals.process == STEADY:
                raise refuse(where, "'busy' beside steady arrivals", "a bursty process")
            if signal.follows == BUSY and self.peer is not None and self.peer.bursts == OWN:
                raise refuse(where, "'busy' where each sidecar has bursts of its own", "another signal")
        self._bounded()
        return self

    def _with_peers(self, peer: Merging) -> None:
        try:
            peer.check("peer", self.islands)
        except BadInput as error:
            raise refuse(error.where.replace(", ", "."), error.found, error.expected) from None
        self.__dict__["merge_s"] = peer.longest_ns(self.islands) / NS_PER_S
        if self.h_max - self.h_min < self.decision_steps:
            found = f"{self.h_max - self.h_min} steps between h_min and h_max"
            raise refuse("pace", found, f"at least decision_steps, {self.decision_steps}")

    def _practised(self) -> None:
        """What a scheduler may decide must be left of the corridor."""
        if self.peer is not None and not self.merge.ordinary:
            raise refuse("merge", "a table beside [peer]", "one of them")
        least, most = self.merge.turn(self.h_min, self.h_max)
        if least < 1:
            found = f"{self.merge.sync_delay_steps} steps, of {-(-self.h_min // self.merge.fragments)} in a turn"
            raise refuse("merge.sync_delay_steps", found, "fewer than h_min / fragments")
        if -(-least // self.decision_steps) > most // self.decision_steps:
            found = f"{self.merge.fragments}, with {least} to {most} steps for each in its turn"
            raise refuse("merge.fragments", found, f"a multiple of decision_steps, {self.decision_steps}, among them")
        if self.merge.duration is not None and self.merge.duration.most > self.horizon_s:
            found = f"merges of up to {self.merge.duration.most:g} s"
            raise refuse("merge.duration", found, f"no more than the horizon, {self.horizon_s:g} s")

    def _bounded(self) -> None:
        if self.merge_s > self.horizon_s:
            raise refuse("pace.merge_s", f"{self.merge_s:g} s", f"no more than the horizon, {self.horizon_s:g} s")
        asked_s = self.horizon_s + self.cooldown_s
        for found, what, most in (
            (self.arrivals.mean_rate_per_s * asked_s * self.islands, "requests", MOST_REQUESTS),
            (self.horizon_s / (self.decision_steps * self.step_s), "decisions", MOST_DECISIONS),
            (self.corridor().feasible_budgets()[0], "merges at least", MOST_MERGES),
        ):
            if found > most:
                raise refuse("regime.horizon_s", f"{self.horizon_s:g} s, {found:.0f} {what} a seed", f"at most {most}")

    @property
    def label(self) -> str:
        return f"regime {self.name}"

    @classmethod
    def names(cls) -> list[str]:
        """Shipped regimes, sorted."""
        return sorted(p.name.removesuffix(".toml") for p in _SHIPPED.iterdir() if p.name.endswith(".toml"))

    @classmethod
    def load(cls, name_or_path: str | Path) -> Regime:
        """A shipped regime by name, or a TOML file.  Raises BadInput on anything unknown, missing or out of range."""
        text = str(name_or_path)
        if text in cls.names():
            return cls.parse((_SHIPPED / f"{text}.toml").read_text(encoding="utf-8"), f"regime {text}")
        path = Path(name_or_path)
        if path.suffix == ".toml" or path.is_file():
            return cls.parse(text_of(path, "a TOML regime"), text)
        hint = near(text, cls.names(), 3)
        raise BadInput("--regime", repr(text), f"one of {', '.join(cls.names())}, or a .toml file{hint}")

    @classmethod
    def parse(cls, text: str, source: str) -> Regime:
        """A regime from TOML text; `source` names it in messages."""
        file = parse_toml(text, source, _File)
        values = {**vars(file.regime), **vars(file.pace), **vars(file.tokens), **vars(file.pressure)}
        values |= {"arrivals": file.arrivals, "learner": file.learner, "peer": file.peer, "merge": file.merge}
        values |= {"sidecar": file.sidecar.model, "sidecar_overrides": file.sidecar.model_extra}
        return read(cls, values, source)

    @classmethod
    def described(cls, plain: Mapping[str, Any], source: str) -> Regime:
        """The regime that `describe` described.  Raises BadInput."""
        return read(cls, plain, source)

    def corridor(self) -> Corridor:
        """From the end of one merge to the beginning of the next: of fragments, that of a turn."""
        h_min, h_max = self.merge.turn(self.h_min, self.h_max)
        step_ns, took_ns = seconds_to_ns(self.step_s), seconds_to_ns(self.merge_s)
        lasts_ns = int(self.merge.length_ns(np.array([took_ns]), step_ns)[0])
        return Corridor(h_min, h_max, self.decision_steps, step_ns, lasts_ns, seconds_to_ns(self.horizon_s))

    def peers(self) -> Peers | None:
        return None if self.peer is None else Peers(self.corridor(), self.peer, self.islands)

    def describe(self) -> dict[str, Any]:
        """Every field as plain values, defaults filled in: what the digest covers and the certificate records."""
        left_out = {name for name, default in (("peer", self.peer is None), ("merge", self.merge.ordinary)) if default}
        return self.model_dump(mode="json", exclude=left_out)

    @property
    def digest(self) -> str:
        """SHA-256 of `describe()` in canonical JSON."""
        return hashlib.sha256(canonical_json(self.describe()).encode()).hexdigest()
