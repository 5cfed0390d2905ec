"""Judge every shipped scheduler in the regimes whose merges are not all alike; a table for docs/regimes.md.

    python -m benchmarks.practised_pattern --out docs/results/practised.csv

One certificate a scheduler, all three regimes in it, by the code of `protocol certify`; fewer placements than there of
the two controls that decide nothing.  Planners are not there: they place merges that are alike.
"""

from __future__ import annotations

import argparse
import csv
import sys
from functools import partial
from pathlib import Path

from protocol.campaign.arms import close_contenders
from protocol.campaign.plan import Plan
from protocol.campaign.run import run
from protocol.certificate.assess import assess
from protocol.cli.certify import Asked, Sidecar
from protocol.cli.groups import Draws, Judging, Learning, Output, Server, Training, Worlds
from protocol.cli.settings import contender_opener

REGIMES = ("streaming-4-fragments", "hourly-blocking", "weight-sync")
SCHEDULERS = (
    "fixed-h-256", "fixed-h-512", "quiet", "wa-calibrated", "wa-diloco", "examples/ten_line.py", "random-deferral",
    "wa-calibrated-forecast", "pressure-gate", "adaptive-load", "adaptive-tokens", "pressure-gate-matched",
    "random-deferral-70",
)  # fmt: skip
ROOT, CONTROL_DRAWS = 20260601, 9
COLUMNS = (
    "scheduler", "regime", "verdict", "merges_a_seed", "policy_pp", "control_pp", "no_sync_pct", "gain_pp", "gain_low",
    "gain_high", "load_gain_pp", "load_low", "load_high", "p_holm",
)  # fmt: skip


def judged(scheduler: str, n_seeds: int, draws: int) -> list[list[object]]:
    """A row a regime."""
    asked = Asked(
        scheduler, Worlds(regime=list(REGIMES), seeds=n_seeds), Draws(str(draws)), Judging(), Learning(), Training(),
        Sidecar(), Server(), Output(Path("unused")), 1,
    )  # fmt: skip
    chosen = asked.chosen(ROOT, n_seeds)
    opener = partial(contender_opener, scheduler, "")
    plan = Plan(opener, scheduler, ROOT, draws, control_draws=CONTROL_DRAWS)
    head = asked.head(plan, ROOT, chosen)
    certificate = assess(head, run(plan, chosen[0], jobs=1))
    close_contenders()
    rows: list[list[object]] = []
    for claim in certificate.claims:
        e = claim.envelope.model_dump()
        merges = [s["merges"] for s in e["per_seed"]]
        both = [e[f"{prefix}interval_pp"] or (None, None) for prefix in ("", "load_")]
        rows.append([
            Path(scheduler).name, claim.regime, claim.verdict, f"{min(merges)}-{max(merges)}" if merges else "",
            e["policy_excess_pp"], e["control_excess_pp"], e["no_sync_violation_pct"], e["gain_pp"], *both[0],
            e["load_gain_pp"], *both[1], e["p_holm"],
        ])  # fmt: skip
    return rows


def table(rows: list[dict[str, str]]) -> str:
    """The rows as docs/regimes.md has them."""

    def of(row: dict[str, str], *names: str) -> str:
        if not row[names[0]]:
            return "–"
        values = [f"{round(float(row[name]), 2) + 0.0:.2f}".replace("-", "−") for name in names]
        return values[0] if len(values) == 1 else f"{values[0]} [{values[1]}, {values[2]}]"

    titles = (
        "scheduler", "regime", "merges", "late without, %", "policy, pp", "draws, pp", "over chance, pp", "by load, pp",
        "p, Holm", "",
    )  # fmt: skip
    lines = [f"| {' | '.join(titles)} |", "|" + "---|" * len(titles)]
    for row in rows:
        fewest, _, most = row["merges_a_seed"].partition("-")
        verdict = f"**{row['verdict']}**" if row["verdict"] == "PASS" else row["verdict"]
        cells = [
            f"`{row['scheduler']}`", f"`{row['regime']}`", fewest if fewest == most else f"{fewest} to {most}",
            of(row, "no_sync_pct"), of(row, "policy_pp"), of(row, "control_pp"),
            of(row, "gain_pp", "gain_low", "gain_high"), of(row, "load_gain_pp", "load_low", "load_high"),
            f"{float(row['p_holm']):.4f}" if row["p_holm"] else "–", verdict,
        ]  # fmt: skip
        lines.append("| " + " | ".join(cells) + " |")
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seeds", type=int, default=20)
    parser.add_argument("--draws", type=int, default=199)
    parser.add_argument("--out", type=Path, required=True, help="CSV; what is in it is not made again")
    asked = parser.parse_args()
    rows: list[dict[str, str]] = []
    if asked.out.exists():
        with asked.out.open(newline="") as file:
            rows = list(csv.DictReader(file))
    made = {row["scheduler"] for row in rows}
    for scheduler in SCHEDULERS:
        if Path(scheduler).name in made:
            continue
        found = judged(scheduler, asked.seeds, asked.draws)
        new = not asked.out.exists()
        with asked.out.open("a", newline="") as file:
            writer = csv.writer(file, lineterminator="\n")
            if new:
                writer.writerow(COLUMNS)
            writer.writerows(found)
        rows += [dict(zip(COLUMNS, ("" if v is None else str(v) for v in row), strict=True)) for row in found]
    rows.sort(key=lambda row: REGIMES.index(row["regime"]))
    sys.stdout.write(f"{table(rows)}\n")


if __name__ == "__main__":
    main()
