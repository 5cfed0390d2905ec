"""The audit of published results as one page, as Markdown and on the terminal.

All three show the same stored values; nothing is computed here but how often published and recomputed digits agree.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.text import Text

from protocol.files import write_text
from reports import format as fmt
from reports.fitted import fitted, indented
from reports.html import environment

#: Status word and mark of each verdict.
STATUS = {"licensed": "passed", "not licensed": "failed", "undecidable": "undecidable"}
#: "Does the published win survive at equal budget?", in words.
SURVIVES = {
    "yes": "yes",
    "no": "no",
    "undecidable": "cannot be told",
    "no win": "no win published",
}
ARM_HEADS = (
    "Arm", "Runs", "SLO violations (%)", "Requests a run", "Merges logged", "Windows that ran", "From labels",
    "Violations per window",
)  # fmt: skip
PAIR_HEADS = (
    "Against", "Published difference (pp)", "p published", "p recomputed", "Least attainable",
    "At equal budget (pp)", "At the windows' bounds (pp)", "Per realised window", "Win survives", "Verdict",
)  # fmt: skip
FINDING_HEADS = ("Finding", "Value", "What it says")
FORMAT_HEADS = ("Format", "Files", "Rows", "Clock", "Units", "Start times", "Gates that it cannot decide alone")


def write_page(document: Mapping[str, Any], path: Path) -> None:
    """One self-contained HTML page."""
    env = environment()
    env.globals |= {
        "status_of": STATUS,
        "arm_rows": arm_rows,
        "pair_rows": pair_rows,
        "format_rows": format_rows,
        "agreement": agreement,
        "file_rows": file_rows,
        "finding_rows": finding_rows,
        "finding_heads": FINDING_HEADS,
        "survival": survival,
        "simulator_text": simulator_text,
        "arm_heads": ARM_HEADS,
        "pair_heads": PAIR_HEADS,
        "format_heads": FORMAT_HEADS,
    }
    write_text(path, env.get_template("audit.html.j2").render(d=document))


# Cells -----------------------------------------------------------------------------------------------------------


def limits(found: Mapping[str, Any] | None, digits: int = 2, sign: bool = True) -> str:
    """`-0.66 [-1.95, 0.63]`; without an interval, the mean and why there is none."""
    if not found or found.get("mean") is None:
        return fmt.UNKNOWN
    mean = fmt.fixed(found["mean"], digits, sign)
    if found.get("low") is None:
        return f"{mean} (no interval: {found.get('reason') or 'unknown'})"
    # A line break inside an interval would make it hard to read.
    ends = fmt.interval([found["low"], found["high"]], digits).replace(" ", "\u00a0")
    return f"{mean} {ends}"


def windows(row: Mapping[str, Any]) -> str:
    """Estimated windows with their bounds, or the count."""
    if row.get("windows") is None:
        return fmt.UNKNOWN
    low, high = row["windows_low"], row["windows_high"]
    if low == high:
        return fmt.fixed(low, 1)
    return f"{fmt.fixed(row['windows'], 1)} ({fmt.fixed(low, 1)} to {fmt.fixed(high, 1)})"


def arm_rows(comparison: Mapping[str, Any]) -> list[list[str]]:
    rows = []
    counts = all(arm["per_window"]["mean"] is not None for arm in comparison["arms"])
    for arm in comparison["arms"]:
        labels = arm["windows_by_labels"]
        told = (
            f"{fmt.fixed(labels[0], 1)} to {fmt.fixed(labels[1], 1)} ({arm['label_runs']} runs)"
            if labels
            else fmt.UNKNOWN
        )
        requests = arm["requests"]
        rows.append([
            arm["arm"],
            fmt.count(arm["runs"]) + (f" in {fmt.count(arm['replicates'])} replicates" if arm["replicates"] else ""),
            limits(arm["violation_pct"], sign=False),
            limits(requests, 0, sign=False) if requests else fmt.UNKNOWN,
            ", ".join(fmt.count(n) for n in arm["merges_logged"]) or fmt.UNKNOWN,
            windows(arm),
            told,
            _per_window(arm, counts),
        ])  # fmt: skip
    for arm in comparison["aggregates"]:
        if arm["windows"] is None:
            continue
        spread = f"{fmt.fixed(arm['mean_pct'])} ± {fmt.fixed(arm['sd_pct'])} (sd)"
        per = f"{fmt.fixed(arm['pct_per_window'])} pp (no interval: runs not published)"
        name = f"{arm['arm']} (mean only)"
        rows.append([name, fmt.count(arm["n"]), spread, fmt.UNKNOWN, fmt.UNKNOWN, windows(arm), fmt.UNKNOWN, per])
    return rows


def _per_window(arm: Mapping[str, Any], counts: bool) -> str:
    """Violations per window as a count where every arm's requests are known, else in points of all requests."""
    if counts:
        return limits(arm["per_window"], 1, sign=False)
    if arm["windows"] is None:
        return fmt.UNKNOWN
    points = limits(arm["pct_per_window"], sign=False)
    if points == fmt.UNKNOWN:
        return arm["per_window"]["reason"] or points
    return f"{points} pp"


