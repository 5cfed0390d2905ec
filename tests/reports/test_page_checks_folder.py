"""The page's own check of the run's folder: an honest one agrees; what `verify` finds in those parts it finds too."""

from __future__ import annotations

import base64
import copy
import hashlib
import json
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pairs
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from browser import CHROMIUM, Browser
from predicted_rows import further, replayed
from predicted_rows import head as predicted_head
from strategies import FunctionSource, head_for, quiet, ran, setting, write_folder

from protocol import files
from protocol.certificate.model import plain
from protocol.certificate.verify import differences, verify
from protocol.errors import ProtocolError
from protocol.evidence import store
from protocol.scheduler import Decision, Observation
from protocol.stats.predicted import PREDICTED
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


def test_a_prediction_is_made_again(browser: Browser, tmp_path: Path) -> None:
    """Slopes, correlation and both gains from the raw files; Student's t is left to `verify`."""
    found = [*replayed(), *further()]
    made = plain(write_folder(tmp_path / "run", predicted_head(), found))
    agreed = checked(browser, contents(tmp_path / "run"))
    assert agreed["differs"] == [] and any("Student" in s or PREDICTED in s for s in agreed["skipped"]), agreed
    for key in ("slope", "noise_left", "further_gain_pp", "plain_gain_pp"):
        edited = copy.deepcopy(made)
        edited["claims"][0]["envelope"]["predicted"][key] += 0.01
        held = {**contents(tmp_path / "run"), CERTIFICATE: files.canonical_json(edited).encode()}
        assert any(f"predicted.{key}" in line for line in checked(browser, held)["differs"]), key


def pairs_and_all(obs: Observation, rng: np.random.Generator) -> Decision:
    """Merges of two kinds."""
    if not quiet(obs, rng):
        return Decision(False)
    ready = [i for i, o in enumerate(obs.islands) if o.steps_since_merge >= obs.h_min]
    return Decision(True, ((0, 1, 2, 3),) if len(ready) == 4 and rng.random() < 0.5 else ((ready[0], ready[1]),))


@pytest.mark.parametrize(("scheduler", "exchanged"), [(pairs.quiet, True), (pairs_and_all, False)])
def test_peer_merges_of_one_kind_are_exchanged_here_too(
    browser: Browser, tmp_path: Path, scheduler: Any, exchanged: bool
) -> None:
    """Of several kinds they count by the time that islands are busy, which is left to `verify`."""
    write_folder(tmp_path / "run", pairs.head_of(scheduler), list(pairs.evidence_of(scheduler)))
    assert verify(tmp_path / "run") == []
    found = checked(browser, contents(tmp_path / "run"))
    assert found["differs"] == [], found
    assert any("exchange between traces" in line for line in found["agrees"]) == exchanged, found
    assert any("islands merge as peers" in line for line in found["skipped"])


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
    numbers = [1, 1.0, -0.0, 1e-05, 1.5e16, 1e22, 123456.789, 1e-4, 0.1, 2**60, -3, [], {}]
    words = {"a": None, "é\u2028\U0001f600": '\x7f\t"\\', "\uffff": True, "\U00010000": False}
    value = {"b": numbers, **words}
    text = files.canonical_json(value)
    coded = base64.b64encode(text.encode()).decode()
    assert browser.run(
        f"RunFolder.canonical(RunFolder.written(Uint8Array.from(atob('{coded}'), c => c.charCodeAt(0))).tagged) + '\\n'"
    ) == text  # fmt: skip


# What a reader does ----------------------------------------------------------------------------------------------


def pick(browser: Browser, paths: list[Path], which: int = 0) -> None:
    """Give the page's file input these files, and wait until it has said what it found."""
    root = browser.send("DOM.getDocument")["root"]["nodeId"]
    nodes = browser.send("DOM.querySelectorAll", nodeId=root, selector="#check-files input")["nodeIds"]
    said(browser, lambda: browser.send("DOM.setFileInputFiles", nodeId=nodes[which], files=[str(p) for p in paths]))


