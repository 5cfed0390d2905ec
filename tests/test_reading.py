"""Typed models: types at their word, and one line for everything that is wrong."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Annotated, Any, Literal

import numpy as np
import pytest
from annotated_types import MaxLen, MinLen
from hypothesis import given
from hypothesis import strategies as st
from pydantic import Field, model_validator

from protocol.errors import BadInput
from protocol.reading import (
    Count,
    Finite,
    Listed,
    Model,
    Name,
    Range,
    Whole,
    json_values,
    near,
    parse_json,
    parse_toml,
    read,
    refuse,
    shown,
    text_of,
)


class Pace(Model):
    h_min: Annotated[int, Range(1, 100)]
    h_max: Annotated[int, Range(1, 100)] = 50
    step_s: Annotated[float, Range(0, 1e5, above=True)] = 1.0

    @model_validator(mode="after")
    def _order(self) -> Pace:
        Range(self.h_min, 100).check("h_max", self.h_max, whole=True)
        return self


class Free(Model, extra="allow"):
    __pydantic_extra__: dict[str, Finite] = Field(init=False)
    model: str = "reference"


class World(Model):
    pace: Pace
    kind: Literal["steady", "bursts"] = "steady"
    version: Annotated[Literal[1, 2], Whole] = 1
    values: Annotated[Listed[Annotated[int, Range(1, 9)]], MinLen(1), MaxLen(3)] = (1,)
    paces: Listed[Pace] = ()
    free: Free = Free()
    shares: dict[str, Finite] = {}
    other: Pace | None = None
    name: Name = "a"
    on: bool = True
    n: Count = 0
    schema_name: str = Field("x", alias="schema")


def world(text: str) -> World:
    return parse_toml(f"{text}\n[pace]\nh_min = 3", "w.toml", World)


def test_an_integer_may_stand_for_a_float_and_nothing_else_for_anything() -> None:
    found = world("values = [1, 2]\nfree = {a = 1, b = 2.0}\npaces = [{h_min = 1, step_s = 2}]")
    assert found.values == (1, 2) and found.paces[0] == Pace(h_min=1, step_s=2.0)
    assert type(found.paces[0].step_s) is float
    assert [type(v) for v in (found.free.model_extra or {}).values()] == [int, float]  # kept as they were written
    assert read(Pace, {"h_min": 3, "step_s": np.float64(2)}, "x").step_s == 2.0


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("pac = 3", "w.toml: found unknown key 'pac'; expected free, kind, n, name, on, other, pace, paces, schema, "
                    "shares, values, version; did you mean pace?"),
        ("zzzz = 3", "shares, values, version"),
        ("schema = 3", "w.toml, schema: found 3; expected a text"),
        ("schema_name = 'x'", "w.toml: found unknown key 'schema_name'"),
        ("paces = [{}]", "w.toml, paces[0]: found no h_min; expected a value for h_min"),
        ("paces = [{h_min = 1}, {h_mim = 1}]", "w.toml, paces[1]: found unknown key 'h_mim'; expected h_max, h_min, "
                                               "step_s; did you mean h_min?"),
        ("paces = [{h_min = 1.0}]", "w.toml, paces[0].h_min: found 1.0; expected a whole number from 1 to 100"),
        ("paces = [{h_min = true}]", "w.toml, paces[0].h_min: found True; expected a whole number from 1 to 100"),
        ("paces = [{h_min = 1, step_s = true}]", "found True; expected a number above 0, at most 100000"),
        ("paces = [{h_min = 1, step_s = nan}]", "found nan; expected a number above 0, at most 100000"),
        ("paces = [{h_min = 1, step_s = 0}]", "w.toml, paces[0].step_s: found 0; expected a number above 0, at most"),
        ("paces = [{h_min = 60}]", "w.toml, paces[0].h_max: found 50; expected a whole number from 60 to 100"),
        ("paces = 3", "w.toml, paces: found 3; expected a list"),
        ("other = [1]", "w.toml, other: found [1]; expected a table"),
        ("other = {h_min = 300}", "w.toml, other.h_min: found 300; expected a whole number from 1 to 100"),
        ('kind = "stead"', "w.toml, kind: found 'stead'; expected one of steady, bursts; did you mean steady?"),
        ("kind = 3", "w.toml, kind: found 3; expected one of steady, bursts"),
        ("version = 3", "w.toml, version: found 3; expected one of 1, 2"),
        ("version = true", "w.toml, version: found True; expected a whole number"),
        ("values = []", "w.toml, values: found an empty list; expected at least 1"),
        ("values = [1, 2, 3, 4]", "w.toml, values: found 4 values; expected at most 3"),
        ("values = [1, 22]", "w.toml, values[1]: found 22; expected a whole number from 1 to 9"),
        ('values = "12"', "w.toml, values: found '12'; expected a list"),
        ('free = {a = "b"}', "w.toml, free.a: found 'b'; expected a number"),
        ("free = {a = inf}", "w.toml, free.a: found inf; expected a finite number"),
        ("free = {model = 1}", "w.toml, free.model: found 1; expected a text"),
        ('free = {"a\\nb" = true}', "w.toml, free.'a\\nb': found True; expected a number"),
        ("shares = {c = true}", "w.toml, shares.c: found True; expected a number"),
        ("name = ' x'", "w.toml, name: found ' x'; expected a name in printable characters, without blanks around it"),
        (f"name = '{'x' * 301}'", "w.toml, name: found 301 characters; expected a name of at most 300"),
        ('name = "x\\ny"', "w.toml, name: found 'x\\ny'; expected a name"),
        ("name = 1979-05-27", "w.toml, name: found datetime.date(1979, 5, 27); expected a text"),
        ("on = 1", "w.toml, on: found 1; expected true or false"),
        ("n = -1", "w.toml, n: found -1; expected a whole number from 0 on"),
        ("n = 0x" + "f" * 9000, "w.toml: ok"),
        ("paces = [{h_min = 1, step_s = 0x" + "f" * 9000 + "}]", "found a number of thousands of digits; expected"),
        ("a = 1\na = 2", "w.toml: found broken TOML (Cannot overwrite a value"),
        ("a = " + "9" * 9000, "w.toml: found broken TOML (Exceeds the limit"),
        ("a = " + "[" * 9000, "w.toml: found TOML that is nested too deeply; expected a few levels"),
        ("kind = " + "[" * 300 + "]" * 300, "w.toml, kind: found [[[[...]]]]; expected one of"),
    ],
)  # fmt: skip
def test_one_line_says_where_what_and_what_instead(text: str, message: str) -> None:
    if message.endswith("ok"):
        assert world(text).n > 10**9000  # a whole number has no end
        return
    with pytest.raises(BadInput) as refusal:
        world(text)
    assert message in str(refusal.value) and "\n" not in str(refusal.value) and len(str(refusal.value)) < 400


def test_tables_that_are_missing() -> None:
    for text, message in (
        ("", "found no table [pace]; expected a table [pace]"),
        ("pace = 3", "w.toml, pace: found 3; expected a table"),
        ("[pace]\nh_max = 3", "w.toml, pace: found no h_min; expected a value for h_min"),
    ):
        with pytest.raises(BadInput) as refusal:
            parse_toml(text, "w.toml", World)
        assert message in str(refusal.value)


@pytest.mark.parametrize(
    ("data", "message"),
    [
        ("", "w.json: found broken JSON (Expecting value: line 1 column 1 (char 0)); expected JSON"),
        ("[]", "w.json: found []; expected a table"),
        ('{"h_min": NaN}', "w.json: found broken JSON (NaN is no number)"),
        ('{"h_min": 1, "step_s": -Infinity}', "-Infinity is no number"),
        ('{"h_min": 1, "step_s": 1e999}', "1e999 is too large a number"),
        ('{"h_min": 1.0}', "w.json, h_min: found 1.0; expected a whole number"),
        ('{"\\ud800": 1}', "w.json: found unknown key '\\ud800'"),
        (b"\xff", "can't decode byte 0xff"),
        ("[" * 100_000, "w.json: found JSON that is nested too deeply"),
        ('{"a":' * 100_000, "nested too deeply"),
        ('{"h_min": ' + "9" * 9000 + "}", "Exceeds the limit"),
    ],
)
def test_json_is_read_alike(data: str | bytes, message: str) -> None:
    assert parse_json('{"h_min": 1, "step_s": 2}', "w.json", Pace) == Pace(h_min=1, step_s=2.0)
    with pytest.raises(BadInput) as refusal:
        parse_json(data, "w.json", Pace)
    assert message in str(refusal.value) and "\n" not in str(refusal.value)


def test_replacing_validates_again_and_keeps_what_was_not_said() -> None:
    pace = Pace(h_min=3)
    assert pace.replace(h_max=60) == Pace(h_min=3, h_max=60) and pace.replace().plain() == {"h_min": 3}
    for change, message in (({"h_min": 60}, "pace, h_max: found 50"), ({"h_mim": 1}, "did you mean h_min")):
        with pytest.raises(BadInput, match=message):
            pace.replace(**change)
    with pytest.raises(Exception, match="frozen"):
        pace.h_min = 4


def test_plain_values_are_what_was_read() -> None:
    text = '{"schema": "y", "pace": {"h_min": 3, "step_s": 0.25}, "values": [1, 2], "free": {"b": 1, "a": 1.0}}'
    found = parse_json(text, "w.json", World)
    plain = found.plain()
    assert plain == json_values(text, "w.json") and read(World, plain, "again") == found
    assert [type(v) for v in plain["free"].values()] == [int, float]
    assert found.replace(n=3).plain() == plain | {"n": 3}


def test_near_names() -> None:
    assert near("h_mim", ["h_min", "h_max"]) == "; did you mean h_min?"
    assert near("h_mim", ["h_max", "h_min"], 2) == "; did you mean h_min or h_max?"
    assert near("zzz", ["h_min"]) == ""


def test_files_that_cannot_be_read(tmp_path: Path) -> None:
    (tmp_path / "binary").write_bytes(b"\xff\xfe\x00")
    for path, message in (
        (tmp_path / "none", "found an unreadable file (No such file or directory); expected a world"),
        (tmp_path, "found an unreadable file (Is a directory)"),
        (tmp_path / "binary", "can't decode byte 0xff"),
        (Path("a\x00b"), "embedded null"),
    ):
        with pytest.raises(BadInput) as refusal:
            text_of(path, "a world")
        assert message in str(refusal.value) and "\n" not in str(refusal.value)


@given(st.floats() | st.integers(), st.floats(-10, 10), st.floats(0, 10), st.booleans())
def test_ranges(value: float, least: float, width: float, above: bool) -> None:
    class Held(Model):
        x: Annotated[float, Range(least, least + width, above)]

    inside = least <= value <= least + width and not (above and value == least)
    try:
        assert read(Held, {"x": value}, "here").x == value and inside
    except BadInput as error:
        assert not inside and error.where == "here, x" and error.found == shown(value)


anything = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5) | st.binary(max_size=2) | st.dates(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=8,
)


@given(st.dictionaries(st.sampled_from([*World.model_fields, "schema", "paec"]), anything), anything)
def test_whatever_comes_is_read_or_refused_in_one_line(values: dict[str, Any], alone: Any) -> None:
    for given_ in (values, {"pace": {"h_min": 3}} | values, alone):
        try:
            assert isinstance(read(World, given_, "here"), World)
        except BadInput as error:
            assert "\n" not in str(error) and error.where.startswith("here")


def test_a_validator_names_its_field() -> None:
    class Both(Model):
        a: Listed[Pace]

        @model_validator(mode="after")
        def _never(self) -> Both:
            raise refuse("a[0].h_min", "{odd} braces", "others")

    with pytest.raises(BadInput, match=r"here, a\[0\]\.h_min: found \{odd\} braces; expected others"):
        read(Both, {"a": []}, "here")


def test_nothing_is_infinite() -> None:
    for value in (math.inf, -math.inf, math.nan):
        with pytest.raises(BadInput, match="expected a finite number"):
            read(World, {"pace": {"h_min": 1}, "shares": {"a": value}}, "here")
