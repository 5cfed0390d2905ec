"""Regimes: read strictly, validated, hashed."""

from __future__ import annotations

import json
import math
import pickle
import re
from pathlib import Path

import pytest

from protocol.errors import BadInput
from protocol.files import canonical_json
from protocol.regimes.regime import Regime
from protocol.workload.learner import ModelledLearner
from protocol.workload.slo import Slo

#: What certificates state.  A regime that changes takes another version.
DIGESTS = {
    "bursty-aperiodic": "7d6cc15651ca9bea3a8ac6dd18d4b8a8cd83a36b16990efc2de41518c80e838f",
    "bursty-periodic": "73d7495bf0ed8c7cefcd91343e10e3fe9f88763ec65ae879957c06a9eef87b48",
    "high-pressure": "cb5f3c2a250692a014ce6d9fe71f5ee035fa71c411153a7f9797062164cfcd85",
    "hourly-blocking": "111a9808d4cdaf8cb889475d141ae54bbcceed5288cd66fd9f15b85d927e7c49",
    "islands-offset": "9fdf5fc2b51139addd2e41edd521dc705d45c7041e9886bcd5c1987a27338c5b",
    "ordinary": "50918ec92946fd15f24f0b2d04db08836471adadf3866ebb0fe8af5e622311f5",
    "streaming-4-fragments": "3df2360e73aad6996916b32842a3c738360b3d9ca9c4669e886f29781e2a4aba",
    "sync-heavy-steady": "2f80141717b72f98e052cb94e172868a8f2f33b7dd727e7458326e4eb68c1c43",
    "weight-sync": "bf759e133998128b36557a0c724a1d7e0b356b3a139c47faba99c3e73de7a71a",
}

PRACTISED = """
[merge]
fragments = 4
sync_delay_steps = 8
apply_s = 0.5
[merge.duration]
follows = "uniform"
least_s = 2
most_s = 6
"""

FIVE = ["bursty-aperiodic", "bursty-periodic", "high-pressure", "ordinary", "sync-heavy-steady"]

MINIMAL = """
[regime]
name = "tiny"
version = 1
summary = "for tests"
slo = "e2e<=1s"
[pace]
step_s = 0.1
[arrivals]
process = "steady"
rate_per_s = 2
[tokens.prompt]
values = [10, 20]
[tokens.output]
values = [5]
[learner]
floor = 2.0
scale = 1.0
offset_steps = 100
exponent = 1
tokens_per_step = 10
"""


def test_the_five_of_the_papers_are_shipped() -> None:
    assert Regime.names() == sorted(DIGESTS), "a new regime takes a row in DIGESTS"
    regimes = [Regime.load(name) for name in FIVE]
    assert [r.name for r in regimes] == FIVE
    assert len({r.digest for r in regimes}) == 5


@pytest.mark.parametrize("name", FIVE)
def test_shipped_regimes_take_the_published_pace(name: str) -> None:
    regime = Regime.load(name)
    corridor = regime.corridor()
    assert (regime.h_min, regime.h_max, regime.merge_s, regime.horizon_s) == (128, 512, 8.0, 600.0)
    assert corridor.grid_ns == 588_000_000  # 8 steps of 0.0735 s
    # Published: fixed-512 merged about every 44 s, and 13 to 34 merges fit into 600 s.
    assert regime.h_max * regime.step_s + regime.merge_s == pytest.approx(45.632)
    assert list(corridor.feasible_budgets()) == list(range(13, 35))
    assert regime.planner_budget in corridor.feasible_budgets()
    assert Slo.parse(regime.slo).e2e_ns == (1_320_000_000 if name == "ordinary" else 2_000_000_000)


@pytest.mark.parametrize("name", FIVE)
def test_modelled_loss_falls_about_as_fast_as_the_score_expects(name: str) -> None:
    learner = Regime.load(name).learner
    for start in (0, 2500, 5000):
        fall = learner.loss(start) - learner.loss(start + 128)
        assert 0.005 <= fall <= 0.025
        assert fall < learner.loss(start) - learner.loss(start + 512) <= 0.08


