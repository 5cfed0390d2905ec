"""How many forged certificates `protocol verify` finds offline.

    python benchmarks/forgeries.py [--count 200] [--only KIND] [--seed 1]

Each forger knows the format: it edits raw rows or what was asked, recomputes every gate, number and digest with the
project's own code, and writes the whole folder.  Bar: every one is found, but for the kinds of NEEDS_RERUN, which
docs/security.md lists: there the scheduler is taken at its word, and only running it again shows more.
"""

from __future__ import annotations

import argparse
import copy
import tempfile
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from adapters.schedulers import open_scheduler
from adapters.sidecars.simulated import SidecarModel, SimulatedSidecar, shipped_calibrations
from adapters.traces.readers import Reading
from protocol.campaign import arms
from protocol.campaign.again import decisions
from protocol.campaign.plan import Plan, Setting
from protocol.campaign.run import run
from protocol.certificate.assess import assess
from protocol.certificate.model import Head, plain, versions
from protocol.certificate.reading import read_certificate
from protocol.certificate.root import derived, fresh
from protocol.cli import options
from protocol.cli.pages import write_folder
from protocol.cli.remaking import contradicting, recomputed
from protocol.cli.settings import Overrides, describe_contender, settings_for
from protocol.errors import ProtocolError
from protocol.evidence import store
from protocol.evidence.model import CROSSED, OPTIMUM, PERMUTED, SHIFTED, Evidence, Probe
from protocol.merging.placements import Placements
from protocol.regimes.regime import Regime
from protocol.replay.replay import NO_SYNC, POLICY, UNIFORM

CODE = "class Quiet:\n    def decide(self, obs):\n        return obs.in_flight < 4\n"
DRAWS, CONTROLS = 49, 19
REGIME = """
learner = {floor = 2.0, scale = 1.9, offset_steps = 6000.0, exponent = 0.5, tokens_per_step = 2048}
pace.step_s = 0.0735
tokens = {prompt.values = [64, 256], output.values = [128]}
[regime]
name = "forged"
version = 1
summary = "a short bursty world"
slo = "e2e<=1s"
horizon_s = 150.0
cooldown_s = 20.0
seeds = 8
planner_budget = 4
[arrivals]
process = "bursts-aperiodic"
rate_per_s = 3.0
busy_rate_per_s = 12.0
busy_s = 15.0
quiet_s = 30.0
"""

Asked = dict[str, Any]
Forged = tuple[Asked, list[Evidence]]


class Base:
    """An honest campaign: what was asked, what came of it, and what a forger needs to make consistent rows."""

    def __init__(self, folder: Path, regime: str, n_seeds: int, is_fresh: bool, calibration: str | None) -> None:
        path = folder / "quiet.py"
        path.write_text(CODE)
        if regime.endswith(".toml"):
            Path(regime).write_text(REGIME)
        with open_scheduler(str(path)) as source:
            contender = describe_contender(source)
        root = fresh(str(contender["digest"]), None, "11" * 16) if is_fresh else None
        self.root = options.ROOT if root is None else root.seed
        self.calibrations = [] if calibration is None else [shipped_calibrations()[calibration]]
        self.settings, regimes = settings_for([regime], [], Reading(), self.root, Overrides(seeds=n_seeds))
        self.plan = Plan(
            partial(open_scheduler, str(path)),
            path.name,
            self.root,
            DRAWS,
            CONTROLS,
            secret=root.secret if root else b"",
        )
        self.head = Head.model_validate({
            "contender": contender, "versions": versions(), "regimes": [plain(r) for r in regimes],
            "settings": {
                "root_seed": self.root, "root": "public" if root is None else "fresh", "alpha": 0.05,
                **({} if root is None else {"nonce": root.nonce}), "min_effect_pp": 0.0, "draws": DRAWS,
                "control_draws": CONTROLS, "probes": 1, "sequential": False,
            },
        }).plain()  # fmt: skip
        self.evidence = run(self.plan, self.settings, jobs=1)

    @property
    def setting(self) -> Setting:
        return self.settings[0]

    def written(self, head: Asked, evidence: list[Evidence], folder: Path) -> Path:
        found = Head.model_validate(head)
        made = assess(found, evidence)
        write_folder(folder, made, found, partial(store.write, evidence), None, self.calibrations)
        return folder


