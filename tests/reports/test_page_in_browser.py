"""The page as a reader has it: drawn, hovered, typed at, in the dark, on a phone, on paper and without scripts."""

from __future__ import annotations

import re
import shutil
import subprocess
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from browser import CHROMIUM, Browser
from sample_certificate import HOSTILE, REGIMES, build
from typer.testing import CliRunner

from protocol.cli.main import build as build_app
from reports import charts, figures, leaderboard, panels
from reports import format as fmt
from reports.html import write_report

AXE = Path(__file__).parents[1] / "vendor" / "axe.min.js"
NASTY = "<script>alert(1)</script> & 100% $x_$"

pytestmark = pytest.mark.skipif(CHROMIUM is None, reason="NO CHROMIUM: apt-get install chromium to test the page")


def written(folder: Path, stills: bool = False, **asked: Any) -> tuple[dict[str, Any], Path]:
    certificate, evidence = build(**asked)
    data = charts.chart_data(certificate, evidence, {})
    drawn: dict[str, str] = {}
    if stills:  # one of each kind, and of the claim that is open: drawing is slow
        with figures.styled():
            made = {
                fmt.OVERVIEW: figures.gain_overview(certificate),
                fmt.figure_name(0, certificate["claims"][0]): figures.envelope_figure(
                    certificate["claims"][0], [e for e in evidence if e.regime == REGIMES[0]], 0
                ),
                fmt.figure_name(0, certificate["claims"][0], "evidence"): panels.evidence_figure(
                    data["claims"][0], 0.05
                ),
            }
        drawn = {name: figures.save(figure, folder / name).read_text("utf-8") for name, figure in made.items()}
    write_report(certificate, evidence, folder / "report.html", drawn, data)
    return certificate, folder / "report.html"


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    with Browser() as one:
        yield one


@pytest.fixture(scope="module")
def page(tmp_path_factory: pytest.TempPathFactory) -> tuple[dict[str, Any], Path]:
    return written(tmp_path_factory.mktemp("page"), stills=True, regimes=REGIMES[:3], seeds=8, draws=19)


def middle(browser: Browser, selector: str) -> tuple[float, float]:
    """The middle of the first such element, scrolled into view."""
    at = browser.run(
        f"(() => {{ const e = document.querySelector({selector!r}); e.scrollIntoView({{block: 'center'}});"
        " const b = e.getBoundingClientRect(); return [b.x + b.width / 2, b.y + b.height / 2]; })()"
    )
    return at[0], at[1]


def violations(browser: Browser) -> list[Any]:
    """What axe finds that is moderate or worse."""
    browser.run(AXE.read_text("utf-8") + ";0")
    found = browser.run(
        "axe.run().then(r => r.violations.map(v => [v.impact, v.id, v.nodes[0].html.slice(0, 120),"
        " v.nodes[0].failureSummary.slice(0, 200)]))"
    )
    return [one for one in found if one[0] not in ("minor", None)]


def tips(browser: Browser) -> list[str]:
    return browser.run("[...document.querySelectorAll('.tip')].filter(t => !t.hidden).map(t => t.textContent)")


def test_every_chart_is_drawn_and_nothing_complains(browser: Browser, page: tuple[dict[str, Any], Path]) -> None:
    browser.open(page[1])
    assert browser.complaints == []
    seen = browser.run("[...document.querySelectorAll('[data-chart]')].map(b => [b.dataset.chart, b.checkVisibility(),"
                       " b.querySelectorAll('svg').length])")  # fmt: skip
    assert ["forest", True, 1] in seen and ["timeline", True, 3] in seen
    assert all(drawn == (3 if kind == "timeline" else 1) for kind, shown, drawn in seen if shown)
    assert browser.run("getComputedStyle(document.querySelector('.still')).display") == "none"


def test_claims_are_closed_unless_they_passed_or_are_asked_for(
    browser: Browser, page: tuple[dict[str, Any], Path]
) -> None:
    browser.open(page[1])
    verdicts = [claim["verdict"] for claim in page[0]["claims"]]
    opened = "[...document.querySelectorAll('section.claim > details')].map(d => d.open)"
    assert browser.run(opened) == [v == "PASS" for v in verdicts] and "FAIL" in verdicts
    browser.open(page[1], anchor="#claim-2")
    assert browser.run(opened)[1]
    assert browser.run("document.querySelector('#claim-2 [data-chart=source] svg') !== null")


def test_hover_and_keyboard_read_the_stored_values(browser: Browser, page: tuple[dict[str, Any], Path]) -> None:
    browser.open(page[1])
    rows = page[0]["claims"][0]["envelope"]["per_seed"]
    browser.move(*middle(browser, "#claim-1 [data-chart=envelope] [aria-label=dot] circle:nth-child(3)"))
    (tip,) = tips(browser)
    assert tip.startswith(f"seed {rows[2]['seed']}: scheduler {fmt.fixed(rows[2]['policy'])} pp")
    browser.move(2, 2)
    assert tips(browser) == []
    browser.run("document.querySelector('#claim-1 [data-chart=envelope] .plot').focus()")
    for key, seed in (("ArrowRight", 0), ("ArrowRight", 1), ("ArrowLeft", 0), ("End", 7), ("Home", 0)):
        browser.key(key)
        assert tips(browser)[0].startswith(f"seed {seed}: scheduler {fmt.fixed(rows[seed]['policy'])} pp")
    browser.key("Escape")
    assert tips(browser) == []


