"""The page: complete, self-contained, and safe whatever the names hold."""

from __future__ import annotations

import base64
import hashlib
import io
import json
import re
from functools import lru_cache
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pytest
from sample_certificate import HOSTILE, REGIMES, build

from adapters.sidecars.simulated import shipped_calibrations
from protocol.calibration import store as calibration
from protocol.errors import BadInput
from reports import charts, figures, reading
from reports import format as fmt
from reports.html import inline_svg, write_report


def _write(certificate: dict[str, Any], evidence: list[Any], path: Path, drawn: dict[str, str]) -> None:
    write_report(certificate, evidence, path, drawn, charts.chart_data(certificate, evidence, {}))


class _Page(HTMLParser):
    """Tags with their attributes, and the text outside style sheets."""

    void = {"meta", "br", "input"}

    def __init__(self, text: str) -> None:
        super().__init__()
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.open: list[str] = []
        self.words: list[str] = []
        self.feed(text)
        self.close()
        assert not self.open, f"left open: {self.open}"

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))
        if tag not in self.void:
            self.open.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))

    def handle_endtag(self, tag: str) -> None:
        assert self.open and self.open.pop() == tag, f"unexpected </{tag}>"

    def handle_data(self, data: str) -> None:
        if self.open[-1:] not in (["style"], ["script"]):
            self.words.append(data)

    @property
    def text(self) -> str:
        return " ".join(" ".join(self.words).split())


@lru_cache(maxsize=1)
def _figure() -> str:
    """A real figure, with names that break careless renderers; it stands in for all of a page's figures."""
    certificate, evidence = build((HOSTILE,), seeds=2, draws=9)
    with figures.styled():
        figure, out = figures.envelope_figure(certificate["claims"][0], evidence, 0), io.StringIO()
        figure.savefig(out, format="svg")
    return out.getvalue()


def _page(path: Path, draw: bool = True, **asked: Any) -> tuple[dict[str, Any], str, _Page]:
    certificate, evidence = build(**asked)
    names = [fmt.OVERVIEW, *(fmt.figure_name(i, claim) for i, claim in enumerate(certificate["claims"]))]
    drawn = dict.fromkeys(names, _figure()) if draw else {}
    _write(certificate, evidence, path / "report.html", drawn)
    text = (path / "report.html").read_text("utf-8")
    return certificate, text, _Page(text)


def test_verdict_sentence_and_tier_come_first(tmp_path: Path) -> None:
    certificate, _, page = _page(tmp_path, seeds=2, draws=9)
    expected = (
        "✓ PASS",
        certificate["sentence"],
        "Evidence of tier 1 of 4, stress harness",
        "What a higher tier",
        "G0 integrity",
    )
    order = [page.text.index(words) for words in expected]
    assert order == sorted(order)


def test_every_stored_part_is_shown(tmp_path: Path) -> None:
    certificate, _, page = _page(tmp_path, regimes=REGIMES[:2], slos=("e2e<=1s", "ttft<=2s"), seeds=3, draws=9)
    for claim in certificate["claims"]:
        for gate in claim["gates"]:
            for check in gate["checks"]:
                assert fmt.clean(check["reason"]) in page.text
        for control in claim["envelope"]["controls"]:
            assert control["question"] in page.text and control["says"] in page.text
        for seed in claim["envelope"]["per_seed"]:
            assert f"{fmt.fixed(seed['policy'])} {fmt.fixed(seed['draw_mean'])}" in page.text
    for name, digest in certificate["files"].items():
        assert f"raw/{name} {digest}" in page.text
    assert all(e["trace_digest"] in page.text for r in certificate["regimes"] for e in r["seeds"])
    assert all(what in page.text for what, *_ in reading.RECOMPUTE)
    assert sum(tag == "svg" for tag, _ in page.tags) == 5 + 1  # and the letters of all


