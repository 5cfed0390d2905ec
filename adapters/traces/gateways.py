"""Logs of what went through a gateway: LiteLLM spend logs and OpenTelemetry spans of generative calls (OTLP JSON)."""

from __future__ import annotations

import io
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from adapters.traces.assembling import Found, assembled
from adapters.traces.parsing import DATE, Fault
from adapters.traces.report import FAILED, ReadingReport
from adapters.traces.sample import TABLES, Sample, decoded, refusal
from adapters.traces.tables import Rows, row_error, rows_of
from protocol.errors import BadInput
from protocol.workload.trace import RequestTrace

# LiteLLM ---------------------------------------------------------------------------------------------------------

#: Parts of the names of calls that generate text (`acompletion`, `aresponses`, `anthropic_messages`, ...).
_GENERATING = ("completion", "responses", "messages", "generate_content")
_CACHED = "answered from the gateway's cache"


@dataclass(frozen=True)
class LiteLLMReader:
    """The table LiteLLM_SpendLogs: from the database (CSV, Parquet), or from `/spend/logs` (a JSON array).

    A request is due when the gateway took it (`startTime`).  Failures, answers from the gateway's cache and calls that
    generate nothing (embeddings, images) are no load on the sidecar; each is counted.
    """

    name: str = "litellm"
    description: str = "LiteLLM spend logs, CSV, Parquet, JSON lines or the JSON array of /spend/logs"

    columns = ("startTime", "prompt_tokens", "completion_tokens")
    _further = ("call_type", "cache_hit", "status", "model")

    def matches(self, sample: Sample) -> bool:
        return sample.container in TABLES and {*self.columns, "request_id", "call_type"} <= set(sample.columns)

    def read(self, sample: Sample, *, time_unit: str | None, drop_bad_rows: bool) -> tuple[RequestTrace, ReadingReport]:
        missing = [name for name in self.columns if name not in sample.columns]
        if sample.container not in TABLES or missing:
            expected = f"{', '.join(missing or self.columns)} (format {self.name})"
            raise BadInput(str(sample.path), f"{sample.container} with other columns", expected)
        if time_unit:
            raise BadInput("--time-unit", time_unit, "none: startTime holds dates")
        further = tuple(name for name in self._further if name in sample.columns)
        rows = rows_of(sample, (*self.columns, *further), drop_bad_rows)
        extra = {name: list(rows.column(3 + i)) for i, name in enumerate(further)}
        left_out: dict[int, str] = {}
        for i in range(len(rows)):
            reason = self._reason({name: values[i] for name, values in extra.items()})
            if reason:
                left_out[i] = reason
        kept = [str(m) for i, m in enumerate(extra.get("model", [])) if i not in left_out]
        unread = tuple(sorted(rows.keys - {*self.columns, *further}))
        found = Found(self.name, self.columns, rows, DATE, left_out=left_out, notes=_models(kept), unread=unread)
        return assembled(sample, found, drop_bad_rows)

    @staticmethod
    def _reason(row: Mapping[str, object]) -> str | None:
        call = str(row.get("call_type") or "")
        if call and not any(part in call for part in _GENERATING):
            return f"no generation ({call[:40]})"
        if str(row.get("status") or "").lower() == "failure":
            return FAILED
        return _CACHED if str(row.get("cache_hit") or "").lower() == "true" else None


def _models(names: list[str]) -> tuple[str, ...]:
    """A note when several models were served: one sidecar serves one."""
    counts = {name: names.count(name) for name in dict.fromkeys(names)}
    if len(counts) < 2:
        return ()
    shown = ", ".join(f"{name[:40]} {count}" for name, count in sorted(counts.items(), key=lambda x: (-x[1], x[0]))[:6])
    return (f"requests to {len(counts)} models ({shown}): one sidecar serves one; cut the file if they are several",)


# OTLP ------------------------------------------------------------------------------------------------------------

_OPERATIONS = ("chat", "text_completion", "generate_content")
_INPUT = ("gen_ai.usage.input_tokens", "gen_ai.usage.prompt_tokens")
_OUTPUT = ("gen_ai.usage.output_tokens", "gen_ai.usage.completion_tokens")
_NO_GENERATION, _NESTED = "no generation span", "inside another generation span"
#: How a span says that it failed: `STATUS_CODE_ERROR`, by number or name.
_ERROR = (2, "2", "STATUS_CODE_ERROR")


@dataclass(frozen=True)
class _Span:
    """number : of the span in its file, from 1.  tokens : prompt and output, None where the span has none."""

    number: int
    start: object
    ids: tuple[str, str, str]
    operation: str | None
    tokens: tuple[object, object]
    failed: bool
    model: str

    @property
    def generates(self) -> bool:
        """By its operation; spans without one (vLLM's own) by their token counts."""
        return self.operation in _OPERATIONS if self.operation else self.tokens != (None, None)


