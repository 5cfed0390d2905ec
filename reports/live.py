"""One self-contained page about one live session; like `reports.html`, it shows stored results and computes nothing."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from protocol.files import write_text
from reports import format as fmt
from reports.html import environment, inline_svg


def write_live_report(certificate: Mapping[str, Any], path: Path, figures: Mapping[str, str]) -> None:
    """Write the page to `path`.  figures : SVG text by name, as `reports.figures.write_live_figures` names them."""
    drawn = [
        inline_svg(figures.get(name), name, f"Blocks of {claim['regime']}, {claim['slo']}")
        for index, claim in enumerate(certificate["claims"])
        for name in [fmt.figure_name(index, claim)]
    ]
    write_text(path, environment().get_template("live.html.j2").render(c=certificate, figures=drawn))
