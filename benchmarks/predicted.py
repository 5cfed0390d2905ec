"""Tier 3 with the simulator's prediction removed, against the replays alone: on kept rows, and in simulated sessions.

    python benchmarks/predicted.py docs/results/tier3/fixed-h docs/results/tier3/wa-calibrated-forecast --further 200

Kept certificates of another day did not declare a prediction, so what is printed of them is no verdict: it is how wide
their intervals would have been.  Their schedulers are run again, on their own seeds, which must come out as they are
stored, and on further ones.
"""

from __future__ import annotations

import argparse
import itertools
from dataclasses import replace
from functools import partial
from pathlib import Path

import numpy as np

from protocol import seeds
from protocol.campaign.plan import Plan
from protocol.campaign.run import run
from protocol.certificate.assess import assess
from protocol.certificate.model import EnvelopePart
from protocol.certificate.verify import asked_of
from protocol.cli.groups import Reading
from protocol.cli.settings import Overrides, contender_opener, settings_for
from protocol.evidence import store
from protocol.replay.replay import POLICY, UNIFORM
from protocol.selftest.sessions import replayed
from protocol.stats.gains import judge_gains
from protocol.stats.predicted import predicted_gain

#: Of the simulated sessions.
ROOT = 20261130


def kept(folder: Path, regime: Path, further: int, jobs: int) -> tuple[EnvelopePart, EnvelopePart]:
    """The envelope of the first claim without and with `further` simulated seeds."""
    head, evidence = asked_of(folder), store.read(folder / "raw")
    part, s = head.regimes[0], head.settings
    (setting,), _ = settings_for([str(regime)], [], Reading(), s.root_seed, Overrides(part.n_seeds, part.slos))
    name = head.contender.name
    opener = partial(contender_opener, name, "", ())
    plan = Plan(opener, name, s.root_seed, s.draws, s.control_draws, s.probes)
    made = run(plan, [replace(setting, further=further)], jobs)
    for was, now in zip(evidence, made, strict=False):
        for arm in (POLICY, UNIFORM):  # older versions stored fewer arms
            one, other = was.placed[arm], now.placed[arm]
            if not (np.array_equal(one.gaps, other.gaps) and np.array_equal(one.violations, other.violations)):
                raise SystemExit(f"{folder}, seed {was.seed}: {arm} is not as stored")
    asked = head.model_copy(update={"settings": s.model_copy(update={"predicted": further})})
    return tuple(
        assess(h, [*evidence, *more]).claims[0].envelope for h, more in ((head, []), (asked, made[part.n_seeds :]))
    )  # type: ignore[return-value]


def width(limits: tuple[float | None, float | None] | None) -> str:
    if limits is None or None in limits:
        return "unbounded"
    return f"[{limits[0]:.2f}, {limits[1]:.2f}] = {limits[1] - limits[0]:.2f}"  # type: ignore[operator]


def simulated(n: int, n_seeds: int, draws: int, rho: float, gain: float) -> str:
    """Power at level .05 and median width of the 95 % interval in n sessions of selftest's model of tier 3."""
    found, widths = np.empty((n, 2)), np.empty((n, 2))
    for k in range(n):
        rng = seeds.generator(ROOT, "predicted", f"{n_seeds} {draws} {rho} {gain}", k)
        own, real, policy, drawn, elsewhere = replayed(rng, n_seeds, draws, rho, gain, gain)
        plain = judge_gains(own, list(real), None, rng)
        predicted = predicted_gain(own, list(real), policy, list(drawn), elsewhere)
        assert plain.chance is not None and not isinstance(predicted, str)
        limits = plain.chance.interval
        found[k] = (plain.pvalue or 1.0) <= 0.05, predicted.pvalue() <= 0.05
        widths[k] = limits.upper - limits.lower, predicted.upper(0.025) - predicted.lower(0.025)
    power, wide = 100 * found.mean(axis=0), np.median(widths, axis=0)
    return (
        f"{n_seeds} seeds of {draws} draws, correlation {rho:g}, gain {gain:g} pp, {n} sessions: power "
        f"{power[0]:.1f} % by the replays alone, {power[1]:.1f} % predicted; median width {wide[0]:.2f} "
        f"and {wide[1]:.2f} pp"
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folders", type=Path, nargs="+")
    parser.add_argument("--regime", type=Path, default=Path("docs/results/tier3/tiny-real-short.toml"))
    parser.add_argument("--further", type=int, default=200)
    parser.add_argument("--sessions", type=int, default=500)
    parser.add_argument("--jobs", type=int, default=1)
    asked = parser.parse_args()
    for folder in asked.folders:
        plain, predicted = kept(folder, asked.regime, asked.further, asked.jobs)
        print(f"{folder.name}: replays alone {plain.gain_pp:+.2f} pp {width(plain.interval_pp)}")
        if predicted.predicted is None:
            print(f"  with {asked.further} further seeds: undecidable, {predicted.standing}")
            continue
        p = predicted.predicted
        print(
            f"  with {p.further} further seeds {predicted.gain_pp:+.2f} pp {width(predicted.interval_pp)}; correlation "
            f"{p.correlation:.2f}, slope {p.slope:.2f}, {100 * (p.noise_left or 0):.0f} % of the variance left; "
            f"simulated gain {p.simulated_gain_pp:+.2f} on the replayed seeds, {p.further_gain_pp:+.2f} on the others"
        )
    for rho, gain in itertools.product((0.9, 0.82, 0.6, 0.0), (1.5, 0.0)):
        print(simulated(asked.sessions, 8, 5, rho, gain))


if __name__ == "__main__":
    main()
