"""Inner training, and the two engines that run it."""

from __future__ import annotations

import copy
import dataclasses
import os
import signal
import threading
import time
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from baselines import outer
from protocol.errors import BadInput, ProtocolError
from protocol.merging.peers import topology as tp
from protocol.merging.peers.communication import Network, Round, plan_rounds, rounds_of_schedule
from protocol.merging.peers.topology import Topology
from protocol.merging.schedule import Schedule

pytestmark = pytest.mark.usefixtures("torch")


def planned(kind: str, n: int, h: int, rounds: int, slow: dict[int, float] | None = None) -> list[Round]:
    return list(
        plan_rounds(
            Topology(kind, n), Network.of(n, 1e6, slow=slow), h=h, rounds=rounds, step_ns=10_000_000,  # type: ignore[arg-type]
            payload_bytes=20_000, rng=np.random.default_rng(4), adapt="partners" if slow else "none",
        )
    )  # fmt: skip


def recipe(steps: int, **changes: Any) -> Any:
    from adapters.learners.decoder import Shape
    from adapters.learners.islands import Recipe

    return Recipe(**{"shape": Shape(8, 1, 2, 12, 8), "steps": steps, "batch": 2, "warm_up": 3, **changes})


def stacked(the_recipe: Any, corpus: Any, optimiser: Any, rounds: list[Round]) -> Any:
    from adapters.learners.stacked import StackedRun

    run = StackedRun(the_recipe, corpus, optimiser, rounds, windows=16)
    return run, list(run.points())


def test_inner_steps_equal_those_of_torch_adamw(torch: Any, corpus: Any) -> None:
    """One island: torch.optim.AdamW with the norms in a group without decay, and torch's own clipping."""
    from adapters.learners.islands import Islands

    the_recipe = recipe(12, precision="float64", decay=0.2, clip=0.5)
    islands = Islands(the_recipe, corpus, [0])
    start = islands.theta.clone()
    islands.inner(np.array([12]), np.array([0]))

    other = Islands(the_recipe, corpus, [0])
    decayed = other.decoder.decayed > 0
    big, small = (start[0, keep].clone().requires_grad_() for keep in (decayed, ~decayed))
    optimiser = torch.optim.AdamW(
        [{"params": [big], "weight_decay": 0.2}, {"params": [small], "weight_decay": 0.0}],
        betas=(0.9, 0.95), eps=1e-8,
    )  # fmt: skip
    for step in range(12):
        for group in optimiser.param_groups:
            group["lr"] = the_recipe.rate_at(step)
        theta = torch.zeros_like(start)
        theta[0, decayed], theta[0, ~decayed] = big, small
        text = torch.from_numpy(corpus.train.astype(np.int64))[other._starts[step][:, :, None] + other._ahead]
        optimiser.zero_grad()
        other.decoder.losses(theta, text[..., :-1], text[..., 1:]).sum().backward()
        torch.nn.utils.clip_grad_norm_([big, small], 0.5)
        optimiser.step()
    final = torch.zeros_like(start)
    final[0, decayed], final[0, ~decayed] = big.detach(), small.detach()
    assert (final - start).abs().max() > 1e-3
    torch.testing.assert_close(islands.theta, final, rtol=0, atol=1e-10)


def test_outer_steps_equal_those_of_torch_sgd(torch: Any) -> None:
    """DiLoCo and GASLoC on the complete graph against torch.optim.SGD(nesterov=True) on the mean pseudo-gradient."""
    rng = np.random.default_rng(0)
    n, p, rounds = 5, 7, 30
    target = torch.from_numpy(rng.standard_normal((n, p)))
    start = torch.from_numpy(rng.standard_normal((1, p)))
    reference = start.clone().requires_grad_()
    sgd = torch.optim.SGD([reference], lr=0.7, momentum=0.9, nesterov=True)
    ours = {"diloco": outer.DiLoCo(0.7, 0.9), "gasloc": outer.Gasloc(0.7, 0.9)}
    theta = {name: start.repeat(n, 1) for name in ours}
    for _ in range(rounds):
        at = reference.detach()
        reference.grad = (at - (at - 0.3 * torch.tanh(at - target))).mean(0, keepdim=True)
        sgd.step()
        for name, optimiser in ours.items():
            before = theta[name]
            after = before - 0.3 * torch.tanh(before - target)
            theta[name] = optimiser.step(before, after, lambda x: x.mean(0, keepdim=True).expand_as(x))
    for rows in theta.values():
        torch.testing.assert_close(rows, reference.detach().expand_as(rows), rtol=0, atol=1e-12)


