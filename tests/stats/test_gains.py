"""Both gains of a claim: what is reported, which test decides, what the numbers license, and what is refused."""

from __future__ import annotations

import math

import numpy as np
import pytest
from scipy import stats

from protocol.stats.gains import Adjusted, Gains, Standing, judge_gains, unseen_share
from protocol.stats.inversion import EXCHANGE, LOAD_FLIP, SIGN_FLIP, STRATIFIED


def rng(seed: int = 0) -> np.random.Generator:
    return np.random.default_rng(seed)


def world(seed: int, gain: float, placebo: float = 0.0, n: int = 12, m: int = 19) -> tuple[np.ndarray, np.ndarray]:
    """Draws (n, m) and exchanged costs (n, n): `gain` from the load and `placebo` with every schedule, anywhere."""
    source = rng(seed)
    level = source.normal(0, 3, (n, 1))
    draws = level + source.normal(0, 1, (n, m))
    exchanged = level - placebo + source.normal(0, 1, (n, n))
    exchanged[np.diag_indices(n)] -= gain
    return draws, exchanged


def judge(draws: np.ndarray, exchanged: np.ndarray, seed: int = 0, **options: object) -> Gains:
    return judge_gains(np.diagonal(exchanged), list(draws), exchanged, rng(seed), **options)  # type: ignore[arg-type]


def test_what_it_reports() -> None:
    draws, exchanged = world(1, 2.0)
    own = np.diagonal(exchanged)
    found = judge(draws, exchanged, delta=0.5)
    assert found.chance and found.load and found.reason is None
    assert found.chance.by_seed == pytest.approx(draws.mean(axis=1) - own)
    others = [np.delete(exchanged[s], s).mean() for s in range(12)]
    assert found.load.estimate == pytest.approx(np.mean(others - own))
    theirs = stats.ttest_1samp(found.chance.by_seed, 0).confidence_interval(0.95)
    assert found.chance.t_interval
    assert (found.chance.t_interval.lower, found.chance.t_interval.upper) == pytest.approx(tuple(theirs))
    assert [t.name for t in found.tests] == [STRATIFIED, SIGN_FLIP, EXCHANGE, LOAD_FLIP]
    ps = [t.outcome.pvalue for t in found.tests]
    assert found.pvalue == max(ps, key=lambda p: p or 0) and found.decided_by == found.tests[int(np.argmax(ps))].name  # type: ignore[arg-type]
    assert found.floor == 2.0**-12 and all((t.outcome.pvalue or 0) >= t.at_zero for t in found.tests)
    assert found.worst_seed == int(np.argmin(found.chance.by_seed))
    assert found.ranks.tolist() == [1 + int((row <= own[s]).sum()) for s, row in enumerate(draws)]


def test_unseen_share_is_the_stated_one() -> None:
    """14 % at 20 seeds, 31 % at 8."""
    assert round(100 * unseen_share(20, 0.05)) == 14 and round(100 * unseen_share(8, 0.05)) == 31
    assert (1 - unseen_share(9, 0.01)) ** 9 == pytest.approx(0.01)


def test_limits_agree_with_the_tests() -> None:
    for seed in range(12):
        draws, exchanged = world(seed, 1.0)
        for delta in (0.0, 0.5):
            found = judge(draws, exchanged, delta=delta)
            assert found.chance and found.load
            for concerns, gain in (("chance", found.chance), ("load", found.load)):
                largest = max(t.outcome.pvalue or 0 for t in found.tests if t.concerns == concerns)
                assert (largest <= 0.05) == (gain.lower_bound > delta)
                assert gain.interval.lower <= gain.lower_bound <= gain.estimate <= gain.interval.upper


def test_the_four_standings() -> None:
    assert judge(*world(2, 3.0), delta=0.5).standing() is Standing.SHOWN
    assert judge(*world(2, 0.0)).standing() is Standing.NOT_CHANCE
    assert judge(*world(2, 0.0, placebo=5.0)).standing() is Standing.NOT_LOAD
    assert judge(*world(2, 1.5), delta=1.4).standing() is Standing.BELOW_MINIMUM
    # A clock that looks a little: far above the minimum over chance, not so far with the load.
    clock = judge(*world(2, 0.7, placebo=13.0), delta=0.5)
    assert clock.standing() is Standing.BELOW_MINIMUM and clock.decided_by in (EXCHANGE, LOAD_FLIP)
    assert clock.chance and clock.chance.lower_bound > 10


def test_standing_among_several_claims() -> None:
    found = judge(*world(2, 3.0), delta=0.5)
    assert found.pvalue is not None
    assert found.standing(Adjusted(found.pvalue)) is Standing.SHOWN
    assert found.standing(Adjusted(min(1.0, found.pvalue * 1000))) is not Standing.SHOWN
    assert judge(*world(2, 3.0), alpha=0.0001).standing() is Standing.UNDECIDABLE  # 2^-12 is not reached