def survival(pair: Mapping[str, Any]) -> str:
    return f"{SURVIVES[pair['survives']['verdict']]}: {pair['survives']['reason']}"


def pair_rows(comparison: Mapping[str, Any]) -> list[list[str]]:
    rows = []
    for claim in comparison["claims"]:
        p = claim["pair"]
        if not p or not p["seeds"]:
            continue
        worst, best = (p["adjusted_pp"][name] for name in ("least favourable", "most favourable"))
        bounds = f"{fmt.fixed(best['mean'], 2, True)} to {fmt.fixed(worst['mean'], 2, True)}"
        rows.append([
            f"{claim['policy']} against {claim['versus']}",
            limits(p["raw_pp"]),
            claim["printed_p"] or fmt.UNKNOWN,
            fmt.p_value(p["p_sign_flip"]),
            fmt.p_value(p["p_floor"]),
            limits(p["adjusted_pp"]["estimate"]),
            bounds if best["mean"] is not None and worst["mean"] is not None else fmt.UNKNOWN,
            limits(p["per_window"]["estimate"], 1),
            SURVIVES[p["survives"]["verdict"]],
            claim["verdict"],
        ])  # fmt: skip
    return rows


def finding_rows(comparison: Mapping[str, Any]) -> list[list[str]]:
    return [[found["name"], found["value"], found["text"]] for found in comparison["findings"]]


def format_rows(document: Mapping[str, Any]) -> list[list[str]]:
    return [
        [f["format"], fmt.count(f["files"]), f["rows"], f["clock"], f["units"], f["start"],
         "; ".join(f"{gate}: {why}" for gate, why in f["undecidable"].items()) or "none"]
        for f in document["formats"]
    ]  # fmt: skip


def file_rows(document: Mapping[str, Any]) -> list[list[str]]:
    """Files with requests or facts of their own: name, format, what they hold."""
    return [
        [f["name"], f["format"], "; ".join(f"{fmt.clean(k)} {_shown(v)}" for k, v in sorted(f["facts"].items()))]
        for f in document["files"]
        if f["facts"]
    ]


def _shown(value: Any) -> str:
    return fmt.clean(value) if isinstance(value, str) else fmt.number(value)


def agreement(comparison: Mapping[str, Any]) -> dict[str, Any] | None:
    """How many published numbers come out the same to the last printed digit, and those that do not."""
    printed = comparison["printed"]
    if not printed:
        return None
    differ = [row for row in printed if row[1] != row[2]]
    return {"total": len(printed), "same": len(printed) - len(differ), "differ": differ}


# Markdown --------------------------------------------------------------------------------------------------------


def to_markdown(document: Mapping[str, Any]) -> str:
    """The whole audit as one Markdown document."""
    lines = ["# Audit of published results", ""]
    if document["command"]:
        lines += ["Made by", "", f"    {fmt.clean(document['command'])}", ""]
    for text in document["introduction"]:
        lines += [fmt.clean(text), ""]
    lines += ["## What the claims are licensed to say", ""]
    lines += [f"- {fmt.markdown(text)}" for text in document["summary"]]
    lines += [""] if document["summary"] else []
    verdicts = [[c["title"], claim["text"], claim["verdict"]] for c in document["comparisons"] for claim in c["claims"]]
    lines += _table(("Comparison", "Claim", "Verdict"), verdicts)
    lines += [""]
    for text in document["legend"]:
        lines += [fmt.clean(text), ""]
    for comparison in document["comparisons"]:
        lines += _comparison_markdown(comparison)
    lines += ["## Formats read", "", *_table(FORMAT_HEADS, format_rows(document)), ""]
    files = file_rows(document)
    if files:
        lines += ["## Files", "", *_table(("File", "Format", "Holds"), files), ""]
    return "\n".join(lines).rstrip() + "\n"


