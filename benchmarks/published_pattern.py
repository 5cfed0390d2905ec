"""Certify every shipped scheduler on the five regimes and write what came out beside what was published.

    python benchmarks/published_pattern.py --out docs/results.md [--draws 999] [--jobs 2]

Each row is a certificate's own numbers, or `compare --paired` of two of them; nothing is typed in but the published
column (tables of WA-DiLoCo's steady and bursty replay).  What stands in the file from the heading `KEPT` on is kept.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
from collections.abc import Mapping
from pathlib import Path

from statsmodels.stats.multitest import multipletests

from protocol.certificate.compare import Paired, paired
from protocol.certificate.model import Certificate
from protocol.certificate.reading import read_certificate

SCHEDULERS = (
    "fixed-h-256", "fixed-h-512", "adaptive-tokens", "adaptive-load", "pressure-gate", "pressure-gate-matched",
    "random-deferral", "random-deferral-70", "wa-diloco", "wa-calibrated", "wa-calibrated-forecast", "quiet",
    "calibrated-offline", "optimum", "examples/ten_line.py", "examples/ewma.py", "examples/clock_only.py",
)  # fmt: skip

#: What is compared with every other one that could be deployed, seed by seed.
OURS, PLANNERS = "quiet", ("calibrated-offline", "optimum")

PUBLISHED = """| published comparison | figures as published |
|---|---|
| steady sync-heavy replay, violations % | fixed-256 19.21, fixed-512 11.04, pressure gate 13.73, matched gate 11.93, random deferral 6.38, WA 6.46; WA against random p = 0.56 |
| bursty replay, sync-excess % | offline calibrated 4.45, matched random 6.26, WA 6.92, online calibrated 5.92 (against random -0.34 pp, p = 0.344) |
| bursty, aperiodic family | online with EWMA forecast 5.09 against matched random 6.54, p = 0.021 (1.46 pp) |
"""  # noqa: E501


#: Kept by hand below what is written here.
KEPT = "## Which scheduler to deploy"
#: Tests of a claim, in the order of their columns.
TESTS = (
    "stratified randomisation", "paired sign flip", "exchange between traces", "paired sign flip of the load gain",
)  # fmt: skip


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--draws", default="999")
    parser.add_argument("--jobs", default="2")
    parser.add_argument("--runs", type=Path, help="keep the certificates here, and take those that are here already")
    options = parser.parse_args()
    rows, verdicts, made_by = [], [], {}
    with tempfile.TemporaryDirectory() as scratch:
        for scheduler in SCHEDULERS:
            folder = (options.runs or Path(scratch)) / Path(scheduler).stem
            if not (folder / "certificate.json").is_file():
                _certify(scheduler, folder, options.draws, options.jobs)
            made = json.loads((folder / "certificate.json").read_text("utf-8"))
            made_by[scheduler] = read_certificate(folder)
            verdicts.append(f"| `{scheduler}` | {made['verdict']} | {made['sentence']} |")
            rows += [_row(scheduler, claim) for claim in made["claims"]]
            print(rows[-1], flush=True)
    versions = ", ".join(f"{k} {v}" for k, v in made["versions"].items())
    text = f"""# What the shipped schedulers earn, beside what was published

Made by `python benchmarks/published_pattern.py --out docs/results.md` ({options.draws} draws a seed, 20 seeds,
root seed {made["settings"]["root_seed"]}; {versions}). Every row is one certificate's own numbers.  The
servers are simulated and fitted to a vLLM on two cores that was measured under merges (docs/real-sidecar.md).

## Published

{PUBLISHED}
The published replays differ from these in pace, budget and load (docs/regimes.md says how; docs/audit-wa-diloco.md
says what the published numbers license), so levels are not comparable; the pattern is.

## Verdicts

| scheduler | verdict | sentence |
|---|---|---|
{chr(10).join(verdicts)}

## Claims