def test_modelled_learner_by_hand() -> None:
    learner = ModelledLearner(floor=2.0, scale=1.0, offset_steps=100.0, exponent=0.5, tokens_per_step=1)
    assert learner.loss(0) == 3.0
    assert learner.loss(300) == 2.5  # (1 + 3) ** -0.5
    assert learner.loss(10**12) == pytest.approx(2.0, abs=1e-4)


@pytest.mark.parametrize("name", DIGESTS)
def test_shipped_regimes_keep_their_digests(name: str) -> None:
    regime = Regime.load(name)
    assert regime.digest == DIGESTS[name]
    again = Regime.described(json.loads(canonical_json(regime.describe())), "a certificate")
    assert again == regime and again.corridor() == regime.corridor() and again.digest == DIGESTS[name]


def test_defaults_are_filled_in_and_described() -> None:
    regime = Regime.parse(MINIMAL, "tiny.toml")
    assert (regime.h_min, regime.h_max, regime.decision_steps, regime.islands, regime.seeds) == (128, 512, 8, 1, 20)
    assert (regime.sidecar, dict(regime.sidecar_overrides)) == ("reference", {})
    plain = regime.describe()
    assert plain["network"] == {
        "follows": "constant", "low": 0.0, "high": 0.0, "period_s": 0.0, "high_s": 0.0,
    }  # fmt: skip
    assert plain["prompt"]["values"] == [10, 20]
    assert json.loads(canonical_json(plain)) == plain


def test_digest_covers_the_content_and_not_the_file(tmp_path: Path) -> None:
    one = Regime.parse(MINIMAL, "tiny.toml")
    path = tmp_path / "other.toml"
    path.write_text("# a comment\n" + MINIMAL)
    assert Regime.load(path).digest == Regime.load(str(path)).digest == one.digest
    changed = [
        Regime.parse(MINIMAL.replace("rate_per_s = 2", "rate_per_s = 3"), "x"),
        Regime.parse(MINIMAL.replace("[10, 20]", "[20, 10]"), "x"),
        Regime.parse(MINIMAL + "[sidecar]\ndecode_slowdown = 1.5\n", "x"),
        Regime.parse(MINIMAL + '[pressure.network]\nfollows = "constant"\nlow = 0.5\n', "x"),
        one.replace(seeds=21),
        one.replace(slo="e2e<=2s"),
    ]
    assert len({r.digest for r in changed} | {one.digest}) == len(changed) + 1


def test_a_default_written_out_is_the_same_regime() -> None:
    assert Regime.parse(MINIMAL.replace("step_s = 0.1", "step_s = 0.1\nh_min = 128"), "x").digest == (
        Regime.parse(MINIMAL, "x").digest
    )


def test_replace_validates_again() -> None:
    regime = Regime.load("sync-heavy-steady")
    other = regime.replace(slo="ttft<=200ms", decision_steps=128, horizon_s=300.0, seeds=3)
    assert (other.slo, other.corridor().grid_ns, other.corridor().horizon_ns) == (
        "ttft<=200ms", 9_408_000_000, 300_000_000_000,
    )  # fmt: skip
    for override, field in (
        ({"seeds": 0}, "seeds"),
        ({"slo": "speed<=1s"}, "slo"),
        ({"horizon_s": math.nan}, "horizon_s"),
        ({"horizon_s": math.inf}, "horizon_s"),
        ({"decision_steps": 300, "h_min": 310, "h_max": 500}, "decision"),
        ({"colour": 1}, "colour"),
    ):
        with pytest.raises(BadInput, match=field):
            regime.replace(**override)


def test_regimes_survive_pickling() -> None:
    regime = Regime.load("bursty-aperiodic")
    assert pickle.loads(pickle.dumps(regime)).digest == regime.digest


