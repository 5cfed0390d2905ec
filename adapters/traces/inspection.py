"""What a trace is like as load: rate, lengths, burstiness, and how far it can be foreseen."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from adapters.traces.report import ABSENT, ReadingReport
from protocol.workload.trace import NS_PER_S, RequestTrace
from protocol.workload.trace_stats import counts, dispersion, ewma_forecast

DISPERSION_BINS_S = (1.0, 10.0, 60.0)
#: As long as the published merge: the load that a merge meets, and the one before it.
MERGE_BIN_S = 8.0
QUANTILES = (0.05, 0.5, 0.95, 0.99)
#: What no published trace of one service comes near: Azure 2024 has peaks of some hundred requests a second, and no
#: trace is shorter than a minute or has a request every five minutes only.
MOST_PER_S, SHORTEST_S, LONGEST_GAP_S = 500.0, 10.0, 300.0
#: Longer than the context of any model that is served, and than any answer that a server grants.
MOST_PROMPT, MOST_OUTPUT = 10_000_000, 1_000_000
#: Fewer requests than this say nothing about a rate.
ENOUGH = 20


@dataclass(frozen=True)
class Statistic:
    """One figure.  value : None when the data cannot answer; flaw : why not, or why to distrust the value."""

    name: str
    value: float | None
    unit: str
    flaw: str | None = None


def statistics(trace: RequestTrace, report: ReadingReport) -> list[Statistic]:
    """Figures of one trace; those finer than the stamps of the file are withheld, with the reason."""
    span_s = int(trace.arrival_ns[-1]) / NS_PER_S
    found = [Statistic("mean rate", (len(trace) - 1) / span_s if span_s else None, "requests/s",
                       None if span_s else "all requests have one stamp")]  # fmt: skip
    for name, tokens in () if report.tokens == ABSENT else _token_columns(trace):
        for q, value in zip(QUANTILES, np.quantile(tokens, QUANTILES, method="inverted_cdf"), strict=True):
            found.append(Statistic(f"{name} tokens, {q:.0%} quantile", float(value), "tokens"))
        found.append(Statistic(f"{name} tokens, largest", float(tokens.max()), "tokens"))
    for bin_s in DISPERSION_BINS_S:
        per_bin = counts(trace, bin_s)
        short = "fewer than two bins" if per_bin.size < 2 else None
        found.append(_in_bins(f"index of dispersion at {bin_s:g} s", dispersion(per_bin), "", bin_s, report, short))
    per_bin = counts(trace, MERGE_BIN_S)
    if not per_bin.size:
        none = "the trace is shorter than one bin"
        return found + [Statistic(name, None, "", none) for name in ("empty bins", "most requests in 8 s")]
    bins = f"{MERGE_BIN_S:g}-s bins"
    found.append(_in_bins(f"empty {bins}", float((per_bin == 0).mean()) * 100, "%", MERGE_BIN_S, report))
    found.append(_in_bins(f"most requests in {bins}", float(per_bin.max()), "requests", MERGE_BIN_S, report))
    forecast = ewma_forecast(per_bin)
    name = f"EWMA one-step R2, {bins}, out of sample"
    if forecast is None:
        return [*found, Statistic(name, None, "", "fewer than 8 bins, or counts that never vary")]
    found.append(_in_bins(name, forecast.r2, "", MERGE_BIN_S, report))
    found.append(_in_bins("EWMA weight, fitted on the first half", forecast.alpha, "", MERGE_BIN_S, report))
    return found


def _token_columns(trace: RequestTrace) -> tuple[tuple[str, NDArray[np.int32]], ...]:
    return ("prompt", trace.prompt_tokens), ("output", trace.output_tokens)


def remarks(trace: RequestTrace, report: ReadingReport) -> list[str]:
    """What is implausible for the unit that was read, each in one line.  Nothing is changed by it."""
    said = []
    span_s, n = int(trace.arrival_ns[-1]) / NS_PER_S, len(trace)
    unit = f"is the unit of the times really {report.time_unit}?"
    if n >= ENOUGH and span_s < SHORTEST_S:
        rate = f", {(n - 1) / span_s:,.0f} requests/s" if span_s else ""
        said.append(f"{n:,} requests in {span_s:g} s{rate}: {unit}")
    elif n >= ENOUGH and (n - 1) / span_s > MOST_PER_S:
        said.append(f"{(n - 1) / span_s:,.0f} requests/s over {span_s:g} s: {unit}")
    elif n >= ENOUGH and span_s / (n - 1) > LONGEST_GAP_S:
        said.append(f"one request every {span_s / (n - 1):,.0f} s over {span_s / 86400:,.1f} days: {unit}")
    if report.tokens == ABSENT:
        return [
            *said,
            "no token counts in the file: declare them with --tokens, or let a regime's [tokens] supply them",
        ]
    for (name, tokens), most in zip(_token_columns(trace), (MOST_PROMPT, MOST_OUTPUT), strict=True):
        if tokens.max() > most:
            said.append(f"{name} tokens up to {tokens.max():,}: more than any model takes; is the column one of bytes?")
    if n >= ENOUGH and np.array_equal(trace.prompt_tokens, trace.output_tokens):
        said.append("prompt and output tokens are equal in every request: is one column read twice?")
    if n >= ENOUGH and trace.output_tokens.max() == 1:
        said.append("one output token in every request: is the column a flag?")
    return said


def _in_bins(
    name: str, value: float | None, unit: str, bin_s: float, report: ReadingReport, short: str | None = None
) -> Statistic:
    flaw = short or report.flaw_at(bin_s)
    return Statistic(name, value if report.resolves(bin_s) else None, unit, flaw)
