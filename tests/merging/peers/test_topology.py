"""Mixing matrices and their rates, against enumeration, Kronecker products and simulation."""

from __future__ import annotations

import itertools
import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from protocol.errors import BadInput
from protocol.merging.peers import topology as tp
from protocol.merging.peers.topology import Topology


def matchings(items: tuple[int, ...]) -> list[list[tuple[int, int]]]:
    if not items:
        return [[]]
    first, *rest = items
    return [[(first, other), *more] for other in rest for more in matchings(tuple(x for x in rest if x != other))]


def all_draws(kind: str, n: int) -> list[np.ndarray]:
    """Every matrix of a random topology, equally likely."""
    if kind == "pair":
        left_out = [()] if n % 2 == 0 else [(k,) for k in range(n)]
        return [
            tp.averaging(n, pairs)
            for out in left_out
            for pairs in matchings(tuple(i for i in range(n) if i not in out))
        ]
    rings = []
    for order in itertools.permutations(range(1, n)):
        cycle = (0, *order)
        rings.append(tp.from_edges(n, [(cycle[k], cycle[(k + 1) % n]) for k in range(n)]))
    return rings


@given(st.sampled_from(["pair", "ring", "complete"]), st.integers(1, 40), st.integers(0, 2**32 - 1))
def test_draws_are_doubly_stochastic(kind: str, n: int, seed: int) -> None:
    mixing = tp.check_mixing(Topology(kind, n).draw(np.random.default_rng(seed)))  # type: ignore[arg-type]
    degrees = {len(near) for near in tp.neighbours(mixing)}
    wanted = {"pair": {1} if n % 2 == 0 else {0, 1}, "ring": {min(2, n - 1)}, "complete": {n - 1}}[kind]
    assert degrees <= wanted | ({0} if n == 1 else set())


@given(
    st.integers(2, 9).flatmap(
        lambda n: st.tuples(st.just(n), st.sets(st.sampled_from(list(itertools.combinations(range(n), 2)))))
    ),
    st.data(),
)
def test_any_graph_is_doubly_stochastic_also_when_islands_are_missing(
    graph: tuple[int, set[tuple[int, int]]], data: st.DataObject
) -> None:
    n, edges = graph
    mixing = tp.check_mixing(tp.from_edges(n, edges))
    absent = np.array(data.draw(st.lists(st.booleans(), min_size=n, max_size=n)))
    left = tp.check_mixing(tp.without(mixing, absent))
    assert np.array_equal(left[absent], np.eye(n)[absent])
    present = ~absent
    off = ~np.eye(n, dtype=bool) & present[:, None] & present[None, :]
    assert np.array_equal(left[off], mixing[off])


@pytest.mark.parametrize(("kind", "n"), [("pair", 4), ("pair", 6), ("pair", 5), ("pair", 7), ("ring", 4), ("ring", 6)])
def test_moments_equal_those_of_every_draw(kind: str, n: int) -> None:
    draws = all_draws(kind, n)
    first, second = np.mean(draws, axis=0), np.mean([w @ w for w in draws], axis=0)
    off_mean = np.eye(n) - tp.complete(n)
    rho_1, rho_2 = Topology(kind, n).moments()  # type: ignore[arg-type]
    np.testing.assert_allclose(first @ off_mean, rho_1 * off_mean, atol=1e-12)
    np.testing.assert_allclose(second @ off_mean, rho_2 * off_mean, atol=1e-12)


def test_contraction_by_the_published_formulas() -> None:
    for n in (8, 16, 256):
        assert Topology("pair", n).contraction() == pytest.approx((n - 2) / (2 * (n - 1)), abs=1e-12)
        assert Topology("ring", n).contraction() == pytest.approx((n / 3 - 1) / (n - 1), abs=1e-12)
    assert Topology("complete", 8).contraction() == 0
    for n in (2, 3):
        assert Topology("ring", n).contraction() == 0


@pytest.mark.parametrize("kind", ["pair", "ring"])
def test_measured_contraction_agrees(kind: str) -> None:
    topology = Topology(kind, 16)  # type: ignore[arg-type]
    mean, error = tp.measured_contraction(topology, 800, np.random.default_rng(1))
    assert abs(mean - topology.contraction()) < 4 * error
    assert 0 < error < 0.01


def second_moment_factor(draws: list[np.ndarray], gamma: float, form: str, alpha: float) -> float:
    """Spectral radius of E[A (x) A], A the exact update of (x, previous), by brute force."""
    n = len(draws[0])
    project = np.eye(n) - tp.complete(n)
    total = np.zeros((4 * n * n, 4 * n * n))
    for w in draws:
        mixed = tp.damped(w, alpha) @ project
        if form == "mixed":
            a = np.block([[(1 + gamma) * mixed, -gamma * mixed], [project, np.zeros((n, n))]])
        else:
            a = np.block([[mixed + gamma * project, -gamma * project], [project, np.zeros((n, n))]])
        total += np.kron(a, a)
    return math.sqrt(np.abs(np.linalg.eigvals(total / len(draws))).max())


