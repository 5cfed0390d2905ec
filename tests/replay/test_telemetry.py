"""Gauges that lag are found out by the client's own counts."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pytest

from protocol.replay.replay import Scrape
from protocol.replay.telemetry import gauge_lag

S = 10**9


def session(
    lag_s: float = 0.0, blind_s: float = 0.0, replays: int = 2, length_s: float = 60.0, noise: int = 0, seed: int = 0,
    off_s: float = 0.0,
) -> list[list[Scrape]]:  # fmt: skip
    """Looks every 0.5 s at a server whose requests come in bursts and take a second, and whose gauges are late."""
    rng = np.random.default_rng(seed)
    made = []
    for number in range(replays):
        rates = np.repeat(rng.choice([1.0, 8.0], int(length_s / 5)), 5)
        begun = np.sort(np.concatenate([k + rng.random(rng.poisson(rate)) for k, rate in enumerate(rates)]))
        ended = begun + rng.gamma(4.0, 0.25, len(begun))

        def under_way(at_s: float, begun=begun, ended=ended) -> int:
            return int(np.sum((begun <= at_s) & (ended > at_s)))

        looks = []
        for at_s in np.arange(0.2, length_s, 0.5):
            seen = max(under_way(at_s - lag_s) + int(rng.integers(-noise, noise + 1)), 0)
            if number == 0 and at_s < blind_s + begun[0]:
                seen = 0
            looks.append(Scrape(int((at_s + off_s) * S), min(seen, 4), max(seen - 4, 0), under_way(at_s)))
        made.append(looks)
    return made


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize(("lag_s", "noise"), [(0.0, 0), (1.0, 0), (2.5, 1), (5.0, 0), (5.0, 1), (12.0, 1)])
def test_a_lag_is_found(lag_s: float, noise: int, seed: int) -> None:
    found = gauge_lag(session(lag_s, noise=noise, seed=seed))
    assert found is not None and found.lag_s is not None
    assert abs(found.lag_s - lag_s) <= 0.5
    assert found.distance <= found.distance_at_0 and (lag_s == 0) == (found.distance == found.distance_at_0)


def test_blind_for_18_seconds_and_5_behind() -> None:
    found = gauge_lag(session(5.0, blind_s=18.0, replays=3))
    assert found is not None and found.lag_s is not None
    assert 17.0 <= found.blind_s <= 20.0 and abs(found.lag_s - 5.0) <= 0.5
    assert str(found).startswith(f"gauges blind for {found.blind_s:.1f} s, then {found.lag_s:.2f} s behind")
    # What is blind to its end shows no lag.
    blind = gauge_lag(session(blind_s=1e9, replays=1))
    assert blind is not None and blind.lag_s is None and blind.blind_s > 55 and "cannot be told" in str(blind)


def test_by_hand() -> None:
    """Two requests under way from 1 s to 2 s; gauges say so half a second later: at every look they fit by 0.5 s."""
    client = [0, 0, 2, 2, 0, 0, 0, 0] * 4
    gauge = [0, *client[:-1]]
    found = gauge_lag([[Scrape(k * S // 2, g, 0, c) for k, (g, c) in enumerate(zip(gauge, client, strict=True))]])
    assert found is not None and (found.blind_s, found.lag_s, found.distance) == (0.5, 0.5, 0.0)
    # From the first look with a gauge on, there are 29, of which seven are wrong by two: three steps up, four down.
    assert found.looks == 29 and found.distance_at_0 == pytest.approx(2 * 7 / 29)


@pytest.mark.parametrize("seed", range(5))
def test_gauges_that_say_nothing_of_the_load_show_no_lag(seed: int) -> None:
    """Of sixty lags one always fits best; it must fit much better to be one."""
    rng = np.random.default_rng(seed)
    looks = session(seed=seed)
    shuffled = [[Scrape(s.at_ns, int(rng.integers(0, 9)), 0, s.client) for s in replay] for replay in looks]
    found = gauge_lag(shuffled)
    assert found is not None and found.lag_s == 0.0


@pytest.mark.parametrize(
    "looks",
    [[], [[]], [[Scrape(k * S, None, None, k) for k in range(50)]]],
    ids=["no replays", "no looks", "no gauges"],
)
def test_without_gauges_there_is_nothing_to_say(looks: Sequence[Sequence[Scrape]]) -> None:
    assert gauge_lag(looks) is None


def test_what_cannot_be_told() -> None:
    steady = gauge_lag([[Scrape(k * S, 3, 0, 3) for k in range(60)]])
    few = gauge_lag([replay[:15] for replay in session(replays=1)])
    for found in (steady, few):
        assert found is not None and found.lag_s is None
    # A look that failed is no look: the others still tell.
    gappy = [[Scrape(s.at_ns, None, None, s.client) if k % 5 == 4 else s for k, s in enumerate(replay)]
             for replay in session(5.0)]  # fmt: skip
    found = gauge_lag(gappy)
    assert found is not None and found.lag_s is not None and abs(found.lag_s - 5.0) <= 0.75