def _repriced(e: Evidence, arm: str, change: Callable[[np.ndarray], np.ndarray]) -> Evidence:
    p = e.placed[arm]
    return e.with_placed(arm, replace(p, violations=np.maximum(change(p.violations), 0).astype(np.int64)))


def _some(e: list[Evidence], rng: np.random.Generator) -> list[bool]:
    chosen = rng.random(len(e)) < rng.uniform(0.3, 1.0)
    chosen[rng.integers(len(e))] = True
    return chosen.tolist()


def dearer_controls(base: Base, rng: np.random.Generator) -> Forged:
    arm = [UNIFORM, PERMUTED, SHIFTED, CROSSED][int(rng.integers(4))]
    factor = rng.uniform(1.05, 1.5)
    found = [_repriced(e, arm, lambda v: np.ceil(v * factor)) if hit else e
             for e, hit in zip(base.evidence, _some(base.evidence, rng), strict=True)]  # fmt: skip
    return copy.deepcopy(base.head), found


def a_few_dearer_controls(base: Base, rng: np.random.Generator) -> Forged:
    share = rng.uniform(0.3, 0.7)

    def raised(v: np.ndarray) -> np.ndarray:
        return v + (rng.random(v.shape) < share) * rng.integers(1, 30, v.shape)

    return copy.deepcopy(base.head), [_repriced(e, UNIFORM, raised) for e in base.evidence]


def cheaper_policy(base: Base, rng: np.random.Generator) -> Forged:
    """The prices and the rows alike: late requests of the policy become quick ones."""
    slo, found = base.setting.slos[0], []
    for e, hit in zip(base.evidence, _some(base.evidence, rng), strict=True):
        rows = e.simulated[POLICY].rows
        late = np.flatnonzero(rows.violates(slo))
        n = int(len(late) * rng.uniform(0.1, 0.9))
        if not hit or n == 0:
            found.append(e)
            continue
        e2e = rows.e2e_ns.copy()
        e2e[rng.choice(late, n, replace=False)] = 500_000_000
        e2e = np.maximum(e2e, rows.ttft_ns)
        mine = replace(rows, e2e_ns=e2e)
        saved = int(rows.violates(slo).sum() - mine.violates(slo).sum())
        one = _repriced(e, POLICY, lambda v, saved=saved: v - saved)
        found.append(replace(one, simulated={**e.simulated, POLICY: replace(e.simulated[POLICY], rows=mine)}))
    return copy.deepcopy(base.head), found


def dearer(base: Base, rng: np.random.Generator, arm: str) -> Forged:
    by = int(rng.integers(1, 40))
    return copy.deepcopy(base.head), [_repriced(e, arm, lambda v: v + by) for e in base.evidence]


def one_request_moved(base: Base, rng: np.random.Generator) -> Forged:
    found = list(base.evidence)
    k = int(rng.integers(len(found)))
    e = found[k]
    rows = e.simulated[POLICY].rows
    ttft = rows.ttft_ns.copy()
    ttft[rng.integers(len(ttft))] += int(rng.integers(1, 1000))
    mine = replace(e.simulated[POLICY], rows=replace(rows, ttft_ns=ttft))
    found[k] = replace(e, simulated={**e.simulated, POLICY: mine})
    return copy.deepcopy(base.head), found


# Placements and decisions ----------------------------------------------------------------------------------------


