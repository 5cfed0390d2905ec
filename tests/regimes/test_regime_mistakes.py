"""Whatever is wrong with a regime's file is one line that names it, before any work starts."""

from __future__ import annotations

import copy
import json
import tomllib
from collections.abc import Iterator
from datetime import date
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from protocol.errors import BadInput
from protocol.regimes.regime import Regime

WHOLE = """
[regime]
name = "whole"
version = 1
summary = "every key there is"
slo = "e2e<=1s"
horizon_s = 600.0
cooldown_s = 30.0
islands = 4
seeds = 20
planner_budget = 18
[pace]
step_s = 0.0735
h_min = 128
h_max = 512
decision_steps = 8
[arrivals]
process = "bursts-periodic"
rate_per_s = 2.0
cv = 1.0
busy_rate_per_s = 6.0
busy_s = 20.0
quiet_s = 60.0
spell_cv = 1.0
phase_s = 5.0
[tokens.prompt]
values = [12, 47]
weights = [1.0, 2.0]
sigma = 0.5
most = 1000
[tokens.output]
values = [128]
[pressure.network]
follows = "pulse"
low = 0.2
high = 0.8
period_s = 300.0
high_s = 50.0
[learner]
floor = 2.0
scale = 1.9
offset_steps = 6000.0
exponent = 0.5
tokens_per_step = 2048
[peer]
payload_bytes = 1000000
bandwidth = [250000.0]
latency_s = 0.001
exchange = "graph"
graph = ["0-1", "1-2", "2-3"]
bursts = "common"
[sidecar]
model = "reference"
max_num_seqs = 64
decode_slowdown = 1.7
"""
PLAIN: dict[str, Any] = tomllib.loads(WHOLE)
#: Numbers that may well be below 0.
SIGNED = {("arrivals", "phase_s"), ("learner", "floor"), ("sidecar", "max_num_seqs"), ("sidecar", "decode_slowdown")}

Path = tuple[str | int, ...]


def toml(value: Any) -> str:
    """As TOML writes it; tables inline."""
    if isinstance(value, dict):
        return "{" + ", ".join(f"{json.dumps(key)} = {toml(v)}" for key, v in value.items()) + "}"
    if isinstance(value, list):
        return "[" + ", ".join(map(toml, value)) + "]"
    if isinstance(value, str):
        return json.dumps(value)
    return str(value).lower() if isinstance(value, bool) else str(value)


def text_of(tables: dict[str, Any]) -> str:
    return "\n".join(f"{json.dumps(key)} = {toml(value)}" for key, value in tables.items())


def paths(value: Any, path: Path = ()) -> Iterator[tuple[Path, Any]]:
    """Every table, list and value, with where it is."""
    if path:
        yield path, value
    inside = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for key, part in inside:
        yield from paths(part, (*path, key))


def changed(path: Path, value: Any) -> dict[str, Any]:
    plain = copy.deepcopy(PLAIN)
    holder: Any = plain
    for key in path[:-1]:
        holder = holder[key]
    holder[path[-1]] = value
    return plain


def refused(tables: dict[str, Any]) -> str:
    with pytest.raises(BadInput) as refusal:
        Regime.parse(text_of(tables), "mine.toml")
    text = str(refusal.value)
    assert text.startswith("mine.toml") and "\n" not in text, text
    return text


EVERY = list(paths(PLAIN))
LEAVES = [(path, value) for path, value in EVERY if not isinstance(value, dict | list)]
NUMBERS = [(path, value) for path, value in LEAVES if not isinstance(value, str)]
TABLES = [path for path, value in EVERY if isinstance(value, dict)]


def dotted(path: Path) -> str:
    return "".join(f"[{part}]" if isinstance(part, int) else f".{part}" for part in path).lstrip(".")


def test_the_file_is_right_as_it_is() -> None:
    assert Regime.parse(text_of(PLAIN), "mine.toml") == Regime.parse(WHOLE, "mine.toml")
    assert len(NUMBERS) == 38 and len(LEAVES) == 49


@pytest.mark.parametrize(("path", "value"), LEAVES, ids=lambda path: dotted(path) if isinstance(path, tuple) else "")
def test_every_wrong_type_is_named(path: Path, value: Any) -> None:
    text = isinstance(value, str)
    for wrong in (1, 1.5, True, [], {}, date(2026, 1, 1)) if text else ("1", True, [], {}, date(2026, 1, 1)):
        assert f"mine.toml, {dotted(path)}: found " in refused(changed(path, wrong))
    if isinstance(value, int) and path[0] != "sidecar":
        assert f"mine.toml, {dotted(path)}: found 1.5; expected a whole number" in refused(changed(path, 1.5))