@pytest.mark.parametrize("form", ["mixed", "literal"])
@pytest.mark.parametrize(("kind", "n"), [("pair", 4), ("pair", 5), ("ring", 4)])
def test_stability_factor_equals_the_kronecker_product(kind: str, n: int, form: str) -> None:
    draws = all_draws(kind, n)
    for gamma, alpha in ((0.0, 1.0), (0.5, 1.0), (0.9, 1.0), (0.7, 0.6)):
        exact = second_moment_factor(draws, gamma, form, alpha)
        assert Topology(kind, n).stability(gamma, form, alpha) == pytest.approx(exact, rel=1e-6)  # type: ignore[arg-type]


def test_stability_of_a_fixed_graph_is_that_of_its_companion_matrix() -> None:
    edges = ((0, 1), (1, 2), (2, 3), (3, 4), (4, 0), (0, 2))
    graph = Topology("graph", 5, edges)
    w = tp.damped(tp.from_edges(5, edges), 0.8)
    project = np.eye(5) - tp.complete(5)
    for gamma in (0.0, 0.4, 0.9):
        a = np.block([[(1 + gamma) * w @ project, -gamma * w @ project], [project, np.zeros((5, 5))]])
        assert graph.stability(gamma, "mixed", 0.8) == pytest.approx(np.abs(np.linalg.eigvals(a)).max(), rel=1e-9)


def test_stability_table() -> None:
    """Eight islands, alpha 1: the factors that the documentation gives."""
    table = {
        ("pair", "mixed"): [0.655, 0.712, 0.807, 0.914, 1.022],
        ("pair", "literal"): [0.655, 0.753, 0.866, 0.977, 1.080],
        ("ring", "mixed"): [0.488, 0.568, 0.666, 0.763, 0.857],
        ("ring", "literal"): [0.488, 0.664, 0.799, 0.919, 1.026],
        ("complete", "mixed"): [0.0] * 5, ("complete", "literal"): [0.0, 0.548, 0.707, 0.837, 0.949],
    }  # fmt: skip
    for (kind, form), factors in table.items():
        found = [Topology(kind, 8).stability(g, form) for g in (0, 0.3, 0.5, 0.7, 0.9)]  # type: ignore[arg-type]
        np.testing.assert_allclose(found, factors, atol=1e-3)


@pytest.mark.parametrize("form", ["mixed", "literal"])
def test_simulated_disagreement_follows_the_factor(form: str) -> None:
    topology = Topology("ring", 8)
    size = tp.measured_disagreement(topology, 0.7, form, 1.0, 10, 800, np.random.default_rng(2))  # type: ignore[arg-type]
    assert size[0] == 1
    measured = (size[10] / size[4]) ** (1 / 6)
    assert measured == pytest.approx(topology.stability(0.7, form), rel=0.05)  # type: ignore[arg-type]


def test_unstable_mixing_warns_with_its_factor() -> None:
    with pytest.warns(tp.UnstableMixing, match="pair mixing of 8 islands with gamma 0.9.* 1.022 a round"):
        assert tp.warn_if_unstable(Topology("pair", 8), 0.9) > 1
    assert tp.warn_if_unstable(Topology("pair", 8), 0.7) < 1


def test_momentum_speeds_up_a_fixed_ring_and_slows_random_exchanges() -> None:
    ring = Topology("graph", 32, tuple((i, (i + 1) % 32) for i in range(32)))
    assert ring.stability(0.7) < ring.stability(0.0)
    for kind in ("pair", "ring"):
        assert Topology(kind, 32).stability(0.7) > Topology(kind, 32).stability(0.0)  # type: ignore[arg-type]


def test_groups_and_neighbours() -> None:
    mixing = tp.averaging(6, [(4, 1), (0, 5, 2)])
    assert [g.tolist() for g in tp.groups(mixing)] == [[0, 2, 5], [1, 4]]
    assert tp.neighbours(mixing)[3].tolist() == []
    assert tp.neighbours(mixing)[5].tolist() == [0, 2]


@pytest.mark.parametrize(
    ("bad", "what"),
    [
        (np.ones((2, 3)), "square"),
        (np.array([[0.5, 0.6], [0.6, 0.5]]), "misses a sum of 1"),
        (np.array([[1.5, -0.5], [-0.5, 1.5]]), "negative"),
        (np.array([[0.5, 0.5], [0.4, 0.6]]), "asymmetric"),
        (np.array([[np.nan, 1], [1, 0]]), "no number"),
    ],
)
def test_bad_matrices_are_refused(bad: np.ndarray, what: str) -> None:
    with pytest.raises(BadInput, match=what):
        tp.check_mixing(bad)


def test_bad_graphs_are_refused() -> None:
    for call in (
        lambda: tp.averaging(3, [(0, 1), (1, 2)]),
        lambda: tp.averaging(3, [(0, 3)]),
        lambda: tp.from_edges(3, [(0, 0)]),
        lambda: tp.from_edges(3, [(0, 1), (1, 0)]),
        lambda: tp.from_edges(3, [(0, 3)]),
        lambda: Topology("star", 3),  # type: ignore[arg-type]
        lambda: Topology("pair", 0),
        lambda: Topology("pair", 4, ((0, 1),)),
        lambda: Topology("graph", 2, ((0, 5),)),
        lambda: Topology("graph", 2, ((0, 1),)).moments(),
        lambda: Topology("pair", 4).stability(-0.1),
        lambda: Topology("pair", 4).stability(0.1, "other"),  # type: ignore[arg-type]
    ):
        with pytest.raises(BadInput):
            call()
