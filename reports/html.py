"""One self-contained page about one certificate: no network, readable offline, in print and without scripts.

The page shows stored results.  A policy in its head forbids it to load anything, and to run any script but its own
(named by their digests): the chart library and what draws with it.
"""

from __future__ import annotations

import base64
import hashlib
import json
import re
from collections.abc import Mapping, Sequence
from functools import lru_cache
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
#: The scripts of a page in their order: charts, then the check of the run's folder.
_SCRIPTS = (
    "vendor/d3.min.js", "vendor/plot.umd.min.js", "templates/report.js", "vendor/parquet.min.js",
    "templates/folder.js", "templates/chance.js", "templates/check.js", "templates/drop.js",
)  # fmt: skip
#: What of a certificate the page compares with the one in a folder that is dropped on it, beside the charts' numbers.
_CHECKED = ("files", "sentence", "verdict")
_SVG, _DECLARED = "{http://www.w3.org/2000/svg}", ' xmlns="http://www.w3.org/2000/svg"'
#: A letter that a figure defines, by font and number; and a number with more digits than a screen shows.
_LETTER = re.compile(r"[A-Za-z][A-Za-z-]*-[0-9a-f]{1,5}")
_DIGITS, _MOVED = re.compile(r"-?\d+\.\d{3,}"), re.compile(r"translate\([^)]*\)")
_FORBIDDEN = {f"{_SVG}{tag}" for tag in ("script", "foreignObject", "image", "a", "iframe")}


def write_report(
    certificate: Mapping[str, Any],
    evidence: Sequence[Evidence],
    path: Path,
    figures: Mapping[str, str],
    charts: Mapping[str, Any],
) -> None:
    """Write the page to `path`.

    figures : SVG text by name, as `reports.figures.write_figures` names them; a missing one is left out.
    charts : of `reports.charts.chart_data`.
    Raises BadInput when a figure is not SVG.
    """
    glyphs: dict[str, str] = {}
    claims = [_claim(index, claim, figures, charts, glyphs) for index, claim in enumerate(certificate["claims"])]
    transfers = [
        {**one, "figure": inline_svg(figures.get(name), name, f"Latency around merges, {one['name']}", glyphs)}
        for index, one in enumerate(charts["transfers"])
        for name in [fmt.transfer_name(index, one)]
    ]
    page = (
        environment()
        .get_template("report.html.j2")
        .render(
            c=certificate,
            claims=claims,
            saved=[c for c in claims if c["verdict"] == "PASS"],
            transfers=transfers,
            arms=_arms(evidence),
            probes=[{"regime": e.regime, "seed": e.seed, **vars(p)} for e in evidence for p in e.probes],
            forest=any(fmt.known(c["envelope"]["gain_pp"]) for c in claims),
            overview=inline_svg(figures.get(fmt.OVERVIEW), fmt.OVERVIEW, "Placement gain of every claim", glyphs),
            glyphs=[Markup(glyph) for glyph in glyphs.values()],
            level=fmt.level(certificate),
            needed=reading.next_tier(certificate),
            recompute=reading.recompute(certificate),
            scripts=_scripts(),
            chart_json=_inert(charts),
            check_json=_inert({"files": {}, **{key: certificate[key] for key in _CHECKED if key in certificate}}),
        )
    )
    write_text(path, page)


def _claim(
    index: int, claim: Mapping[str, Any], figures: Mapping[str, str], charts: Mapping[str, Any], glyphs: dict[str, str]
) -> dict[str, Any]:
    """A claim with its figures, and the seeds that its timeline can show."""
    what = f"{claim['regime']}, {claim['slo']}"
    stills = {
        key: inline_svg(figures.get(name), name, f"{title} of {what}", glyphs)
        for key, name, title in (
            ("figure", fmt.figure_name(index, claim), "Envelope"),
            ("panels", fmt.figure_name(index, claim, "evidence"), "Gain, p-values and power"),
            ("timeline_figure", fmt.figure_name(index, claim, "timeline"), "Timeline"),
        )
    }
    world = charts["regimes"][claim["regime"]]
    seeds = [s["seed"] for s in world["seeds"]]
    label = "Seed" if len(seeds) == world["of"] else f"Seed (the first {len(seeds)} of {world['of']})"
    picker = {"seeds": seeds, "label": label} if seeds else None
    return {**claim, "id": f"claim-{index + 1}", "timeline": picker, **stills}


