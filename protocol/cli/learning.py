"""Learners attached to `certify`: a measured curve that schedulers watch, and training under the judged schedules."""

from __future__ import annotations

import dataclasses
import math
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import joblib

from adapters.learners.measured import MeasuredLearner
from baselines import outer
from protocol import files, seeds
from protocol.certificate.model import Head, RegimePart
from protocol.cli.train_grid import LOCAL
from protocol.errors import BadInput
from protocol.evidence.model import Evidence, attached_training
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

    def entered(self, head: Head) -> Head:
        """The head that states it.  Raises BadInput when some regime has fewer seeds or inner steps than it needs."""
        for regime in head.regimes:
            wanted = self.described["seeds"]
            if regime.merge is not None:
                found = "merges that are not all alike ([merge])"
                raise BadInput(f"--train-seeds, {regime.name}", found, "a regime without [merge]")
            if wanted > regime.n_seeds:
                raise BadInput("--train-seeds", f"{wanted}", f"at most {regime.n_seeds}, the seeds of {regime.name}")
            if _steps(regime, self.described) < 1:
                found = f"{self.described['steps_per_trained_step']}"
                raise BadInput("--train-factor", found, f"at most the inner steps of {regime.name}")
        asked = head.plain()
        return Head.model_validate(
            {
                **asked,
                "settings": {**asked["settings"], "train": self.described},
                "versions": {**asked["versions"], "torch": self.version},
            }
        )


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


#: The step's name.
TRAINED = "runs trained"


def train(
    asked: Training, head: Head, found: Sequence[Evidence], jobs: int,
    progress: Callable[[str, int, int], None] = lambda step, done, total: None,
) -> list[Evidence]:  # fmt: skip
    """The seeds with their training runs, the first of each regime: both arms of equal parameters and batches."""
    tasks = list(_tasks(asked, head, found))
    threads = os.environ.get("OMP_NUM_THREADS")
    os.environ["OMP_NUM_THREADS"] = "1"  # worker processes must not each start a thread for every core
    try:
        runs = joblib.Parallel(jobs, return_as="generator")(joblib.delayed(_run)(*t, asked.corpus) for t in tasks)
        made = []
        for run in runs:
            made.append(run)
            progress(TRAINED, len(made), len(tasks))
    finally:
        os.environ.pop("OMP_NUM_THREADS") if threads is None else os.environ.update(OMP_NUM_THREADS=threads)
    return attached_training(found, made)


def _tasks(
    asked: Training, head: Head, found: Sequence[Evidence]
) -> Iterator[tuple[str, int, str, list[Round], Recipe, bool]]:
    factor = asked.described["steps_per_trained_step"]
    for regime in head.regimes:
        steps, peers = _steps(regime, asked.described), regime.peers()
        for e in found:
            if e.regime == regime.name and e.seed < asked.described["seeds"]:
                recipe = _recipe(steps, seeds.words(head.settings.root_seed, "training", e.regime, e.seed)[0])
                for arm in ARMS:
                    rounds = rounds_of(e, arm, regime.corridor.corridor(), peers, regime.islands, factor)
                    if rounds is not None:
                        yield e.regime, e.seed, arm, rounds, recipe, peers is not None


def _steps(regime: RegimePart, described: Mapping[str, Any]) -> int:
    """Trained steps of an island that never merges."""
    return int(regime.corridor.horizon_ns // regime.corridor.step_ns // described["steps_per_trained_step"])


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
