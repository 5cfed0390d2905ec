"""Messages between the harness and a scheduler's process, version 1 (docs/schedulers.md).

Commands in any language get and give JSON lines with named fields.  The built-in Python host is sent
observations as binary frames in the field order below (a tenth of the time) and answers in JSON lines, too.
Arrival counts travel as what is new since the last message.

May import: the standard library, NumPy and protocol.scheduler (it also runs in the child).
"""

from __future__ import annotations

import json
import math
import os
import struct
from collections.abc import Iterator, Sequence
from operator import attrgetter, itemgetter
from typing import Any

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
    "telemetry_age_s",
    "fragment",
    "fragments",
    "fragment_steps",
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
#: The same for a whole schedule, and for what a run says of the files that it opened.
PLAN_BYTES = 1 << 24
WAIT, MERGE = Decision(False), Decision(True)

_scalars, _island = attrgetter(*SCALARS), attrgetter(*ISLAND)
_of_fleet: Any = itemgetter(*(SCALARS.index(field) for field in ISLAND))
_FIELDS = (*SCALARS, *SERIES, "islands")
_new = object.__new__
_NAN, _STOP = math.nan, 0xFFFFFFFF
#: Number of the observation, new entries of each series, islands; then SCALARS, where NaN in the last two is None.
_FRAME = struct.Struct("<III d qqqq dd q dd q d ddd qqq d qqq dd")
#: ISLAND, with the same rule; sent only when there are several.
_ISLAND = struct.Struct("<q dd q d ddd qqq dd")


def _plain(value: object) -> object:
    if isinstance(value, np.generic):
        return value.item()
    raise TypeError(f"{type(value).__name__} does not belong in an observation")


_dumps = json.JSONEncoder(separators=(",", ":"), default=_plain).encode


def dumps(message: object) -> bytes:
    """One line of compact JSON."""
    return _dumps(message).encode() + b"\n"


def frame(number: int, seen: Observation, sent: int) -> bytes:
    """Observation `number` for the Python host: scalars, new entries of both series, islands when several."""
    *scalars, e2e_s, ttft_s = _scalars(seen)
    n_new, n_islands = len(seen.arrivals_per_s) - sent, len(seen.islands)
    recent = (_NAN if e2e_s is None else e2e_s, _NAN if ttft_s is None else ttft_s)
    data = _FRAME.pack(number, n_new, n_islands, *scalars, *recent)
    if n_new:
        data += seen.arrivals_per_s[sent:].tobytes() + seen.prompt_tokens_per_s[sent:].tobytes()
    if n_islands > 1:
        for island in seen.islands:
            *fields, e2e_s, ttft_s = _island(island)
            data += _ISLAND.pack(*fields, _NAN if e2e_s is None else e2e_s, _NAN if ttft_s is None else ttft_s)
    return data


def stop_frame() -> bytes:
    """What tells the Python host to end a run."""
    return _FRAME.pack(_STOP, *[0] * (len(SCALARS) + 2))


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
        self.view = self._freeze()

    def _freeze(self) -> NDArray[np.float64]:
        view = self._data[: self._size]
        view.flags.writeable = False
        return view

    def extend(self, new: bytes) -> None:
        size = self._size + len(new) // 8
        if size > len(self._data):
            grown = np.empty(2 * size)
            grown[: self._size] = self._data[: self._size]
            self._data = grown
        self._data[self._size : size] = np.frombuffer(new)
        self._size = size
        self.view = self._freeze()


class Frames:
    """Reads frames from a file descriptor and adds up what each one left out."""

    def __init__(self, incoming: int) -> None:
        self._incoming, self._rest = incoming, b""
        self._arrivals, self._tokens = _Series(), _Series()

    def _need(self, size: int) -> bool:
        while len(self._rest) < size:
            chunk = os.read(self._incoming, 1 << 16)
            if not chunk:
                return False
            self._rest += chunk
        return True

    def __iter__(self) -> Iterator[tuple[int, Observation]]:
        """Number and observation of each frame, until the stop frame or the end of the pipe."""
        while self._need(_FRAME.size):
            number, n_new, n_islands, *scalars = _FRAME.unpack_from(self._rest)
            if number == _STOP:
                return
            one, middle = 8 * n_new, _FRAME.size + 8 * n_new
            end = middle + one + (_ISLAND.size * n_islands if n_islands > 1 else 0)
            if not self._need(end):
                return
            data, self._rest = self._rest[:end], self._rest[end:]
            if n_new:
                self._arrivals.extend(data[_FRAME.size : middle])
                self._tokens.extend(data[middle : middle + one])
            scalars[-2:] = [None if value != value else value for value in scalars[-2:]]
            if n_islands > 1:
                islands = tuple(_island_of(values) for values in _ISLAND.iter_unpack(data[middle + one :]))
            else:
                islands = (_island_of(_of_fleet(scalars)),)
            seen = _new(Observation)
            # Past the frozen __init__, which sets fields one by one and costs more than all the rest.
            seen.__dict__.update(zip(_FIELDS, (*scalars, self._arrivals.view, self._tokens.view, islands), strict=True))
            yield number, seen


def _island_of(values: tuple[Any, ...]) -> IslandObservation:
    island = _new(IslandObservation)
    *fields, e2e_s, ttft_s = values
    recent = (None if e2e_s != e2e_s else e2e_s, None if ttft_s != ttft_s else ttft_s)
    island.__dict__.update(zip(ISLAND, (*fields, *recent), strict=True))
    return island


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