def _comparison_markdown(comparison: Mapping[str, Any]) -> list[str]:
    lines = [f"## {fmt.markdown(comparison['title'])}", ""]
    lines += [f"- {fmt.markdown(note)}" for note in comparison["notes"]]
    lines += [""] if comparison["notes"] else []
    if comparison["arms"]:
        lines += ["### Arms", "", *_table(ARM_HEADS, arm_rows(comparison)), ""]
        lines += [
            f"- {fmt.markdown(a['arm'])}: {fmt.markdown(a['derived'])}." for a in comparison["arms"] if a["derived"]
        ]
        lines += [""] if any(a["derived"] for a in comparison["arms"]) else []
    rows = pair_rows(comparison)
    if rows:
        lines += ["### Pairs", "", *_table(PAIR_HEADS, rows), ""]
    findings = finding_rows(comparison)
    if findings:
        lines += ["### What the numbers also say", "", *_table(FINDING_HEADS, findings), ""]
    simulator = comparison["simulator"]
    if simulator:
        lines += [fmt.markdown(simulator_text(simulator)), ""]
    if comparison["claims"]:
        lines += ["### Claims", ""]
    for claim in comparison["claims"]:
        lines += [f"**{fmt.markdown(claim['text'])}: {claim['verdict']}**", ""]
        lines += [f"- {fmt.markdown(reason)}" for reason in claim["reasons"]]
        if claim["pair"] and claim["kind"] == "better":
            lines.append(f"- Does the published win survive? {fmt.markdown(survival(claim['pair']))}")
        lines += _others(claim)
        lines.append("")
    if comparison["table"]:
        lines += [
            "### Published table, recomputed",
            "",
            *_table(comparison["table"]["columns"], comparison["table"]["rows"]),
        ]
        found = agreement(comparison)
        if found:
            lines += ["", f"{found['same']} of {found['total']} published numbers agree to the last printed digit."]
            lines += [f"- {fmt.markdown(a)}: published {b}, recomputed {c}" for a, b, c in found["differ"]]
        lines.append("")
    return lines


def _others(claim: Mapping[str, Any]) -> list[str]:
    """Checks that did not decide the verdict, so that nothing stays unsaid."""
    told = set(claim["reasons"])
    return [
        f"- {fmt.markdown(c['name'])} {c['status']}: {fmt.markdown(c['reason'])}"
        for c in claim["checks"]
        if f"{c['name']}: {c['reason']}" not in told
    ]


def simulator_text(found: Mapping[str, Any]) -> str:
    ends = fmt.interval(found["interval"])
    agree = "agree" if found["p"] is not None and found["p"] <= 0.05 else "are not shown to agree"
    return (
        f"Real sidecar and the artifact's simulator, p95 in windows over outside, {found['n']} runs: "
        f"{found['real']} real, "
        f"{found['simulated']} simulated; real over simulated {fmt.fixed(found['ratio'])}, 90 % interval {ends}; they "
        f"{agree} within a factor of {fmt.fixed(found['margin'])} ({fmt.p_text(found['p'], 'equivalence p')})."
    )


def _table(heads: Sequence[str], rows: Sequence[Sequence[str]]) -> list[str]:
    return [
        f"| {' | '.join(fmt.markdown(h) for h in heads)} |",
        f"|{'---|' * len(heads)}",
        *(f"| {' | '.join(fmt.markdown(cell) for cell in row)} |" for row in rows),
    ]


# Terminal --------------------------------------------------------------------------------------------------------


def to_terminal(document: Mapping[str, Any], console: Console) -> None:
    """Per comparison: arms, pairs, and every claim with its verdict and reasons."""
    for comparison in document["comparisons"]:
        console.print(Text(fmt.clean(comparison["title"]), style="bold"))
        for heads, rows, names in ((ARM_HEADS, arm_rows(comparison), (0,)), (PAIR_HEADS, pair_rows(comparison), ())):
            if rows:
                console.print(fitted(heads, rows, console.width, names=names), soft_wrap=True)
                console.print()
        for note in comparison["notes"]:
            console.print(Text(fmt.clean(note), style="dim"))
        for name, value, text in finding_rows(comparison):
            console.print(Text.assemble((fmt.clean(f"{name}: {value}."), "bold"), f"  {fmt.clean(text)}"))
        found = agreement(comparison)
        if found:
            console.print(
                Text(f"{found['same']} of {found['total']} published numbers agree to the last printed digit.")
            )
        for claim in comparison["claims"]:
            status = STATUS[claim["verdict"]]
            style = {"passed": "green", "failed": "red", "undecidable": "yellow"}[status]
            mark = f"{fmt.MARKS[status]} {claim['verdict']}: "
            console.print(Text.assemble((mark, style), (fmt.clean(claim["text"]), "bold")))
            for reason in claim["reasons"]:
                console.print(indented(reason, console.width), soft_wrap=True)
            if claim["pair"] and claim["kind"] == "better" and claim["pair"]["seeds"]:
                told = f"win survives at equal budget? {survival(claim['pair'])}"
                console.print(indented(told, console.width), soft_wrap=True)
        console.print()
    console.print(fitted(FORMAT_HEADS, format_rows(document), console.width), soft_wrap=True)
    files = file_rows(document)
    if files:
        console.print()
        console.print(fitted(("File", "Format", "Holds"), files, console.width, names=(0,)), soft_wrap=True)