@pytest.mark.parametrize("draw", [True, False])
def test_self_contained_and_inert(tmp_path: Path, draw: bool) -> None:
    _, text, page = _page(tmp_path, draw, seeds=2, draws=9)
    names = {tag for tag, _ in page.tags}
    assert not names & {"link", "iframe", "object", "embed", "form", "base", "img", "foreignobject", "image"}
    scripts = re.findall(r"<script[^>]*>(.*?)</script>", text, re.S)
    assert sum(tag == "script" for tag, _ in page.tags) == len(scripts) == 10
    for script in scripts[2:]:
        assert base64.b64encode(hashlib.sha256(script.encode()).digest()).decode() in text
    for _, attributes in page.tags:
        for key, value in attributes.items():
            assert not key.startswith("on")
            if key.endswith(("href", "src")):
                assert (value or "").startswith("#")
    outside = re.sub(r"<script.*?</script>", "", text, flags=re.S)
    assert "@import" not in outside and not re.search(r"url\((?!#)", outside)
    assert "default-src 'none'" in text


def test_ids_are_unique_and_links_lead_somewhere(tmp_path: Path) -> None:
    _, text, page = _page(tmp_path, regimes=REGIMES[:3], seeds=2, draws=9)
    ids = [a["id"] for _, a in page.tags if "id" in a]
    assert len(ids) == len(set(ids))
    targets = {v[1:] for _, a in page.tags for k, v in a.items() if k.endswith("href") and v}
    outside = re.sub(r"<script.*?</script>", "", text, flags=re.S)
    named = {v for _, a in page.tags for k, v in a.items() if k == "aria-labelledby"}
    assert targets | named | set(re.findall(r"url\(#([^)]+)\)", outside)) <= set(ids)


def test_a_calibrations_runs_are_shown(tmp_path: Path) -> None:
    certificate, evidence = build(REGIMES[:1], seeds=2, draws=9)
    measured = calibration.read(shipped_calibrations()["vllm-cpu"])
    certificate["regimes"][0]["sidecar"] |= {"calibrated": True, "calibration": measured.stated()}
    _write(certificate, evidence, tmp_path / "report.html", {})
    text = _Page((tmp_path / "report.html").read_text()).text
    assert f"Calibration: {measured.server}, {measured.date}" in text
    for run in measured.runs:
        assert f"{run.run} {run.load}" in text
    assert "calibrations/NAME: requests.parquet" in text


def test_hostile_names_stay_text(tmp_path: Path) -> None:
    _, text, page = _page(tmp_path, regimes=(HOSTILE,), name=HOSTILE, seeds=1, draws=3, verdict="INCONCLUSIVE")
    assert fmt.clean(HOSTILE) in page.text
    assert "<script>alert" not in text and "\x1b" not in text and "\u202e" not in text


@pytest.mark.parametrize(
    "asked",
    [
        {"tier": 0, "verdict": "FAIL", "envelope": False, "seeds": 1, "draws": 1},
        {"tier": 0, "verdict": "FAIL", "planner": True, "seeds": 2, "draws": 3},
        {"verdict": "INCONCLUSIVE", "seeds": 5, "draws": 3},
        {"tier": 4, "seeds": 1, "draws": 1},
    ],
)
def test_every_kind_of_certificate(tmp_path: Path, asked: dict[str, Any]) -> None:
    certificate, _, page = _page(tmp_path, False, **asked)
    assert (
        certificate["sentence"] in page.text and f"Evidence of tier {certificate['tier']['number']} of 4" in page.text
    )
    assert ("upper bound" in page.text.split("Claims")[0]) == certificate["tier"]["upper_bound"]
    assert "None" not in page.text and "nan" not in page.text.lower().split()


