"""What a regime's load would be to resemble a trace: arrivals of one or two rates, and the lengths that occur.

A proposal is a summary: two rates with memoryless spells, and prompts independent of outputs.  `compared` says what it
keeps and what it loses.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from numba import njit
from numpy.typing import NDArray
from scipy.stats import spearmanr

from adapters.traces.generators import arrivals_s, spells
from adapters.traces.report import ABSENT, ReadingReport
from protocol.errors import BadInput
from protocol.reading import read
from protocol.regimes.regime import APERIODIC, STEADY, Arrivals, Lengths
from protocol.workload.trace import NS_PER_S, RequestTrace
from protocol.workload.trace_stats import counts, dispersion

#: Fewest requests from which anything is proposed.
FEWEST = 100
#: Bins hold about this many requests, and lie between these lengths.
PER_BIN, SHORTEST_BIN_S, LONGEST_BIN_S = 10.0, 1.0, 30.0
#: Less than this between the two rates is no burst.
LEAST_RATIO = 1.25
#: Above this index of dispersion, steady arrivals are tried against bursts.
LEAST_DISPERSION = 1.5
#: Values of a proposed [tokens] table: all that occur, or else so many quantiles, in the middle of equal shares.
MOST_VALUES = 20
COMPARED_BINS_S = (1.0, 10.0, 60.0)
_ROUNDS = 200


@dataclass(frozen=True)
class Compared:
    """One figure of the trace beside the proposal's, None where a file cannot tell."""

    name: str
    trace: float | None
    proposal: float | None


@dataclass(frozen=True)
class Proposal:
    """prompt, output : None where the file has no token counts."""

    arrivals: Arrivals
    prompt: Lengths | None
    output: Lengths | None
    compared: tuple[Compared, ...]
    notes: tuple[str, ...]


def propose(trace: RequestTrace, report: ReadingReport, rng: np.random.Generator) -> Proposal:
    """The load of a regime after a trace.  rng : for the proposal's own figures.

    Raises BadInput for fewer than `FEWEST` requests, or stamps that are all equal.
    """
    span_s = int(trace.arrival_ns[-1]) / NS_PER_S
    if len(trace) < FEWEST or span_s <= 0:
        raise BadInput(report.path, f"{len(trace)} requests over {span_s:g} s", f"at least {FEWEST} over some seconds")
    arrivals = _arrivals(trace, report, span_s)
    notes = []
    resolution = report.resolution_s or 0.0
    if resolution >= SHORTEST_BIN_S:
        notes.append(f"stamps lie {resolution:g} s apart: how requests come within that is assumed, not read (cv = 1)")
    prompt = output = None
    if report.tokens != ABSENT:
        prompt, output = _lengths(trace.prompt_tokens), _lengths(trace.output_tokens)
        if len(set(prompt.values)) > 1 and len(set(output.values)) > 1:
            rho = float(spearmanr(trace.prompt_tokens, trace.output_tokens).statistic)
            notes.append(
                f"prompts and outputs are drawn independently; in the trace their rank correlation is {rho:+.2f}"
            )
    else:
        notes.append("no token counts in the file: [tokens] stay yours")
    return Proposal(arrivals, prompt, output, _compared(trace, report, arrivals, span_s, rng), tuple(notes))


def _arrivals(trace: RequestTrace, report: ReadingReport, span_s: float) -> Arrivals:
    rate = (len(trace) - 1) / span_s
    resolution = report.resolution_s or SHORTEST_BIN_S
    first_s = min(max(PER_BIN / rate, SHORTEST_BIN_S), LONGEST_BIN_S)
    for bin_s in (first_s, 4 * first_s, 16 * first_s):
        # Short bins find short bursts; weak and slow changes show in long ones only.
        found = _bursts(trace, bin_s if resolution < bin_s / 10 else resolution * math.ceil(bin_s / resolution))
        if found is not None:
            return found
    gaps = np.diff(trace.arrival_ns) / NS_PER_S
    cv = 1.0 if resolution > 0.1 / rate else float(gaps.std() / gaps.mean())
    steady = {"process": STEADY, "rate_per_s": _three(rate), "cv": min(max(_three(cv), 0.01), 10.0)}
    return read(Arrivals, steady, "proposed arrivals")


def _bursts(trace: RequestTrace, bin_s: float) -> Arrivals | None:
    """Two rates and their spells, None where counts in such bins do not show them."""
    per_bin = counts(trace, bin_s)
    spread = dispersion(per_bin)
    found = two_rates(per_bin) if spread is not None and spread > LEAST_DISPERSION else None
    if found is None or found.rates[1] < LEAST_RATIO * found.rates[0]:
        return None
    quiet, busy = (_three(rate) for rate in (found.rates / bin_s).tolist())
    quiet_s, busy_s = (_three(spell) for spell in (bin_s / (1.0 - found.stay)).tolist())
    rates = {"rate_per_s": max(quiet, 1e-3), "busy_rate_per_s": busy}
    spells = {"busy_s": busy_s, "quiet_s": quiet_s}
    return read(Arrivals, {"process": APERIODIC, **rates, **spells}, "proposed arrivals")