def test_the_seed_picker(browser: Browser, page: tuple[dict[str, Any], Path]) -> None:
    browser.open(page[1])
    merges = "document.querySelectorAll('#claim-1 [data-chart=timeline] .plot')[2].innerHTML"
    first = browser.run(merges)
    middle(browser, "#claim-1 select")
    browser.run("document.querySelectorAll('#claim-1 .picker button')[1].focus()")
    browser.key("Enter")
    browser.run("document.activeElement.click()")
    browser.settle()
    assert browser.run("document.querySelector('#claim-1 select').value") in ("1", "2")
    second = browser.run(merges)
    assert second != first
    browser.run("(() => { const s = document.querySelector('#claim-1 select'); s.value = '0';"
                " s.dispatchEvent(new Event('change')); })()")  # fmt: skip
    assert browser.run(merges) == first


@pytest.mark.parametrize(("width", "dark"), [(375, True), (1440, False)])
def test_nothing_is_cut_off_and_axe_finds_nothing(
    browser: Browser, page: tuple[dict[str, Any], Path], width: int, dark: bool
) -> None:
    browser.open(page[1], width, dark=dark)
    browser.run("document.querySelectorAll('details').forEach(d => d.open = true)")
    browser.settle()
    assert browser.run("document.documentElement.scrollWidth") <= width
    cut = browser.run(
        "[...document.querySelectorAll('.plot text')].map(t => [t.textContent, t.getBoundingClientRect(),"
        " t.closest('.plot').getBoundingClientRect()]).filter(([, t, p]) => t.width && (t.left < p.left - 2 ||"
        " t.right > p.right + 2 || t.top < p.top - 2 || t.bottom > p.bottom + 2)).map(([text]) => text)"
    )
    assert cut == []
    paper = browser.run("getComputedStyle(document.body).backgroundColor")
    assert (int(re.findall(r"\d+", paper)[0]) < 60) == dark
    assert violations(browser) == []


def boards(folder: Path) -> Path:
    """A leaderboard: two certificates of one name, a nasty one, and one that does not verify."""
    made = [build(REGIMES[:2], seeds=3, draws=9, name=name)[0] for name in (NASTY, NASTY, HOSTILE, "a.py")]
    entries = [leaderboard.Entry(f"runs/{k}", c, shown="recomputed", not_shown=["who made it"]) for k, c in
               enumerate(made[:3])]  # fmt: skip
    leaderboard.write_leaderboard(
        [*entries, leaderboard.Entry("runs/x", made[3], ["edited"])], NASTY, folder / "b.html"
    )
    return folder / "b.html"


def audits(folder: Path) -> Path:
    """An audit of a published table, one arm with a nasty name."""
    arms = [("mine", 5.0, 8), (NASTY.replace("/", "-"), 11.9, 16), ("fixed", 7.5, 16)]
    rows = [f"{name},{seed},{rate + seed / 10},{merges}" for name, rate, merges in arms for seed in range(4)]
    (folder / "mine.csv").write_text("policy,seed,violation_pct,merges\n" + "\n".join(rows) + "\n", "utf-8")
    done = CliRunner().invoke(build_app(["audit"]), ["audit", str(folder / "mine.csv"), "--out", str(folder / "out")])
    assert done.exit_code == 0, done.output
    return folder / "out" / "audit.html"


@pytest.mark.parametrize("made", [boards, audits])
def test_the_other_pages_at_either_width(
    browser: Browser, tmp_path: Path, made: Callable[[Path], Path]
) -> None:  # fmt: skip
    path = made(tmp_path)
    for width, dark in ((375, False), (1440, True)):
        browser.open(path, width, dark=dark)
        browser.run("document.querySelectorAll('details').forEach(d => d.open = true)")
        assert browser.complaints == [] and browser.run("document.documentElement.scrollWidth") <= width
        assert "<script>alert(1)<" in browser.run("document.body.textContent")
        assert violations(browser) == []


def test_print_is_short(browser: Browser, page: tuple[dict[str, Any], Path], tmp_path: Path) -> None:
    if shutil.which("pdfinfo") is None:
        pytest.skip("NO PDFINFO: apt-get install poppler-utils to count the pages of a print")
    browser.open(page[1])
    said = subprocess.run(
        ["pdfinfo", browser.pdf(tmp_path / "page.pdf")], capture_output=True, text=True, check=True
    ).stdout
    assert 2 <= int(re.findall(r"Pages:\s+(\d+)", said)[0]) < 8


def test_without_scripts_the_still_figures_stand_in(browser: Browser, page: tuple[dict[str, Any], Path]) -> None:
    browser.send("Emulation.setScriptExecutionDisabled", value=True)
    try:
        browser.send("Page.enable")
        browser.resize(1440, 900)
        browser.send("Page.navigate", url=f"about:blank#{page[1].name}")
        browser.send("Page.navigate", url=page[1].resolve().as_uri())
        while browser.run("document.readyState !== 'complete' || !document.querySelector('footer')"):
            time.sleep(0.05)
        display = "getComputedStyle(document.querySelector('{}')).display"
        assert browser.run(display.format(".still")) == "block" and browser.run(display.format(".drawn")) == "none"
        assert browser.run("document.querySelector('.still svg').clientHeight") > 100
    finally:
        browser.send("Emulation.setScriptExecutionDisabled", value=False)


@pytest.mark.parametrize("name", [NASTY, HOSTILE])
def test_a_name_is_never_run(browser: Browser, tmp_path: Path, name: str) -> None:
    _, path = written(tmp_path, regimes=(name,), name=name, seeds=2, draws=9)
    browser.open(path)
    assert browser.complaints == []
    assert browser.run("document.title") == " ".join(f"PASS: {fmt.clean(name)}".split())
    shown = browser.run("[...document.querySelectorAll('[data-chart=forest] text')].map(t => t.textContent).join('')")
    assert fmt.clean(name)[:20] in shown
