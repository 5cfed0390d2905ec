"""Outer optimisers on plain arrays.  The comparison with torch's own SGD is in tests/learners."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from baselines import outer
from protocol.errors import BadInput
from protocol.merging.peers import topology as tp

N, P = 6, 5


def trajectory(optimiser, rounds: int, topology: tp.Topology, seed: int = 0, same_start: bool = True) -> np.ndarray:  # type: ignore[no-untyped-def]
    """(rounds + 1, N, P): a nonlinear inner map, different on every island."""
    rng = np.random.default_rng(seed)
    theta = np.repeat(rng.standard_normal((1, P)), N, 0) if same_start else rng.standard_normal((N, P))
    target = rng.standard_normal((N, P))
    found = [theta]
    for _ in range(rounds):
        mixing = topology.draw(rng)
        after = theta - 0.5 * np.tanh(theta - target)
        theta = optimiser.step(theta, after, lambda x, w=mixing: w @ x)
        found.append(theta)
    return np.array(found)


def test_diloco_is_nesterov_by_hand() -> None:
    """One island, one parameter, two rounds."""
    optimiser = outer.DiLoCo(eta=0.5, mu=0.8)
    first = optimiser.step(np.array([[1.0]]), np.array([[0.6]]), lambda x: x)
    assert first[0, 0] == pytest.approx(1.0 - 0.5 * (0.4 + 0.8 * 0.4))  # delta 0.4, m 0.4
    second = optimiser.step(np.array([[0.64]]), np.array([[0.54]]), lambda x: x)
    assert second[0, 0] == pytest.approx(0.64 - 0.5 * (0.1 + 0.8 * (0.8 * 0.4 + 0.1)))


@pytest.mark.parametrize(("eta", "gamma"), [(0.7, 0.9), (1.0, 0.5), (0.3, 0.0)])
def test_mixed_gasloc_on_the_complete_graph_is_diloco(eta: float, gamma: float) -> None:
    everyone = tp.Topology("complete", N)
    gossip = trajectory(outer.Gasloc(eta, gamma), 40, everyone)
    diloco = trajectory(outer.DiLoCo(eta, gamma), 40, everyone)
    np.testing.assert_allclose(gossip, diloco, rtol=0, atol=1e-12)


def test_literal_gasloc_keeps_islands_apart_there() -> None:
    everyone = tp.Topology("complete", N)
    literal = trajectory(outer.Gasloc(0.7, 0.9, form="literal"), 10, everyone)
    diloco = trajectory(outer.DiLoCo(0.7, 0.9), 10, everyone)
    assert np.abs(literal[-1] - literal[-1].mean(0)).max() > 0.05
    assert np.abs(literal[-1].mean(0) - diloco[-1].mean(0)).max() > 0.01


def test_gasloc_by_hand() -> None:
    """A pair, two rounds, eta 1/2, gamma 1/2, alpha 1."""
    mix = lambda x: np.full((2, 2), 0.5) @ x  # noqa: E731
    before, after = np.array([[0.0], [0.0]]), np.array([[4.0], [0.0]])
    mixed = outer.Gasloc(0.5, 0.5)
    # u = 2, 0; v = 1, 1; v_{-1} = 0, so 1 + (1 - 0) / 2.
    assert mixed.step(before, after, mix).ravel().tolist() == [1.5, 1.5]
    literal = outer.Gasloc(0.5, 0.5, form="literal")
    # W u = 1, 1; u - u_{-1} = 2, 0.
    assert literal.step(before, after, mix).ravel().tolist() == [2.0, 1.0]
    half = outer.Gasloc(0.5, 0.0, alpha=0.5)
    assert half.step(before, after, mix).ravel().tolist() == [1.5, 0.5]


def test_without_momentum_and_at_full_rate_it_is_adapt_then_combine() -> None:
    pairs = tp.Topology("pair", N)
    np.testing.assert_allclose(
        trajectory(outer.Gasloc(1.0, 0.0), 20, pairs), trajectory(outer.AdaptThenCombine(), 20, pairs), atol=1e-12
    )


@given(
    st.sampled_from(["pair", "ring", "complete"]),
    st.floats(0.1, 1.5),
    st.floats(0, 0.95),
    st.sampled_from(["mixed", "literal"]),
    st.integers(0, 999),
)
def test_mixing_never_moves_the_mean(kind: str, eta: float, gamma: float, form: str, seed: int) -> None:
    """With the same linear inner map everywhere, the mean over islands takes the steps of a single island."""
    rng = np.random.default_rng(seed)
    theta = rng.standard_normal((N, P))
    alone = theta.mean(0, keepdims=True)
    many, one = outer.Gasloc(eta, gamma, form=form), outer.Gasloc(eta, gamma, form=form)  # type: ignore[arg-type]
    for _ in range(6):
        mixing = tp.Topology(kind, N).draw(rng)  # type: ignore[arg-type]
        theta = many.step(theta, 0.8 * theta + 1.0, lambda x, w=mixing: w @ x)
        alone = one.step(alone, 0.8 * alone + 1.0, lambda x: x)
        np.testing.assert_allclose(theta.mean(0), alone[0], atol=1e-10)


def test_delayed_mixes_what_the_round_began_with() -> None:
    mix = lambda x: np.full((2, 2), 0.5) @ x  # noqa: E731
    before, after = np.array([[0.0], [2.0]]), np.array([[1.0], [5.0]])
    assert outer.Delayed().step(before, after, mix).ravel().tolist() == [2.0, 4.0]
    assert outer.AdaptThenCombine().step(before, after, mix).ravel().tolist() == [3.0, 3.0]


def test_noloco_by_hand() -> None:
    mix = lambda x: np.full((2, 2), 0.5) @ x  # noqa: E731
    optimiser = outer.NoLoCo(eta=0.5, mu=0.5)
    before, after = np.array([[0.0], [2.0]]), np.array([[2.0], [4.0]])
    # The group's mean after is 3, so the pulls are half of 3 and of 1.
    assert optimiser.step(before, after, mix).ravel().tolist() == [1.5, 2.5]
    # Then, from 0 and 2 again: half of the old momentum on top.
    assert optimiser.step(before, after, mix).ravel().tolist() == [2.25, 2.75]


def test_all_reduce_leaves_parameters_alone() -> None:
    optimiser = outer.AllReduce()
    after = np.ones((2, 2))
    assert optimiser.averages == "gradients"
    assert optimiser.step(np.zeros((2, 2)), after, lambda x: 1 / 0) is after  # type: ignore[arg-type, return-value]


def test_one_payload_a_step() -> None:
    """What the communication model charges: one mix a step, none but AllReduce without."""
    for make in (outer.AdaptThenCombine, outer.Delayed, outer.DiLoCo, outer.Gasloc, outer.NoLoCo):
        calls = []
        optimiser = make()
        for _ in range(3):
            optimiser.step(np.zeros((2, 1)), np.ones((2, 1)), lambda x: calls.append(1) or x)  # noqa: B023
        assert len(calls) == 3


def test_effective_rate() -> None:
    assert outer.effective_rate(0.7, 0.7) == pytest.approx(7 / 3)
    with pytest.raises(BadInput, match="gamma"):
        outer.effective_rate(1.0, 1.0)
    with pytest.raises(BadInput, match="form"):
        outer.Gasloc(form="other")  # type: ignore[arg-type]
