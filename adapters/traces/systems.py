"""A real trace in a system of one's own: the load from a file, everything else from a regime."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from adapters.traces.generators import Spells, lengths, signal
from adapters.traces.report import ABSENT, DECLARED, ReadingReport
from adapters.traces.windows import Cut, cut, fitting
from protocol import seeds
from protocol.errors import BadInput
from protocol.regimes.regime import BUSY, CONSTANT, Pressure, Regime
from protocol.workload.trace import NS_PER_S, RequestTrace, StepFunction, Workload

#: So many windows are enough to keep the system's own horizon; fewer, and it is shortened (the placement gate decides
#: nothing on fewer seeds).
ENOUGH = 8
#: A shortened window is no shorter than this, nor than two of the longest cycles of the corridor.
SHORTEST_S, CYCLES = 120.0, 2


@dataclass(frozen=True)
class Taken:
    """One part of a world and where it was taken from.  value : what it is, in words."""

    part: str
    value: str
    source: str

    def __str__(self) -> str:
        return f"{self.part}: {self.value} (from {self.source})"


@dataclass(frozen=True)
class TraceWorlds:
    """One window of a real trace a seed, under the pressures that the regime declares.

    Signals that follow the time (waves, pulses) have a phase of their own for each seed; one that follows the bursts
    stays low, for nobody recorded which requests were a burst.
    """

    windows: tuple[RequestTrace, ...]
    regime: Regime
    root_seed: int

    def workload(self, seed: int) -> Workload:
        rng = seeds.generator(self.root_seed, "trace-pressure", self.regime.name, seed)
        network, checkpoint = (self._signal(spec, rng) for spec in (self.regime.network, self.regime.checkpoint))
        return Workload(self.windows[seed], network, checkpoint)

    def other(self, seed: int, probe: int) -> Workload:
        return self.workload((seed + 1 + probe) % len(self.windows))

    def _signal(self, spec: Pressure, rng: np.random.Generator) -> StepFunction:
        quiet = Spells(np.array([0.0]), np.array([False]))
        return signal(spec, quiet, self.regime.horizon_s + self.regime.cooldown_s, rng)


@dataclass(frozen=True)
class Placed:
    """A trace in a system: the regime of the claim (its name says both), its worlds, and what was taken from where.

    arrivals, and tokens unless they come from the regime, of `regime` say nothing about these worlds.
    """

    regime: Regime
    worlds: TraceWorlds
    cut: Cut
    taken: tuple[Taken, ...]


def in_system(
    trace: RequestTrace,
    report: ReadingReport,
    system: Regime,
    root_seed: int,
    *,
    file: str,
    slos: Sequence[str] | None = None,
    sidecar: str | None = None,
    begins_ns: Sequence[int] | None = None,
) -> Placed:
    """This trace in that system, one claim.

    trace, report : as `read_trace` gives them; counts that are absent are drawn from the system's [tokens].
    file : the trace's name in messages and in the claim.  slos : from the command line, instead of the system's.
    sidecar : what serves instead of the system's, named.  begins_ns : where windows may begin, see `cut`.

    A trace with fewer than `ENOUGH` windows of the system's horizon is cut into shorter ones, which is said.

    Raises BadInput when fewer than two windows fit the trace, or the horizon holds no merge.
    """
    wanted = system.seeds
    loaded = _dealt(_with_tokens(trace, report, system, root_seed), system.islands)
    horizon_s = _with_begins_s(loaded, system, _horizon_s(loaded, system, wanted), begins_ns)
    budgets = system.replace(horizon_s=horizon_s).corridor().feasible_budgets()
    if budgets[-1] < 1:
        found = f"no merge that fits {horizon_s:g} s"
        raise BadInput(f"{system.name}, horizon_s", found, f"at least h_min steps and a merge ({system.merge_s:g} s)")
    try:
        found_cut = cut(loaded, wanted, horizon_s, system.cooldown_s, begins_ns)
    except BadInput as short:
        raise BadInput(f"{file} in {system.name}", short.found, short.expected) from None
    budget = system.planner_budget
    if budget not in budgets:
        budget = max(1, (budgets[0] + budgets[-1]) // 2)
    regime = system.replace(
        name=f"{system.name} on {file}",
        summary=f"{file} in {system.name}",
        horizon_s=horizon_s,
        seeds=len(found_cut.windows),
        planner_budget=budget,
    )
    taken = _taken(report, system, regime, found_cut, file, slos, sidecar)
    return Placed(regime, TraceWorlds(found_cut.windows, regime, root_seed), found_cut, taken)


def _with_tokens(trace: RequestTrace, report: ReadingReport, system: Regime, root_seed: int) -> RequestTrace:
    if report.tokens != ABSENT:
        return trace
    rng = seeds.generator(root_seed, "trace-tokens", trace.digest)
    prompt, output = (lengths(spec, len(trace), rng) for spec in (system.prompt, system.output))
    return replace(trace, prompt_tokens=prompt, output_tokens=output)


def _dealt(trace: RequestTrace, islands: int) -> RequestTrace:
    """The requests of a whole service dealt to its sidecars in turn, as a balancer does."""
    if islands == trace.n_islands:
        return trace
    return replace(trace, island=(np.arange(len(trace)) % islands).astype(np.int16), n_islands=islands)


def _horizon_s(trace: RequestTrace, system: Regime, wanted: int) -> float:
    """The system's own, or as much as gives the windows that were asked for."""
    span_s = int(trace.arrival_ns[-1]) / NS_PER_S
    if wanted < 2 or span_s // (system.horizon_s + system.cooldown_s) >= min(wanted, ENOUGH):
        return system.horizon_s
    return min(system.horizon_s, max(_shortest_s(system), span_s // wanted - system.cooldown_s))


def _shortest_s(system: Regime) -> float:
    return max(SHORTEST_S, float(np.ceil(CYCLES * (system.h_max * system.step_s + system.merge_s))))


def _with_begins_s(trace: RequestTrace, system: Regime, horizon_s: float, begins_ns: Sequence[int] | None) -> float:
    """A horizon that gives as many windows where they may not begin anywhere, and so lose what lies between."""
    if begins_ns is None or system.seeds < 2:
        return horizon_s
    shortest_s, enough = min(_shortest_s(system), horizon_s), min(system.seeds, ENOUGH)
    while horizon_s > shortest_s and fitting(trace, horizon_s, system.cooldown_s, begins_ns) < enough:
        horizon_s = max(shortest_s, float(np.floor(0.95 * horizon_s)))
    return horizon_s


def _taken(
    report: ReadingReport,
    system: Regime,
    regime: Regime,
    found: Cut,
    file: str,
    slos: Sequence[str] | None,
    sidecar: str | None,
) -> tuple[Taken, ...]:
    name = system.name
    tokens = {ABSENT: Taken("tokens", "drawn from [tokens]", name), DECLARED: Taken("tokens", "declared", "--tokens")}
    overrides = ", ".join(f"{key} = {value:g}" for key, value in sorted(system.sidecar_overrides.items()))
    model = f"{system.sidecar}, {overrides}" if overrides else system.sidecar
    fewer = f"; {system.seeds} were asked for" if len(found.windows) < system.seeds else ""
    each = " for each fragment" if system.merge.fragments > 1 else ""
    pace = f"{system.step_s:g} s a step, {system.h_min} to {system.h_max} steps{each}, merges of {system.merge_s:g} s"
    length = f"{regime.horizon_s:g} s and {system.cooldown_s:g} s to settle"
    shorter = "" if regime.horizon_s == system.horizon_s else f"; too few of its {system.horizon_s:g} s fit the trace"
    dealt = f", dealt in turn to {system.islands} sidecars" if system.islands > 1 else ""
    return (
        Taken("arrivals", f"{report.rows_kept} requests over {report.span_s:.0f} s{dealt}", file),
        tokens.get(report.tokens, Taken("tokens", "of each request", file)),
        Taken("windows", f"{found.report}{fewer}", file),
        Taken("window length", length, f"{name}{shorter}"),
        Taken("SLO", "; ".join(slos) if slos else system.slo, "the command line" if slos else name),
        Taken("pace", pace, name),
        Taken("sidecar", sidecar or model, "the command line" if sidecar else name),
        Taken("pressure", f"network {_told(system.network)}, checkpoint {_told(system.checkpoint)}", name),
        Taken("learner", f"loss {system.learner.floor:g} + {system.learner.scale:g} x decay", name),
        Taken("merges of an offline planner", str(regime.planner_budget), _budget_source(system, regime)),
    )


def _budget_source(system: Regime, regime: Regime) -> str:
    return system.name if regime.planner_budget == system.planner_budget else "the middle of what the horizon allows"


def _told(spec: Pressure) -> str:
    if spec.follows == CONSTANT:
        return f"{spec.low:g}"
    if spec.follows == BUSY:
        return f"{spec.low:g} (declared to follow bursts, which a trace does not name)"
    return f"a {spec.follows} from {spec.low:g} to {spec.high:g}"
