"""LaTeX (booktabs) of a certificate's tables, as wide as a column or a page of any usual class.

Every file is a list of floats that plain pdflatex sets in one- and two-column classes: no longtable, which two columns
forbid, and nothing wider than the narrowest class has room for.  They need the packages array and booktabs.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from protocol.errors import BadInput
from reports import format as fmt
from reports.figures import Width

Row = Mapping[str, Any]
#: The least text width of the classes in pt: a column of article with two, a page of article with one.
ROOM_PT: dict[Width, float] = {"column": 229.0, "page": 345.0}
#: Size, pt of a character and of the space at either side of a column.
_SIZES = (("footnotesize", 4.35, 3.0), ("scriptsize", 3.85, 2.0))
#: Relations and the broadest letters are wider than a digit, by this much.
_WIDE = dict.fromkeys("<>=", 1.8) | dict.fromkeys("mMwW%@&", 1.4)
#: Lines of a float, and floats after which a page is begun: LaTeX keeps only so many waiting.
_LINES, _FLOATS = 40, 8
_STARS = ((0.001, "***"), (0.01, "**"), (0.05, "*"))
MARKS = "* below 0.05, ** below 0.01, *** below 0.001"


@dataclass(frozen=True)
class Cell:
    """A column of a LaTeX table: the lines of each row's cell, beneath the lines of its heading.

    share : of the room that is left, for text that breaks; 0 where every line stays whole.
    """

    key: str
    heading: Sequence[str]
    lines: Callable[[Row], Sequence[str]]
    share: float = 0.0


@dataclass(frozen=True)
class Float:
    """One float: `label` is unique within the file.  group : what stands above the rows that share it."""

    label: str
    caption: str
    cells: Sequence[Cell]
    rows: Sequence[Row]
    group: Callable[[Row], str] | None = None


def stars(p: Any) -> str:
    """Marks of a Holm-corrected p-value.

    >>> stars(0.004), stars(0.2), stars(None)
    ('**', '', '')
    """
    return next((mark for level, mark in _STARS if fmt.known(p) and p < level), "")


def document(floats: Sequence[Float], width: Width) -> str:
    """All floats of one file; a long one goes on in further floats."""
    parts = [part for one in floats for part in _parts(one, width)]
    lines = ["% needs \\usepackage{array,booktabs}"]
    for k, part in enumerate(parts, start=1):
        lines += [part, *([r"\clearpage"] if k % _FLOATS == 0 and k < len(parts) else [])]
    return "\n".join(lines) + "\n"


def check_room(cells: Sequence[Cell], rows: Sequence[Row], width: Width) -> None:
    """Raises BadInput when columns that were asked for do not fit."""
    takes = needed(cells, rows)
    if takes > ROOM_PT[width]:
        which = ", ".join(c.key for c in cells)
        expected = f"at most {ROOM_PT[width]:.0f} pt: fewer columns" + ("" if width == "page" else ", or --width page")
        raise BadInput("--columns", f"{which}, which take {takes:.0f} pt", expected)


def needed(cells: Sequence[Cell], rows: Sequence[Row]) -> float:
    """Points that a table takes at its smallest."""
    return min(_needed(cells, rows, *size[1:]) for size in _SIZES)


def _needed(cells: Sequence[Cell], rows: Sequence[Row], char_pt: float, gap_pt: float) -> float:
    """Points that a table takes when what can break is as narrow as it may be."""
    return sum(_whole(c, rows, char_pt) if not c.share else 12 * char_pt for c in cells) + _gaps(cells, gap_pt)


def _gaps(cells: Sequence[Cell], gap_pt: float) -> float:
    return 2 * gap_pt * (len(cells) - 1)


def _whole(cell: Cell, rows: Sequence[Row], char_pt: float) -> float:
    texts = [*cell.heading, *(line for row in rows for line in cell.lines(row))]
    return char_pt * max((sum(_WIDE.get(c, 1.0) for c in text) for text in texts), default=0.0)


def _parts(one: Float, width: Width) -> Iterator[str]:
    name, char_pt, gap_pt = next(
        (size for size in _SIZES if _needed(one.cells, one.rows, *size[1:]) <= ROOM_PT[width]), _SIZES[-1]
    )
    left = (
        ROOM_PT[width] - _gaps(one.cells, gap_pt) - sum(_whole(c, one.rows, char_pt) for c in one.cells if not c.share)
    )
    shares = sum(c.share for c in one.cells)
    widths = {c.key: left * c.share / shares for c in one.cells if c.share}
    groups = list(_grouped(one, widths, char_pt)) or [[]]
    for k, rows in enumerate(groups):
        caption = one.caption if k == 0 else f"{one.caption.partition('.')[0]}, continued."
        yield _float(one, rows, widths, (name, gap_pt), width, caption, one.label if k == 0 else f"{one.label}-{k + 1}")


def _grouped(one: Float, widths: Mapping[str, float], char_pt: float) -> Iterator[list[Row]]:
    """Rows by the lines that they are likely to take."""
    group: list[Row] = []
    used = 0
    for row in one.rows:
        lines = max(
            sum(1 + int(len(text) * char_pt // widths[c.key]) for text in c.lines(row))
            if c.share
            else len(c.lines(row))
            for c in one.cells
        )
        if one.group is not None and not (group and one.group(group[-1]) == one.group(row)):
            lines += 1
        if group and used + lines > _LINES:
            yield group
            group, used = [], 0
        group, used = [*group, row], used + lines
    if group:
        yield group


def _float(
    one: Float, rows: Sequence[Row], widths: Mapping[str, float], size: tuple[str, float], width: Width, caption: str,
    label: str,
) -> str:  # fmt: skip
    kind = "table*" if width == "page" else "table"
    columns = [
        rf">{{\raggedright\arraybackslash}}p{{{widths[c.key]:.1f}pt}}" if c.share else "l" if k == 0 else "r"
        for k, c in enumerate(one.cells)
    ]
    head = " & ".join(_stacked([fmt.latex(line) for line in c.heading], c, k) for k, c in enumerate(one.cells))
    body: list[str] = []
    above = None
    for row in rows:
        if one.group is not None and one.group(row) != above:
            body += [r"\addlinespace"] if above is not None else []
            above = one.group(row)
            # Of no width of its own, so that it stretches no column.
            name = rf"\parbox[t]{{{ROOM_PT[width] - 1:.0f}pt}}{{\raggedright\itshape {breakable(above)}}}"
            body.append(rf"\multicolumn{{{len(one.cells)}}}{{@{{}}l@{{}}}}{{\makebox[0pt][l]{{{name}}}}} \\")
        body.append(" & ".join(_cell(c, row, k) for k, c in enumerate(one.cells)) + r" \\")
    letters, gap = size
    return "\n".join([
        rf"\begin{{{kind}}}[tp]",
        rf"\caption{{{fmt.latex(caption)}}}\label{{tab:{label}}}\vspace{{3pt}}",
        rf"\centering\{letters}\setlength{{\tabcolsep}}{{{gap:g}pt}}",
        rf"\begin{{tabular}}{{@{{}}{''.join(columns)}@{{}}}}",
        rf"\toprule {head} \\ \midrule",
        *body,
        r"\bottomrule",
        r"\end{tabular}",
        rf"\end{{{kind}}}",
    ])  # fmt: skip


def _cell(cell: Cell, row: Row, place: int) -> str:
    lines = cell.lines(row)
    if cell.share:
        return r" \newline ".join(breakable(line) for line in lines)
    return _stacked([fmt.latex(line) for line in lines], cell, place)


def _stacked(lines: Sequence[str], cell: Cell, place: int) -> str:
    """Short lines above each other; the first of a cell stands in the row's own line."""
    if len(lines) < 2 or cell.share:
        return " ".join(lines)
    align = "l" if place == 0 else "r"
    inner = r" \\ ".join(lines)
    return rf"\begin{{tabular}}[t]{{@{{}}{align}@{{}}}}{inner}\end{{tabular}}"


def breakable(text: str) -> str:
    """LaTeX text that may break after any sign, and within a word of more than twelve characters."""
    parts = re.findall(r"[A-Za-z_]{1,12}|[\d.]{1,12}|\s+|.", fmt.clean(text))
    return "".join(" " if part.isspace() else fmt.latex(part) + r"\allowbreak{}" for part in parts)