@dataclass(frozen=True)
class OtlpReader:
    """Spans of calls to a model, as the OTLP file exporter writes them: one document, or one a line.

    A request is due when its span starts.  Of spans inside each other (a client's and its server's) the outermost is
    the request.
    """

    name: str = "otlp"
    description: str = "OpenTelemetry GenAI spans, OTLP JSON (one document or one a line)"
    columns: tuple[str, str, str] = field(default=("startTimeUnixNano", _INPUT[0], _OUTPUT[0]))

    def matches(self, sample: Sample) -> bool:
        return sample.container in ("json", "jsonl", "json array") and "resourceSpans" in sample.columns

    def read(self, sample: Sample, *, time_unit: str | None, drop_bad_rows: bool) -> tuple[RequestTrace, ReadingReport]:
        if not self.matches(sample):
            raise refusal(sample)
        if time_unit:
            raise BadInput("--time-unit", time_unit, "none: startTimeUnixNano is in ns")
        malformed: dict[int, Fault] = {}
        spans = list(_spans(sample, malformed))
        if malformed and not drop_bad_rows:
            raise row_error(sample, "line", *next(iter(malformed.items())))
        if not spans:
            raise BadInput(str(sample.path), "no span", "spans of calls to a model (gen_ai.usage.input_tokens, ...)")
        generating = {(s.ids[0], s.ids[1]): s for s in spans if s.generates}
        parents = {(s.ids[0], s.ids[1]): (s.ids[0], s.ids[2]) for s in spans}
        left_out = {}
        for i, span in enumerate(spans):
            if not span.generates:
                left_out[i] = _NO_GENERATION
            elif _inside(span, parents, generating.keys()):
                left_out[i] = _NESTED
            elif span.failed:
                left_out[i] = FAILED
        if all(reason == _NO_GENERATION for reason in left_out.values()) and len(left_out) == len(spans):
            found = f"{len(spans)} spans and none of a call to a model"
            raise BadInput(str(sample.path), found, f"spans with {_INPUT[0]} and {_OUTPUT[0]}")
        cells: list[Any] = [[_whole(s.start) for s in spans], *([_whole(s.tokens[k]) for s in spans] for k in (0, 1))]
        numbers = np.array([span.number for span in spans], np.int64)
        # Malformed lines hold an unknown number of spans; each counts as one, under numbers that no span has.
        rows = Rows("span", numbers, cells, {-line: fault for line, fault in malformed.items()})
        notes = _models([span.model for i, span in enumerate(spans) if i not in left_out and span.model])
        return assembled(
            sample, Found(self.name, self.columns, rows, "ns", left_out=left_out, notes=notes), drop_bad_rows
        )


def _inside(span: _Span, parents: Mapping[Any, Any], generating: Any) -> bool:
    at, seen = parents.get((span.ids[0], span.ids[1])), set()
    while at in parents and at not in seen:
        if at in generating:
            return True
        seen.add(at)
        at = parents[at]
    return False


def _whole(value: object) -> object:
    """OTLP writes 64-bit integers as text."""
    return int(value) if isinstance(value, str) and value.strip().isdecimal() and len(value) < 20 else value


def _spans(sample: Sample, malformed: dict[int, Fault]) -> Iterator[_Span]:
    number = 0
    for batch in _batches(sample, malformed):
        for resource in _list(batch.get("resourceSpans")):
            # Exporters before 2022 called scopes instrumentation libraries.
            for scope in _list(resource.get("scopeSpans") or resource.get("instrumentationLibrarySpans")):
                for span in _list(scope.get("spans")):
                    number += 1
                    yield _read_span(number, span)


def _batches(sample: Sample, malformed: dict[int, Fault]) -> Iterator[Mapping[str, Any]]:
    if sample.container != "jsonl":
        document = sample.document
        yield from document if isinstance(document, list) else _list([document])
        return
    for line, text in enumerate(io.BytesIO(sample.data.rstrip()), start=1):
        value = decoded(text.strip())
        if isinstance(value, dict):
            yield value
        else:
            malformed[line] = Fault("not a JSON object", "", "no whole JSON object", "one OTLP document a line")


def _list(value: object) -> list[Mapping[str, Any]]:
    return [one for one in value if isinstance(one, dict)] if isinstance(value, list) else []


def _read_span(number: int, span: Mapping[str, Any]) -> _Span:
    values: dict[str, Any] = {}
    for one in _list(span.get("attributes")):
        value = one.get("value")
        if isinstance(value, dict) and value:
            values[str(one.get("key"))] = next(iter(value.values()))
    status = span.get("status")
    code = status.get("code") if isinstance(status, dict) else None
    operation = values.get("gen_ai.operation.name")
    model = values.get("gen_ai.response.model") or values.get("gen_ai.request.model") or ""

    def first(names: tuple[str, ...]) -> object:
        return next((values[name] for name in names if values.get(name) is not None), None)

    return _Span(
        number=number,
        start=span.get("startTimeUnixNano"),
        ids=(str(span.get("traceId")), str(span.get("spanId") or f"#{number}"), str(span.get("parentSpanId") or "")),
        operation=None if operation is None else str(operation),
        tokens=(first(_INPUT), first(_OUTPUT)),
        failed=code in _ERROR or values.get("error.type") is not None,
        model=str(model),
    )


LITELLM = LiteLLMReader()
OTLP = OtlpReader()
