"""How numbers and names are shown: the only module that rounds, renders units or escapes.

Unknown (None, NaN) is shown as a dash, never as 0.  Names come from users, so every renderer first makes
control characters and direction overrides visible.
"""

from __future__ import annotations

import json
import math
import re
import unicodedata
from collections.abc import Mapping, Sequence
from typing import Any

from protocol.files import clean as clean

UNKNOWN = "–"
MINUS = "−"
#: A thin space groups digits; a no-break space keeps a number and its unit on one line.
_THIN, _NBSP = "\u2009", "\u00a0"

VERDICTS = {"PASS": "passed", "FAIL": "failed", "INCONCLUSIVE": "undecidable"}
MARKS = {"passed": "✓", "failed": "✗", "undecidable": "?"}


# Numbers ---------------------------------------------------------------------------------------------------------


def known(value: object) -> bool:
    """True for a finite number."""
    return isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)


def fixed(value: Any, digits: int = 2, sign: bool = False) -> str:
    """`digits` decimals with a true minus sign; what rounds to zero has no sign."""
    if not known(value):
        return UNKNOWN
    text = f"{value:+.{digits}f}" if sign else f"{value:.{digits}f}"
    if float(text) == 0:
        text = text.lstrip("+-")
    return text.replace("-", MINUS)


def number(value: Any, digits: int = 4) -> str:
    """`digits` significant digits for a value whose scale is not known beforehand; whole numbers in full."""
    if isinstance(value, bool):
        return "yes" if value else "no"
    if not known(value):
        return UNKNOWN
    if float(value).is_integer() and abs(value) < 1e15:
        return count(int(value))
    return f"{value:.{digits}g}".replace("-", MINUS)


def count(value: Any) -> str:
    """A whole number, digits in groups of three from 10 000 on."""
    if not known(value):
        return UNKNOWN
    text = f"{abs(int(value)):,}".replace(",", _THIN) if abs(value) >= 10_000 else str(abs(int(value)))
    return (MINUS if value < 0 else "") + text


def pp(value: Any, sign: bool = False) -> str:
    """Percentage points, two decimals."""
    return fixed(value, 2, sign) + (f"{_NBSP}pp" if known(value) else "")


def percent(value: Any, digits: int = 2) -> str:
    """A value that already is a percentage."""
    return fixed(value, digits) + (f"{_NBSP}%" if known(value) else "")


def fraction(value: Any) -> str:
    """A fraction as a percentage without decimals."""
    return percent(100 * value, 0) if known(value) else UNKNOWN


def seconds(value: Any) -> str:
    return number(value) + (f"{_NBSP}s" if known(value) else "")


def p_value(value: Any) -> str:
    """A p-value without its `p`: never 0, never rounded across a usual level.

    >>> p_value(0.00002), p_value(0.0123), p_value(0.43)
    ('< 0.001', '0.0123', '0.430')
    """
    if not known(value):
        return UNKNOWN
    if value < 0.001:
        return "< 0.001"
    return f"{value:.4f}" if value < 0.1 else f"{value:.3f}"


def p_text(value: Any, name: str = "p") -> str:
    """`p = 0.0123` or `p < 0.001`."""
    text = p_value(value)
    return f"{name} {text}" if text.startswith("<") else f"{name} = {text}"


def interval(limits: Any, digits: int = 2) -> str:
    """`[0.80, 2.11]`; a side that is not known stays open as a dash."""
    if not isinstance(limits, Sequence) or isinstance(limits, str) or len(limits) != 2:
        return UNKNOWN
    return f"[{fixed(limits[0], digits)}, {fixed(limits[1], digits)}]"


def interval_number(limits: Any) -> str:
    """An interval of values whose scale is not known beforehand."""
    if not isinstance(limits, Sequence) or isinstance(limits, str) or len(limits) != 2:
        return UNKNOWN
    return f"[{number(limits[0], 3)}, {number(limits[1], 3)}]"


def rank(place: Any, of: Any) -> str:
    """`3 of 1000`."""
    return f"{count(place)}{_NBSP}of{_NBSP}{count(of)}" if known(place) and known(of) else UNKNOWN


def plain(value: Any) -> str:
    """Any plain value of a certificate on one line, its numbers in full: settings must be repeatable from it."""
    if value is None:
        return UNKNOWN
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, int | float):
        return repr(value).removesuffix(".0") if known(value) else UNKNOWN
    if isinstance(value, str):
        return clean(value)
    if isinstance(value, Mapping):
        return "; ".join(f"{clean(str(k))}: {plain(v)}" for k, v in sorted(value.items())) or UNKNOWN
    if isinstance(value, Sequence):
        shown = [plain(v) for v in value]
        if len(shown) > 2 and len(set(shown)) == 1:
            return f"{len(shown)} times {shown[0]}"
        return ", ".join(shown) or UNKNOWN
    return clean(json.dumps(value, default=str))


