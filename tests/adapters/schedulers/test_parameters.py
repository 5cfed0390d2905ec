"""Constructor arguments on the command line."""

from __future__ import annotations

import math
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from adapters.schedulers.parameters import literal, split_parameters, with_parameters
from protocol.errors import BadInput

VALUES = st.one_of(
    st.none(), st.booleans(), st.integers(), st.floats(allow_nan=False, allow_infinity=False), st.text(max_size=20)
)
NAMES = st.from_regex(r"[a-z_][a-z0-9_]{0,8}", fullmatch=True).filter(str.isidentifier)


@given(st.dictionaries(NAMES.filter(lambda name: name not in ("None", "True", "False")), VALUES, max_size=4))
def test_what_is_written_is_read(parameters: dict[str, Any]) -> None:
    import keyword

    if any(map(keyword.iskeyword, parameters)):
        return
    head, found = split_parameters(with_parameters("a/b.py:Class", parameters))
    assert (head, found) == ("a/b.py:Class", parameters)
    assert all(type(found[key]) is type(value) for key, value in parameters.items())


@pytest.mark.parametrize("spec", ["a.py", "a.py:Class", "cmd:node f.mjs (1)", "fixed-h"])
def test_no_arguments(spec: str) -> None:
    assert split_parameters(spec) == (spec, {})


BAD = [
    "4",
    "x=__import__('os')",
    "x=[1]",
    "x=1, x=2",
    "**{'x': 1}",
    "x=f()",
    "x=1)(y=2",
    "=",
    "x=" + "(" * 300 + ")" * 300,
]


@pytest.mark.parametrize("inside", BAD)
def test_nothing_but_named_constants(inside: str) -> None:
    with pytest.raises(BadInput, match="scheduler: found"):
        split_parameters(f"a.py:Class({inside})")


def test_values_of_a_list() -> None:
    assert [literal(word) for word in ("4", "0.5", "True", "None", "fast", "'4'", " 7")] == [
        4, 0.5, True, None, "fast", "4", 7,
    ]  # fmt: skip
    assert literal("1e999") == math.inf and literal("[1]") == "[1]"


def test_an_argument_is_given_once() -> None:
    assert with_parameters("a.py:C(x=1)", {"y": 2}) == "a.py:C(x=1, y=2)"
    with pytest.raises(BadInput, match="each argument once"):
        with_parameters("a.py:C(x=1)", {"x": 2})
