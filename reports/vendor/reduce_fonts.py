"""Makes the fonts of this folder from those that matplotlib ships: `python reports/vendor/reduce_fonts.py`.

A PDF holds a subset of every font that it uses; subsetting the whole fonts took half of the time of all pages.
"""

from __future__ import annotations

from pathlib import Path

import matplotlib
from fontTools.subset import Options, Subsetter  # type: ignore[import-untyped]
from fontTools.ttLib import TTFont  # type: ignore[import-untyped]

NAME = "Protocol Sans"
#: Latin, Greek and Cyrillic letters, punctuation, super- and subscripts, arrows and signs of mathematics.
KEPT = (
    *range(0x20, 0x7F), *range(0xA0, 0x180), *range(0x370, 0x460), *range(0x2010, 0x2028), 0x2030, 0x2032,
    *range(0x2070, 0x209D), 0x20AC, *range(0x2190, 0x2194), 0x2212, 0x221E, 0x2248, 0x2260, 0x2264, 0x2265, 0xFFFD,
)  # fmt: skip


def main() -> None:
    options = Options(layout_features=[], legacy_kern=True, name_IDs=["*"], glyph_names=True)
    options.drop_tables += ["GSUB", "GPOS", "GDEF", "FFTM", "gasp"]
    for style in ("", "-Bold"):
        font = TTFont(
            Path(matplotlib.get_data_path()) / "fonts" / "ttf" / f"DejaVuSans{style}.ttf", recalcTimestamp=False
        )
        subsetter = Subsetter(options)
        subsetter.populate(unicodes=KEPT)
        subsetter.subset(font)
        for record in font["name"].names:  # the licence asks that what was changed be called otherwise
            if record.nameID in (1, 3, 4, 6, 16):
                record.string = str(record).replace("DejaVu Sans", NAME).replace("DejaVuSans", "ProtocolSans")
        font.save(Path(__file__).parent / f"ProtocolSans{style}.ttf")


if __name__ == "__main__":
    main()
