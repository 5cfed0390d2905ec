"""What the LaTeX tables of a certificate show: which columns, at how many decimals, under which caption."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from protocol.errors import BadInput
from protocol.workload.trace import NS_PER_S
from reports import format as fmt
from reports.figures import Width
from reports.latex import MARKS, Cell, Float, Row, check_room, document, stars

#: Columns of the claims table that may be asked for, and those of either width where nobody asks.
COLUMNS = ("claim", "verdict", "tier", "gain", "load", "p", "captured", "saved", "detectable", "bound", "worst")
_DEFAULT: dict[Width, tuple[str, ...]] = {
    "column": ("claim", "verdict", "gain", "load"),
    "page": ("claim", "verdict", "gain", "load", "p", "captured", "saved"),
}


@dataclass(frozen=True)
class Asked:
    """How the tables shall look.

    width : of the narrowest text that they must fit, a column or a page.  columns : of the claims table, in order;
    None for those of the width.  decimals : of gains and rates in percentage points.
    """

    width: Width = "page"
    columns: tuple[str, ...] | None = None
    decimals: int = 2

    def __post_init__(self) -> None:
        known = self.known()
        unknown = [name for name in self.columns or () if name not in known]
        if unknown or self.columns == ():
            raise BadInput("--columns", ", ".join(unknown) or "none", ", ".join(known))

    @staticmethod
    def known() -> Collection[str]:
        """Names of columns that may be asked for."""
        return COLUMNS


def documents(certificate: Mapping[str, Any], asked: Asked) -> dict[str, str]:
    """The text of every LaTeX file by its stem: claims, gates, seeds, islands."""
    claims = _claims(certificate, asked)
    if asked.columns is not None:
        check_room(claims.cells, claims.rows, asked.width)
    return {
        "claims": document([claims], asked.width),
        "gates": document([_gates(k, claim, asked) for k, claim in enumerate(certificate["claims"], 1)], asked.width),
        "seeds": document([_seeds(k, claim, asked) for k, claim in enumerate(certificate["claims"], 1)], asked.width),
        "islands": document(_islands(certificate), asked.width),
    }


# Claims ----------------------------------------------------------------------------------------------------------


def _claims(certificate: Mapping[str, Any], asked: Asked) -> Float:
    wanted = asked.columns or _DEFAULT[asked.width]
    cells = {cell.key: cell for cell in _claim_cells(asked.decimals)}
    envelopes = [claim["envelope"] for claim in certificate["claims"]]
    seeds, draws = (_range([e[key] for e in envelopes]) for key in ("n_seeds", "n_draws"))
    least = certificate["settings"]["min_effect_pp"]
    says = [
        f"Placement gain of {fmt.shortened(certificate['contender']['name'], 60)} over matched random placement, in "
        f"percentage points of requests that violate the SLO",
        f"{seeds} seeds, {draws} draws each; in brackets {fmt.level(certificate)} intervals",
        *(["By load: the part that follows the load"] if "load" in wanted else []),
        *(["Captured: share of the offline optimum's gain"] if "captured" in wanted else []),
        *(["Saved: requests per sidecar in ten minutes"] if "saved" in wanted else []),
        *(["Detectable: the gain found 9 times in 10"] if "detectable" in wanted else []),
        *(["Bound: without assumptions on shape"] if "bound" in wanted else []),
        f"p: largest of all tests at a minimum effect of {least:g} pp, Holm-corrected over "
        f"{len(envelopes)} claim{'s' if len(envelopes) != 1 else ''}: {MARKS}",
    ]
    return Float("claims", ". ".join(says) + ".", [cells[key] for key in wanted], certificate["claims"])


def _claim_cells(decimals: int) -> tuple[Cell, ...]:
    def number(key: str) -> Callable[[Row], Sequence[str]]:
        return lambda row: [fmt.fixed(row["envelope"][key], decimals, sign=True)]

    def gain(of: str, marked: bool) -> Callable[[Row], Sequence[str]]:
        def lines(row: Row) -> Sequence[str]:
            e = row["envelope"]
            mark = stars(e["p_holm"]) if marked else ""
            limits = fmt.interval(e[f"{of}interval_pp"], decimals)
            seen = fmt.fixed(e[f"{of}gain_pp"], decimals, sign=True) + mark
            return [seen] if limits == fmt.UNKNOWN else [seen, limits]

        return lines

    return (
        Cell("claim", ["Claim"], lambda row: [row["regime"], row["slo"]], share=1),
        Cell("verdict", ["Verdict"], lambda row: [row["verdict"].capitalize()]),
        Cell("tier", ["Tier"], lambda row: [str(row["tier"]["number"])]),
        Cell("gain", ["Gain", "(pp)"], gain("", True)),
        Cell("load", ["By load", "(pp)"], gain("load_", False)),
        Cell("p", ["p, Holm"], lambda row: [fmt.p_value(row["envelope"]["p_holm"])]),
        Cell("captured", ["Captured"], lambda row: [fmt.fraction(row["envelope"]["gain_captured"])]),
        Cell("saved", ["Saved"], lambda row: [fmt.fixed(row["envelope"]["requests_saved_per_sidecar_per_10_min"], 1)]),
        Cell(
            "detectable",
            ["Detectable", "(pp)"],
            lambda row: [fmt.fixed(row["envelope"]["detectable_gain_pp"], decimals)],
        ),
        Cell("bound", ["Bound", "(pp)"], number("bounded_lower_bound_pp")),
        Cell("worst", ["Worst", "seed (pp)"], number("worst_seed_gain_pp")),
    )


def _range(values: Sequence[Any]) -> str:
    low, high = min(values, default=0), max(values, default=0)
    return fmt.count(low) if low == high else f"{fmt.count(low)} to {fmt.count(high)}"


# Gates, seeds, islands -------------------------------------------------------------------------------------------


def _gates(k: int, claim: Row, asked: Asked) -> Float:
    rows = [{**check, "gate": gate["gate"]} for gate in claim["gates"] for check in gate["checks"]]
    cells = [
        Cell("check", ["Check"], lambda row: [f"{row['gate']} {row['name']}"], share=1),
        Cell("status", ["Status"], lambda row: ["open" if row["status"] == "undecidable" else str(row["status"])]),
        *(
            [
                Cell("statistic", ["Statistic"], lambda row: [fmt.number(row["statistic"])]),
                Cell("n", ["n"], lambda row: [fmt.count(row["n"])]),
            ]
            if asked.width == "page"
            else []
        ),
        Cell("reason", ["Reason"], lambda row: [row["reason"]], share=3),
    ]
    return Float(f"gates-{k}", f"Gates and checks of {_place(claim)}. Open: undecidable.", cells, rows)


def _seeds(k: int, claim: Row, asked: Asked) -> Float:
    def number(key: str) -> Callable[[Row], Sequence[str]]:
        return lambda row: [fmt.fixed(row[key], asked.decimals)]

    cells = [
        Cell("seed", ["Seed"], lambda row: [fmt.count(row["seed"])]),
        Cell("merges", ["Merges"], lambda row: [fmt.count(row["merges"])]),
        Cell("policy", ["Policy"], number("policy")),
        Cell("draw_mean", ["Mean of", "draws"], number("draw_mean")),
        Cell("draw_sd", ["SD"], number("draw_sd")),
        Cell("rank", ["Rank"], lambda row: [fmt.count(row["rank"])]),
        *([Cell("of", ["of"], lambda row: [fmt.count(row["of"])])] if asked.width == "page" else []),
        Cell("optimum", ["Optimum"], number("optimum")),
        *([Cell("no_sync", ["Without", "merges (%)"], number("no_sync_pct"))] if asked.width == "page" else []),
    ]
    caption = (
        f"Sync-excess SLO violations by seed in {_place(claim)}, in percentage points. Mean and SD: of the matched "
        "random draws. Rank 1 is the best of the policy and its draws."
    )
    return Float(f"seeds-{k}", caption, cells, claim["envelope"]["per_seed"])


def _islands(certificate: Mapping[str, Any]) -> list[Float]:
    cells = [
        Cell("seed", ["Seed"], lambda row: [fmt.count(row["seed"])]),
        Cell("island", ["Island"], lambda row: [fmt.count(row["island"])]),
        Cell("merges", ["Merges"], lambda row: [fmt.count(row["merges"])]),
        Cell("busy", ["Busy (s)"], lambda row: [fmt.fixed(row["busy_ns"] / NS_PER_S, 1)]),
        Cell("sent", ["Sent (GB)"], lambda row: [fmt.fixed(row["bytes"] / 1e9)]),
        Cell("steps", ["Inner steps"], lambda row: [fmt.count(row["inner_steps"])]),
    ]
    found = []
    for k, regime in enumerate((r for r in certificate["regimes"] if "peer" in r), start=1):
        rows = [
            {"seed": s["seed"], "island": i, **{key: values[i] for key, values in s["by_island"].items()}}
            for s in regime["seeds"]
            for i in range(regime["islands"])
        ]
        caption = f"What each island did in {fmt.shortened(regime['name'], 60)}: merges, time busy merging, data sent."
        found.append(Float(f"islands-{k}", caption, cells, rows))
    return found


def _place(claim: Row) -> str:
    return f"{fmt.shortened(claim['regime'], 60)}, {fmt.shortened(claim['slo'], 40)}"