policy and control: sync-excess violations in pp (of the no-sync rate beside them); gains over chance and from following
the load in pp with 95 % intervals; p of each test at the minimum effect of 0.5 pp, and the Holm-adjusted largest; captured:
share of the exact optimum's gain over chance.

| scheduler | regime | verdict | tier | merges a seed | policy | control | no-sync % | over chance | following the load | {" | ".join(f"p, {name}" for name in TESTS)} | p, Holm | captured |
|{"---|" * (len(TESTS) + 12)}
{chr(10).join(rows)}

## `{OURS}` against each of the others

Difference of the gains over chance, seed by seed, each over its own matched draws: `{OURS}` less the other, pp, with the 95 %
interval of t over seeds; * where p (one-sided sign flips) is at most 0.05 after Holm over all cells of this table.

{_differences(made_by)}
"""  # noqa: E501
    before = options.out.read_text(encoding="utf-8") if options.out.is_file() else ""
    kept = before[before.index(KEPT) :] if KEPT in before else ""
    options.out.write_text(text + (f"\n{kept}" if kept else ""), encoding="utf-8")


def _certify(scheduler: str, folder: Path, draws: str, jobs: str) -> None:
    """Raises SystemExit where it could not be judged."""
    command = [sys.executable, "-m", "protocol", "certify", scheduler, "--draws", draws, "--jobs", jobs, "--out"]
    run = subprocess.run([*command, str(folder)], capture_output=True, text=True)
    if run.returncode == 2:
        raise SystemExit(f"{scheduler}: {run.stderr}")


def _differences(made_by: Mapping[str, Certificate]) -> str:
    """A table of other schedulers by regimes."""
    others = [name for name in made_by if name not in (OURS, *PLANNERS)]
    found = {name: paired({OURS: made_by[OURS], name: made_by[name]}) for name in others}
    cells = [row for name in others for row in found[name]]
    p_all = multipletests([1.0 if row.p is None else row.p for row in cells], method="holm")[1]
    texts = iter([_difference(row, float(p)) for row, p in zip(cells, p_all, strict=True)])
    regimes = [row.regime for row in found[others[0]]]
    lines = [f"| `{name}` | " + " | ".join(next(texts) for _ in regimes) + " |" for name in others]
    return "\n".join([f"| less | {' | '.join(regimes)} |", "|---" * (len(regimes) + 1) + "|", *lines])


def _difference(row: Paired, p: float) -> str:
    low, high = row.interval_pp or (float("nan"), float("nan"))
    return f"{row.gain_pp:+.2f} ({low:.2f} to {high:.2f}){'*' if p <= 0.05 else ''}"


def _row(scheduler: str, claim: dict) -> str:
    e = claim["envelope"]

    def number(value: float | None, form: str) -> str:
        return "-" if value is None else format(value, form)

    def gain(prefix: str) -> str:
        low, high = e[f"{prefix}interval_pp"] or (None, None)
        return f"{number(e[f'{prefix}gain_pp'], '+.2f')} ({number(low, '.2f')} to {number(high, '.2f')})"

    merges = [s["merges"] for s in e["per_seed"]]
    ps = {test["name"]: test["p"] for test in e["tests"]}
    cells = [
        f"`{scheduler}`", claim["regime"], claim["verdict"], str(claim["tier"]["number"]),
        f"{min(merges)}-{max(merges)}" if merges else "-",
        number(e["policy_excess_pp"], ".2f"), number(e["control_excess_pp"], ".2f"),
        number(e["no_sync_violation_pct"], ".2f"), gain(""), gain("load_"),
        *(number(ps.get(name), ".4f") for name in TESTS), number(e["p_holm"], ".4f"),
        "-" if e["gain_captured"] is None else f"{100 * e['gain_captured']:.0f} %",
    ]  # fmt: skip
    return "| " + " | ".join(cells) + " |"


if __name__ == "__main__":
    main()