@pytest.mark.parametrize(("path", "value"), NUMBERS, ids=lambda path: dotted(path) if isinstance(path, tuple) else "")
def test_every_number_is_finite_and_in_its_range(path: Path, value: Any) -> None:
    for wrong in (float("nan"), float("inf"), float("-inf")):
        assert f"mine.toml, {dotted(path)}: found {wrong}; expected " in refused(changed(path, wrong))
    if path not in SIGNED:
        assert f"mine.toml, {dotted(path)}: found {-value - 1}; expected " in refused(changed(path, -value - 1))


@pytest.mark.parametrize("path", TABLES, ids=dotted)
def test_unknown_keys_and_missing_tables(path: Path) -> None:
    if path != ("sidecar",):
        said = refused(changed((*path, "horizon_ss"), 1))
        assert f"mine.toml, {dotted(path)}: found unknown key 'horizon_ss'; expected " in said
    assert f"mine.toml, {dotted(path)}: found 3; expected a table" in refused(changed(path, 3))


values = st.recursive(
    st.booleans() | st.integers(-(2**70), 2**70) | st.floats() | st.text("ab-0<=,s\u00e9\t", max_size=6) | st.dates(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from(["values", "low"]), inner, max_size=3),
    max_leaves=6,
)


@given(st.sampled_from([path for path, _ in EVERY]), values, st.sampled_from(["set", "drop", "add"]))
@settings(max_examples=300, deadline=None)
def test_any_change_is_read_or_refused_in_one_line(path: Path, value: Any, how: str) -> None:
    tables = changed(path, value)
    if how == "drop":
        holder: Any = (tables := copy.deepcopy(PLAIN))
        for key in path[:-1]:
            holder = holder[key]
        del holder[path[-1]]
    elif how == "add":
        tables = copy.deepcopy(PLAIN) | {"extra": value}
    try:
        regime = Regime.parse(text_of(tables), "mine.toml")
    except BadInput as error:
        text = str(error)
        assert text.startswith("mine.toml") and "\n" not in text and len(text) < 500
        assert how != "add" or "'extra'" in text
        return
    assert how != "add" and Regime.described(json.loads(json.dumps(regime.describe())), "again").digest == regime.digest


@given(st.text(max_size=80) | st.text("[]{}=.\n\"'#ab0 ", max_size=80))
def test_any_text_is_refused_in_one_line(text: str) -> None:
    with pytest.raises(BadInput) as refusal:
        Regime.parse(text, "mine.toml")
    assert "\n" not in str(refusal.value)


STEADY = WHOLE.partition("[peer]")[0].replace("islands = 4", "islands = 1") + WHOLE[WHOLE.index("[sidecar]") :]


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ("seeds = 20", "seeds = 10_001", "regime.seeds: found 10001; expected a whole number from 1 to 10000"),
        ("horizon_s = 600.0", "horizon_s = 604801", "regime.horizon_s: found 604801; expected a number from 1 to"),
        ("h_min = 128", "h_min = 128\nmerge_s = 601", "pace.merge_s: found 601 s; expected no more than the"),
        ("busy_rate_per_s = 6.0", "busy_rate_per_s = 1e5", "15750945 requests a seed; expected at most 10000000"),
        ("horizon_s = 600.0", "horizon_s = 604800", "13253 merges at least a seed; expected at most 3000"),
        ("step_s = 0.0735", "step_s = 1e-6", "75000000 decisions a seed; expected at most 2000000"),
        ("h_min = 128", "h_min = 505\ndecision_steps = 40", "decision_steps: found 40, no multiple of which lies"),
        ("slo = \"e2e<=1s\"", "slo = \"e2e<=1h\"", "regime.slo: found unit 'h' in 'e2e<=1h'; expected s, ms or us"),
    ],
)  # fmt: skip
def test_absurd_regimes_are_refused_with_the_number(old: str, new: str, message: str) -> None:
    assert Regime.parse(STEADY, "mine.toml").peer is None
    text = STEADY.replace("decision_steps = 8\n", "") if "decision_steps" in new else STEADY
    with pytest.raises(BadInput) as refusal:
        Regime.parse(text.replace(old, new, 1), "mine.toml")
    assert message in str(refusal.value) and str(refusal.value).startswith("mine.toml")


def test_long_horizons_are_fine_where_merges_are_rare() -> None:
    """Cycles of 38 minutes, for a week."""
    rare = STEADY.replace("horizon_s = 600.0", "horizon_s = 604800").replace(
        "h_min = 128\nh_max = 512\ndecision_steps = 8", "h_min = 20000\nh_max = 40000\ndecision_steps = 8\nmerge_s = 90"
    )
    regime = Regime.parse(rare, "mine.toml")
    assert regime.corridor().feasible_budgets()[0] > 100
    for text in ("seeds = 20", "planner_budget = 18"):
        assert Regime.parse(rare.replace(text, ""), "mine.toml").horizon_s == 604_800.0
