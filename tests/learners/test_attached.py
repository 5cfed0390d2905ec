"""Learners attached to `certify`: what the scheduler sees of a measured curve, and training under judged schedules."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from curves import TABLE
from pairs import P, coin, evidence_of, head_of
from strategies import FunctionSource, changed, head_for, plan_of, quiet, ran, setting

from adapters.traces.readers import Reading
from protocol.campaign import arms
from protocol.certificate.model import Head
from protocol.cli import learning
from protocol.cli.settings import Overrides, settings_for
from protocol.errors import BadInput
from protocol.evidence.model import Evidence
from protocol.evidence.trained import Trained
from protocol.merging.peers.communication import coarser, rounds_of_schedule
from protocol.merging.schedule import Schedule
from protocol.replay.replay import POLICY, UNIFORM
from protocol.scheduler import Decision, Observation


def curve(tmp_path: Path, text: str = TABLE, scale: int | None = None) -> learning.Attached:
    (tmp_path / "curves.csv").write_text(text)
    found = learning.attached(str(tmp_path), scale)
    assert found is not None
    return found


# A measured curve --------------------------------------------------------------------------------------------------


def test_inner_steps_share_a_measured_step(tmp_path: Path) -> None:
    found = curve(tmp_path)
    assert (found.learner.h, found.learner.islands, found.learner.tokens_per_step) == (30, 4, 128)
    learner = found.learner.stretched(4)
    assert learner.tokens_per_step == 32
    assert [learner.loss(k) for k in (0, 120, 180, 240, 999)] == pytest.approx([3.1, 3.1, 2.65, 2.2, 2.2])
    # 60 measured steps of 128 tokens: the least divisor of 128 with which they cover 61 steps is 2, 121 steps 4.
    assert [found.learner.covering(k) for k in (1, 60, 61, 120, 121, 10**9)] == [1, 1, 2, 2, 4, 128]


def test_of_several_h_the_largest(tmp_path: Path) -> None:
    found = curve(tmp_path, TABLE + "DiLoCo,1,4,0,60,30720,9.0,9.0\n")
    assert found.learner.h == 30 and found.learner.loss(60) == pytest.approx(2.2)


def test_what_is_wrong_with_a_learner_is_named(tmp_path: Path) -> None:
    assert learning.attached(None, None) is None
    for text, scale, what in (
        (None, 2, "--learner-scale"),
        (str(tmp_path), 3, "a divisor of 128"),
        (f"{tmp_path}:GASLoC", None, "no GASLoC"),
        (f"{tmp_path}/absent:DiLoCo", None, "absent/curves.csv"),
        (str(tmp_path / "absent"), None, "absent/curves.csv"),
    ):
        (tmp_path / "curves.csv").write_text(TABLE)
        with pytest.raises(BadInput, match=what):
            learning.attached(text, scale)


def on_loss(obs: Observation, rng: np.random.Generator) -> bool:
    """At H_min under the measured curve, which begins at 3.1; at H_max under the modelled one, at 3.8 by then."""
    return obs.loss < 3.5


def pairs_on_loss(obs: Observation, rng: np.random.Generator) -> Decision:
    ready = [i for i, o in enumerate(obs.islands) if o.steps_since_merge >= obs.h_min and o.loss < 3.5]
    return Decision(len(ready) > 1, ((ready[0], ready[1]),)) if len(ready) > 1 else Decision(False)


@pytest.mark.parametrize(("regime", "decide"), [("ordinary", on_loss), ("islands-offset", pairs_on_loss)])
def test_schedulers_see_the_measured_loss_and_tokens(tmp_path: Path, regime: str, decide: Any) -> None:
    seen: list[Observation] = []

    def watching(obs: Observation, rng: np.random.Generator) -> Any:
        seen.append(obs)
        return decide(obs, rng)

    watched = curve(tmp_path)
    placed = {}
    for name, overrides in (("modelled", Overrides()), ("measured", Overrides(learner=watched))):
        (one,), (stated,) = settings_for([regime], [], Reading(), 1, overrides)
        plan = plan_of(FunctionSource(watching))
        workload = one.worlds.workload(0)
        seen.clear()
        roll = arms.place(plan, one, 0, workload, arms.load(plan, one, 0, workload), until_ns=60 * 10**9)
        placed[name] = roll.schedule.start_ns.tolist()
    # 8163 steps in 600 s over 60 measured ones: no divisor of 128 covers them, so the largest; 1 token a step.
    shown = stated.described("learner")
    assert shown["steps_per_measured_step"] == 128 and stated.tokens_per_step == 1
    assert shown["kind"] == "measured" and shown["method"] == "DiLoCo"
    assert placed["measured"][0] == 128 * 73_500_000 and placed["modelled"][0] == 512 * 73_500_000
    assert seen[0].tokens == seen[0].steps_since_merge and seen[0].loss == pytest.approx(3.1)
    assert seen[-1].staleness_s > 0


# Training under judged schedules -----------------------------------------------------------------------------------


def test_trained_steps_carry_their_fractions() -> None:
    # Merges of 10 ns at 70 and 140 ns, steps of 10 ns: 7, 6 and 5 steps up to 200 ns; every 4th: 1, 2 and 1.
    schedule = Schedule.all_islands(np.array([70, 140]), 10, 2)
    found = coarser(rounds_of_schedule(schedule, 10, 200, 1), 4)
    assert [r.steps.tolist() for r in found] == [[1, 1], [2, 2], [1, 1]]
    assert [r.first_step.tolist() for r in found] == [[0, 0], [1, 1], [3, 3]]


ASKED = {"seeds": 3, "steps_per_trained_step": 16}


def trained(head: Head, found: list[Evidence], corpus: Any, jobs: int = 1) -> list[Trained]:
    made = learning.train(learning.Training(corpus, dict(ASKED), "any"), head, found, jobs)
    assert not any(e.trained for e in found)
    return [t for e in made for t in e.trained.values()]


def test_pairs_are_trained_as_judged(torch: Any, corpus: Any) -> None:
    found = list(evidence_of(coin))
    rows = trained(head_of(coin), found, corpus)
    assert [(t.seed, t.arm) for t in rows] == [(s, arm) for s in range(3) for arm in (POLICY, UNIFORM)]
    for t in rows:
        steps = P.by_island(P.read(found[t.seed].placed[t.arm])[0])["inner_steps"] // 16
        assert (t.trained_steps, t.tokens) == (steps.sum(), 64 * steps.sum()) and 1 < t.validation_loss < 5
    assert rows[0].tokens == rows[1].tokens and rows[0].validation_loss != rows[1].validation_loss
    assert trained(head_of(coin), found, corpus, jobs=2) == rows


def test_one_island_stands_for_four_workers(torch: Any, corpus: Any) -> None:
    found = list(ran())
    head = head_for(FunctionSource(quiet), [setting()])
    same = changed(found[0], placed={**found[0].placed, UNIFORM: found[0].placed[POLICY]})
    rows = trained(head, [same, *found[1:]], corpus)
    # An arm with the policy's own schedule is the policy's own run: equal parameters, batches and rounds.
    assert rows[0].validation_loss == rows[1].validation_loss != rows[3].validation_loss
    assert rows[0].trained_steps == 4 * ((120 - 2 * len(found[0].placed[POLICY].gaps)) * 4 // 16)
    lost = changed(found[0], placed={a: p for a, p in found[0].placed.items() if a != UNIFORM})
    assert len(trained(head, [lost, *found[1:]], corpus)) == 5


def test_without_torch_there_is_one_line_and_no_replay(tmp_path: Path) -> None:
    (tmp_path / "torch.py").write_text("raise ModuleNotFoundError(\"No module named 'torch'\", name='torch')\n")
    command = [
        sys.executable,
        "-m",
        "protocol",
        "certify",
        "fixed-h-256",
        "--train-seeds",
        "3",
        "--out",
        tmp_path / "out",
    ]
    paths = f"{tmp_path}{os.pathsep}{Path(__file__).resolve().parents[2]}"
    env = {**os.environ, "PYTHONPATH": paths, "COLUMNS": "200"}
    found = subprocess.run(command, capture_output=True, text=True, env=env, timeout=100, check=False)
    assert found.returncode == 2 and len(found.stderr.splitlines()) == 1 and not (tmp_path / "out").exists()
    assert "pip install 'diloco-protocol[train]'" in found.stderr


def test_more_training_than_the_regime_has_is_refused(corpus: Any) -> None:
    head = head_for(FunctionSource(quiet), [setting(n_seeds=10)])
    for asked, what in (
        ({"seeds": 11}, "--train-seeds: found 11"),
        ({"steps_per_trained_step": 481}, "--train-factor"),
    ):
        with pytest.raises(BadInput, match=what):
            learning.Training(corpus, {**ASKED, **asked}, "any").entered(head)
    entered = learning.Training(corpus, {**ASKED, "loss_margin": 0.1}, "2.0").entered(head)
    assert entered.settings.train is not None and entered.versions["torch"] == "2.0"
    assert head.settings.train is None and entered.spec(entered.regimes[0]).loss == (3, 0.1)
