"""The page's own check of the run's folder: an honest one agrees, and what `verify` finds in those parts it finds too."""

from __future__ import annotations

import base64
import copy
import json
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from browser import CHROMIUM, Browser
from strategies import FunctionSource, described, head_for, quiet, ran, setting, write_folder

from protocol import files
from protocol.certificate.model import Head, plain
from protocol.certificate.verify import verify
from protocol.errors import ProtocolError
from protocol.evidence import store
from reports import charts
from reports.html import write_report

ROOT = Path(__file__).parents[2]
AXE = Path(__file__).parents[1] / "vendor" / "axe.min.js"
KEPT = [ROOT / "docs" / "results" / name for name in ("tier3/fixed-h", "live-session")]
CERTIFICATE, RAW = "certificate.json", "raw/"
ARMS = ("policy", "uniform", "no-sync", "optimum", "crossed", "own-gaps-permuted", "own-schedule-shifted")

pytestmark = pytest.mark.skipif(CHROMIUM is None, reason="NO CHROMIUM: apt-get install chromium to test the page")


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A small campaign of ten seeds with its certificate, raw files and page."""
    out, found = tmp_path_factory.mktemp("run") / "run", ran()
    made = plain(write_folder(out, head_for(FunctionSource(quiet), [setting()]), found))
    write_report(made, found, out / "report.html", {}, charts.chart_data(made, found, {}))
    return out


@pytest.fixture(scope="module")
def browser(folder: Path) -> Iterator[Browser]:
    with Browser() as one:
        one.open(folder / "report.html")
        yield one


def contents(folder: Path) -> dict[str, bytes]:
    names = [CERTIFICATE, *(p.relative_to(folder).as_posix() for p in sorted((folder / RAW).rglob("*")) if p.is_file())]
    return {name: (folder / name).read_bytes() for name in names}


def checked(browser: Browser, held: dict[str, bytes], page: bool = False) -> dict[str, list[str]]:
    """What the page says of these files; page : whether it also compares them with itself."""
    coded = json.dumps({name: base64.b64encode(data).decode() for name, data in held.items()})
    own = "{...JSON.parse(document.getElementById('check-data').textContent), claims: " + (
        "JSON.parse(document.getElementById('chart-data').textContent).claims}")  # fmt: skip
    return browser.run(
        f"RunCheck.check(new Map(Object.entries({coded}).map(([name, data]) =>"
        f" [name, Uint8Array.from(atob(data), c => c.charCodeAt(0))])), {own if page else 'null'})"
    )


def test_an_untouched_folder_agrees_and_says_what_is_left(browser: Browser, folder: Path) -> None:
    found = checked(browser, contents(folder), page=True)
    assert found["differs"] == [] and verify(folder) == []
    said = " ".join(found["agrees"])
    for words in ("5 raw files", "budgets of their draws", "violations of the policy", "pp over chance", "stratified",
                  "exchange between traces", "Holm", "this page: verdict"):  # fmt: skip
        assert words in said, words
    assert any(line.startswith("that this scheduler took these decisions") for line in found["skipped"])
    assert any("intervals" in line for line in found["skipped"])


@pytest.mark.parametrize("kept", KEPT, ids=lambda path: path.name)
def test_certificates_of_real_servers_agree(browser: Browser, kept: Path) -> None:
    found = checked(browser, contents(kept))
    assert found["differs"] == []
    assert any("replays on the server" in line for line in found["agrees"])
    assert any("what happened cannot happen again" in line for line in found["skipped"])


def test_a_limit_of_every_kind_is_counted_as_the_program_counts(browser: Browser, tmp_path: Path) -> None:
    found, slos = ran(), ("ttft<=300ms", "itl<=0.5s,tpot<=20ms", "e2e<=1000ms")
    again = setting(slos=slos)
    # The rows stay, and prices are of one SLO, so the count of rows itself is compared.
    for slo in again.slos:
        rows = found[0].simulated["policy"].rows
        table = {c: getattr(rows, c).tolist() for c in ("outcome", "e2e_ns", "ttft_ns", "max_itl_ns", "output_tokens")}
        write = json.dumps(table)
        said = browser.run(f"RunFolder.counted({write}, 0, {len(rows)}, [RunFolder.limits({json.dumps(str(slo))})])")
        assert said == [int(rows.violates(slo).sum())]


def test_canonical_json_is_that_of_the_program(browser: Browser) -> None:
    value = {"b": [1, 1.0, -0.0, 1e-05, 1.5e16, 1e22, 123456.789, 1e-4, 0.1, 2**60, -3, [], {}], "a": None, "é\u2028\U0001f600": "\x7f\t\"\\",
             "\uffff": True, "\U00010000": False}  # fmt: skip
    text = files.canonical_json(value)
    coded = base64.b64encode(text.encode()).decode()
    assert browser.run(
        f"RunFolder.canonical(RunFolder.written(Uint8Array.from(atob('{coded}'), c => c.charCodeAt(0))).tagged) + '\\n'"
    ) == text  # fmt: skip


# What a reader does ----------------------------------------------------------------------------------------------


def pick(browser: Browser, paths: list[Path], which: int = 0) -> None:
    """Give the page's file input these files, and wait until it has said what it found."""
    browser.run("document.querySelector('#check-files .found').replaceChildren()")
    root = browser.send("DOM.getDocument")["root"]["nodeId"]
    nodes = browser.send("DOM.querySelectorAll", nodeId=root, selector="#check-files input")["nodeIds"]
    browser.send("DOM.setFileInputFiles", nodeId=nodes[which], files=[str(p) for p in paths])
    browser.run("new Promise(done => { const look = () => document.querySelector('#check-files li') ? done()"
                " : setTimeout(look, 20); look(); })")  # fmt: skip


