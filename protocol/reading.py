"""What people write, read by typed models: one line says where it is wrong, what was found and what was expected.

`Model` is the base of everything that is read from a file: regimes, sidecar models, calibrations.  `parse_toml` and
`parse_json` read a whole file, `read` values that are there already; all three raise BadInput and nothing else.
"""

from __future__ import annotations

import difflib
import json
import math
import reprlib
import tomllib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Self, TypeVar

from pydantic import (
    AfterValidator,
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    GetCoreSchemaHandler,
    ValidationError,
    model_validator,
)
from pydantic.fields import FieldInfo
from pydantic_core import CoreSchema, PydanticCustomError, core_schema

from protocol.errors import BadInput

T = TypeVar("T")
#: A list in a file, a tuple in memory.
Listed = Annotated[tuple[T, ...], Field(strict=False)]


class Model(BaseModel):
    """Immutable, with no other keys than its own.

    Types are taken at their word: an integer may stand for a float, but no 1.0 for a 1, no bool or text for a number;
    no number is NaN or infinite.  Constructors take keywords and raise pydantic's ValidationError, which is a mistake
    of the caller's; values that somebody gave come through `read`.
    """

    model_config = ConfigDict(frozen=True, extra="forbid", strict=True, allow_inf_nan=False)

    @model_validator(mode="before")
    @classmethod
    def _keys(cls, values: Any) -> Any:
        """Unknown keys before missing ones: who misspells a key also lacks it."""
        if not isinstance(values, Mapping):
            return values
        fields = {field.alias or name: field for name, field in cls.model_fields.items()}
        if cls.model_config.get("extra") == "forbid":
            for key in values:
                if key not in fields:
                    raise refuse(
                        "", f"unknown key {shown(key)}", f"{', '.join(sorted(fields))}{near(str(key), fields)}"
                    )
        for key, field in fields.items():
            if field.is_required() and key not in values:
                what = f"table [{key}]" if _is_table(field) else key
                raise refuse("", f"no {what}", f"a {what}" if _is_table(field) else f"a value for {key}")
        return values

    @property
    def label(self) -> str:
        """What it is called in messages that no file is behind."""
        return type(self).__name__.lower()

    def replace(self, **changes: Any) -> Self:
        """The same with some fields changed, validated again.  Raises BadInput."""
        fields = type(self).model_fields
        given = {(name in fields and fields[name].alias) or name: getattr(self, name) for name in self.model_fields_set}
        return read(type(self), given | changes, self.label)

    def plain(self) -> dict[str, Any]:
        """What was given, as JSON knows it: read again, it is the same."""
        return self.model_dump(mode="json", by_alias=True, exclude_unset=True)


M = TypeVar("M", bound=Model)


@dataclass(frozen=True)
class Range:
    """`Annotated[float, Range(0, 10)]`: numbers from `least` to `most`, without `least` itself where `above`."""

    least: float = -math.inf
    most: float = math.inf
    above: bool = False

    def __get_pydantic_core_schema__(self, source: Any, handler: GetCoreSchemaHandler) -> CoreSchema:
        whole = source is int

        def check(value: Any, inner: core_schema.ValidatorFunctionWrapHandler) -> Any:
            try:
                found = inner(value)
            except ValidationError:
                raise refuse("", shown(value), self._expected(value, whole)) from None
            if not self._holds(found):
                raise refuse("", shown(value), self._expected(value, whole))
            return found

        return core_schema.no_info_wrap_validator_function(check, handler(source))

    def check(self, field: str, value: float, whole: bool = False) -> None:
        """For a validator: refuse a value of `field` that is outside."""
        if not self._holds(value):
            raise refuse(field, shown(value), self._expected(value, whole))

    def _holds(self, value: float) -> bool:
        return self.least <= value <= self.most and not (self.above and value == self.least)

    def _expected(self, value: object, whole: bool) -> str:
        kind, least, most = "a whole number" if whole else "a number", _number(self.least), _number(self.most)
        if math.isinf(self.least):
            return "a finite number" if isinstance(value, float) and not whole else kind
        if math.isinf(self.most):
            return f"{kind} above {least}" if self.above else f"{kind} from {least} on"
        return f"{kind} above {least}, at most {most}" if self.above else f"{kind} from {least} to {most}"


def _whole(value: Any) -> Any:
    if not isinstance(value, int) or isinstance(value, bool):
        raise refuse("", shown(value), "a whole number")
    return value


#: That of a file and what stands before it fits.
_LONGEST_NAME = 300


def _name(text: str) -> str:
    if not text or text != text.strip() or not text.isprintable():
        raise refuse("", shown(text), "a name in printable characters, without blanks around it")
    if len(text) > _LONGEST_NAME:
        raise refuse("", f"{len(text)} characters", f"a name of at most {_LONGEST_NAME}")
    return text


#: `Annotated[Literal[1, 2], Whole]`: to a Literal alone, True is 1.
Whole = BeforeValidator(_whole)
#: Whole or not, kept as it was written.
Finite = Annotated[int | float, Range()]
Count = Annotated[int, Range(0)]
Name = Annotated[str, AfterValidator(_name)]


