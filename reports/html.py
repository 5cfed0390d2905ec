"""One self-contained page about one certificate: no network, no script, readable offline and in print.

The page shows stored results; a policy in its head forbids it to load or run anything.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

from jinja2 import Environment, PackageLoader, StrictUndefined
from markupsafe import Markup

from protocol.errors import BadInput
from protocol.evidence.model import Evidence
from protocol.files import write_text
from reports import figures as drawing
from reports import format as fmt
from reports import reading

#: Colours of a figure that the page swaps for its own, so that light and dark both read well.
_THEMED = {
    drawing.INK: "var(--ink)", drawing.MUTED: "var(--muted)", drawing.GRID: "var(--rule)",
    drawing.PAPER: "var(--paper)", drawing.DRAWS: "var(--draws)", drawing.POLICY_COLOUR: "var(--policy)",
    drawing.OPTIMUM_COLOUR: "var(--optimum)",
}  # fmt: skip
_SVG = "{http://www.w3.org/2000/svg}"
_FORBIDDEN = {f"{_SVG}{tag}" for tag in ("script", "foreignObject", "image", "a", "iframe")}


def write_report(
    certificate: Mapping[str, Any], evidence: Sequence[Evidence], path: Path, figures: Mapping[str, str]
) -> None:
    """Write the page to `path`.

    figures : SVG text by name, as `reports.figures.write_figures` names them; a missing one is left out.
    Raises BadInput when a figure is not SVG.
    """
    claims = [
        {
            **claim,
            "id": f"claim-{index + 1}",
            "figure": inline_svg(figures.get(name), name, f"Envelope of {claim['regime']}, {claim['slo']}"),
        }
        for index, claim in enumerate(certificate["claims"])
        for name in [fmt.figure_name(index, claim)]
    ]
    page = (
        environment()
        .get_template("report.html.j2")
        .render(
            c=certificate,
            claims=claims,
            arms=_arms(evidence),
            probes=[{"regime": e.regime, "seed": e.seed, **vars(p)} for e in evidence for p in e.probes],
            overview=inline_svg(figures.get(fmt.OVERVIEW), fmt.OVERVIEW, "Placement gain of every claim"),
            tests=fmt.tests_of(certificate),
            level=fmt.level(certificate),
            needed=reading.next_tier(certificate),
            recompute=reading.recompute(certificate),
        )
    )
    write_text(path, page)


def environment() -> Environment:
    """Templates of this package: everything escaped, a missing name an error, the formatters as filters."""
    env = Environment(
        loader=PackageLoader("reports"),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    shown = ("brief", "clean", "count", "fixed", "fraction", "interval", "interval_number", "number", "p_text",
             "p_value", "percent", "plain", "pp", "seconds")  # fmt: skip
    env.filters |= {name: getattr(fmt, name) for name in shown}
    env.globals |= {
        "rank": fmt.rank,
        "marks": fmt.MARKS,
        "statuses": fmt.VERDICTS,
        "stylesheet": _stylesheet,
    }
    return env


def _stylesheet() -> Markup:
    """The stylesheet of this package, which is not user input."""
    return Markup((Path(__file__).parent / "templates" / "report.css").read_text("utf-8"))


def _arms(evidence: Sequence[Evidence]) -> list[dict[str, Any]]:
    """Which arms the raw files hold for each regime: seeds that have the arm, and its stored schedules by seed."""
    found: dict[tuple[str, str], list[int]] = {}
    for e in evidence:
        for arm, placements in e.placed.items():
            found.setdefault((e.regime, arm), []).append(len(placements))
    return [
        {"regime": regime, "arm": arm, "seeds": len(sizes), "least": min(sizes), "most": max(sizes)}
        for (regime, arm), sizes in found.items()
    ]


def inline_svg(text: str | None, prefix: str, title: str) -> Markup | None:
    """The figure as part of a page: its ids made unique by `prefix`, its colours the page's, nothing active in it."""
    if text is None:
        return None
    try:
        root = ElementTree.fromstring(text)
    except ElementTree.ParseError as error:
        raise BadInput(f"figure {prefix}", f"broken SVG ({error})", "an SVG document") from None
    if root.tag != f"{_SVG}svg":
        raise BadInput(f"figure {prefix}", f"an element {root.tag}", "an SVG document")
    for parent in list(root.iter()):
        for child in list(parent):
            # A raster image is part of the figure only where it carries its own data.
            embedded = child.tag == f"{_SVG}image" and all(
                v.startswith("data:image/png") for k, v in child.attrib.items() if k.endswith("href")
            )
            if (child.tag in _FORBIDDEN and not embedded) or child.tag == f"{_SVG}metadata":
                parent.remove(child)
        for key, value in list(parent.attrib.items()):
            parent.attrib[key] = _adapted(key, value, prefix)
            if key.lower().startswith("on"):
                del parent.attrib[key]
    root.attrib.pop("width", None)
    root.attrib.pop("height", None)
    root.set("role", "img")
    root.set("aria-label", fmt.clean(title))
    ElementTree.register_namespace("", "http://www.w3.org/2000/svg")
    ElementTree.register_namespace("xlink", "http://www.w3.org/1999/xlink")
    return Markup(ElementTree.tostring(root, encoding="unicode"))


def _adapted(key: str, value: str, prefix: str) -> str:
    if key == "id":
        return f"{prefix}-{value}"
    if key.endswith("href") and not value.startswith("data:image/png"):
        return f"#{prefix}-{value[1:]}" if value.startswith("#") else "#"
    value = re.sub(r"url\(#", f"url(#{prefix}-", value)
    if key in ("style", "fill", "stroke"):
        for colour, variable in _THEMED.items():
            value = value.replace(colour, variable)
    return value