def test_gasloc_on_the_complete_graph_trains_as_diloco(corpus: Any) -> None:
    rounds = planned("complete", 4, 5, 6)
    the_recipe = recipe(30, precision="float64")  # in float32 the largest parameters round by 1e-7 a step
    makes = outer.DiLoCo, outer.Gasloc
    runs = [stacked(the_recipe, corpus, make(0.7, 0.9), rounds)[0].theta for make in makes]
    assert np.abs(runs[0] - runs[0][0]).max() < 1e-9
    assert np.abs(runs[0][0]).max() > 0.1
    np.testing.assert_allclose(runs[0], runs[1], rtol=0, atol=1e-9)


def test_training_lowers_the_loss_and_counts_what_it_used(corpus: Any) -> None:
    rounds = planned("pair", 4, 10, 6)
    the_recipe = recipe(60, rate=1e-2)
    run, points = stacked(the_recipe, corpus, outer.Gasloc(), rounds)
    assert points[-1].loss < points[0].loss - 0.3
    assert [p.tokens for p in points] == [4 * 10 * (r + 1) * the_recipe.tokens_per_step for r in range(6)]
    assert [p.sent_bytes for p in points] == [4 * 20_000.0 * (r + 1) for r in range(6)]
    assert [p.time_s for p in points] == [r.end_ns.max() / 1e9 for r in rounds]
    assert points[-1].island_loss is not None and points[0].island_loss is None
    assert points[-1].worst_loss >= points[-1].island_loss  # type: ignore[operator]
    assert 0 < points[-1].consensus < 1


def test_all_reduce_keeps_islands_equal(corpus: Any) -> None:
    run, points = stacked(recipe(8), corpus, outer.AllReduce(), planned("complete", 4, 1, 8))
    assert points[-1].consensus < 1e-6


def test_fewer_steps_are_really_fewer(torch: Any, corpus: Any) -> None:
    """An island that stops after 2 of 5 steps is where it would be had it been alone with 2."""
    from adapters.learners.islands import Islands

    both = Islands(recipe(10), corpus, [0, 1])
    both.inner(np.array([5, 2]), np.array([0, 0]))
    both.inner(np.array([5, 2]), np.array([5, 5]))
    alone = Islands(recipe(10), corpus, [1])
    alone.inner(np.array([2]), np.array([0]))
    loss = alone.inner(np.array([2]), np.array([5]))
    torch.testing.assert_close(both.theta[1:], alone.theta, rtol=0, atol=1e-6)
    assert np.isfinite(float(loss[0]))
    assert np.isnan(float(alone.inner(np.array([0]), np.array([0]))[0]))


@pytest.mark.parametrize("make", [outer.Gasloc, outer.NoLoCo, outer.AdaptThenCombine, outer.DiLoCo])
def test_an_island_that_misses_an_exchange_keeps_what_it_has(torch: Any, corpus: Any, make: Callable[[], Any]) -> None:
    """Also its momentum: afterwards it goes on exactly as if the round had not been."""
    from adapters.learners.islands import Islands, gossip

    islands, optimiser = Islands(recipe(10), corpus, [0, 1, 2]), make()
    pair = tp.averaging(3, [(0, 1)])
    for joined in ([True, True, False], [True, True, False]):
        before, state = islands.theta.clone(), {k: v.clone() for k, v in optimiser.state.items()}
        islands.inner(np.array([2, 2, 0]), np.array([0, 0, 0]))
        islands.outer(before, optimiser, gossip(pair, before), np.array(joined))
        assert torch.equal(islands.theta[2], before[2])
        assert not torch.equal(islands.theta[0], before[0])
        for name, value in state.items():
            assert torch.equal(optimiser.state[name][2], value[2])


def test_any_schedule_can_be_trained(corpus: Any) -> None:
    """A pair, everybody, and a rest without an exchange."""
    schedule = Schedule(np.array([25, 60]), np.array([[5, 0, 7], [10, 10, 10]]))
    rounds = rounds_of_schedule(schedule, 10, 100, 12)
    the_recipe = recipe(20)
    run, points = stacked(the_recipe, corpus, outer.AdaptThenCombine(), rounds)
    assert points[-1].tokens == (8 + 9 + 7) * the_recipe.tokens_per_step
    found, _ = stacked(the_recipe, corpus, outer.AdaptThenCombine(), rounds[:2])
    assert np.abs(found.theta - found.theta[0]).max() < 1e-6
    assert np.abs(run.theta - run.theta[0]).max() > 1e-4


def test_batches_belong_to_the_island(corpus: Any) -> None:
    from adapters.learners.islands import Islands

    many, few = Islands(recipe(10), corpus, range(6)), Islands(recipe(10), corpus, [4])
    assert np.array_equal(many._starts[:, 4], few._starts[:, 0])
    assert not np.array_equal(many._starts[:, 3], many._starts[:, 4])


def test_rates() -> None:
    the_recipe = recipe(100, rate=1.0, warm_up=10)
    found = [the_recipe.rate_at(k) for k in (0, 9, 10, 55, 100, 200)]
    assert found == pytest.approx([0.1, 1.0, 1.0, 0.55, 0.1, 0.1])


