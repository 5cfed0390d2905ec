"""Regimes: the declared worlds in which a scheduler is judged (TOML, versioned, hashed into the certificate)."""

from __future__ import annotations

import dataclasses
import difflib
import hashlib
import math
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass, field
from importlib.resources import files
from pathlib import Path
from typing import Any

from protocol.errors import BadInput
from protocol.files import canonical_json
from protocol.merging.corridor import Corridor
from protocol.merging.peers.schedules import OWN, Merging, Peers
from protocol.workload.learner import ModelledLearner
from protocol.workload.slo import Slo
from protocol.workload.trace import NS_PER_S, seconds_to_ns

STEADY, PERIODIC, APERIODIC = "steady", "bursts-periodic", "bursts-aperiodic"
PROCESSES = (STEADY, PERIODIC, APERIODIC)
CONSTANT, BUSY, WAVE, PULSE = "constant", "busy", "wave", "pulse"
SIGNALS = (CONSTANT, BUSY, WAVE, PULSE)

_SHIPPED = files("protocol") / "regimes"


@dataclass(frozen=True)
class Arrivals:
    """Requests per second and sidecar, and how they come.

    process : `steady` (one rate), `bursts-periodic` (busy for `busy_s` of every `busy_s + quiet_s`, phase
        random per seed) or `bursts-aperiodic` (busy and quiet spells of random length with those means).
    rate_per_s : the only rate of `steady`, the quiet rate of the others; busy_rate_per_s : during bursts.
    cv : coefficient of variation of the gaps between arrivals (1 is Poisson, below 1 more regular).
    spell_cv : coefficient of variation of the spells of `bursts-aperiodic`.
    phase_s : seconds into the first burst at time 0, the same for every seed of `bursts-periodic`; negative (the
        default) draws it anew for each seed.  A fixed phase is the trap of the published bursty replay.
    """

    process: str
    rate_per_s: float
    cv: float = 1.0
    busy_rate_per_s: float = 0.0
    busy_s: float = 0.0
    quiet_s: float = 0.0
    spell_cv: float = 1.0
    phase_s: float = -1.0

    def validate(self, where: str) -> None:
        _one_of(where, "process", self.process, PROCESSES)
        _between(where, "rate_per_s", self.rate_per_s, 0.0, 1e5, open_low=True)
        _between(where, "cv", self.cv, 0.01, 10.0)
        if self.process != STEADY:
            _between(where, "busy_rate_per_s", self.busy_rate_per_s, self.rate_per_s, 1e5)
            _between(where, "busy_s", self.busy_s, 0.1, 1e5)
            _between(where, "quiet_s", self.quiet_s, 0.1, 1e5)
            _between(where, "spell_cv", self.spell_cv, 0.01, 10.0)
            _between(where, "phase_s", self.phase_s, -1.0, self.busy_s + self.quiet_s)

    @property
    def mean_rate_per_s(self) -> float:
        """Long-run requests per second of one sidecar."""
        if self.process == STEADY:
            return self.rate_per_s
        spent = self.busy_s + self.quiet_s
        return (self.busy_rate_per_s * self.busy_s + self.rate_per_s * self.quiet_s) / spent


@dataclass(frozen=True)
class Lengths:
    """Token counts: one of `values` (chosen by `weights`, equal ones when empty) times a log-normal spread.

    sigma : standard deviation of the logarithm; 0 leaves the values exact.  Clipped to 1 .. most.
    """

    values: tuple[int, ...]
    weights: tuple[float, ...] = ()
    sigma: float = 0.0
    most: int = 100_000

    def validate(self, where: str) -> None:
        if not self.values:
            raise BadInput(f"{where}.values", "an empty list", "at least one token count")
        for value in self.values:
            _between(where, "values", value, 1, self.most)
        if self.weights and len(self.weights) != len(self.values):
            raise BadInput(f"{where}.weights", f"{len(self.weights)} weights", f"{len(self.values)}, one a value")
        for weight in self.weights:
            _between(where, "weights", weight, 0.0, 1e9)
        if self.weights and sum(self.weights) <= 0:
            raise BadInput(f"{where}.weights", "only zeros", "a positive weight")
        _between(where, "sigma", self.sigma, 0.0, 5.0)
        _between(where, "most", self.most, 1, 10_000_000)


