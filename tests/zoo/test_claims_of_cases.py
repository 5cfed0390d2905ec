"""What a certificate may say of a clock, of a server that was never measured so, and of a table of public traces."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from judging import command
from strategies import FunctionSource

from adapters.traces.readers import Reading
from adapters.traces.worlds import GeneratedWorlds
from protocol.campaign.plan import Plan
from protocol.campaign.run import run
from protocol.certificate import root as roots
from protocol.certificate.assess import assess
from protocol.certificate.model import Head, plain, versions
from protocol.certificate.root import Root
from protocol.cli.options import ROOT
from protocol.cli.settings import Overrides, settings_for
from protocol.regimes.regime import Regime
from protocol.scheduler import Observation
from protocol.stats.gains import MIN_EFFECT_PP, Standing

PUBLIC = Root(ROOT, "public")
#: Bursts in the first half of every minute, in every seed; only the arrivals differ.
SAME_PHASE = """
[regime]
name = "same-phase"
version = 1
summary = "a trap: bursts at the same moments in every seed"
slo = "e2e<=1s"
horizon_s = 600
cooldown_s = 30
seeds = 20
planner_budget = 18

[pace]
step_s = 0.0735

[arrivals]
process = "bursts-periodic"
rate_per_s = 5.0
busy_rate_per_s = 14.2
busy_s = 30
quiet_s = 30
phase_s = 0
cv = 1.0

[tokens.prompt]
values = [12, 47, 223, 364]

[tokens.output]
values = [128]

