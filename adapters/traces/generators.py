"""Workloads drawn from a regime: requests, and the pressures declared beside them.

Every process is stationary from time 0 on: a schedule that is blind to load meets the same mean load at every
time.  Arrivals are a renewal process with gamma gaps, run in operational time (the integral of the rate) and
mapped back, so that one mechanism serves every rate profile.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from protocol.merging.peers.schedules import OWN
from protocol.regimes.regime import APERIODIC, BUSY, CONSTANT, PERIODIC, WAVE, Arrivals, Lengths, Pressure, Regime
from protocol.workload.trace import NS_PER_S, RequestTrace, StepFunction, Workload, seconds_to_ns

#: Edges of a wave signal, as often as the published telemetry file was rewritten.
_WAVE_STEP_S = 5.0


@dataclass(frozen=True, eq=False)
class Spells:
    """Alternating quiet and busy spells: `busy[i]` holds from `since_s[i]` to the next edge."""

    since_s: NDArray[np.float64]
    busy: NDArray[np.bool_]


def workload(regime: Regime, rng: np.random.Generator) -> Workload:
    """One seed's world, `horizon_s + cooldown_s` long.

    The spells are common to all islands (they model the service's users) unless the regime gives each its own; each
    island has its own arrivals.
    """
    end_s = regime.horizon_s + regime.cooldown_s
    busy = spells(regime.arrivals, end_s, rng)
    arrival, island = [], []
    own_bursts = regime.peer is not None and regime.peer.bursts == OWN
    for i in range(regime.islands):
        mine = spells(regime.arrivals, end_s, rng) if own_bursts else busy
        times = arrivals_s(regime.arrivals, mine, end_s, rng)
        arrival.append(np.floor(times * NS_PER_S).astype(np.int64))
        island.append(np.full(len(times), i, np.int16))
    arrival_ns, of_island = np.concatenate(arrival), np.concatenate(island)
    order = np.argsort(arrival_ns, kind="stable")
    prompt = lengths(regime.prompt, len(order), rng)
    output = lengths(regime.output, len(order), rng)
    trace = RequestTrace(arrival_ns[order], prompt, output, of_island[order], regime.islands, regime.name)
    network = signal(regime.network, busy, end_s, rng)
    checkpoint = signal(regime.checkpoint, busy, end_s, rng)
    return Workload(trace, network, checkpoint)


def spells(arrivals: Arrivals, end_s: float, rng: np.random.Generator) -> Spells:
    """Busy and quiet spells over 0 .. end_s; one quiet spell when the process is steady."""
    if arrivals.process == PERIODIC:
        period = arrivals.busy_s + arrivals.quiet_s
        drawn = rng.uniform(0.0, period)
        offset = drawn if arrivals.phase_s < 0 else arrivals.phase_s  # time since the last burst began
        edges = -offset + np.arange(math.ceil(end_s / period) + 1)[:, None] * period + [0.0, arrivals.busy_s]
        return _clipped(edges.ravel(), np.tile([True, False], len(edges)), end_s)
    if arrivals.process == APERIODIC:
        means = {True: arrivals.busy_s, False: arrivals.quiet_s}
        shape = arrivals.spell_cv**-2
        state = bool(rng.uniform() < arrivals.busy_s / (arrivals.busy_s + arrivals.quiet_s))
        since, busy, now = [0.0], [state], _residual(shape, rng) * means[state]
        while now < end_s:
            state = not state
            since.append(now)
            busy.append(state)
            now += rng.gamma(shape, means[state] / shape)
        return _clipped(np.array(since), np.array(busy), end_s)
    return Spells(np.array([0.0]), np.array([False]))


def arrivals_s(arrivals: Arrivals, busy: Spells, end_s: float, rng: np.random.Generator) -> NDArray[np.float64]:
    """Arrival times in seconds, increasing, in 0 .. end_s, shape (n,)."""
    rate = np.where(busy.busy, arrivals.busy_rate_per_s, arrivals.rate_per_s)
    edge_s = np.append(busy.since_s, end_s)
    expected = np.concatenate([[0.0], np.cumsum(rate * np.diff(edge_s))])
    shape = arrivals.cv**-2
    operational = [np.array([_residual(shape, rng)])]
    while operational[-1][-1] < expected[-1]:
        left = expected[-1] - operational[-1][-1]
        gaps = rng.gamma(shape, 1.0 / shape, int(left + 4.0 * math.sqrt(left + 1.0)) + 8)
        operational.append(operational[-1][-1] + np.cumsum(gaps))
    times = np.concatenate(operational)
    return np.interp(times[times < expected[-1]], expected, edge_s)


def lengths(spec: Lengths, n: int, rng: np.random.Generator) -> NDArray[np.int32]:
    """Token counts, shape (n,)."""
    weights = np.array(spec.weights or (1.0,) * len(spec.values))
    drawn = rng.choice(np.array(spec.values, float), n, p=weights / weights.sum())
    if spec.sigma:
        drawn = drawn * np.exp(spec.sigma * rng.standard_normal(n))
    return np.clip(np.rint(drawn), 1, spec.most).astype(np.int32)


def signal(spec: Pressure, busy: Spells, end_s: float, rng: np.random.Generator) -> StepFunction:
    """A declared pressure over 0 .. end_s."""
    if spec.follows == CONSTANT:
        return StepFunction.constant(spec.low)
    if spec.follows == BUSY:
        return _steps(busy.since_s, np.where(busy.busy, spec.high, spec.low))
    phase = rng.uniform(0.0, spec.period_s)
    if spec.follows == WAVE:
        since = np.arange(0.0, end_s, _WAVE_STEP_S)
        level = 0.5 + 0.5 * np.sin(2.0 * np.pi * (since + phase) / spec.period_s)
        return _steps(since, spec.low + (spec.high - spec.low) * level)
    edges = -phase + np.arange(math.ceil(end_s / spec.period_s) + 1)[:, None] * spec.period_s + [0.0, spec.high_s]
    pulses = _clipped(edges.ravel(), np.tile([True, False], len(edges)), end_s)
    return _steps(pulses.since_s, np.where(pulses.busy, spec.high, spec.low))


def _residual(shape: float, rng: np.random.Generator) -> float:
    """Time to the next renewal, from a moment long after the start, of gamma gaps with mean 1.

    The gap that holds a fixed moment is length-biased, gamma(shape + 1), and the moment is uniform in it.
    """
    return float(rng.gamma(shape + 1.0, 1.0 / shape) * rng.uniform())


def _clipped(since_s: NDArray[np.float64], busy: NDArray[np.bool_], end_s: float) -> Spells:
    """Edges within 0 .. end_s, the spell that holds time 0 beginning there."""
    first = int(np.searchsorted(since_s, 0.0, side="right")) - 1
    keep = slice(first, int(np.searchsorted(since_s, end_s, side="left")))
    return Spells(np.maximum(since_s[keep], 0.0), busy[keep])


def _steps(since_s: NDArray[np.float64], values: NDArray[np.float64]) -> StepFunction:
    since_ns = np.array([seconds_to_ns(s) for s in since_s], np.int64)
    last_of_its_ns = np.append(np.diff(since_ns) > 0, True)
    since_ns = since_ns[last_of_its_ns]
    since_ns[0] = 0
    return StepFunction(since_ns, np.asarray(values, float)[last_of_its_ns])