def swapped_placements(base: Base, rng: np.random.Generator) -> Forged:
    """The policy takes the best draw's price; that draw takes the policy's."""
    found = []
    for e in base.evidence:
        draws, own = e.placed[UNIFORM], e.placed[POLICY]
        best = int(np.argmin(draws.violations[:, 0]))
        prices = draws.violations.copy()
        prices[best] = own.violations[0]
        one = e.with_placed(UNIFORM, replace(draws, violations=prices))
        found.append(one.with_placed(POLICY, replace(own, violations=draws.violations[[best]])))
    return copy.deepcopy(base.head), found


def chosen_controls(base: Base, rng: np.random.Generator) -> Forged:
    """The dearest draws twice, with their true prices, instead of the cheapest."""
    share, found = rng.uniform(0.2, 0.5), []
    for e in base.evidence:
        p = e.placed[UNIFORM]
        order = np.argsort(p.violations[:, 0], kind="stable")
        n = int(len(p) * share)
        keep = np.concatenate([order[n:], order[len(order) - n :]])
        rows = p.rows()
        found.append(e.with_placed(UNIFORM, Placements(p.lengths[keep], np.concatenate([rows[i] for i in keep]),
                                                       p.violations[keep])))  # fmt: skip
    return copy.deepcopy(base.head), found


def flipped_answers(base: Base, rng: np.random.Generator) -> Forged:
    found = list(base.evidence)
    k = int(rng.integers(len(found)))
    merged = found[k].merged.copy()
    at = int(rng.integers(len(merged)))
    merged[at] = ~merged[at]
    found[k] = replace(found[k], merged=merged)
    return copy.deepcopy(base.head), found


def fewer_forced(base: Base, rng: np.random.Generator) -> Forged:
    by = int(rng.integers(1, 4))
    return copy.deepcopy(base.head), [replace(e, forced=e.forced + by) for e in base.evidence]


def another_schedule(base: Base, rng: np.random.Generator) -> Forged:
    """A schedule that somebody with the trace would choose, simulated from end to end as if it had been decided."""
    found = []
    for e in base.evidence:
        draws = e.placed[UNIFORM]
        order = np.argsort(draws.violations[:, 0], kind="stable")
        gaps = draws.rows()[int(order[int(rng.integers(3))])].astype(np.int64)
        decided_ns, merged, forced = decisions(base.setting.corridor, gaps)
        workload = base.setting.worlds.workload(e.seed)
        sidecar = arms.load(base.plan, base.setting, e.seed, workload)
        schedule = arms.schedules_of([gaps], base.setting.corridor, workload.trace.n_islands)[0]
        rows, slos = sidecar.replay(schedule), base.setting.slos
        placed = {**e.placed, POLICY: Placements.of(gaps[None], arms.violations_of(sidecar, [schedule], slos))}
        for arm, drawn in arms.controls(base.plan, base.setting, e.seed, placed[POLICY], sidecar):
            placed[arm] = arms.priced(sidecar, drawn, base.setting)
        branches = arms.branches_ns(base.plan, base.setting, e.seed, decided_ns)
        probes = (Probe("determinism", None, None), *(Probe("causality", at_ns, None) for at_ns in branches))
        found.append(replace(e, decided_ns=decided_ns, merged=merged, forced=forced, placed=placed, probes=probes,
                             simulated={**e.simulated, POLICY: replace(e.simulated[POLICY], rows=rows)}))  # fmt: skip
    made = [e.placed[POLICY] for e in found]
    return copy.deepcopy(base.head), [
        e.with_placed(CROSSED, arms.cross(base.plan, base.setting, e.seed, made)) for e in found
    ]


# Seeds, traces, roots --------------------------------------------------------------------------------------------


def _fewer(base: Base, kept: list[Evidence]) -> Forged:
    head = copy.deepcopy(base.head)
    digest = Regime.load(base.toml or base.setting.name).replace(seeds=len(kept)).digest
    head["regimes"][0] |= {"n_seeds": len(kept), "digest": digest}
    numbers = [e.seed for e in kept]
    found = []
    for k, e in enumerate(kept):
        p = e.placed[CROSSED]
        rows = p.rows()
        crossed = Placements(p.lengths[numbers], np.concatenate([rows[i] for i in numbers]), p.violations[numbers])
        simulated = {arm: replace(r, seed=k) for arm, r in e.simulated.items()}
        found.append(replace(e, seed=k, simulated=simulated).with_placed(CROSSED, crossed))
    return head, found