@dataclass(frozen=True)
class Pressure:
    """A signal between 0 and 1 that the regime declares.

    follows : `constant` (always `low`), `busy` (`high` while the arrivals are in a burst), `wave` (a sine
        between `low` and `high`, phase random per seed) or `pulse` (`high` for `high_s` of every `period_s`).
    """

    follows: str = CONSTANT
    low: float = 0.0
    high: float = 0.0
    period_s: float = 0.0
    high_s: float = 0.0

    def validate(self, where: str) -> None:
        _one_of(where, "follows", self.follows, SIGNALS)
        _between(where, "low", self.low, 0.0, 1.0)
        if self.follows != CONSTANT:
            _between(where, "high", self.high, self.low, 1.0)
        if self.follows in (WAVE, PULSE):
            _between(where, "period_s", self.period_s, 1.0, 1e5)
        if self.follows == PULSE:
            _between(where, "high_s", self.high_s, 0.0, self.period_s)


@dataclass(frozen=True)
class Regime:
    """One declared world.  Every field takes part in the digest.

    horizon_s : seconds in which merges may run.  cooldown_s : seconds that the trace goes on after it, so
        that the aftermath of the last merge is measured like that of the others.
    step_s : seconds an inner step takes (the pace).  merge_s : seconds a merge occupies its islands.
    planner_budget : merges that an offline planner is given.
    peer : what groups of islands that merge on their own send over which network; None where all islands merge.  With
        it, `merge_s` follows from the network.
    sidecar : name of a shipped simulated model; sidecar_overrides : its parameters that this regime changes.
    """

    name: str
    version: int
    summary: str
    arrivals: Arrivals
    prompt: Lengths
    output: Lengths
    learner: ModelledLearner
    network: Pressure = Pressure()
    checkpoint: Pressure = Pressure()
    slo: str = "e2e<=1s"
    horizon_s: float = 600.0
    cooldown_s: float = 30.0
    islands: int = 1
    step_s: float = 0.0735
    h_min: int = 128
    h_max: int = 512
    decision_steps: int = 8
    merge_s: float = 8.0
    seeds: int = 20
    planner_budget: int = 16
    sidecar: str = "reference"
    sidecar_overrides: Mapping[str, float] = field(default_factory=dict)
    peer: Merging | None = None
    source: str = field(default="regime", compare=False)

    def __post_init__(self) -> None:
        where = self.source
        if not self.name or self.name != self.name.strip():
            raise BadInput(f"{where}, name", repr(self.name), "a name without blanks around it")
        _between(where, "version", self.version, 1, 1_000_000)
        self.arrivals.validate(f"{where}, arrivals")
        self.prompt.validate(f"{where}, tokens.prompt")
        self.output.validate(f"{where}, tokens.output")
        self.network.validate(f"{where}, pressure.network")
        self.checkpoint.validate(f"{where}, pressure.checkpoint")
        for label, signal in (("network", self.network), ("checkpoint", self.checkpoint)):
            if signal.follows == BUSY and self.arrivals.process == STEADY:
                raise BadInput(
                    f"{where}, pressure.{label}.follows", "'busy' beside steady arrivals", "a bursty process"
                )
        _between(where, "learner.scale", self.learner.scale, 0.0, 1e6)
        _between(where, "learner.offset_steps", self.learner.offset_steps, 0.0, 1e12, open_low=True)
        _between(where, "learner.exponent", self.learner.exponent, 0.0, 10.0)
        _between(where, "learner.tokens_per_step", self.learner.tokens_per_step, 1, 1_000_000_000)
        Slo.parse(self.slo)
        _between(where, "horizon_s", self.horizon_s, 1.0, 1e6)
        _between(where, "cooldown_s", self.cooldown_s, 0.0, 1e6)
        _between(where, "islands", self.islands, 1, 1024)
        if self.peer is not None:
            self._check_peer(self.peer)
        _between(where, "step_s", self.step_s, 1e-6, 1e4)
        _between(where, "merge_s", self.merge_s, 1e-3, 1e4)
        _between(where, "decision_steps", self.decision_steps, 1, 1_000_000)
        _between(where, "h_min", self.h_min, 1, 10_000_000)
        _between(where, "h_max", self.h_max, self.h_min, 10_000_000)
        if self.corridor().gap_max < self.corridor().gap_min:
            found = f"no multiple of decision_steps={self.decision_steps} between {self.h_min} and {self.h_max}"
            raise BadInput(f"{where}, corridor", found, "at least one decision in the corridor")
        _between(where, "seeds", self.seeds, 1, 1_000_000)
        _between(where, "planner_budget", self.planner_budget, 1, 1_000_000)
        for key, value in self.sidecar_overrides.items():
            _between(where, f"sidecar.{key}", value, -math.inf, math.inf)

    def _check_peer(self, peer: Merging) -> None:
        peer.validate(f"{self.source}, peer", self.islands)
        object.__setattr__(self, "merge_s", peer.longest_ns(self.islands) / NS_PER_S)
        if self.h_max - self.h_min < self.decision_steps:
            found = f"{self.h_max - self.h_min} steps between h_min and h_max"
            raise BadInput(f"{self.source}, corridor", found, f"at least decision_steps, {self.decision_steps}")
        for label, signal in (("network", self.network), ("checkpoint", self.checkpoint)):
            if signal.follows == BUSY and peer.bursts == OWN:
                where = f"{self.source}, pressure.{label}.follows"
                raise BadInput(where, "'busy' where each sidecar has bursts of its own", "another signal")

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
            try:
                return cls.parse(path.read_text(encoding="utf-8"), text)
            except (OSError, UnicodeDecodeError) as error:
                raise BadInput(text, f"an unreadable file ({type(error).__name__})", "a TOML regime") from None
        near = difflib.get_close_matches(text, cls.names(), n=3)
        hint = f"; did you mean {' or '.join(near)}?" if near else ""
        raise BadInput("--regime", repr(text), f"one of {', '.join(cls.names())}, or a .toml file{hint}")

    @classmethod
    def parse(cls, text: str, source: str) -> Regime:
        """A regime from TOML text; `source` names it in messages."""
        try:
            raw = tomllib.loads(text)
        except tomllib.TOMLDecodeError as error:
            raise BadInput(source, f"broken TOML ({error})", "a TOML regime") from None
        flat: dict[str, Any] = {"source": source}
        sections = {
            "regime": (_REGIME_KEYS, flat),
            "pace": (_PACE_KEYS, flat),
        }
        _known(source, raw, {*sections, "arrivals", "tokens", "pressure", "learner", "sidecar", "peer"})
        for section, (keys, into) in sections.items():
            into |= _typed(f"{source}, {section}", _table(source, raw, section), keys)
        if "peer" in raw and "merge_s" in flat:
            raise BadInput(f"{source}, pace.merge_s", "a value beside [peer]", "none: it follows from the network")
        tokens = _table(source, raw, "tokens")
        _known(f"{source}, tokens", tokens, {"prompt", "output"})
        pressure = _table(source, raw, "pressure", optional=True)
        _known(f"{source}, pressure", pressure, {"network", "checkpoint"})
        overrides = dict(_table(source, raw, "sidecar", optional=True))
        model = overrides.pop("model", "reference")
        if not isinstance(model, str):
            raise BadInput(f"{source}, sidecar.model", repr(model), "the name of a shipped model")
        for key, value in overrides.items():
            if isinstance(value, bool) or not isinstance(value, int | float):
                raise BadInput(f"{source}, sidecar.{key}", repr(value), "a number")
        return cls(
            **flat,
            arrivals=_build(source, "arrivals", Arrivals, _table(source, raw, "arrivals")),
            prompt=_build(source, "tokens.prompt", Lengths, _table(f"{source}, tokens", tokens, "prompt")),
            output=_build(source, "tokens.output", Lengths, _table(f"{source}, tokens", tokens, "output")),
            learner=_build(source, "learner", ModelledLearner, _table(source, raw, "learner")),
            network=_build(source, "pressure.network", Pressure, pressure.get("network", {})),
            checkpoint=_build(source, "pressure.checkpoint", Pressure, pressure.get("checkpoint", {})),
            sidecar=model,
            sidecar_overrides=overrides,
            peer=_build(source, "peer", Merging, raw["peer"]) if "peer" in raw else None,
        )

    def replace(self, **overrides: Any) -> Regime:
        """The same regime with some fields changed, validated again."""
        known = {f.name for f in dataclasses.fields(self)}
        for key in overrides:
            if key not in known:
                raise BadInput("regime override", repr(key), f"one of {', '.join(sorted(known))}")
        return dataclasses.replace(self, **overrides)

    def corridor(self) -> Corridor:
        return Corridor(
            self.h_min,
            self.h_max,
            self.decision_steps,
            seconds_to_ns(self.step_s),
            seconds_to_ns(self.merge_s),
            seconds_to_ns(self.horizon_s),
        )

    def peers(self) -> Peers | None:
        return None if self.peer is None else Peers(self.corridor(), self.peer, self.islands)

    def describe(self) -> dict[str, Any]:
        """Every field as plain values, defaults filled in: what the digest covers and the certificate records."""
        left_out = {"source"} if self.peer is not None else {"source", "peer"}
        plain = {f.name: getattr(self, f.name) for f in dataclasses.fields(self) if f.name not in left_out}
        return {key: _plain(value) for key, value in plain.items()}

    @property
    def digest(self) -> str:
        """SHA-256 of `describe()` in canonical JSON."""
        return hashlib.sha256(canonical_json(self.describe()).encode()).hexdigest()


