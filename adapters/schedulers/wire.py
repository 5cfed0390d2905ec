"""Messages between the harness and a scheduler's process: JSON lines, version 1 (docs/schedulers.md).

The built-in Python host gets observations as arrays in the field order below; commands in other languages
get the same fields by name.  Arrival counts travel as what is new since the last message.

May import: the standard library, NumPy and protocol.scheduler (it also runs in the child).
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from operator import attrgetter

import numpy as np
from numpy.typing import NDArray

from protocol.scheduler import Decision, IslandObservation, Observation

#: Version of the messages.  1: first.
VERSION = 1
SCALARS = (
    "time_s",
    "steps_since_merge",
    "h_min",
    "h_max",
    "decision_steps",
    "step_s",
    "merge_s",
    "merges_so_far",
    "loss",
    "loss_reduction",
    "tokens",
    "staleness_s",
    "network_pressure",
    "serving_pressure",
    "checkpoint_pressure",
    "in_flight",
    "queued",
    "completed",
    "recent_e2e_s",
    "recent_ttft_s",
)
SERIES = ("arrivals_per_s", "prompt_tokens_per_s")
ISLAND = (
    "steps_since_merge",
    "loss",
    "loss_reduction",
    "tokens",
    "staleness_s",
    "network_pressure",
    "serving_pressure",
    "checkpoint_pressure",
    "in_flight",
    "queued",
    "completed",
    "recent_e2e_s",
    "recent_ttft_s",
)
ALLOWED = "True, False or a Decision(merge, groups)"
#: Longest answer that is read.
ANSWER_BYTES = 65536
WAIT, MERGE = Decision(False), Decision(True)

_scalars, _island = attrgetter(*SCALARS), attrgetter(*ISLAND)
_ISLAND_OF_FLEET = tuple(SCALARS.index(field) for field in ISLAND)


def _plain(value: object) -> object:
    if isinstance(value, np.generic):
        return value.item()
    raise TypeError(f"{type(value).__name__} does not belong in an observation")


_dumps = json.JSONEncoder(separators=(",", ":"), default=_plain).encode


def dumps(message: object) -> bytes:
    """One line of compact JSON."""
    return _dumps(message).encode() + b"\n"


def compact(number: int, seen: Observation, sent: int) -> bytes:
    """Observation `number` for the Python host: scalars, new entries of both series, islands when several."""
    message: list[object] = [number, *_scalars(seen)]
    message.append(seen.arrivals_per_s[sent:].tolist())
    message.append(seen.prompt_tokens_per_s[sent:].tolist())
    if len(seen.islands) > 1:
        message.append([_island(island) for island in seen.islands])
    return dumps(message)


def named(number: int, seen: Observation, sent: int) -> bytes:
    """The same for a command in another language: an object with named fields."""
    message: dict[str, object] = {"type": "observe", "id": number}
    message.update(zip(SCALARS, _scalars(seen), strict=True))
    for field in SERIES:
        message[field] = getattr(seen, field)[sent:].tolist()
    if len(seen.islands) > 1:
        message["islands"] = [dict(zip(ISLAND, _island(island), strict=True)) for island in seen.islands]
    return dumps(message)


class _Series:
    """A growing array whose filled part is handed out read-only, in amortised constant time an entry."""

    def __init__(self) -> None:
        self._data: NDArray[np.float64] = np.empty(1024)
        self._size = 0
        self._view = self._freeze()

    def _freeze(self) -> NDArray[np.float64]:
        view = self._data[: self._size]
        view.flags.writeable = False
        return view

    def extend(self, new: list[float]) -> NDArray[np.float64]:
        if new:
            size = self._size + len(new)
            if size > len(self._data):
                grown = np.empty(2 * size)
                grown[: self._size] = self._data[: self._size]
                self._data = grown
            self._data[self._size : size] = new
            self._size = size
            self._view = self._freeze()
        return self._view


class Decoder:
    """Turns compact messages back into observations, adding up what each one left out."""

    def __init__(self) -> None:
        self._arrivals, self._tokens = _Series(), _Series()

    def __call__(self, message: list[object]) -> Observation:
        n = len(SCALARS)
        scalars = message[1 : n + 1]
        if len(message) > n + 3:
            islands = tuple(IslandObservation(*island) for island in message[n + 3])  # type: ignore[attr-defined]
        else:
            islands = (IslandObservation(*[scalars[i] for i in _ISLAND_OF_FLEET]),)  # type: ignore[arg-type]
        arrivals = self._arrivals.extend(message[n + 1])  # type: ignore[arg-type]
        tokens = self._tokens.extend(message[n + 2])  # type: ignore[arg-type]
        return Observation(*scalars, arrivals, tokens, islands)  # type: ignore[arg-type,call-arg]


def is_bool(value: object) -> bool:
    return isinstance(value, (bool, np.bool_))


def answer(number: int, value: object) -> bytes:
    """The child's line for what a Python scheduler returned, allowed or not."""
    if is_bool(value):
        return b"[%d,%s]\n" % (number, b"true" if value else b"false")
    # Recognised by shape: the scheduler may have imported its own copy of the class.
    if type(value).__name__ == "Decision" and hasattr(value, "merge") and hasattr(value, "groups"):
        merge, groups = value.merge, value.groups
        if is_bool(merge):
            try:
                plain = None if groups is None else [[int(i) if is_index(i) else repr(i) for i in g] for g in groups]
                return dumps([number, bool(merge), plain, str(getattr(value, "reason", ""))[:1000]])
            except TypeError:
                return dumps({"id": number, "answered": f"Decision(groups={short(groups)})"})
    return dumps({"id": number, "answered": f"{short(value)} ({type(value).__name__})"})


def is_index(value: object) -> bool:
    return isinstance(value, (int, np.integer)) and not is_bool(value)


def short(value: object, limit: int = 80) -> str:
    """A one-line repr that never raises."""
    try:
        text = " ".join(repr(value).split())
    except Exception as error:  # a repr is the scheduler's code, too
        text = f"<repr raised {type(error).__name__}>"
    return text if len(text) <= limit else text[: limit - 3] + "..."


def decision(merge: object, groups: object, reason: object, n_islands: int) -> Decision | str:
    """The decision that an answer stands for, or what is wrong with it."""
    if not isinstance(merge, bool):
        return f"merge = {short(merge)}"
    if groups is None:
        if not reason:
            return MERGE if merge else WAIT
        return Decision(merge, None, str(reason)[:1000])
    if not merge:
        return f"groups {short(groups)} without a merge"
    if not isinstance(groups, Sequence) or isinstance(groups, str) or not groups:
        return f"groups {short(groups)}"
    taken: set[int] = set()
    for group in groups:
        if not isinstance(group, Sequence) or isinstance(group, str) or not group:
            return f"group {short(group)}"
        for island in group:
            if isinstance(island, bool) or not isinstance(island, int) or not 0 <= island < n_islands:
                return f"island {short(island)} in groups (the fleet has islands 0 to {n_islands - 1})"
            if island in taken:
                return f"island {island} twice in groups"
            taken.add(island)
    return Decision(True, tuple(tuple(group) for group in groups), str(reason or "")[:1000])
