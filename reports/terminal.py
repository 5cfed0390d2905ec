"""A certificate in a terminal: the verdict, the sentence, one row a claim, and why whatever failed did."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from rich import box
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
    console.print(_claims(certificate))
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


def _claims(certificate: Mapping[str, Any]) -> Table:
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False, padding=(0, 1, 0, 0), show_edge=False)
    table.add_column("regime, SLO", overflow="fold", ratio=1)
    table.add_column("verdict", no_wrap=True)
    for heading in ("gain", "95 % interval", "of it by load", "Holm p"):
        table.add_column(heading, justify="right", no_wrap=True)
    for claim in certificate["claims"]:
        e = claim["envelope"]
        table.add_row(
            Text(f"{fmt.shortened(claim['regime'], 60)}, {fmt.shortened(claim['slo'], 40)}"),
            _verdict(claim["verdict"]),
            Text(fmt.pp(e.get("gain_pp"), sign=True)),
            Text(fmt.interval(e.get("interval_pp"))),
            Text(fmt.pp(e.get("load_gain_pp"), sign=True)),
            Text(fmt.p_value(e.get("p_holm"))),
        )
    return table