_REGIME_KEYS: dict[str, type] = {
    "name": str, "version": int, "summary": str, "slo": str, "horizon_s": float, "cooldown_s": float,
    "islands": int, "seeds": int, "planner_budget": int,
}  # fmt: skip
_PACE_KEYS: dict[str, type] = {"step_s": float, "h_min": int, "h_max": int, "decision_steps": int, "merge_s": float}
_REQUIRED = {"name", "version", "summary", "slo", "step_s"}


def _plain(value: Any) -> Any:
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return {f.name: _plain(getattr(value, f.name)) for f in dataclasses.fields(value)}
    if isinstance(value, Mapping):
        return {key: _plain(value[key]) for key in sorted(value)}
    return list(value) if isinstance(value, tuple) else value


def _between(where: str, key: str, value: float, low: float, high: float, open_low: bool = False) -> None:
    """Refuse NaN, infinities and anything outside low .. high."""
    if not math.isfinite(value) or not low <= value <= high or (open_low and value == low):
        raise BadInput(f"{where}, {key}", f"{value}", f"{'above ' if open_low else ''}{low:g} to {high:g}")


def _one_of(where: str, key: str, value: str, known: tuple[str, ...]) -> None:
    if value not in known:
        raise BadInput(f"{where}, {key}", repr(value), f"one of {', '.join(known)}")