def _three(value: float) -> float:
    """Three significant digits: more would say more than a summary knows."""
    return float(f"{value:.3g}")


@dataclass(frozen=True)
class TwoRates:
    """Two Poisson rates a bin, the lower first, and the chance to stay in each from one bin to the next."""

    rates: NDArray[np.float64]
    stay: NDArray[np.float64]


def two_rates(per_bin: NDArray[np.int64]) -> TwoRates | None:
    """Maximum likelihood of a two-state hidden Markov chain of Poisson counts (Baum, Petrie, Soules and Weiss 1970).

    None when there are fewer than 20 bins, or one state takes everything.
    """
    x = per_bin.astype(np.float64)
    if len(x) < 20 or x.max() == x.min():
        return None
    rates = np.maximum(np.quantile(x, [0.25, 0.9]), [0.05, 0.1])
    if rates[0] >= rates[1]:
        rates = np.array([max(x.mean() / 2, 0.05), max(x.mean() * 2, 0.1)])
    step = np.array([[0.9, 0.1], [0.3, 0.7]])
    for _ in range(_ROUNDS):
        # Emissions relative to the likelier state of each bin, so that nothing underflows.
        emit = x[:, None] * np.log(rates) - rates
        share, moved = _expected(np.exp(emit - emit.max(axis=1, keepdims=True)), step)
        if share.sum(axis=0).min() < 1.0:
            return None
        new = np.maximum((share * x[:, None]).sum(axis=0) / share.sum(axis=0), 1e-3)
        step = np.maximum(moved / moved.sum(axis=1)[:, None], 1e-9)
        done = bool(np.allclose(new, rates, rtol=1e-6))
        rates = new
        if done:
            break
    order = np.argsort(rates)
    return TwoRates(rates[order], np.minimum(np.diag(step), 1.0 - 1e-6)[order])


@njit(cache=True)
def _expected(emit: NDArray[np.float64], step: NDArray[np.float64]) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Shares of each state in each bin, and expected moves between states (scaled forward and backward passes)."""
    n = len(emit)
    ahead, back, scale = np.empty((n, 2)), np.ones((n, 2)), np.empty(n)
    for t in range(n):
        for j in range(2):
            before = 0.5 if t == 0 else ahead[t - 1, 0] * step[0, j] + ahead[t - 1, 1] * step[1, j]
            ahead[t, j] = before * emit[t, j]
        scale[t] = ahead[t, 0] + ahead[t, 1]
        ahead[t] /= scale[t]
    moved = np.zeros((2, 2))
    for t in range(n - 2, -1, -1):
        for i in range(2):
            total = 0.0
            for j in range(2):
                onward = step[i, j] * emit[t + 1, j] * back[t + 1, j] / scale[t + 1]
                moved[i, j] += ahead[t, i] * onward
                total += onward
            back[t, i] = total
    return ahead * back, moved


def _lengths(tokens: NDArray[np.int32]) -> Lengths:
    values, times = np.unique(tokens, return_counts=True)
    most = int(values[-1])
    if len(values) <= MOST_VALUES:
        shares = tuple(_three(float(t) / len(tokens)) for t in times)
        weights = shares if len(values) > 1 else ()
        return read(Lengths, {"values": values.tolist(), "weights": weights, "most": most}, "proposed tokens")
    middle = np.quantile(tokens, (np.arange(MOST_VALUES) + 0.5) / MOST_VALUES, method="inverted_cdf")
    return read(Lengths, {"values": middle.astype(int).tolist(), "most": most}, "proposed tokens")


def _compared(
    trace: RequestTrace, report: ReadingReport, arrivals: Arrivals, span_s: float, rng: np.random.Generator
) -> tuple[Compared, ...]:
    """Figures of the trace and of one draw of the proposal as long as it."""
    drawn = arrivals_s(arrivals, spells(arrivals, span_s, rng), span_s, rng)
    ones = np.ones(len(drawn), np.int32)
    other = RequestTrace(np.floor(drawn * NS_PER_S).astype(np.int64), ones, ones)
    rows = [Compared("requests/s", (len(trace) - 1) / span_s, len(other) / span_s)]
    for bin_s in COMPARED_BINS_S:
        mine = dispersion(counts(trace, bin_s)) if report.resolves(bin_s) else None
        rows.append(Compared(f"index of dispersion at {bin_s:g} s", mine, dispersion(counts(other, bin_s))))
    return tuple(rows)
