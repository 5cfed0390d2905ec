"""A certificate in a terminal: the verdict, the sentence, one row a claim, and why whatever failed did."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from rich.console import Console
from rich.table import Table
from rich.text import Text

from reports import format as fmt
from reports import reading

_STYLES = {"passed": "green", "failed": "red", "undecidable": "yellow"}


def print_certificate(certificate: Mapping[str, Any], console: Console) -> None:
    """Print a summary that fits 80 columns.  Names are shown as plain text, whatever markup they hold."""
    tier = certificate["tier"]
    verdict = Text.assemble(
        _verdict(certificate["verdict"]),
        f"  evidence of tier {tier['number']} of 4, {fmt.clean(tier['name'])}",
        ", upper bound" if tier["upper_bound"] else "",
    )
    console.print(verdict)
    console.print(Text(fmt.clean(certificate["sentence"])))
    console.print()
    _claims(certificate, console)
    # Below tier 3 the effect transfer decides how far a claim reaches, not whether there is one.
    measured = bool(certificate.get("replays"))
    decisive = ("G0", "G1", "G2", "G3", "G4") if measured else ("G0", "G2", "G3", "G4")
    why = reading.obstacles(certificate, decisive)
    if why:
        console.print(Text("Not passed", style="bold"))
        for line in why:
            _item(console, line)
    if tier["number"] < 4:
        console.print(Text("What any claim needs" if tier["number"] == 0 else "A higher tier needs", style="bold"))
        for line in reading.next_tier(certificate):
            if line not in why:
                _item(console, line)


def _item(console: Console, line: str) -> None:
    row = Table.grid(padding=(0, 1))
    row.add_row(" -", Text(fmt.clean(line)))
    console.print(row)


def _verdict(word: str) -> Text:
    status = fmt.VERDICTS[word]
    return Text(f"{fmt.MARKS[status]} {word}", style=f"bold {_STYLES[status]}")


#: Widths of the columns of a claim's numbers; with the spaces between them they fill 79 columns.
_WIDTHS = (14, 8, 16, 11, 16, 9)


def _claims(certificate: Mapping[str, Any], console: Console) -> None:
    """Two lines a claim: which one it is, and its numbers; names have a line of their own, so that none is broken."""
    interval = f"{fmt.level(certificate)} interval"
    console.print(_row(Text("verdict"), "gain, pp", interval, "by load, pp", interval, "Holm p"))
    console.print(Text("─" * (sum(_WIDTHS) + len(_WIDTHS) - 1)))
    for claim in certificate["claims"]:
        e = claim["envelope"]
        name = f"{fmt.shortened(claim['regime'], 60)}, {fmt.shortened(claim['slo'], 40)}"
        decided = f"; decided by the {fmt.clean(e['decided_by'])}" if e["decided_by"] else ""
        console.print(Text(name + decided))
        gains = [(fmt.fixed(e[f"{of}gain_pp"], sign=True), fmt.interval(e[f"{of}interval_pp"])) for of in ("", "load_")]
        console.print(_row(_verdict(claim["verdict"]), *gains[0], *gains[1], fmt.p_value(e["p_holm"])))
        if e.get("predicted"):
            alone = [
                fmt.fixed(e["predicted"]["plain_gain_pp"], sign=True),
                fmt.interval(e["predicted"]["plain_interval_pp"]),
            ]
            console.print(Text(f"  by the replays alone {' '.join(alone)}", style="dim"))
        if claim["verdict"] == "PASS" and e["worst_seed"] is not None:
            unseen = f"losses on under {fmt.fraction(e['unseen_loss_share'])} of traces go unseen"
            worst = fmt.fixed(e["worst_seed_gain_pp"], sign=True)
            console.print(Text(f"  worst seed {worst}; with {e['n_seeds']} seeds {unseen}", style="dim"))
    console.print()


def _row(first: Text, *numbers: str) -> Text:
    """The first column to the left, the numbers to the right."""
    row = first.copy()
    row.pad_right(_WIDTHS[0] - row.cell_len)
    for width, number in zip(_WIDTHS[1:], numbers, strict=True):
        row.append(f" {number:>{width}}", "not bold")
    return row