def said(browser: Browser, act: Callable[[], object]) -> list[str]:
    """The lines that the page says once it has checked what `act` gave it; the first is the summary."""
    browser.run("document.querySelector('#check-files .found').replaceChildren()")
    act()
    browser.run("new Promise(done => { const look = () => document.querySelector('#check-files li') ? done()"
                " : setTimeout(look, 20); look(); })")  # fmt: skip
    lines = browser.run(
        "[...document.querySelectorAll('#check-files [role=status], #check-files li')].map(e => e.textContent)"
    )
    return [str(line) for line in lines]


@pytest.mark.parametrize("what", ["the folder", "files alone", "a folder of runs"])
def test_what_is_dropped_is_checked(browser: Browser, folder: Path, tmp_path: Path, what: str) -> None:
    dropped = {
        "the folder": [folder],
        "files alone": [folder / CERTIFICATE, *sorted((folder / RAW).iterdir())],
        "a folder of runs": [tmp_path / "below"],
    }[what]
    shutil.copytree(folder, tmp_path / "below" / "run")
    browser.open(folder / "report.html")
    # A place far from the zone: the whole page takes a drop.
    lines = said(browser, lambda: browser.drop(dropped, 700, 300))
    assert lines[0].startswith("Agrees: ") and any(line.startswith("agrees: 5 raw files") for line in lines)
    assert browser.complaints == [] and not browser.run("document.querySelector('.zone.over')")
    assert 0 <= browser.run("document.querySelector('#check-files').getBoundingClientRect().top") < 900


def test_a_touched_folder_that_is_dropped_differs_and_another_drop_starts_anew(
    browser: Browser, folder: Path, tmp_path: Path
) -> None:
    touched = tmp_path / "touched"
    shutil.copytree(folder, touched)
    (touched / RAW / "requests.parquet").write_bytes(b"PAR1")
    browser.open(folder / "report.html")
    browser.run("document.querySelector('#check-files').scrollIntoView()")
    x, y = browser.run("(b => [b.x + b.width / 2, b.y + b.height / 2])(document.querySelector('.zone')"
                       ".getBoundingClientRect())")  # fmt: skip
    lines = said(browser, lambda: browser.drop([touched], x, y))
    assert lines[0].startswith("Differs: ")
    assert "differs: raw/requests.parquet: its SHA-256 is not the one in the certificate" in lines
    assert said(browser, lambda: browser.drop([tmp_path], x, y))[0].startswith("Differs: ")
    assert said(browser, lambda: browser.drop([folder], x, y))[0].startswith("Agrees: ")
    # Where a browser has no handles, and lets a page from a file read no entries, the reader is told.
    browser.run("delete DataTransferItem.prototype.getAsFileSystemHandle")
    assert "the button above may read it" in said(browser, lambda: browser.drop([folder], x, y))[1]
    assert browser.complaints == []


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


# Tampering -------------------------------------------------------------------------------------------------------

Changes = dict[str, bytes]


def written(value: Any) -> bytes:
    return files.canonical_json(value).encode()