[learner]
floor = 2.0
scale = 1.9
offset_steps = 6000
exponent = 0.5
tokens_per_step = 2048
"""
REFERENCE = '\n[sidecar]\nmodel = "reference"\nmax_num_seqs = 1024\n'
#: The server that was measured, asked for prompts and rates at which it never was.
FAR = (
    SAME_PHASE.replace('"same-phase"', '"far-off"')
    .replace("rate_per_s = 5.0", "rate_per_s = 0.05")
    .replace("busy_rate_per_s = 14.2", "busy_rate_per_s = 4.0")
    .replace("[12, 47, 223, 364]", "[3000]")
    .replace("[128]", "[16]")
    + '\n[sidecar]\nmodel = "vllm-cpu"\n'
)


def certified(
    regime: Path, decide: Callable[[Observation], bool], seeds: int, draws: int, root: Root = PUBLIC
) -> dict[str, Any]:
    """A function judged at the default minimum effect, in this process and without the probes of integrity."""
    settings, described = settings_for([str(regime)], [], Reading(), root.seed, Overrides(seeds=seeds))
    source = FunctionSource(lambda seen, rng: decide(seen))
    nonce = {} if root.nonce is None else {"nonce": root.nonce}
    head = Head.model_validate({
        "contender": {"name": source.name, "kind": source.kind, **source.describe()}, "preregistration": None,
        "settings": {"root_seed": root.seed, "root": root.origin, "draws": draws, "control_draws": 1, "probes": 1,
                     "alpha": 0.05, "min_effect_pp": MIN_EFFECT_PP, **nonce},
        "versions": versions(), "regimes": [plain(r) for r in described],
    })  # fmt: skip
    plan = Plan(lambda: source, "toy", root.seed, draws, control_draws=1)  # type: ignore[arg-type, return-value]
    return plain(assess(head, run(plan, settings, jobs=1)))


def a_clock_that_looks_a_little(seen: Observation) -> bool:
    phase = seen.time_s % 60
    return 30 <= phase < 52 and (seen.in_flight <= 2 or phase > 49)


def says_both_gains(certificate: dict[str, Any]) -> None:
    """13.8 pp over chance of which 0.1 pp follow the load: both in the sentence, and no PASS."""
    (claim,) = certificate["claims"]
    e, said = claim["envelope"], certificate["sentence"]
    assert e["gain_pp"] == pytest.approx(13.8, abs=0.3) and e["load_gain_pp"] == pytest.approx(0.1, abs=0.15)
    assert certificate["verdict"] == "FAIL" and e["standing"] in (Standing.NOT_LOAD, Standing.BELOW_MINIMUM)
    assert e["min_effect_pp"] == 0.5 and said.startswith("Nothing is licensed about ")
    for gain, limits in ((e["gain_pp"], e["interval_pp"]), (e["load_gain_pp"], e["load_interval_pp"])):
        assert f"{gain:.2f} pp [{limits[0]:.2f}, {limits[1]:.2f}]" in said


def test_a_clock_that_looks_a_little_is_told_from_one_that_follows_the_load(tmp_path: Path) -> None:
    (tmp_path / "same-phase.toml").write_text(SAME_PHASE + REFERENCE)
    says_both_gains(certified(tmp_path / "same-phase.toml", a_clock_that_looks_a_little, 20, 99))


@pytest.mark.slow
def test_the_same_of_the_shared_case(shared_cases: Path, tmp_path: Path) -> None:
    case, regime = (shared_cases / "round2" / name for name in (
        "sched_clock_and_a_little_looking.py", "same_phase_poisson.toml"))  # fmt: skip
    judged = command(tmp_path / "out", "certify", case, "--regime", regime, "--seeds", 20, "--draws", 99, "--out",
                     tmp_path / "out")  # fmt: skip
    assert judged.code == 1
    says_both_gains(judged.certificate)


def leaves_the_support(certificate: dict[str, Any]) -> None:
    """Tier 1, and which ranges of the calibration were left, with both ranges."""
    (claim,) = certificate["claims"]
    gate = next(g for g in claim["gates"] if g["gate"] == "G1")
    (support,) = (check for check in gate["checks"] if check["name"] == "support")
    assert claim["tier"]["number"] == certificate["tier"]["number"] == 1 and support["status"] == "failed"
    for left in (
        "rate per s: ", "outside 2 to 14.1 (0.1 to ", "prompt tokens: 100 % outside 12 to 364 (3000 to 3000)",
        "output tokens: 100 % outside 128 to 128 (16 to 16)",
    ):  # fmt: skip
        assert left in support["reason"], support["reason"]
    assert "calibrated on" not in certificate["sentence"]


def test_outside_a_calibrations_support_is_tier_1_and_says_what_was_left(tmp_path: Path) -> None:
    (tmp_path / "far.toml").write_text(FAR)
    leaves_the_support(certified(tmp_path / "far.toml", lambda seen: seen.in_flight < 2, 8, 5))


@pytest.mark.slow
def test_the_same_of_the_shared_regime(shared_cases: Path, tmp_path: Path) -> None:
    out, regime = tmp_path / "out", shared_cases / "round2" / "far_from_calibration.toml"
    judged = command(out, "certify", "wa-diloco", "--regime", regime, "--seeds", 8, "--draws", 5, "--out", out)
    leaves_the_support(judged.certificate)


TABLE = '''
TABLE = {table!r}
class Remembers:
    """Knows a trace by its first seconds, and then when it will be quiet; of any other it knows nothing."""
    def decide(self, obs):
        now = len(obs.arrivals_per_s)
        quiet = TABLE.get("".join(map(str, obs.arrivals_per_s[:8].astype(int))))
        return quiet is not None and quiet[now : now + 1] == "1"
'''


def remembers(regime: Path) -> str:
    """A scheduler with a table of the public traces: seconds after which 8 s bring the fewest requests."""
    world = Regime.load(str(regime))
    table = {}
    for seed in range(world.seeds):
        trace = GeneratedWorlds(world, ROOT).workload(seed).trace
        arrivals = np.bincount(trace.arrival_ns // 10**9, minlength=int(world.horizon_s) + 8)
        coming = np.convolve(arrivals, np.ones(8, np.int64))[7:]
        table["".join(map(str, arrivals[:8]))] = "".join("1" if c <= np.quantile(coming, 0.3) else "0" for c in coming)
    return TABLE.format(table=table)


def test_a_table_of_public_traces_passes_only_on_public_traces(small: Path) -> None:
    made: dict[str, Any] = {}
    exec(remembers(small), made)
    scheduler = made["Remembers"]()
    known = certified(small, scheduler.decide, 8, 19)
    assert known["verdict"] == "PASS" and "on public traces" in known["sentence"], known["sentence"]
    fresh = certified(small, scheduler.decide, 8, 19, roots.fresh("0" * 64, None, "1"))
    assert fresh["verdict"] == "FAIL" and fresh["claims"][0]["envelope"]["standing"] == Standing.NOT_CHANCE


@pytest.mark.slow
def test_the_same_by_the_command(small: Path, tmp_path: Path) -> None:
    path = tmp_path / "mine" / "remembers.py"
    path.parent.mkdir()
    path.write_text(remembers(small))
    asked = ("certify", path, "--regime", small, "--draws", 19, "--jobs", 1)
    known = command(tmp_path / "known", *asked, "--out", tmp_path / "known")
    assert known.code == 0 and "on public traces" in known.certificate["sentence"], known.certificate["sentence"]
    fresh = command(tmp_path / "fresh", *asked, "--fresh-seed", "--nonce", "1", "--out", tmp_path / "fresh")
    assert fresh.code == 1 and fresh.certificate["settings"]["root"] == "fresh"
    assert fresh.certificate["claims"][0]["envelope"]["standing"] == Standing.NOT_CHANCE