def refuse(field: str, found: str, expected: str) -> PydanticCustomError:
    """For validators to raise.  field : dotted, below what is validated; empty for that itself."""
    context = {"field": field, "found": found, "expected": expected}
    return PydanticCustomError("refused", "found {found}; expected {expected}", context)


def near(name: str, known: Iterable[str], n: int = 1) -> str:
    """'; did you mean ...?' with up to n near names, or nothing."""
    found = difflib.get_close_matches(name, list(known), n=n)
    return f"; did you mean {' or '.join(found)}?" if found else ""


def read(model: type[M], values: object, source: str) -> M:
    """A model from plain values.  source : file or option that they come from.  Raises BadInput."""
    try:
        return model.model_validate(values)
    except ValidationError as error:
        raise _refusal(error, source) from None
    except RecursionError:
        raise BadInput(source, "values that are nested too deeply", "a few levels") from None


def parse_toml(text: str, source: str, model: type[M]) -> M:
    """A model from TOML.  Raises BadInput."""
    try:
        values = tomllib.loads(text)
    except RecursionError:
        raise BadInput(source, "TOML that is nested too deeply", "a few levels") from None
    except ValueError as error:  # a TOMLDecodeError, or a number of thousands of digits
        raise BadInput(source, f"broken TOML ({_one_line(error)})", "TOML") from None
    return read(model, values, source)


def parse_json(data: str | bytes, source: str, model: type[M]) -> M:
    """A model from JSON.  Raises BadInput."""
    return read(model, json_values(data, source), source)


def json_values(data: str | bytes, source: str) -> Any:
    """What JSON text says, NaN and infinities refused.  Raises BadInput."""
    try:
        text = data if isinstance(data, str) else data.decode()
        return json.loads(text, parse_constant=_no_constant, parse_float=_finite)
    except RecursionError:
        raise BadInput(source, "JSON that is nested too deeply", "a few levels") from None
    except ValueError as error:  # broken, not UTF-8, a NaN, or a number of thousands of digits
        raise BadInput(source, f"broken JSON ({_one_line(error)})", "JSON") from None


def text_of(path: Path, expected: str) -> str:
    """The text of a file.  Raises BadInput when it cannot be read or is not UTF-8."""
    try:
        return path.read_text("utf-8")
    except OSError as error:
        found = error.strerror or type(error).__name__
    except ValueError as error:  # not UTF-8, or no path at all
        found = _one_line(error)
    raise BadInput(_printable(str(path)), f"an unreadable file ({found})", expected)


def shown(value: object) -> str:
    """A value in a message: its repr, short."""
    try:
        return _SHORT.repr(value)
    except ValueError:  # of an integer with thousands of digits
        return "a number of thousands of digits"


def _refusal(error: ValidationError, source: str) -> BadInput:
    """The first error in one line."""
    first = error.errors(include_url=False)[0]
    context, kind, found = first.get("ctx", {}), first["type"], shown(first["input"])
    path = "".join(f"[{part}]" if isinstance(part, int) else f".{_printable(part)}" for part in first["loc"])
    expected = _EXPECTED.get(kind) or _one_line(first["msg"].removeprefix("Input should be "))
    if kind == "refused":
        path += f".{context['field']}" if context["field"] else ""
        found, expected = context["found"], context["expected"]
    elif kind == "literal_error":
        known = [word.strip("'") for word in context["expected"].replace(" or ", ", ").split(", ")]
        hint = near(first["input"], known) if isinstance(first["input"], str) else ""
        expected = f"{known[0] if len(known) == 1 else 'one of ' + ', '.join(known)}{hint}"
    elif kind in ("too_short", "too_long"):
        found = f"{context['actual_length']} values" if context["actual_length"] else "an empty list"
        expected = f"at least {context['min_length']}" if kind == "too_short" else f"at most {context['max_length']}"
    return BadInput(f"{source}, {path.lstrip('.')}" if path else source, found, expected)


#: pydantic's kinds of error.
_EXPECTED = {
    "int_type": "a whole number", "float_type": "a number", "finite_number": "a finite number",
    "string_type": "a text", "bool_type": "true or false", "tuple_type": "a list", "list_type": "a list",
    "model_type": "a table", "dict_type": "a table", "mapping_type": "a table", "int_parsing_size": "a smaller number",
}  # fmt: skip
_SHORT = reprlib.Repr()
_SHORT.maxstring = _SHORT.maxother = _SHORT.maxlong = 80
_SHORT.maxlevel = 3


def _is_table(field: FieldInfo) -> bool:
    return isinstance(field.annotation, type) and issubclass(field.annotation, Model)


def _number(value: float) -> str:
    return str(value) if isinstance(value, int) else f"{value:g}"


def _printable(text: object) -> str:
    return text if isinstance(text, str) and text.isprintable() else repr(text)


def _one_line(error: object) -> str:
    return " ".join(str(error).split())


def _no_constant(text: str) -> float:
    raise ValueError(f"{text} is no number")


def _finite(text: str) -> float:
    if math.isinf(value := float(text)):
        raise ValueError(f"{text:.20} is too large a number")
    return value