def dropped_seed(base: Base, rng: np.random.Generator) -> Forged:
    """One that is not the last is left out, and the others count anew."""
    out = int(rng.integers(len(base.evidence) - 1))
    return _fewer(base, [e for e in base.evidence if e.seed != out])


def fewer_seeds(base: Base, rng: np.random.Generator) -> Forged:
    """The last ones are left out, which is what a run that asked for fewer gives."""
    return _fewer(base, list(base.evidence[: -int(rng.integers(1, 3))]))


def repeated_seed(base: Base, rng: np.random.Generator) -> Forged:
    found = list(base.evidence)
    a, b = rng.choice(len(found), 2, replace=False)
    simulated = {arm: replace(r, seed=int(b)) for arm, r in found[a].simulated.items()}
    digest = rng.bytes(32).hex()
    found[b] = replace(found[a], seed=int(b), trace_digest=digest, simulated=simulated)
    return copy.deepcopy(base.head), found


def another_load(base: Base, rng: np.random.Generator) -> Forged:
    found = list(base.evidence)
    k = int(rng.integers(len(found)))
    e = found[k]
    change = [{"trace_digest": rng.bytes(32).hex()}, {"prompt_tokens": e.prompt_tokens + 1},
              {"output_tokens": e.output_tokens - 1}]  # fmt: skip
    found[k] = replace(found[k], **change[int(rng.integers(3))])
    return copy.deepcopy(base.head), found


def invented_root(base: Base, rng: np.random.Generator) -> Forged:
    head = copy.deepcopy(base.head)
    head["settings"] |= {"root_seed": int(rng.integers(2**48)), "root": ["given", "public"][int(rng.integers(2))]}
    head["settings"].pop("nonce", None)
    return head, base.evidence


def said_to_be_fresh(base: Base, rng: np.random.Generator) -> Forged:
    head = copy.deepcopy(base.head)
    head["settings"] |= {"root": "fresh", "nonce": rng.bytes(16).hex()}
    if rng.random() < 0.5:
        nonce = head["settings"]["nonce"]
        head["settings"]["root_seed"] = derived(head["contender"]["digest"], head.get("preregistration"), nonce)
    return head, base.evidence


def invented_digest(base: Base, rng: np.random.Generator) -> Forged:
    head = copy.deepcopy(base.head)
    head["contender"]["digest"] = rng.bytes(32).hex()
    return head, base.evidence


def renamed(base: Base, rng: np.random.Generator) -> Forged:
    head = copy.deepcopy(base.head)
    head["contender"]["name"] = f"better-{int(rng.integers(1000))}.py"
    head["contender"]["files"] = [head["contender"]["name"]]
    return head, base.evidence


def another_sidecar(base: Base, rng: np.random.Generator) -> Forged:
    """Parameters of the server that suit, everything counted with them, under the name that the regime gives."""
    head = copy.deepcopy(base.head)
    stated = head["regimes"][0]["sidecar"]
    values = {k: stated[k] for k in SidecarModel.model_fields}
    model = SidecarModel(**values).replace(decode_slowdown=values["decode_slowdown"] * float(rng.uniform(1.1, 2)))
    stated |= {**model.model_dump(), "digest": model.digest}
    return head, run(base.plan, [replace(base.setting, sidecar=SimulatedSidecar(model))], jobs=1)


def another_limit(base: Base, rng: np.random.Generator) -> Forged:
    head = copy.deepcopy(base.head)
    head["regimes"][0]["slos"] = [f"e2e<={int(rng.integers(600, 990))}ms"]
    return head, base.evidence