def _known(where: str, table: Mapping[str, Any], keys: set[str]) -> None:
    for key in table:
        if key not in keys:
            near = difflib.get_close_matches(key, keys, n=1)
            hint = f"; did you mean {near[0]}?" if near else ""
            raise BadInput(where, f"unknown key {key!r}", f"{', '.join(sorted(keys))}{hint}")


def _table(where: str, raw: Mapping[str, Any], key: str, optional: bool = False) -> Mapping[str, Any]:
    if key not in raw and optional:
        return {}
    found = raw.get(key)
    if not isinstance(found, Mapping):
        raise BadInput(where, f"no table [{key}]" if found is None else f"{key} = {found!r}", f"a table [{key}]")
    return found


def _typed(where: str, table: Mapping[str, Any], types: Mapping[str, type]) -> dict[str, Any]:
    """The table with its values checked against their types; an integer may stand for a float."""
    _known(where, table, set(types))
    for key in sorted(_REQUIRED & types.keys()):
        if key not in table:
            raise BadInput(where, f"no {key}", f"a value for {key}")
    return {key: _value(where, key, value, types[key]) for key, value in table.items()}


def _value(where: str, key: str, value: Any, kind: type) -> Any:
    if kind is float and isinstance(value, int) and not isinstance(value, bool):
        return float(value)
    if not isinstance(value, kind) or isinstance(value, bool):
        name = {"int": "a whole number", "float": "a number", "str": "a text", "list": "a list"}[kind.__name__]
        raise BadInput(f"{where}, {key}", repr(value), name)
    return value


def _build(source: str, section: str, kind: Any, table: Mapping[str, Any]) -> Any:
    """A dataclass from a TOML table, with unknown and missing keys and wrong types refused by name."""
    where = f"{source}, {section}"
    if not isinstance(table, Mapping):
        raise BadInput(where, repr(table), "a table")
    known = {f.name: f for f in dataclasses.fields(kind)}
    _known(where, table, set(known))
    given: dict[str, Any] = {}
    for key, slot in known.items():
        if key not in table:
            if slot.default is dataclasses.MISSING:
                raise BadInput(where, f"no {key}", f"a value for {key}")
            continue
        # Annotations are text: "int", "float", "str", or a tuple of the first two.
        text = str(slot.type)
        element = int if "int" in text else float if "float" in text else str
        if text.startswith("tuple"):
            given[key] = tuple(_value(where, key, v, element) for v in _value(where, key, table[key], list))
        else:
            given[key] = _value(where, key, table[key], element)
    return kind(**given)
