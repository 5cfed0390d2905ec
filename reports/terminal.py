"""A certificate in a terminal: the verdict, the sentence, one row a claim, and why whatever failed did."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from rich.console import Console
from rich.text import Text

from reports import format as fmt
from reports import reading
from reports.fitted import fitted, indented

_STYLES = {"passed": "green", "failed": "red", "undecidable": "yellow"}


def print_certificate(certificate: Mapping[str, Any], console: Console) -> None:
    """Print a summary that fits 80 columns, with more where there are more.

    Names are shown as plain text, whatever markup they hold.
    """
    tier = certificate["tier"]
    verdict = Text.assemble(
        _verdict(certificate["verdict"]),
        f"  evidence of tier {tier['number']} of 4, {fmt.clean(tier['name'])}",
        ", upper bound" if tier["upper_bound"] else "",
    )
    console.print(verdict)
    console.print(indented(certificate["sentence"], console.width, 0), soft_wrap=True)
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
    console.print(fitted(("", ""), [(" -", line)], console.width), soft_wrap=True)


def _verdict(word: str) -> Text:
    status = fmt.VERDICTS[word]
    return Text(f"{fmt.MARKS[status]} {word}", style=f"bold {_STYLES[status]}")


#: Widths of the columns of a claim's numbers; with the spaces between them they fill 79 columns.
_WIDTHS = (14, 8, 16, 11, 16, 9)
#: What a wider terminal shows as well: heading, width, and how a claim's envelope gives it.
_WIDE: tuple[tuple[str, int, Callable[[Mapping[str, Any]], str]], ...] = (
    ("captured", 9, lambda e: fmt.fraction(e["gain_captured"])),
    ("saved/10 min", 13, lambda e: fmt.fixed(e["requests_saved_per_sidecar_per_10_min"], 1)),
    ("detectable", 11, lambda e: fmt.fixed(e["detectable_gain_pp"])),
)


def _claims(certificate: Mapping[str, Any], console: Console) -> None:
    """Two lines a claim: which one it is, and its numbers; names have a line of their own, so that none is broken."""
    room, more = console.width - sum(_WIDTHS) - len(_WIDTHS) + 1, _WIDE
    while more and sum(width + 1 for _, width, _ in more) > room:
        more = more[:-1]
    widths = (*_WIDTHS, *(width for _, width, _ in more))
    interval = f"{fmt.level(certificate)} interval"
    heads = ("gain, pp", interval, "by load, pp", interval, "Holm p", *(name for name, *_ in more))
    console.print(_row(widths, Text("verdict"), *heads), soft_wrap=True)
    console.print(Text("─" * (sum(widths) + len(widths) - 1)), soft_wrap=True)
    for claim in certificate["claims"]:
        e = claim["envelope"]
        decided = f"; decided by the {fmt.clean(e['decided_by'])}" if e["decided_by"] else ""
        console.print(indented(_name(claim, console.width - 1) + decided, console.width, 0), soft_wrap=True)
        gains = [(fmt.fixed(e[f"{of}gain_pp"], sign=True), fmt.interval(e[f"{of}interval_pp"])) for of in ("", "load_")]
        numbers = (*gains[0], *gains[1], fmt.p_value(e["p_holm"]), *(show(e) for _, _, show in more))
        console.print(_row(widths, _verdict(claim["verdict"]), *numbers), soft_wrap=True)
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


def _name(claim: Mapping[str, Any], width: int) -> str:
    """Regime and SLO on one line, each shortened in its middle where both are too long for that."""
    regime, slo = fmt.clean(claim["regime"]), fmt.clean(claim["slo"])
    if len(regime) + len(slo) + 2 > width:
        slo = fmt.shortened(slo, max(width // 2 - 2, width - 2 - len(regime)))
        regime = fmt.shortened(regime, width - 2 - len(slo))
    return f"{regime}, {slo}"


def _row(widths: Sequence[int], first: Text, *numbers: str) -> Text:
    """The first column to the left, the numbers to the right."""
    row = first.copy()
    row.pad_right(widths[0] - row.cell_len)
    for width, number in zip(widths[1:], numbers, strict=True):
        row.append(f" {number:>{width}}", "not bold")
    return row