def test_unknown_name_suggests_near_ones(tmp_path: Path) -> None:
    with pytest.raises(BadInput, match="did you mean .*bursty-periodic"):
        Regime.load("bursty-periodical")
    with pytest.raises(BadInput, match="unreadable"):
        Regime.load(tmp_path / "missing.toml")
    (tmp_path / "binary.toml").write_bytes(b"\xff\xfe\x00")
    with pytest.raises(BadInput, match="unreadable"):
        Regime.load(tmp_path / "binary.toml")


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ("[regime]", "[regime", "broken TOML"),
        ("[pace]", "[speed]", "unknown key 'speed'"),
        ("[pace]\nstep_s = 0.1", "", "no table .pace"),
        ("version = 1\n", "", "no version"),
        ("version = 1", "version = 1.5", "version.*whole number"),
        ("version = 1", "version = true", "version.*whole number"),
        ('slo = "e2e<=1s"', "slo = 1", "slo.*text"),
        ('name = "tiny"', 'name = ""', "name"),
        ("step_s = 0.1", "step_s = -0.1", "step_s"),
        ("step_s = 0.1", "step_s = nan", "step_s"),
        ("step_s = 0.1", "step_s = 0.1\nh_min = 600", "h_max"),
        ("step_s = 0.1", "step_s = 0.1\nh_mim = 64", "unknown key 'h_mim'.*did you mean h_min"),
        ("rate_per_s = 2", "", "no rate_per_s"),
        ("rate_per_s = 2", "rate_per_s = 0", "rate_per_s"),
        ("rate_per_s = 2", "rate_per_s = inf", "rate_per_s"),
        ("rate_per_s = 2", "rate_per_s = 2\ncv = 0", "cv"),
        ('"steady"', '"stead"', "process"),
        ('"steady"', '"bursts-periodic"', "busy_rate_per_s"),
        ("[10, 20]", "[]", "empty"),
        ("[10, 20]", "[10, 0]", "values"),
        ("[10, 20]", "[10, 2.5]", "values.*whole"),
        ("[10, 20]", "[10, 20]\nweights = [1]", "1 weights"),
        ("[10, 20]", "[10, 20]\nweights = [0, 0]", "zeros"),
        ("[10, 20]", "[10, 20]\nweights = [1, -1]", "weights"),
        ("[10, 20]", "10", "list"),
        ("tokens_per_step = 10", "tokens_per_step = 0", "tokens_per_step"),
        ("tokens_per_step = 10", "", "no tokens_per_step"),
        ("[learner]", '[pressure.network]\nfollows = "busy"\nhigh = 1\n[learner]', "steady"),
        ("[learner]", '[pressure.network]\nfollows = "wave"\nhigh = 1\n[learner]', "period_s"),
        ("[learner]", "[pressure.network]\nlow = 1.5\n[learner]", "low"),
        ("[learner]", "[pressure.disk]\nlow = 0.5\n[learner]", "unknown key 'disk'"),
        ("[learner]", "[sidecar]\nmodel = 3\n[learner]", "model"),
        ("[learner]", '[sidecar]\ndecode_slowdown = "much"\n[learner]', "decode_slowdown"),
        ("[learner]", "[sidecar]\ndecode_slowdown = nan\n[learner]", "decode_slowdown"),
    ],
)
def test_every_mistake_is_one_line_that_names_it(old: str, new: str, message: str) -> None:
    assert old in MINIMAL
    with pytest.raises(BadInput) as problem:
        Regime.parse(MINIMAL.replace(old, new, 1), "tiny.toml")
    text = str(problem.value)
    assert re.search(message, text), text
    assert "\n" not in text


PEER = """
[peer]
payload_bytes = 1000
bandwidth = [500.0]
"""