def another_world(base: Base, rng: np.random.Generator) -> Forged:
    """A field of the regime says something else, with the digest that follows from it."""
    head = copy.deepcopy(base.head)
    regime = head["regimes"][0]
    own = Regime.load(base.toml or base.setting.name).replace(seeds=regime["n_seeds"])
    rate = round(float(own.arrivals.rate_per_s * rng.uniform(0.5, 0.9)), 3)
    other = own.replace(arrivals=own.arrivals.model_copy(update={"rate_per_s": rate}))
    regime["arrivals"]["rate_per_s"] = rate
    if rng.random() < 0.7:
        regime["digest"] = other.digest
    return head, base.evidence


def another_corridor(base: Base, rng: np.random.Generator) -> Forged:
    head = copy.deepcopy(base.head)
    head["regimes"][0]["corridor"]["h_max"] += 8 * int(rng.integers(1, 5))
    return head, base.evidence


def confined_after_all(base: Base, rng: np.random.Generator) -> Forged:
    head = copy.deepcopy(base.head)
    part = [{"landlock_abi": 0, "namespaces": False, "namespaces_refused": "none here"}, {"seccomp": False}]
    head["contender"]["confinement"] |= part[int(rng.integers(2))]  # "sound" stays
    return head, base.evidence


def healed_probe(base: Base, rng: np.random.Generator) -> Forged:
    """Of a scheduler that failed: what its second run or another future showed is said to be nothing."""
    found = list(base.evidence)
    k = int(rng.integers(len(found)))
    kind = ["determinism", "causality"][int(rng.integers(2))]
    seen = tuple(replace(p, difference="decision 9 differs") if p.kind == kind else p for p in found[k].probes)
    honest = replace(found[k], probes=seen)
    found[k] = replace(honest, probes=tuple(replace(p, difference=None) for p in honest.probes))
    return copy.deepcopy(base.head), found


def probe_left_out(base: Base, rng: np.random.Generator) -> Forged:
    """The future that told is exchanged for one that branches off elsewhere."""
    found = list(base.evidence)
    k = int(rng.integers(len(found)))
    moved = tuple(
        replace(p, at_ns=int(rng.choice(found[k].decided_ns)) + 1 + int(rng.integers(1, 9))) if p.at_ns else p
        for p in found[k].probes
    )
    found[k] = replace(found[k], probes=moved)
    return copy.deepcopy(base.head), found


def better_calibration(base: Base, rng: np.random.Generator) -> Forged:
    head = copy.deepcopy(base.head)
    sidecar = head["regimes"][0]["sidecar"]
    which = int(rng.integers(3))
    if which == 0:
        for rows in sidecar["agreement"].values():
            for row in rows:
                row["simulated_violations"] = row["violations"]
    elif which == 1:
        for run_ in sidecar["calibration"]["runs"]:
            run_["exposed_p95_ms"] *= float(rng.uniform(1.1, 1.6))
    else:
        sidecar["support"] = {name: (low * 0.5, high * 2) for name, (low, high) in sidecar["support"].items()}
    return head, base.evidence


