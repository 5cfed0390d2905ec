"""Text from outside, made fit to be shown."""

from __future__ import annotations

import unicodedata


def clean(text: object) -> str:
    """The text on one line, with control, format and unassigned characters spelled out as U+XXXX.

    Terminal escapes, line separators and direction overrides could otherwise change what a reader sees.
    """
    shown = []
    for char in str(text):
        category = unicodedata.category(char)
        if char in "\n\t\r":
            shown.append(" ")
        elif category[0] == "C" or category in ("Zl", "Zp"):
            shown.append(f"U+{ord(char):04X}")
        else:
            shown.append(char)
    return "".join(shown)
