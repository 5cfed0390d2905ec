"""A planner in its own process: handed a trace, asked for one schedule; plain numbers in both directions.

`LoadedSidecar` stays with the harness.  What a planner's constructor calls `sidecar` prices starts by asking there:
a line with the starts goes out, a line with the prices comes back.

Runs in the child.
"""

from __future__ import annotations

import json
import signal
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from adapters.schedulers import loading, wire
from protocol.merging.corridor import Corridor
from protocol.workload.slo import Slo
from protocol.workload.trace import RequestTrace

if TYPE_CHECKING:
    from adapters.schedulers.serving import Pipe

#: The columns of a trace in the order in which they travel, and their types.
COLUMNS = {"arrival_ns": "<i8", "prompt_tokens": "<i4", "output_tokens": "<i4", "island": "<i2"}


class PricedTrace:
    """What a planner may ask of the sidecar: what one merge costs, wherever it starts."""

    def __init__(self, trace: RequestTrace, ask: Callable[[dict[str, object]], dict[str, Any]]) -> None:
        self.trace, self._ask = trace, ask

    def merge_cost(self, start_ns: ArrayLike, merge_ns: int, slo: Slo) -> NDArray[np.float64]:
        """Extra violations caused by one all-islands merge alone, for each start; shape of `start_ns`."""
        starts = np.asarray(start_ns, np.int64)
        question = {"start_ns": starts.ravel().tolist(), "merge_ns": int(merge_ns), "slo": str(slo)}
        return np.array(self._ask({"price": question})["price"], np.float64).reshape(starts.shape)


def serve(pipe: Pipe, name: str, value: object, request: dict[str, Any]) -> bool:
    """Answer the one question of a planner's run.  False when the planner failed, which has been said."""
    lines = pipe.lines()
    asked = json.loads(next(lines, b'{"type":"stop"}'))
    if asked["type"] == "stop":
        return True
    trace = _trace(pipe, asked)

    def ask(question: dict[str, object]) -> dict[str, Any]:
        pipe.send(wire.dumps(question))
        return dict(json.loads(next(lines)))

    given: dict[str, object] = {"sidecar": None, "slo": None}
    if asked["slo"] is not None:
        given = {"sidecar": PricedTrace(trace, ask), "slo": Slo.parse(asked["slo"])}
    signal.setitimer(signal.ITIMER_REAL, float(asked["within_s"]))
    try:
        planner = loading.construct(name, value, request["seed_words"], request["target"]["arguments"], given)
        said = _plain(planner.plan(trace, Corridor(**asked["corridor"]), asked["budget"]))
    except loading.Refused as refused:
        pipe.send(wire.dumps(refused.report))
        return False
    except BaseException as error:
        pipe.send(wire.dumps({"id": -1, **loading.crash(error, request["folder"])}))
        return False
    signal.setitimer(signal.ITIMER_REAL, 0)
    pipe.send(wire.dumps(said))
    for line in lines:
        if json.loads(line)["type"] == "stop":
            break
    return True


def _trace(pipe: Pipe, asked: dict[str, Any]) -> RequestTrace:
    columns = {}
    for column, dtype in COLUMNS.items():
        columns[column] = np.frombuffer(pipe.exactly(asked["requests"] * np.dtype(dtype).itemsize), dtype)
    return RequestTrace(**columns, n_islands=asked["islands"], name=asked["name"])


def _plain(schedule: Any) -> dict[str, object]:
    """A schedule as lists.  Recognised by shape: the planner may have imported its own copy of the class."""
    if type(schedule).__name__ != "Schedule":
        return {"answered": type(schedule).__name__}
    fields = {"start_ns": np.int64, "busy_ns": np.int64, "fragment": np.int64}
    return {"schedule": {f: np.asarray(getattr(schedule, f), kind).tolist() for f, kind in fields.items()}}
