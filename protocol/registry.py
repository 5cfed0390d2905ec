"""Plugins by entry point: `protocol.schedulers`, `protocol.sidecars`, `protocol.traces`, `protocol.merge_loads`."""

from __future__ import annotations

from importlib.metadata import EntryPoint, entry_points

from protocol.errors import BadInput
from protocol.reading import near

GROUPS = ("protocol.schedulers", "protocol.sidecars", "protocol.traces", "protocol.merge_loads")


def names(group: str) -> dict[str, EntryPoint]:
    """Every registered plugin of a group by name, sorted.  Raises BadInput when two claim one name."""
    found: dict[str, EntryPoint] = {}
    for point in sorted(entry_points(group=group), key=lambda p: (p.name, p.value)):
        if point.name in found and found[point.name].value != point.value:
            raise BadInput(f"plugin {point.name!r}", f"{found[point.name].value} and {point.value}", "one provider")
        found[point.name] = point
    return found


def load(group: str, name: str) -> object:
    """The plugin called `name`.  Raises BadInput that suggests near names."""
    known = names(group)
    if name not in known:
        # Entry points are read when a package is installed, not when its pyproject.toml changes.
        expected = f"one of {', '.join(known)}{near(name, known, 3)} (a new entry point needs `pip install -e .` again)"
        raise BadInput(group.removeprefix("protocol."), repr(name), expected)
    return known[name].load()
