"""Constructor arguments of a scheduler on the command line: `FILE:Class(threshold=4)`."""

from __future__ import annotations

import ast
from collections.abc import Mapping
from typing import Any

from protocol.errors import BadInput

#: What a constructor may be given on the command line.
Argument = None | bool | int | float | str
FORM = "FILE:Class(name=value, ...) with numbers, texts, True, False or None"
_MOST_CHARACTERS = 10_000


def split_parameters(spec: str) -> tuple[str, dict[str, Any]]:
    """A scheduler without its arguments, and these; plain constants only, nothing is evaluated.

    >>> split_parameters("quiet.py:Quiet(threshold=4, name='a')")
    ('quiet.py:Quiet', {'threshold': 4, 'name': 'a'})

    Raises BadInput on anything else between the brackets.
    """
    head, bracket, rest = spec.partition("(")
    if not bracket or not spec.endswith(")") or spec.startswith("cmd:"):
        return spec, {}
    if len(spec) > _MOST_CHARACTERS:
        raise BadInput("scheduler", f"{len(spec)} characters", f"at most {_MOST_CHARACTERS}")
    try:
        call = ast.parse(f"f({rest}", mode="eval").body
        if not isinstance(call, ast.Call) or call.args or not isinstance(call.func, ast.Name):
            raise ValueError
        found = {}
        for keyword in call.keywords:
            if keyword.arg is None or keyword.arg in found:
                raise ValueError
            found[keyword.arg] = _constant(ast.literal_eval(keyword.value))
    except (ValueError, SyntaxError, RecursionError, MemoryError):
        raise BadInput("scheduler", repr(spec)[:200], FORM) from None
    return head, found


def literal(text: str) -> Any:
    """A number, True, False or None where the text is one, else the text."""
    try:
        return _constant(ast.literal_eval(text.strip()))
    except (ValueError, SyntaxError, RecursionError, MemoryError):
        return text.strip()


def with_parameters(spec: str, parameters: Mapping[str, Any]) -> str:
    """The scheduler with these arguments beside those that it has.  Raises BadInput on one given twice."""
    head, own = split_parameters(spec)
    for name in parameters:
        if name in own:
            raise BadInput("--param", f"{name}, which {spec} has already", "each argument once")
    inside = ", ".join(f"{name}={value!r}" for name, value in {**own, **parameters}.items())
    return f"{head}({inside})"


def _constant(value: Any) -> Any:
    if value is None or isinstance(value, bool | int | float | str):
        return value
    raise ValueError