def test_a_peer_regime_gets_its_merge_time_from_the_network() -> None:
    text = MINIMAL.replace("[pace]", "islands = 4\n[pace]") + PEER
    regime = Regime.parse(text, "mine.toml")
    peers = regime.peers()
    assert peers is not None and regime.merge_s == 3.0 and regime.corridor().merge_ns == 3 * 10**9  # 2 (3/4) 1000 / 500
    assert regime.describe()["peer"]["bandwidth"] == [500.0]
    assert Regime.parse(text.replace("500.0", "400.0"), "mine.toml").digest != regime.digest
    assert "peer" not in Regime.load("ordinary").describe() and Regime.load("ordinary").peers() is None


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (("islands = 4", "islands = 3"), "an even number of islands"),
        (("[pace]", "[pace]\nmerge_s = 8"), "merge_s: found a value beside \\[peer\\]"),
        (("payload_bytes", "payload"), "unknown key 'payload'; .*did you mean payload_bytes"),
        (("[500.0]", "[]"), "bandwidth"),
        (("[peer]", '[pressure.network]\nfollows = "busy"\n[peer]\nbursts = "own"'), "'busy'"),
    ],
)
def test_peer_tables_are_checked(change: tuple[str, str], message: str) -> None:
    bursts = 'process = "bursts-periodic"\nbusy_rate_per_s = 9\nbusy_s = 5\nquiet_s = 5'
    text = MINIMAL.replace("[pace]", "islands = 4\n[pace]").replace('process = "steady"', bursts) + PEER
    assert Regime.parse(text, "mine.toml").peer
    with pytest.raises(BadInput, match=message) as caught:
        Regime.parse(text.replace(*change), "mine.toml")
    assert "mine.toml" in str(caught.value) and "\n" not in str(caught.value)


def test_merges_that_are_not_all_alike_take_part_in_the_digest() -> None:
    """A quarter of 128 to 512 steps is a turn, less the 8 that are trained while a fragment is under way."""
    plain, practised = Regime.parse(MINIMAL, "a"), Regime.parse(MINIMAL + PRACTISED, "a")
    assert "merge" not in plain.describe() and plain.digest != practised.digest
    assert (practised.corridor().h_min, practised.corridor().h_max) == (24, 120)
    assert practised.corridor().merge_ns == 8_500_000_000
    again = Regime.described(practised.describe(), "a")
    assert again.digest == practised.digest and again.merge == practised.merge
    empty = Regime.parse(MINIMAL + "[merge]\nfragments = 1\n", "a")
    assert empty.digest == plain.digest and empty.merge.ordinary


@pytest.mark.parametrize(
    ("table", "problem"),
    [
        (
            "fragments = 4\nsync_delay_steps = 32",
            "merge.sync_delay_steps: found 32 steps, of 32 in a turn; expected fewer",
        ),
        ("fragments = 100", "merge.fragments: found 100, with 2 to 5 steps for each in its turn; expected a multiple"),
        ("unknown = 1", "unknown key 'unknown'"),
        ("[merge.duration]\nfollows = 'given'\nvalues_s = [601]", "merge.duration: found merges of up to 601 s"),
    ],
)
def test_merges_that_leave_nothing_to_decide(table: str, problem: str) -> None:
    with pytest.raises(BadInput) as caught:
        Regime.parse(f"{MINIMAL}[merge]\n{table}\n", "a.toml")
    assert problem in str(caught.value) and "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("given", "refused"),
    [
        (
            '"uniform"\nleast_s = 2\nmost_s = 6\nmedian_s = 1.0',
            "merge.duration.median_s: found 1.0; expected no median_s",
        ),
        (
            '"given"\nvalues_s = [2, 6]\nsigma = 1',
            "merge.duration.sigma: found 1.0; expected no sigma: follows = 'given'",
        ),
    ],
)
def test_what_durations_do_not_use_is_refused(given: str, refused: str) -> None:
    """A default too; a certificate states every value, and is read."""
    table = f"[merge.duration]\nfollows = {given}\n"
    with pytest.raises(BadInput, match=re.escape(refused)):
        Regime.parse(MINIMAL + table, "x.toml")
    stated = Regime.parse(MINIMAL + PRACTISED, "x.toml").describe()
    assert Regime.described(stated, "x").describe() == stated