#: Kind: the forger, how many of 200, and on which base.
KINDS: dict[str, tuple[Callable[[Base, np.random.Generator], Forged], int, str]] = {
    "control costs raised": (dearer_controls, 20, "public"),
    "some control costs raised": (a_few_dearer_controls, 10, "public"),
    "policy's late requests made quick": (cheaper_policy, 12, "public"),
    "no-sync costs raised": (partial(dearer, arm=NO_SYNC), 6, "public"),
    "optimum made worse": (partial(dearer, arm=OPTIMUM), 6, "public"),
    "one request moved": (one_request_moved, 8, "public"),
    "prices swapped with the best draw": (swapped_placements, 4, "public"),
    "dear draws instead of cheap ones": (chosen_controls, 8, "public"),
    "answers flipped": (flipped_answers, 8, "public"),
    "forced merges miscounted": (fewer_forced, 4, "public"),
    "a seed left out": (dropped_seed, 10, "public"),
    "a seed repeated": (repeated_seed, 8, "public"),
    "another load stated": (another_load, 8, "public"),
    "root invented": (invented_root, 10, "public"),
    "said to be fresh": (said_to_be_fresh, 10, "public"),
    "digest invented, fresh root": (invented_digest, 8, "fresh"),
    "server's parameters changed": (another_sidecar, 4, "public"),
    "limit changed": (another_limit, 6, "public"),
    "arrivals changed": (another_world, 8, "public"),
    "corridor changed": (another_corridor, 4, "public"),
    "confinement polished": (confined_after_all, 4, "public"),
    "future branched off elsewhere": (probe_left_out, 6, "public"),
    "calibration polished": (better_calibration, 6, "calibrated"),
    "another schedule, simulated": (another_schedule, 4, "public"),
    "digest invented, public root": (invented_digest, 4, "public"),
    "scheduler renamed": (renamed, 6, "public"),
    "failed re-run said to agree": (healed_probe, 4, "public"),
    "last seeds left out": (fewer_seeds, 4, "public"),
}  # fmt: skip
#: What only running the scheduler again shows; docs/security.md lists these, and why.
NEEDS_RERUN = (
    "another schedule, simulated", "digest invented, public root", "scheduler renamed", "failed re-run said to agree",
    "last seeds left out",
)  # fmt: skip
BASES = {"public": (8, False), "fresh": (4, True), "calibrated": (2, False)}


def base_named(name: str, folder: Path) -> Base:
    n_seeds, is_fresh = BASES[name]
    toml = str(folder / "forged.toml") if name != "calibrated" else None
    made = Base(folder, toml or "bursty-aperiodic", n_seeds, is_fresh, None if toml else "vllm-cpu")
    made.toml = toml
    return made


def found_in(base: Base, forged: Forged, folder: Path) -> str | None:
    """The first thing that verification finds; None when nothing."""
    try:
        base.written(*forged, folder)
    except ProtocolError as error:
        return f"cannot even be written: {error}"
    lines = recomputed(folder) or list(contradicting(read_certificate(folder), folder, lambda _: None, False))
    return lines[0] if lines else None


def main(count: int, only: str | None, seed: int) -> dict[str, tuple[int, int]]:
    """Tried and found by kind."""
    tried, caught, said = Counter[str](), Counter[str](), dict[str, str]()
    bases: dict[str, Base] = {}
    begin = time.perf_counter()
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(temporary)
        for number, (kind, (forge, n, which)) in enumerate(KINDS.items()):
            if only not in (None, kind):
                continue
            base = bases.setdefault(which, bases.get(which) or base_named(which, folder))
            for k in range(max(1, round(n * count / 200))):
                rng = np.random.Generator(np.random.PCG64(np.random.SeedSequence([seed, number, k])))
                line = found_in(base, forge(base, rng), folder / f"{number}-{k}")
                tried[kind] += 1
                caught[kind] += line is not None
                said.setdefault(kind, line or "")
        for which, base in bases.items():
            assert found_in(base, (base.head, base.evidence), folder / which) is None, f"{which}: honest, yet found"
    for kind in tried:
        print(f"{caught[kind]:4d} of {tried[kind]:3d}  {kind}: {said[kind][:110]}")
    print(f"{caught.total()} of {tried.total()} found offline, {time.perf_counter() - begin:.0f} s")
    return {kind: (caught[kind], tried[kind]) for kind in tried}


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--count", type=int, default=200)
    parser.add_argument("--only", choices=list(KINDS))
    parser.add_argument("--seed", type=int, default=1)
    asked = parser.parse_args()
    found = main(asked.count, asked.only, asked.seed)
    missed = [kind for kind, (caught, tried) in found.items() if caught < tried and kind not in NEEDS_RERUN]
    raise SystemExit(f"not found: {', '.join(missed)}" if missed else 0)