def test_missing_optional_numbers_are_dashes(tmp_path: Path) -> None:
    """What an undecidable run does not know, and a certificate read back from its file gives the same page."""
    certificate, evidence = build(seeds=2, draws=3, verdict="INCONCLUSIVE")
    _write(certificate, evidence, tmp_path / "a.html", {})
    _write(json.loads(json.dumps(certificate)), evidence, tmp_path / "b.html", {})
    assert (tmp_path / "a.html").read_bytes() == (tmp_path / "b.html").read_bytes()
    assert "one-sided lower bound –" in _Page((tmp_path / "a.html").read_text("utf-8")).text


def test_intervals_are_called_by_their_own_level(tmp_path: Path) -> None:
    _, _, page = _page(tmp_path, False, seeds=2, draws=3, alpha=0.1)
    assert "90 % interval" in page.text and "95 % interval" not in page.text


def test_a_session_of_pairs_speaks_of_no_bands_and_shows_no_empty_table(tmp_path: Path) -> None:
    certificate, evidence = build(seeds=1, draws=1, tier=4, verdict="INCONCLUSIVE")
    certificate["claims"][0]["envelope"] |= {"controls": [], "optimum_gain_pp": None}
    _write(certificate, evidence, tmp_path / "report.html", {"envelope-01-bursty-aperiodic": _figure()})
    text = _Page((tmp_path / "report.html").read_text("utf-8")).text
    assert "matched random control." in text and "bands" not in text
    assert "Controls" not in text and "Offline optimum" not in text and "= –" not in text


def test_figures_lose_everything_active() -> None:
    svg = (
        '<svg xmlns="http://www.w3.org/2000/svg" xmlns:xlink="http://www.w3.org/1999/xlink" width="9" onload="x()">'
        '<script>x()</script><metadata>m</metadata><g id="g" style="stroke: #0072b2; clip-path: url(#c)"/>'
        '<a xlink:href="javascript:x()"><g/></a><use xlink:href="#g"/><use xlink:href="http://x/y.svg#g"/>'
        '<image xlink:href="http://x/y.png"/><image xlink:href="data:image/png;base64,AA"/></svg>'
    )
    shown = str(inline_svg(svg, "f", 'a "title"', {}))
    assert not re.search(r"script|onload|metadata|javascript|http://x|width=", shown)
    assert 'id="f-g"' in shown and 'xlink:href="#f-g"' in shown and "url(#f-c)" in shown
    assert "var(--draws)" in shown and "data:image/png" in shown and "a &quot;title&quot;" in shown


def test_letters_are_on_the_page_once_and_the_figure_looks_the_same() -> None:
    glyphs: dict[str, str] = {}
    figure = _figure()
    shown = [str(inline_svg(figure, prefix, "t", glyphs)) for prefix in ("one", "two")]
    letters = set(re.findall(r'id="([A-Za-z-]+-[0-9a-f]+)"', figure))
    assert len(letters) > 20 and set(glyphs) == letters
    for text in shown:
        used = re.findall(r'href="#letter-([^"]+)"', text)
        assert set(used) == letters and len(used) == len(re.findall(r'href="#[A-Za-z-]+-[0-9a-f]+"', figure))
        assert len(text) < 0.8 * len(figure) and "scale(0.085 -0.085)" in text
    assert not re.search(r' d="[^"]*\.\d{3}', shown[0])
    assert all(glyph.startswith('<path id="letter-') and "xmlns" not in glyph for glyph in glyphs.values())


@pytest.mark.parametrize("text", ["", "<svg", "<html/>"])
def test_what_is_not_svg_is_refused(text: str) -> None:
    with pytest.raises(BadInput, match="figure f: found .*expected an SVG document"):
        inline_svg(text, "f", "t", {})


def test_no_partial_page_when_it_cannot_be_made(tmp_path: Path) -> None:
    certificate, evidence = build(seeds=1, draws=1)
    name = fmt.figure_name(0, certificate["claims"][0])
    with pytest.raises(BadInput):
        _write(certificate, evidence, tmp_path / "report.html", {name: "not a figure"})
    assert list(tmp_path.iterdir()) == []
