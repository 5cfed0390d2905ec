"""Learners attached to `certify`: a measured curve that schedulers watch, and training under the judged schedules."""

from __future__ import annotations

import dataclasses
import math
import os
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import joblib

from adapters.learners.measured import MeasuredLearner
from baselines import outer
from protocol import files, seeds
from protocol.cli.train_grid import LOCAL
from protocol.errors import BadInput
from protocol.evidence import store as raw
from protocol.evidence.store import SeedEvidence
from protocol.evidence.trained import Trained
from protocol.merging.peers.communication import Round
from protocol.training.rounds import ARMS, rounds_of

if TYPE_CHECKING:
    from adapters.learners.corpus import Corpus
    from adapters.learners.islands import Recipe

#: Inner steps to one trained step: 340 of them in the 600 s of a published regime.
FACTOR = 24
#: Nats a symbol that the policy may end above its control.
LOSS_MARGIN = 0.02
_SHAPE = (16, 1, 2, 40, 16)
#: Windows of held-out text.
_WINDOWS = 64


@dataclasses.dataclass(frozen=True)
class Attached:
    """A measured curve: its learner, and how the certificate names it.  scale None: the least that covers a horizon."""

    learner: MeasuredLearner
    method: str
    digest: str
    scale: int | None

    def over(self, inner_steps: int) -> tuple[MeasuredLearner, dict[str, Any]]:
        """What a regime of this many inner steps shows its scheduler, and its description."""
        scale = self.learner.covering(inner_steps) if self.scale is None else self.scale
        return self.learner.stretched(scale), {
            "kind": "measured",
            "method": self.method,
            "h": self.learner.h,
            "islands": self.learner.islands,
            "curves_sha256": self.digest,
            "measured_steps": int(self.learner.steps[-1]),
            "tokens_per_measured_step": self.learner.tokens_per_step,
            "steps_per_measured_step": scale,
        }


def attached(text: str | None, scale: int | None) -> Attached | None:
    """From FOLDER or FOLDER:METHOD.  Raises BadInput naming what is missing."""
    if text is None:
        if scale is not None:
            raise BadInput("--learner-scale", f"{scale} without --learner", "--learner FOLDER beside it")
        return None
    folder, _, method = (text, "", "") if Path(text).is_dir() else text.rpartition(":")
    path, method = Path(folder or text) / "curves.csv", method or "DiLoCo"
    learner = MeasuredLearner.read(path, method)
    if scale is not None:
        learner.stretched(scale)
    return Attached(learner, method, files.sha256(path), scale)


@dataclasses.dataclass(frozen=True)
class Training:
    """What is trained under the judged schedules.  described : for the certificate."""

    corpus: Corpus
    described: dict[str, Any]
    version: str

    def enter(self, head: dict[str, Any]) -> None:
        """State it in a head.  Raises BadInput when some regime has fewer seeds or inner steps than it needs."""
        for regime in head["regimes"]:
            n, wanted = regime["n_seeds"], self.described["seeds"]
            if wanted > n:
                raise BadInput("--train-seeds", f"{wanted}", f"at most {n}, the seeds of {regime['name']}")
            if _steps(regime, self.described) < 1:
                found = f"{self.described['steps_per_trained_step']}"
                raise BadInput("--train-factor", found, f"at most the inner steps of {regime['name']}")
        head["settings"]["train"], head["versions"]["torch"] = self.described, self.version


def training(n: int, margin: float, factor: int) -> Training:
    """Raises ProtocolError without torch."""
    if not 0 <= margin < math.inf:
        raise BadInput("--loss-margin", f"{margin}", "a number from 0 on")
    from adapters.learners.corpus import standard_library
    from adapters.learners.framework import torch

    corpus = standard_library()
    recipe = dataclasses.asdict(_recipe(1, 0))
    described = {
        "seeds": n,
        "loss_margin": margin,
        "steps_per_trained_step": factor,
        "outer": {"all islands": ["DiLoCo", *LOCAL], "peers": ["GASLoC", *LOCAL]},
        "recipe": {k: list(v) if isinstance(v, tuple) else v for k, v in recipe.items() if k not in ("steps", "seed")},
        "corpus": corpus.name,
        "corpus_sha256": corpus.digest,
    }
    return Training(corpus, described, str(torch.__version__))


def train(
    asked: Training, head: Mapping[str, Any], found: Sequence[SeedEvidence], jobs: int,
    progress: Callable[[int, int], None] = lambda done, total: None,
) -> None:  # fmt: skip
    """Give the first seeds of each regime their training runs: both arms from equal parameters, on equal batches."""
    factor = asked.described["steps_per_trained_step"]
    tasks: list[tuple[str, int, str, list[Round], Recipe, bool]] = []
    for regime in head["regimes"]:
        steps = _steps(regime, asked.described)
        for e in found:
            if e.regime == regime["name"] and e.seed < asked.described["seeds"]:
                recipe = _recipe(steps, seeds.words(head["settings"]["root_seed"], "training", e.regime, e.seed)[0])
                for arm in ARMS:
                    rounds = rounds_of(e, arm, regime, factor)
                    if rounds is not None:
                        tasks.append((e.regime, e.seed, arm, rounds, recipe, "peer" in regime))
    threads = os.environ.get("OMP_NUM_THREADS")
    os.environ["OMP_NUM_THREADS"] = "1"  # worker processes must not each start a thread for every core
    try:
        runs = joblib.Parallel(jobs, return_as="generator")(joblib.delayed(_run)(*t, asked.corpus) for t in tasks)
        made = []
        for run in runs:
            made.append(run)
            progress(len(made), len(tasks))
    finally:
        os.environ.pop("OMP_NUM_THREADS") if threads is None else os.environ.update(OMP_NUM_THREADS=threads)
    raw.attach_trained(found, made)


def _steps(regime: Mapping[str, Any], described: Mapping[str, Any]) -> int:
    """Trained steps of an island that never merges."""
    corridor = regime["corridor"]
    return int(corridor["horizon_ns"] // corridor["step_ns"] // described["steps_per_trained_step"])


def _recipe(steps: int, seed: int) -> Recipe:
    from adapters.learners.decoder import Shape
    from adapters.learners.islands import Recipe

    return Recipe(shape=Shape(*_SHAPE), steps=steps, batch=4, warm_up=10, seed=seed)


def _run(regime: str, seed: int, arm: str, rounds: list[Round], recipe: Recipe, peers: bool, corpus: Corpus) -> Trained:
    from adapters.learners.framework import torch
    from adapters.learners.stacked import StackedRun

    torch.set_num_threads(1)
    optimiser = outer.Gasloc(*LOCAL) if peers else outer.DiLoCo(*LOCAL)
    *_, last = StackedRun(recipe, corpus, optimiser, rounds, _WINDOWS).points(len(rounds))
    return Trained(regime, seed, arm, last.tokens // recipe.tokens_per_step, last.tokens, last.loss)
