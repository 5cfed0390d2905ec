"""A campaign in simulation: every seed of every regime, run through one code path, in any number of processes.

A seed's work depends on its own named random streams only, so the evidence is the same whatever the number of workers,
and a seed that is already on disk need not be run again.
"""

from __future__ import annotations

import os
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures.process import BrokenProcessPool
from contextlib import ExitStack, contextmanager
from functools import cache
from typing import Any

import joblib
from joblib.externals.loky import get_reusable_executor
from joblib.parallel import LokyBackend, get_active_backend

from protocol.campaign.arms import close_contenders, cross, draw_more, run_seed
from protocol.campaign.plan import Plan, Setting
from protocol.errors import ProtocolError
from protocol.evidence.model import CROSSED, Evidence
from protocol.merging.placements import Placements
from protocol.replay.replay import POLICY, UNIFORM
from protocol.stats.sequential import joint_test

Key = tuple[str, int]
#: Steps of a campaign: the scheduler's runs of a seed with its matched draws, further draws, and every seed's schedule
#: on every trace.
REPLAYED, DRAWN, EXCHANGED = "seeds replayed", "further draws", "schedules exchanged"
Task = tuple[Callable[..., Any], tuple[Any, ...]]
#: How often a lost worker process is made up for, before one that ends every time is taken for the work's doing.
LOSSES = 3


def run(
    plan: Plan,
    settings: Sequence[Setting],
    jobs: int,
    finished: Mapping[Key, Evidence] | None = None,
    keep: Callable[[Evidence], None] = lambda evidence: None,
    progress: Callable[[str, int, int], None] = lambda step, done, total: None,
) -> list[Evidence]:
    """Evidence of every seed, in the order of the settings.

    finished : seeds that need not be run again.  keep : called with each new seed's evidence as it comes.
    progress : called with the step (of `steps`), how many of its seeds are done, and of how many.
    Raises SchedulerError or BadInput of the first seed that cannot be run.
    """
    done = dict(finished or {})
    wanted = [(setting, seed) for setting in settings for seed in range(setting.n_seeds + setting.further)]
    missing = [(setting, seed) for setting, seed in wanted if (setting.name, seed) not in done]
    progress(REPLAYED, len(wanted) - len(missing), len(wanted))
    with _workers(min(jobs, max(1, len(missing)))) as results:
        for evidence in results([(run_seed, (plan, setting, seed)) for setting, seed in missing]):
            done[evidence.regime, evidence.seed] = evidence
            keep(evidence)
            progress(REPLAYED, len(done), len(wanted))
        for number in range(1, len(plan.batches)):
            still = [s for s in settings if not _lost([done[s.name, seed] for seed in range(s.n_seeds)], plan)]
            more = [(s, seed, done[s.name, seed].placed.get(POLICY)) for s in still for seed in range(s.n_seeds)]
            drawn = results([(draw_more, (plan, *one, number)) for one in more])
            for count, ((setting, seed, _), extra) in enumerate(zip(more, drawn, strict=True), start=1):
                e = done[setting.name, seed]
                if extra is not None:
                    done[setting.name, seed] = e.with_placed(UNIFORM, e.placed[UNIFORM].joined(extra))
                progress(DRAWN, (number - 1) * len(wanted) + count, (len(plan.batches) - 1) * len(wanted))
        tasks = list(_crossings(settings, done))
        crossed = results([(cross, (plan, *one)) for one in tasks])
        for count, ((setting, seed, _), placements) in enumerate(zip(tasks, crossed, strict=True), start=1):
            done[setting.name, seed] = done[setting.name, seed].with_placed(CROSSED, placements)
            progress(EXCHANGED, count, len(wanted))
    close_contenders()
    return [done[setting.name, seed] for setting, seed in wanted]


def steps(plan: Plan) -> tuple[str, ...]:
    """The steps of a campaign, in their order."""
    return (REPLAYED, *((DRAWN,) if len(plan.batches) > 1 else ()), EXCHANGED)


def dismiss_workers() -> None:
    """End the idle worker processes of `run`: they keep their memory, and writing the results needs some."""
    get_reusable_executor().shutdown(wait=True)


def end_worker() -> None:
    """Close what this process opened for a campaign, once nothing runs in it: a cluster's workers stay."""
    with _ALONE:
        close_contenders()


@contextmanager
def _workers(jobs: int) -> Iterator[Callable[[Sequence[Task]], Iterator[Any]]]:
    """What gives the result of each of some tasks, in their order, as they come; what a lost worker held is done again.

    Raises ProtocolError when workers are lost time and again.
    """
    owner = os.getpid() if isinstance(get_active_backend()[0], LokyBackend) else None
    with ExitStack() as stack:

        def opened() -> joblib.Parallel:
            return stack.enter_context(joblib.Parallel(n_jobs=jobs, return_as="generator"))

        parallel, lost = opened(), 0

        def results(tasks: Sequence[Task]) -> Iterator[Any]:
            nonlocal parallel, lost
            done = 0
            while done < len(tasks):
                try:
                    for result in parallel(joblib.delayed(_in_worker)(owner, *task) for task in tasks[done:]):
                        done += 1
                        yield result
                except _lost_worker() as error:
                    lost += 1
                    if lost > LOSSES:
                        why = f"{lost} times ({type(error).__name__}: killed, or out of memory?)"
                        raise ProtocolError(f"a worker process was lost {why}; the same command goes on") from None
                    stack.close()
                    parallel = opened()

        yield results


def _lost_worker() -> tuple[type[BaseException], ...]:
    """What tells that a worker is gone; Dask replaces its own."""
    ray = sys.modules.get("ray.exceptions")
    return (BrokenProcessPool,) if ray is None else (BrokenProcessPool, ray.RayActorError)


#: A worker holds one opened scheduler, however many threads a cluster gives it.
_ALONE = threading.Lock()


def _in_worker(owner: int | None, work: Callable[..., Any], arguments: tuple[Any, ...]) -> Any:
    """owner : of a worker of this machine, its campaign's process; a cluster looks after its own workers."""
    if owner is not None and os.getpid() != owner:
        _end_with(owner)
    with _ALONE:
        return work(*arguments)


@cache
def _end_with(owner: int) -> None:
    """Have this worker end when its campaign was killed; joblib's would wait for work for good, unseen."""

    def watch() -> None:
        while os.getppid() == owner:
            time.sleep(0.5)
        os._exit(1)

    threading.Thread(target=watch, daemon=True).start()


def _lost(evidence: Sequence[Evidence], plan: Plan) -> bool:
    """Whether every SLO of a regime is past certifying, by the rule that was fixed before the first draw."""
    if any(UNIFORM not in e.placed for e in evidence):
        return True
    requests = [e.n_requests for e in evidence]
    slos = range(evidence[0].placed[UNIFORM].violations.shape[1])
    return all(
        joint_test(
            [e.priced(POLICY, slo) for e in evidence], [e.priced(UNIFORM, slo) for e in evidence], requests, plan.draws
        ).stopped_early
        for slo in slos
    )


def _crossings(
    settings: Sequence[Setting], done: Mapping[Key, Evidence]
) -> Iterator[tuple[Setting, int, list[Placements]]]:
    """Every seed's trace with the schedules that were made on all the regime's traces, but for further seeds."""
    for setting in settings:
        made = [done[setting.name, seed].placed[POLICY] for seed in range(setting.n_seeds)]
        yield from ((setting, seed, made) for seed in range(setting.n_seeds))