@pytest.mark.parametrize(("width", "dark"), [(375, False), (1440, True)])
def test_a_picked_folder_is_checked_and_read_out(browser: Browser, folder: Path, width: int, dark: bool) -> None:
    browser.open(folder / "report.html", width, dark=dark)
    pick(browser, [folder])
    assert browser.run("document.querySelector('#check-files [role=status]').textContent").startswith("Agrees: ")
    shown = browser.run("[...document.querySelectorAll('#check-files li')].map(e => e.textContent)")
    assert any(line.startswith("agrees: 5 raw files") for line in shown)
    assert any(line.startswith("not shown: ") for line in shown)
    assert browser.complaints == [] and browser.run("document.documentElement.scrollWidth") <= width
    browser.run(AXE.read_text("utf-8") + ";0")
    found = browser.run("axe.run('#check-files').then(r => r.violations.map(v => [v.impact, v.id, v.nodes[0].html]))")
    assert [one for one in found if one[0] not in ("minor", None)] == []


def test_a_touched_folder_is_named_and_files_alone_will_do(browser: Browser, folder: Path, tmp_path: Path) -> None:
    touched = tmp_path / "touched"
    shutil.copytree(folder, touched)
    (touched / RAW / "seeds.parquet").write_bytes((folder / RAW / "placements.parquet").read_bytes())
    browser.open(folder / "report.html")
    pick(browser, [touched / CERTIFICATE, *sorted((touched / RAW).iterdir())], which=1)
    assert browser.run("document.querySelector('#check-files [role=status]').textContent").startswith("Differs: ")
    lines = browser.run("[...document.querySelectorAll('#check-files li')].map(e => e.textContent)")
    assert "differs: raw/seeds.parquet: its SHA-256 is not the one in the certificate" in lines
    browser.open(folder / "report.html")


def test_the_page_of_another_run_says_so(browser: Browser, folder: Path) -> None:
    found = checked(browser, contents(KEPT[0]), page=True)
    assert any(line.startswith("this page: verdict or sentence") for line in found["differs"])
    assert any(line.startswith("this page: lists other digests") for line in found["differs"])
