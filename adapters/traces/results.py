"""Results of load generators as load: what was sent, when it was due, and how many tokens it had."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from adapters.published import request_logs, vllm_bench
from adapters.published.parsing import Document
from adapters.traces.assembling import Found, assembled
from adapters.traces.report import FAILED, ReadingReport
from adapters.traces.sample import Sample
from adapters.traces.tables import Rows
from protocol.audit.imported import Imported
from protocol.errors import BadInput
from protocol.replay.measurements import SERVED
from protocol.workload.trace import RequestTrace

_OPEN = "an open-loop run: its arrivals do not follow from the answers of the server that was measured"


@dataclass(frozen=True)
class ResultReader:
    """The requests of one run of a load generator.

    keys : that every such file has at its top.  sniff, load : as for `protocol audit`.
    closed : says of a document, or of what was read, that each request waited for an answer; None where it did not.
    """

    name: str
    description: str
    keys: tuple[str, ...]
    sniff: Callable[[Document], bool]
    load: Callable[[Document], list[Imported]]
    closed: Callable[[Any, Imported], str | None]

    def matches(self, sample: Sample) -> bool:
        if sample.container not in ("json", "jsonl") or not set(self.keys) <= set(sample.columns):
            return False
        return any(self.sniff(document) for document in _documents(sample))

    def read(self, sample: Sample, *, time_unit: str | None, drop_bad_rows: bool) -> tuple[RequestTrace, ReadingReport]:
        document = next((one for one in _documents(sample) if self.sniff(one)), None)
        if document is None:
            raise BadInput(str(sample.path), f"{sample.container} of another kind", self.description)
        if time_unit:
            raise BadInput("--time-unit", time_unit, f"none: {self.name} files say their units")
        runs = self.load(document)
        if len(runs) != 1:
            raise BadInput(str(sample.path), f"{len(runs)} runs", "one run: a trace is one stretch of time")
        (run,) = runs
        if run.log is None:
            raise BadInput(
                str(sample.path), f"{run.support.format}, without requests", "the requests of the run as well"
            )
        why = self.closed(document.value, run)
        if why:
            raise BadInput(str(sample.path), f"a closed loop ({why})", _OPEN)
        log = run.log
        cells: list[Any] = [column.tolist() for column in (log.arrival_ns, log.prompt_tokens, log.output_tokens)]
        rows = Rows("request", np.arange(1, len(log) + 1, dtype=np.int64), cells)
        left_out = {int(i): FAILED for i in np.flatnonzero(log.outcome != SERVED)}
        notes: tuple[str, ...] = ()
        if run.support.start != "scheduled":
            notes = ("arrivals are when the client sent: what was scheduled is not in the file",)
        found = Found(
            self.name, ("arrival", "prompt tokens", "output tokens"), rows, "ns", left_out=left_out, notes=notes
        )
        return assembled(sample, found, drop_bad_rows)


def _documents(sample: Sample) -> list[Document]:
    """What the file may be to an importer: one object on one line is a document, and also one line of many."""
    try:
        text = sample.data.decode("utf-8")
        if sample.container != "jsonl":
            return [Document(sample.path, "json", json.loads(text))]
        rows = [json.loads(line) for line in text.splitlines() if line.strip()]
    except (ValueError, RecursionError):
        return []
    lines = Document(sample.path, "jsonl", rows)
    return [Document(sample.path, "json", rows[0]), lines] if len(rows) == 1 else [lines]


def _vllm_closed(_: object, run: Imported) -> str | None:
    most = run.facts.get("max_concurrency")
    if most is None:
        return None
    return f"max_concurrency {most:g}: a request waits until an earlier one is answered"


#: Strategies of GuideLLM that send the next request when an answer has come.
_CLOSED = ("synchronous", "concurrent", "throughput")


def _guidellm_closed(value: Any, _: Imported) -> str | None:
    benchmark = value["benchmarks"][0]
    for holder in ("config", "args"):
        strategy = benchmark.get(holder, {}).get("strategy") if isinstance(benchmark.get(holder), Mapping) else None
        if isinstance(strategy, Mapping) and strategy.get("type_") in _CLOSED:
            return f"strategy {strategy['type_']}"
    return None


VLLM_BENCH = ResultReader(
    "vllm-bench", "vLLM bench serve results with --save-detailed", ("completed", "duration"), vllm_bench.is_vllm,
    vllm_bench.load, _vllm_closed,
)  # fmt: skip
GUIDELLM = ResultReader(
    "guidellm", "GuideLLM benchmarks.json of one rate", ("benchmarks",), request_logs.is_guidellm,
    request_logs.load_guidellm, _guidellm_closed,
)  # fmt: skip
AIPERF = ResultReader(
    "aiperf", "AIPerf profile_export.jsonl", ("metadata",), request_logs.is_aiperf, request_logs.load_aiperf,
    lambda *_: None,
)  # fmt: skip