def test_one_draw_and_no_exchange() -> None:
    """Live blocks: policy and control exchange labels, which is the sign flip, and it alone is named."""
    draws, exchanged = world(3, 2.0, m=1)
    found = judge_gains(np.diagonal(exchanged), list(draws), None, rng(), min_draws=1)
    assert found.load is None and [t.name for t in found.tests] == [SIGN_FLIP]
    assert found.chance
    theirs = stats.permutation_test(
        (-found.chance.by_seed,), np.mean, permutation_type="samples", alternative="less", n_resamples=10_000
    )
    assert found.pvalue == pytest.approx(theirs.pvalue)
    refused = judge_gains(np.diagonal(exchanged), list(draws), None, rng())
    assert refused.pvalue is None and "fewer than 5" in (refused.reason or "")


def test_two_seeds_are_judged_when_allowed() -> None:
    draws, exchanged = world(4, 5.0, n=2)
    found = judge(draws, exchanged, min_seeds=2)
    assert found.load and found.floor == 0.5 and found.standing() is Standing.UNDECIDABLE
    assert found.load.interval.lower == -math.inf
    assert "1 seeds, fewer than 2" in (judge(draws[:1], exchanged[:1, :1], min_seeds=1).reason or "")


def test_the_bound_without_shape_decides_when_asked() -> None:
    draws, exchanged = world(5, 1.5)
    worst = draws.max(axis=1) + 10
    shown = judge(draws, exchanged, worst=worst, best=draws.min(axis=1) - 5)
    assert shown.bounded and shown.standing() is Standing.SHOWN and len(shown.tests) == 4
    asked = judge(draws, exchanged, worst=worst, bounded=True)
    assert asked.standing() is Standing.NOT_CHANCE and asked.decided_by == "betting on bounded gains"
    assert judge(draws, exchanged, bounded=True).reason == "no worst placements to bound the gains by"
    broken = judge(draws, exchanged, worst=np.diagonal(exchanged) - 9, bounded=True)
    # Its own draws are worse than what was called the worst, so they take its place.
    assert broken.bounded and broken.bounded.lowest is not None
    above = exchanged + np.diag(np.r_[40.0, np.zeros(11)])
    assert "worst placement" in (judge(draws, above, worst=worst, bounded=True).reason or "")


def poison() -> dict[str, tuple[np.ndarray, np.ndarray, str]]:
    draws, exchanged = world(6, 5.0, n=8)
    cases = {}
    for name, value in (("NaN", math.nan), ("inf", math.inf), ("-inf", -math.inf)):
        bad, abroad = exchanged.copy(), exchanged.copy()
        bad[3, 3], abroad[2, 5] = value, value
        cases[name] = (draws, bad, "seed 4 of 8")
        cases[name + " abroad"] = (draws, abroad, "schedule of seed 6 on the trace of seed 3")
    bad = draws.copy()
    bad[3, 4] = math.nan
    cases["NaN draw"] = (bad, exchanged, "seed 4 of 8")
    cases["seven seeds"] = (draws[:7], exchanged[:7, :7], "7 seeds, fewer than 8")
    cases["four draws"] = (draws[:, :4], exchanged, "4 draws in a seed, fewer than 5")
    cases["no draws"] = (draws[:, :0], exchanged, "has no draws")
    cases["identical draws"] = (np.full((8, 9), 0.1), exchanged, "all alike")
    cases["no violations"] = (np.zeros((8, 9)), np.zeros((8, 8)), "all alike")
    cases["other shape"] = (draws, exchanged, "shape")
    twice = np.r_[:7, 2]
    cases["a seed twice"] = (draws[twice], exchanged[np.ix_(twice, twice)], "seeds 3 and 8 have the same values")
    return cases


@pytest.mark.parametrize("name", poison())
def test_poison_never_passes(name: str) -> None:
    draws, exchanged, reason = poison()[name]
    cost = exchanged[:, :-1] if name == "other shape" else exchanged
    found = judge_gains(np.diagonal(exchanged), list(draws), cost, rng())
    assert found.pvalue is None and found.chance is None and found.load is None and found.floor is None
    assert found.standing() is Standing.UNDECIDABLE and reason in (found.reason or "")


def test_a_policy_equal_to_its_draws_gains_nothing() -> None:
    """The mean of nine 0.03 exceeds 0.03 by one unit in the last place: in ten seeds, a perfect sign pattern."""
    draws = np.full((10, 9), 0.03)
    draws[0, 1] = 0.2
    found = judge_gains(np.full(10, 0.03), list(draws), np.full((10, 10), 0.03), rng())
    assert {t.name: t.at_zero for t in found.tests}[SIGN_FLIP] == 0.5
    assert {t.name: t.at_zero for t in found.tests}[EXCHANGE] == 1.0


def test_the_same_stream_gives_the_same_result() -> None:
    draws, exchanged = world(7, 1.0, n=22)
    one, other = judge(draws, exchanged, 3), judge(draws, exchanged, 3)
    assert one.tests == other.tests and one.chance and other.chance and one.chance.interval == other.chance.interval


def test_the_largest_of_several_gains_is_overstated() -> None:
    """Five claims with one true gain of 2 pp: the largest estimate exceeds it by 1.16 standard errors on average."""
    claims = [world(seed, 2.0, n=8, m=5) for seed in range(2000)]
    estimates = np.array([(draws.mean(axis=1) - np.diagonal(cost)).mean() for draws, cost in claims])
    largest = estimates.reshape(400, 5).max(axis=1)
    assert largest.mean() - 2 == pytest.approx(1.163 * estimates.std(), abs=4 * largest.std() / 400**0.5)
