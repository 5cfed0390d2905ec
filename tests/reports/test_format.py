"""Numbers and names as shown."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st
from sample_certificate import HOSTILE

from reports import format as fmt


@pytest.mark.parametrize(
    ("value", "shown"),
    [(0.0, "< 0.001"), (1e-9, "< 0.001"), (0.00099, "< 0.001"), (0.001, "0.0010"), (0.0504, "0.0504"), (0.43, "0.430"),
     (1.0, "1.000"), (None, "–"), (math.nan, "–")],
)  # fmt: skip
def test_p_value(value: float | None, shown: str) -> None:
    assert fmt.p_value(value) == shown


@given(st.floats(0, 1))
def test_a_p_value_is_never_zero(p: float) -> None:
    shown = fmt.p_value(p)
    assert shown == "< 0.001" if p < 0.001 else float(shown) == pytest.approx(p, abs=6e-4) and float(shown) > 0


@given(st.floats(0, 1))
def test_rounding_moves_no_p_value_across_five_percent_by_more_than_its_last_digit(p: float) -> None:
    shown = fmt.p_value(p)
    if p >= 0.05 + 5e-5:
        assert float(shown) > 0.05


def test_units_and_signs() -> None:
    assert fmt.pp(1.4649, sign=True) == "+1.46\u00a0pp"
    assert fmt.pp(-0.344) == "−0.34\u00a0pp"
    assert fmt.pp(-0.001, sign=True) == "0.00\u00a0pp"
    assert fmt.fraction(0.257) == "26\u00a0%"
    assert fmt.count(82_400) == "82\u2009400" and fmt.count(7_183) == "7183"
    assert fmt.interval([0.8, 2.111]) == "[0.80, 2.11]" and fmt.interval([None, 2.0]) == "[–, 2.00]"
    assert fmt.rank(3, 1000) == "3\u00a0of\u00a01000"


@pytest.mark.parametrize(
    "show", [fmt.fixed, fmt.number, fmt.count, fmt.pp, fmt.percent, fmt.fraction, fmt.seconds, fmt.interval]
)
@pytest.mark.parametrize("value", [None, math.nan, math.inf])
def test_unknown_is_a_dash_never_zero(show, value) -> None:
    assert show(value) == "–"


def test_plain_values() -> None:
    assert fmt.plain({"b": [1, 2], "a": None, "c": True}) == "a: –; b: 1, 2; c: yes"
    assert fmt.plain([20260601, 0.1, 2.0, -1e-9, math.nan]) == "20260601, 0.1, 2, -1e-09, –"
    assert fmt.plain([]) == "–" and fmt.plain("x\ny") == "x y"
    assert fmt.brief({"a": [1.6210024199999975, 20260601], "b": math.nan}) == "a: 1.621, 20260601; b: –"


@given(st.text())
def test_clean_leaves_nothing_that_controls_a_terminal_or_a_line(text: str) -> None:
    shown = fmt.clean(text)
    assert shown.isprintable() or all(c.isprintable() or c.isspace() for c in shown)
    assert not set(shown) & set("\x1b\x07\n\r\u202e\u2066\u200b\u2028\x00")


@given(st.text(), st.integers(2, 30))
def test_shortened(text: str, width: int) -> None:
    whole, short = fmt.clean(text), fmt.shortened(text, width)
    assert len(short) <= width
    assert short == whole if len(whole) <= width else whole.startswith(short.split("…")[0])


@given(st.text())
def test_latex_is_safe(text: str) -> None:
    """What is left of the specials after the commands that the escape itself writes are taken away: none."""
    shown = fmt.latex(text)
    for own in sorted([*fmt._LATEX.values(), "-{}"], key=len, reverse=True):
        shown = shown.replace(own, "")
    assert not set(shown) & set("\\{}$&#%_^~\n")
    assert all(ord(c) < 0x100 for c in shown)


def test_latex_examples() -> None:
    assert fmt.latex("50%_$x & #1") == r"50\%\_\$x \& \#1"
    assert fmt.latex("a--b −1 ≤ ü 漢") == r"a-{}-b $-$1 $\le$ ü U+6F22"


def test_markdown_examples() -> None:
    assert fmt.markdown("a|b <i> [x](y) *z*") == r"a\|b &lt;i&gt; \[x\](y) \*z\*"


@pytest.mark.parametrize("text", ["=1+1", "+x", "-x", "@x"])
def test_csv_cells_are_no_formulas(text: str) -> None:
    assert fmt.csv_text(text) == "'" + text


def test_figure_names_are_safe_and_distinct() -> None:
    names = [fmt.figure_name(i, {"regime": r}) for i, r in enumerate((HOSTILE, HOSTILE, "../../etc", "漢字"))]
    assert len(set(names)) == 4
    assert all(c.isascii() and (c.isalnum() or c == "-") for name in names for c in name)
