"""Tables on terminals: nothing wider than the terminal, no word broken, nothing lost."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from reports.fitted import fitted, indented

HEADS = ("Arm", "Violations (%)", "Requests", "Verdict")
ROWS = [
    ["wa_diloco", "6.46 [6.02, 6.89]", "6096", "not licensed"],
    ["random_matched", "6.38 [5.50, 7.27]", "–", "undecidable"],
]


def test_as_wide_as_its_content_where_there_is_room() -> None:
    assert fitted(HEADS, ROWS, 80, names=(0,), right=(2,)).plain.split("\n") == [
        "Arm             Violations (%)     Requests  Verdict",
        "wa_diloco       6.46 [6.02, 6.89]      6096  not licensed",
        "random_matched  6.38 [5.50, 7.27]         –  undecidable",
    ]


def test_text_wraps_at_spaces_before_a_name_is_shortened() -> None:
    text = fitted(HEADS, ROWS, 50, names=(0,)).plain
    assert "…" not in text and max(map(len, text.split("\n"))) <= 50
    assert "…" in fitted(HEADS, ROWS, 47, names=(0,)).plain


def test_names_give_way_last_and_in_their_middle() -> None:
    rows = [["a_name_that_is_longer_than_most.py", "12 pp"]]
    assert fitted(("Arm", "Gain"), rows, 24, names=(0,)).plain.split("\n")[1] == "a_name_that…ost.py  12"


def test_what_does_not_fit_side_by_side_is_stacked() -> None:
    assert fitted(HEADS, ROWS[1:], 32).plain.split("\n") == [
        "random_matched",
        "  Violations (%): 6.38 [5.50,",
        "    7.27]",
        "  Verdict: undecidable",
    ]


def test_columns_that_say_nothing_are_left_out() -> None:
    assert "Requests" not in fitted(HEADS, [[*row[:2], "–", row[3]] for row in ROWS], 80).plain


def test_a_table_without_rows() -> None:
    assert len(fitted(("", ""), [], 80)) == 0


def test_indented_text() -> None:
    assert indented("one two three", 13).plain == "    one two\n    three"


@given(
    st.lists(st.lists(st.text("ab -_\u00a0[]", max_size=30), min_size=3, max_size=3), max_size=4),
    st.integers(12, 120),
    st.booleans(),
)
def test_never_wider_than_the_terminal(rows: list[list[str]], width: int, named: bool) -> None:
    lines = fitted(("Name", "What it is", "n"), rows, width, names=(0,) if named else (), right=(2,)).plain.split("\n")
    assert max(map(len, lines)) <= width


@pytest.mark.parametrize("width", [40, 60, 80, 120])
def test_every_word_of_a_table_is_there_whole(width: int) -> None:
    text = fitted(HEADS, ROWS, width).plain
    words = {word for row in ROWS for cell in row for word in cell.split() if word != "–"}
    assert words <= set(text.split())