def test_a_diverging_run_stops_and_says_so(corpus: Any) -> None:
    class Explodes:
        averages = "parameters"

        def __init__(self) -> None:
            self.state: dict[str, Any] = {}

        def step(self, before: Any, after: Any, mix: Any) -> Any:
            return after * float("nan")

    _, points = stacked(recipe(10), corpus, Explodes(), planned("pair", 2, 2, 5))
    assert len(points) == 1 and not np.isfinite(points[0].loss)


def test_bad_recipes_and_rounds_are_refused(corpus: Any) -> None:
    from adapters.learners.stacked import StackedRun

    for call in (
        lambda: recipe(0),
        lambda: recipe(10, rate=0.0),
        lambda: recipe(10, precision="bfloat16"),
        lambda: StackedRun(recipe(10), corpus, outer.DiLoCo(), []),
        lambda: StackedRun(recipe(10), corpus, outer.DiLoCo(), planned("pair", 2, 1, 1) + planned("pair", 4, 1, 1)),
    ):
        with pytest.raises(BadInput):
            call()


# Real processes --------------------------------------------------------------------------------------------------

METHODS = {
    "diloco": ("complete", outer.DiLoCo, 4, None),
    "2-peer": ("ring", outer.Gasloc, 4, None),
    "1-peer adapted": ("pair", outer.Gasloc, 4, {1: 0.3}),
    "delayed": ("pair", outer.Delayed, 4, None),
    "all-reduce": ("complete", outer.AllReduce, 1, None),
}


@pytest.mark.parametrize("name", METHODS)
def test_four_processes_train_as_one(corpus: Any, name: str) -> None:
    from adapters.learners.distributed import train

    kind, make, h, slow = METHODS[name]
    rounds = planned(kind, 4, h, 5, slow)
    assert slow is None or len({int(s) for r in rounds for s in r.steps}) > 1
    the_recipe = recipe(5 * h)
    run, _ = stacked(the_recipe, corpus, make(), rounds)
    found = train(the_recipe, corpus, make(), rounds, deadline_s=60)
    np.testing.assert_allclose(found.theta, run.theta, rtol=0, atol=1e-5)
    assert found.train_loss.shape == found.exchange_s.shape == (5, 4)
    assert (found.exchange_s > 0).all()


def test_an_odd_island_sits_out_in_both_engines(corpus: Any) -> None:
    from adapters.learners.distributed import train

    rounds = planned("pair", 3, 2, 5)
    run, _ = stacked(recipe(10), corpus, outer.Gasloc(), rounds)
    found = train(recipe(10), corpus, outer.Gasloc(), rounds)
    np.testing.assert_allclose(found.theta, run.theta, rtol=0, atol=1e-5)


@pytest.mark.skipif(not hasattr(signal, "SIGSTOP"), reason="needs POSIX signals")
@pytest.mark.parametrize(
    ("name", "message"), [("SIGKILL", "island 2 was killed by SIGKILL"), ("SIGSTOP", "no sign of island 2 for 3 s")]
)
def test_a_lost_process_is_named_within_the_deadline(corpus: Any, name: str, message: str) -> None:
    from adapters.learners.distributed import train

    ids: list[int] = []
    hit: list[float] = []

    def started(pids: list[int]) -> None:
        def strike() -> None:
            hit.append(time.monotonic())
            os.kill(pids[2], getattr(signal, name))

        ids.extend(pids)
        threading.Timer(0.5, strike).start()

    deadline = 3.0
    with pytest.raises(ProtocolError, match=f"in outer round .*{message}") as caught:
        train(recipe(10), corpus, outer.Gasloc(), planned("pair", 4, 20, 3000), deadline_s=deadline, started=started)
    assert "\n" not in str(caught.value)
    # The machine may be busy; what matters is that the wait is bounded by the deadline and not by luck.
    assert time.monotonic() - hit[0] < deadline + 7
    for pid in ids:
        with pytest.raises(ProcessLookupError):
            os.kill(pid, 0)


@dataclasses.dataclass
class Fails:
    averages: str = "parameters"
    state: dict[str, Any] = dataclasses.field(default_factory=dict)

    def step(self, before: Any, after: Any, mix: Any) -> Any:
        raise ValueError("no such step")


def test_an_error_in_a_process_is_passed_on(corpus: Any) -> None:
    from adapters.learners.distributed import train

    with pytest.raises(ProtocolError, match=r"in outer round 1, island \d failed: ValueError: no such step"):
        train(recipe(10), corpus, copy.deepcopy(Fails()), planned("pair", 2, 1, 3))
    with pytest.raises(BadInput, match="deadline"):
        train(recipe(10), corpus, Fails(), planned("pair", 2, 1, 3), deadline_s=0)
