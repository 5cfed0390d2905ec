"""Tables on a terminal of any width: no word is broken, names are shortened in the middle, empty columns left out.

Where even the longest words do not fit side by side, each row becomes a few lines of its own.
"""

from __future__ import annotations

import textwrap
from collections.abc import Collection, Sequence

from rich.cells import cell_len
from rich.text import Text

from reports import format as fmt

_GAP = 2
#: A name is shortened to no less than this, and so is a word that is longer than words are: a path, an address.
_SHORTEST_NAME, _LONGEST_WORD = 12, 32
#: A cell; the style of a `Text` is that of all its words.
Cell = str | Text


def facts(rows: Sequence[tuple[str, str]], width: int) -> Text:
    """Names in bold, and beside each what is said of it."""
    return fitted(("", ""), [(Text(name, "bold"), value) for name, value in rows], width)


def fitted(
    heads: Sequence[str],
    rows: Sequence[Sequence[Cell]],
    width: int,
    *,
    names: Collection[int] = (),
    right: Collection[int] = (),
) -> Text:
    """The table as text, its heading bold, if it has one; all of it within `width` cells wherever its words allow.

    names : columns whose cells are shortened in the middle, never wrapped.  right : columns set to the right.
    Columns after the first in which no row says anything are left out.
    """
    cells = [[fmt.clean(_words(cell)) for cell in row] for row in rows]
    styles = [[str(cell.style) if isinstance(cell, Text) else "" for cell in row] for row in rows]
    kept = [i for i in range(len(heads)) if i == 0 or any(row[i] not in ("", fmt.UNKNOWN) for row in cells)]
    columns = [[heads[i], *(row[i] for row in cells)] for i in kept]
    named = [i in names for i in kept]
    room = width - _GAP * (len(kept) - 1)
    widths = [max(map(cell_len, column)) for column in columns]
    least = [_least(column, name) for column, name in zip(columns, named, strict=True)]
    if sum(least) > room:
        return _stacked([heads[i] for i in kept], [[row[i] for i in kept] for row in cells], width)
    while sum(widths) > room:
        # The widest column gives way first, and names only when nothing else can.
        spare = [i for i, (have, need) in enumerate(zip(widths, least, strict=True)) if have > need]
        widths[max(spare, key=lambda i: (not named[i], widths[i], i))] -= 1
    text = Text()
    lines = [([heads[i] for i in kept], ["bold"] * len(kept))] if any(heads) else []
    lines += [([row[i] for i in kept], [of[i] for i in kept]) for row, of in zip(cells, styles, strict=True)]
    for number, (row, of) in enumerate(lines):
        shorten = number > 0 or not any(heads)
        blocks = [
            [fmt.shortened(cell, n)] if name and shorten else _wrapped(cell, n)
            for cell, n, name in zip(row, widths, named, strict=True)
        ]
        for k in range(max(map(len, blocks))):
            shown = [block[k] if k < len(block) else "" for block in blocks]
            last = max((i for i, words in enumerate(shown) if words), default=0)
            for i in range(last + 1):
                words = _padded(shown[i], widths[i], kept[i] in right)
                text.append(words.rstrip() if i == last else words + " " * _GAP, of[i])
            text.append("\n")
    if lines:
        text.right_crop(1)
    return text


def _words(cell: Cell) -> str:
    return cell.plain if isinstance(cell, Text) else cell


def indented(text: str, width: int, indent: int = 4) -> Text:
    """Running text under a heading: lines that break at spaces alone, all of them indented."""
    return Text("\n".join(" " * indent + line for line in _wrapped(fmt.clean(text), width - indent)))


def _least(column: Sequence[str], name: bool) -> int:
    """The narrowest that the column may become."""
    head = max(cell_len(word) for word in column[0].split(" "))
    words = max((cell_len(word) for cell in column for word in cell.split(" ")), default=0)
    if not name:
        return max(head, min(words, _LONGEST_WORD))
    return max(head, min(max(map(cell_len, column[1:]), default=0), _SHORTEST_NAME))


def _wrapped(cell: str, width: int) -> list[str]:
    """Lines that break at spaces alone (a no-break space holds a number and its unit together)."""
    words = " ".join(fmt.shortened(word, width) for word in cell.split(" "))
    return textwrap.wrap(words, width, break_long_words=False, break_on_hyphens=False) or [""]


def _padded(cell: str, width: int, right: bool) -> str:
    space = " " * max(width - cell_len(cell), 0)
    return space + cell if right else cell + space


def _stacked(heads: Sequence[str], rows: Sequence[Sequence[str]], width: int) -> Text:
    """One block a row: its first cell, then what the other columns say."""
    text = Text()
    for row in rows:
        text.append("\n".join(_wrapped(row[0], width)) + "\n", "bold")
        for head, cell in zip(heads[1:], row[1:], strict=True):
            if cell not in ("", fmt.UNKNOWN):
                first, *others = _wrapped(f"{head}: {cell}" if head else cell, width - 4)
                text.append("".join([f"  {first}\n", *(f"    {line}\n" for line in others)]))
    text.right_crop(1)
    return text