def paths(made: dict[str, Any]) -> list[tuple[Any, ...]]:
    """Every number of a certificate that the page computes again."""
    found: list[tuple[Any, ...]] = []
    for k, claim in enumerate(made["claims"]):
        envelope = ("claims", k, "envelope")
        found += [(*envelope, name) for name in (
            "gain_pp", "load_gain_pp", "policy_excess_pp", "control_excess_pp", "no_sync_violation_pct", "p", "p_holm",
            "policy_violations_per_merge", "control_violations_per_merge", "optimum_gain_pp", "gain_captured",
            "n_seeds", "requests_saved_per_sidecar_per_10_min", "worst_seed", "worst_seed_gain_pp", "n_draws",
            "min_effect_pp",
        )]  # fmt: skip
        found += [
            (*envelope, "per_seed", i, name) for i, row in enumerate(claim["envelope"]["per_seed"]) for name in row
        ]
        found += [(*envelope, "controls", i, "gain_pp") for i in range(len(claim["envelope"]["controls"]))]
        found += [
            (*envelope, "tests", i, name) for i in range(len(claim["envelope"]["tests"])) for name in ("p", "p_at_zero")
        ]
        found.append(("claims", k, "tier", "number"))
        for g, gate in enumerate(claim["gates"]):
            for c, check in enumerate(gate["checks"]):
                where = ("claims", k, "gates", g, "checks", c)
                if check["name"] == "budget":
                    found += [(*where, "details", "busy_s"), (*where, "details", "realised", 3)]
                if check["name"] == "corridor":
                    found += [(*where, "details", name) for name in ("merges", "forced")]
                if check["name"] == "placement":
                    found += [(*where, name) for name in ("statistic", "threshold")]
    for r, regime in enumerate(made["regimes"]):
        found += [
            ("regimes", r, "seeds", i, name)
            for i, row in enumerate(regime["seeds"])
            for name in row
            if name != "trace_digest"
        ]
        found += [("regimes", r, "corridor", name) for name in regime["corridor"]]
        found += [("regimes", r, name) for name in ("islands", "n_seeds", "tokens_per_step")]
    return found + [("settings", "alpha"), ("settings", "draws"), ("settings", "root_seed"), ("tier", "number")]


def number_changed(base: Changes, rng: np.random.Generator) -> Changes:
    """Another number, in canonical form; a p-value far enough off that chance does not explain it."""
    made = json.loads(base[CERTIFICATE])
    options = paths(made)
    where = options[int(rng.integers(len(options)))]
    holder = made
    for key in where[:-1]:
        holder = holder[key]
    value = holder[where[-1]]
    if "tests" in where:
        holder[where[-1]] = 0.5 if value < 0.25 else value / 5
    elif isinstance(value, int):
        holder[where[-1]] = value + int(rng.choice([-1, 1, 7]))
    else:
        holder[where[-1]] = float(
            rng.choice([(value or 0.0) * 1.001 + 1e-4, -(value or 0.0) - 0.1, (value or 0.0) + 1])
        )
    return {CERTIFICATE: written(made)}


def parquet(table: pa.Table, folder: Path) -> bytes:
    pq.write_table(table, folder / "one.parquet", compression="zstd", row_group_size=1 << 20)
    return (folder / "one.parquet").read_bytes()


def row_changed(base: Changes, rng: np.random.Generator, folder: Path) -> Changes:
    """One cell of one raw table."""
    name = RAW + str(rng.choice([store.PLACEMENTS, store.REQUESTS, store.SEEDS]))
    (folder / "read.parquet").write_bytes(base[name])
    table = pq.read_table(folder / "read.parquet")
    rows = np.arange(len(table))
    if name.endswith(store.PLACEMENTS):
        rows = np.flatnonzero(np.isin(table["arm"].to_pylist(), ARMS))
        column = str(rng.choice(["violations", "gaps"]))
    elif name.endswith(store.REQUESTS):
        column = "e2e_ns"
    else:
        column = str(rng.choice(["n_requests", "prompt_tokens", "output_tokens", "forced", "trace_digest"]))
    values, row = table[column].to_pylist(), int(rng.choice(rows))
    if column == "e2e_ns":
        values[row] = 2_000_000_000 if values[row] <= 1_000_000_000 else 400_000_000
    elif column == "trace_digest":
        values[row] = values[row][::-1]
    elif isinstance(values[row], list):
        values[row] = [values[row][0] + int(rng.integers(1, 9)), *values[row][1:]] if values[row] else [1]
    else:
        values[row] += int(rng.choice([-1, 1]))
    at = table.column_names.index(column)
    field = table.schema.field(at)
    return {name: parquet(table.set_column(at, field, pa.array(values, field.type)), folder)}


