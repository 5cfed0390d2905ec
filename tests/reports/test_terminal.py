"""The summary in a terminal."""

from __future__ import annotations

import io
from typing import Any

import pytest
from rich.cells import cell_len
from rich.console import Console
from sample_certificate import HOSTILE, REGIMES, build

from reports import format as fmt
from reports.terminal import print_certificate


def _shown(certificate: dict[str, Any], **options: Any) -> str:
    out = io.StringIO()
    print_certificate(certificate, Console(file=out, width=80, highlight=False, **options))
    return out.getvalue()


@pytest.mark.parametrize("slos", [("e2e<=1s",), ("e2e<=1s", "ttft<=200ms,itl<=50ms")])
def test_fits_eighty_columns_and_names_every_claim(slos: tuple[str, ...]) -> None:
    certificate, _ = build(REGIMES, slos, seeds=2, draws=3)
    shown = _shown(certificate)
    assert all(cell_len(line) <= 80 for line in shown.splitlines())
    table = shown.split("Not passed")[0].split("verdict  ")[1]
    assert all(table.count(f"{regime}, {slo}") == 1 for regime in REGIMES for slo in slos)
    assert shown.startswith("✓ PASS  evidence of tier 1 of 4, stress harness\n" + certificate["sentence"][:40])


def test_no_word_is_broken_at_eighty_columns() -> None:
    """What a wider one shows on one line, eighty show in the same words."""
    certificate, _ = build(REGIMES, ("e2e<=1s", "ttft<=200ms,itl<=50ms"), seeds=2, draws=3)
    wide = io.StringIO()
    print_certificate(certificate, Console(file=wide, width=86, highlight=False))
    assert _shown(certificate).split() == wide.getvalue().split()


def test_both_gains_with_the_level_of_their_intervals() -> None:
    certificate, _ = build(seeds=2, draws=3, alpha=0.1)
    e, shown = certificate["claims"][0]["envelope"], _shown(certificate)
    (row,) = [line for line in shown.splitlines() if line.startswith("✓ PASS  ") and "evidence" not in line]
    for of in ("", "load_"):
        assert f" {fmt.fixed(e[f'{of}gain_pp'], sign=True)} " in row and fmt.interval(e[f"{of}interval_pp"]) in row
    assert shown.count("90 % interval") == 2 and "95 %" not in shown
    assert f"e2e<=1s; decided by the {e['decided_by']}" in shown
    worst = fmt.fixed(e["worst_seed_gain_pp"], sign=True)
    share = fmt.fraction(e["unseen_loss_share"])
    assert f"worst seed {worst}; with {e['n_seeds']} seeds losses on under {share} of traces go unseen" in shown


def test_says_what_failed_and_why() -> None:
    shown = _shown(build(tier=0, verdict="FAIL", planner=True, envelope=False, seeds=2, draws=3)[0])
    assert shown.startswith("✗ FAIL  evidence of tier 0 of 4, refused, upper bound")
    assert "G0 failed: seed 4, draw 17: 8 merges inside the horizon, the policy made 9" in shown
    assert shown.count("seed 4, draw 17") == 1


def test_names_are_no_markup_and_no_escapes() -> None:
    shown = _shown(build((HOSTILE,), seeds=1, draws=3, name=HOSTILE, verdict="INCONCLUSIVE")[0], force_terminal=True)
    assert "[red]#1[/red]" in shown
    assert "\x1b[31m ünï" not in shown and "U+001B[31m" in shown and "\u202e" not in shown


def test_highest_tier_asks_for_nothing_more() -> None:
    assert "needs" not in _shown(build(tier=4, seeds=2, draws=3)[0])


def test_a_wide_terminal_shows_more() -> None:
    certificate, _ = build(seeds=2, draws=3)
    wide, e = io.StringIO(), certificate["claims"][0]["envelope"]
    print_certificate(certificate, Console(file=wide, width=120, highlight=False))
    assert "captured" not in _shown(certificate)
    head, row = (line for line in wide.getvalue().splitlines() if line.startswith(("verdict", "✓ PASS   ")))
    assert head.split()[-4:] == ["captured", "saved/10", "min", "detectable"] and len(head) == len(row)
    saved = fmt.fixed(e["requests_saved_per_sidecar_per_10_min"], 1)
    assert row.split()[-3:] == [fmt.fraction(e["gain_captured"]).split()[1], saved, fmt.fixed(e["detectable_gain_pp"])]


def test_long_names_are_shortened_in_their_middle() -> None:
    name = "a-regime-of-" + "x" * 90 + "-its-end"
    shown = _shown(build((name,), ("ttft<=200ms,itl<=50ms",), seeds=1, draws=3)[0])
    line = next(line for line in shown.splitlines() if line.startswith("a-regime-of-") and "…" in line)
    assert "-its-end, ttft<=200ms,itl<=50ms" in line and len(line) <= 80