def brief(value: Any) -> str:
    """As `plain`, for what only explains: six digits of every number."""
    return plain(_six_digits(value))


def _six_digits(value: Any) -> Any:
    if isinstance(value, float) and known(value):
        return float(f"{value:.6g}")
    if isinstance(value, Mapping):
        return {k: _six_digits(v) for k, v in value.items()}
    return [_six_digits(v) for v in value] if isinstance(value, list | tuple) else value


# Names -----------------------------------------------------------------------------------------------------------


def shortened(text: object, width: int) -> str:
    """The clean text in at most `width` characters, its middle left out."""
    whole = clean(text)
    if len(whole) <= width:
        return whole
    head = (width - 1) * 2 // 3
    return f"{whole[:head]}…{whole[len(whole) - (width - 1 - head) :]}"


def slug(text: str) -> str:
    """Lower-case ASCII letters, digits and dashes: safe as part of a file name or an id."""
    return re.sub(r"[^a-z0-9]+", "-", text.lower()).strip("-")[:40] or "x"


def figure_name(index: int, claim: Mapping[str, Any], kind: str = "envelope") -> str:
    """Name of a figure of claim number `index` (from 0), unique whatever the regimes are called."""
    return f"{kind}-{index + 1:02d}-{slug(str(claim['regime']))}"


def transfer_name(index: int, transfer: Mapping[str, Any]) -> str:
    """Name of the figure of latencies around merges number `index` (from 0)."""
    return f"transfer-{index + 1:02d}-{slug(str(transfer['name']))}"


OVERVIEW = "gain-overview"


def tests_of(certificate: Mapping[str, Any]) -> list[str]:
    """The tests behind the claims, by the one name that each has everywhere, in the order of the certificate."""
    return list(dict.fromkeys(t["name"] for claim in certificate["claims"] for t in claim["envelope"]["tests"]))


def level(certificate: Mapping[str, Any]) -> str:
    """`95 %`: the level of every interval, which follows from that of the certificate."""
    return f"{100 * (1 - certificate['settings']['alpha']):g} %"


# Escaping --------------------------------------------------------------------------------------------------------

_LATEX = {
    "\\": r"\textbackslash{}", "{": r"\{", "}": r"\}", "$": r"\$", "&": r"\&", "#": r"\#", "%": r"\%", "_": r"\_",
    "^": r"\textasciicircum{}", "~": r"\textasciitilde{}", "<": r"$<$", ">": r"$>$", "|": r"\textbar{}",
    '"': r"\symbol{34}", "`": r"\textasciigrave{}", "[": "{[}", "]": "{]}",
    MINUS: r"$-$", "–": "--", "—": "---", "…": r"\ldots{}", "≤": r"$\le$", "≥": r"$\ge$",
    "±": r"$\pm$", "×": r"$\times$", "·": r"$\cdot$", "µ": r"$\mu$", _NBSP: "~", _THIN: r"\,",
    "‘": "`", "’": "'", "“": "``", "”": "''",
}  # fmt: skip
_MARKDOWN = {char: f"\\{char}" for char in "\\`*_{}[]|~#$!"} | {"&": "&amp;", "<": "&lt;", ">": "&gt;"}


def latex(text: object) -> str:
    """Text for a LaTeX cell.  What plain pdflatex cannot set (beyond Western Latin) becomes U+XXXX."""

    def one(char: str) -> str:
        if char in _LATEX:
            return _LATEX[char]
        accented = unicodedata.decomposition(char)[:1].isalnum() or char in "ßæøÆØ"
        return char if char < "\x7f" or (char < "\u0100" and accented) else f"U+{ord(char):04X}"

    # Two hyphens in a row would be set as a dash.
    return "".join(one(char) for char in re.sub("-(?=-)", "-\0", clean(text))).replace("\0", "{}")


def markdown(text: object) -> str:
    """Text for a Markdown table cell: no markup, no HTML, no cell border."""
    return "".join(_MARKDOWN.get(char, char) for char in clean(text))


def csv_text(text: object) -> str:
    """Text for a CSV cell; a leading sign that a spreadsheet would read as a formula gets an apostrophe."""
    shown = clean(text)
    return f"'{shown}" if shown[:1] in ("=", "+", "-", "@") else shown