def with_digests(base: Changes, changed: Changes) -> Changes:
    """The same with a certificate that names the new files' digests."""
    made = json.loads(base[CERTIFICATE])
    made["files"] |= {name.removeprefix(RAW): hashlib.sha256(data).hexdigest() for name, data in changed.items()}
    return {**changed, CERTIFICATE: written(made)}


def swapped(base: Changes, rng: np.random.Generator) -> Changes:
    """Two raw files in each other's place."""
    one, two = rng.choice(sorted(name for name in base if name != CERTIFICATE), 2, replace=False)
    return {str(one): base[two], str(two): base[one]}


def mutations(base: Changes, n: int, rng: np.random.Generator, folder: Path) -> Iterator[tuple[str, Changes]]:
    kinds: list[tuple[str, float, Callable[[], Changes]]] = [
        ("a number of the certificate", 0.65, lambda: number_changed(base, rng)),
        ("a raw row", 0.1, lambda: row_changed(base, rng, folder)),
        ("a raw row, digests made to fit", 0.15, lambda: with_digests(base, row_changed(base, rng, folder))),
        ("two files swapped", 0.1, lambda: swapped(base, rng)),
    ]
    for name, share, made in kinds:
        for _ in range(round(share * n)):
            yield name, made()


def found_by_verify(folder: Path) -> bool:
    try:
        return verify(folder) != []
    except ProtocolError:
        return True


def compared(browser: Browser, folder: Path, tmp_path: Path, n: int) -> dict[str, tuple[int, int, int]]:
    """Of each kind of change: how many were made, found by `verify`, and by the page, which misses none of those."""
    base, rng = contents(folder), np.random.default_rng(7)
    held = json.dumps({name: base64.b64encode(data).decode() for name, data in base.items()})
    decode = "data => Uint8Array.from(atob(data), c => c.charCodeAt(0))"
    browser.run(f"globalThis.held = Object.fromEntries(Object.entries({held}).map(([n, d]) => [n, ({decode})(d)])); 0")
    tally: dict[str, tuple[int, int, int]] = {}
    for kind, changes in mutations(base, n, rng, tmp_path):
        copied = tmp_path / "copy"
        shutil.copytree(folder, copied)
        for name, data in changes.items():
            (copied / name).write_bytes(data)
        by_verify = found_by_verify(copied)
        shutil.rmtree(copied)
        coded = json.dumps({name: base64.b64encode(data).decode() for name, data in changes.items()})
        said = browser.run(
            f"RunCheck.check(new Map(Object.entries({{...held, ...Object.fromEntries(Object.entries({coded})"
            f".map(([n, d]) => [n, ({decode})(d)]))}}))).then(r => r.differs.slice(0, 3))"
        )
        where = {n: d for n, d in changes.items() if n != CERTIFICATE} or _changed(base, changes)
        assert said or not by_verify, (kind, where)
        made, verified, page = tally.get(kind, (0, 0, 0))
        tally[kind] = (made + 1, verified + by_verify, page + bool(said))
    return tally


def _changed(base: Changes, changes: Changes) -> list[str]:
    return list(differences(json.loads(base[CERTIFICATE]), json.loads(changes[CERTIFICATE])))


def test_twenty_changes_are_found(browser: Browser, folder: Path, tmp_path: Path) -> None:
    assert sum(verified for _, verified, _ in compared(browser, folder, tmp_path, 20).values()) >= 18


@pytest.mark.slow
def test_two_hundred_changes_are_found(browser: Browser, folder: Path, tmp_path: Path) -> None:
    tally = compared(browser, folder, tmp_path, 200)
    assert sum(made for made, _, _ in tally.values()) == 200
    assert all(verified >= 0.9 * made and page >= verified for made, verified, page in tally.values()), tally