def _inert(values: Mapping[str, Any]) -> Markup:
    """JSON inside a script element: nothing in it can end the element, or begin another."""
    text = json.dumps(values, ensure_ascii=True, allow_nan=False, separators=(",", ":"))
    return Markup(text.replace("&", "\\u0026").replace("<", "\\u003c").replace(">", "\\u003e"))


@lru_cache(maxsize=1)
def _scripts() -> list[dict[str, Any]]:
    """The scripts of a page in their order, with the digests that its policy names; none of it is user input."""
    found = []
    for name in _SCRIPTS:
        text = (Path(__file__).parent / name).read_text("utf-8").strip()
        digest = base64.b64encode(hashlib.sha256(f"\n{text}\n".encode()).digest()).decode()
        found.append({"text": Markup(f"\n{text}\n"), "digest": digest})
    return found


def summary(certificate: Mapping[str, Any], report: Path) -> str:
    """Verdict, sentence and claims as a piece of HTML, for notebooks."""
    template = environment().get_template("summary.html.j2")
    return template.render(c=certificate, level=fmt.level(certificate), report=report)


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


def inline_svg(text: str | None, prefix: str, title: str, glyphs: dict[str, str]) -> Markup | None:
    """The figure as part of a page: its ids made unique by `prefix`, its colours the page's, nothing active in it.

    glyphs : the letters of all figures of the page by id, to which this one's are added: each is on the page once.
    """
    if text is None:
        return None
    try:
        root = ElementTree.fromstring(text)
    except ElementTree.ParseError as error:
        raise BadInput(f"figure {prefix}", f"broken SVG ({error})", "an SVG document") from None
    if root.tag != f"{_SVG}svg":
        raise BadInput(f"figure {prefix}", f"an element {root.tag}", "an SVG document")
    ElementTree.register_namespace("", "http://www.w3.org/2000/svg")
    ElementTree.register_namespace("xlink", "http://www.w3.org/1999/xlink")
    _share_letters(root, glyphs)
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
    return Markup(ElementTree.tostring(root, encoding="unicode"))


def _share_letters(root: ElementTree.Element, glyphs: dict[str, str]) -> None:
    """Move the letters that the figure defines to those of the page."""
    for defs in root.iter(f"{_SVG}defs"):
        for path in list(defs):
            name = path.get("id", "")
            if path.tag == f"{_SVG}path" and _LETTER.fullmatch(name):
                path.set("id", f"letter-{name}")
                path.set("d", " ".join(path.get("d", "").split()))
                path.tail = None
                shown = ElementTree.tostring(path, encoding="unicode").replace(_DECLARED, "")
                glyphs.setdefault(name, shown)
                defs.remove(path)


def _rounded(text: str) -> str:
    return _DIGITS.sub(lambda number: f"{float(number[0]):.2f}", text)


def _adapted(key: str, value: str, prefix: str) -> str:
    if key == "id":
        return f"{prefix}-{value}"
    if key.endswith("href") and not value.startswith("data:image/png"):
        if _LETTER.fullmatch(value[1:]):
            return f"#letter-{value[1:]}"
        return f"#{prefix}-{value[1:]}" if value.startswith("#") else "#"
    if key in ("d", "x", "y"):
        return _rounded(value)
    if key == "transform":
        return _MOVED.sub(lambda moved: _rounded(moved[0]), value)
    value = re.sub(r"url\(#", f"url(#{prefix}-", value)
    if key in ("style", "fill", "stroke"):
        for colour, variable in _THEMED.items():
            value = value.replace(colour, variable)
    return value
