"""Access logs of proxies: when requests came, and nothing of their tokens, which the user declares.

Only POSTs can generate; health checks, metrics and endpoints that generate nothing are counted and left out.
"""

from __future__ import annotations

import io
import re
from dataclasses import dataclass
from decimal import Decimal

import numpy as np

from adapters.traces.assembling import Found, assembled
from adapters.traces.parsing import BadValue, Custom, Fault, Stamp
from adapters.traces.report import ABSENT, FAILED, ReadingReport
from adapters.traces.sample import Sample
from adapters.traces.tables import Rows
from protocol.errors import BadInput
from protocol.workload.trace import NS_PER_S, RequestTrace

#: Envoy's default format begins so; Istio's and most of one's own keep this beginning.
_ENVOY = re.compile(
    rb"\[(?P<time>\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d(?:\.\d+)?Z?)\] "
    rb'"(?P<method>[A-Z-]+) (?P<path>\S+) [^"]*" (?P<code>\d{1,3})\b'
)
#: nginx's `combined` format, which Apache shares; `rt=` or `request_time=` may follow.
_NGINX = re.compile(
    rb"\S+ \S+ \S+ \[(?P<time>\d\d/[A-Z][a-z]{2}/\d{4}:\d\d:\d\d:\d\d [+-]\d{4})\] "
    rb'"(?P<method>[A-Z-]+) (?P<path>\S+)[^"]*" (?P<code>\d{3}) \S+(?P<rest>.*)'
)
_TOOK = re.compile(rb"\b(?:rt|request_time)[=:]\"?(\d+(?:\.\d+)?)")
#: Endpoints of servers of the OpenAI kind that generate nothing.
_NO_GENERATION = re.compile(rb"/(?:embeddings|tokenize|detokenize|rerank|score|classify|pooling|moderations)\b")


@dataclass(frozen=True)
class AccessLogReader:
    """One line a request.

    pattern : of a line, with groups time, method, path, code.  time_format : strptime, None for ISO dates.
    ended : whether lines are stamped when the request ended; where the line says how long it took, that is taken off.
    """

    name: str
    description: str
    pattern: re.Pattern[bytes]
    time_format: str | None = None
    ended: bool = False

    def matches(self, sample: Sample) -> bool:
        first = next((line for line in sample.data[:65536].splitlines() if line.strip()), b"")
        return self.pattern.match(first) is not None

    def read(self, sample: Sample, *, time_unit: str | None, drop_bad_rows: bool) -> tuple[RequestTrace, ReadingReport]:
        if time_unit:
            raise BadInput("--time-unit", time_unit, f"none: {self.name} logs hold dates")
        number: list[int] = []
        time_ns: list[int] = []
        left_out: dict[int, str] = {}
        malformed: dict[int, Fault] = {}
        parse = Custom(self.time_format) if self.time_format else Stamp()
        took = 0
        for i, line in enumerate(io.BytesIO(sample.data.rstrip()), start=1):
            found = self.pattern.match(line)
            if found is None:
                what = line.strip()[:60].decode("utf-8", "replace")
                malformed[i] = Fault(
                    "not a line of the log", "", repr(what) if what else "a blank line", self.description
                )
                continue
            try:
                stamp = parse(found["time"].decode())
            except BadValue as bad:
                malformed[i] = Fault(bad.reason, "", repr(found["time"].decode()), bad.expected)
                continue
            lasted = _TOOK.search(found["rest"]) if self.ended else None
            took += lasted is not None
            reason = _reason(found)
            if reason:
                left_out[len(number)] = reason
            number.append(i)
            time_ns.append(stamp - (int(Decimal(lasted[1].decode()) * NS_PER_S) if lasted else 0))
        ones = [1] * len(number)
        rows = Rows("line", np.array(number, np.int64), [time_ns, ones, ones], malformed)
        made = Found(self.name, ("time", "", ""), rows, "ns", left_out=left_out, notes=self._notes(took), tokens=ABSENT)
        return assembled(sample, made, drop_bad_rows)

    def _notes(self, took: int) -> tuple[str, ...]:
        if not self.ended:
            return ()
        if took:
            return ("stamps are when each request ended; the time that it took was taken off where the line says it",)
        return (
            "stamps are when each request ended, and the log does not say how long it took: arrivals are late by that",
        )


def _reason(found: re.Match[bytes]) -> str | None:
    """Why a line is no load; None when it is."""
    if found["method"] != b"POST":
        return "no POST, so no generation"
    if _NO_GENERATION.search(found["path"]):
        return "an endpoint that generates nothing"
    # Envoy writes 0 where the client left before an answer began.
    return None if 200 <= int(found["code"]) < 400 else FAILED


ENVOY = AccessLogReader(
    "envoy", "Envoy access logs, text in the default format (Istio's too); tokens are declared", _ENVOY
)
NGINX = AccessLogReader(
    "nginx", "nginx access logs, text in the combined format; tokens are declared", _NGINX,
    time_format="%d/%b/%Y:%H:%M:%S %z", ended=True,
)  # fmt: skip
