"""Merge when the load is quiet, and wait for it as long as waiting pays: a filter of the load and a stopping rule.

Four steps, each from what the scheduler itself has seen; nothing is tuned on any trace.

1. *The load* is quiet or busy.  Requests of a second are Poisson with the state's rate, and each state is left with a
   constant chance a second (a hidden Markov model; Rabiner 1989).  Rates and chances are fitted again and again by
   expectation maximisation from the last fit on, with a weak prior.  How long a spell has lasted is not used: a
   semi-Markov hazard of stages (Cox 1955) earned little or nothing in 600 s (docs/results.md).
2. *Requests in flight* leave at a rate 1 / latency and join at the state's rate, so their number n drifts to
   rate * latency (Little's law) with Poisson noise.
3. *A merge exposes* the n requests in flight or queued and those that arrive while it lasts.  What it saves over a
   merge at a blind moment is mean exposure - exposure.
4. *When to stop waiting*: the largest long-run saving a second, g, over (state, n, decisions since H_min), merging at
   once at H_max (average reward; Puterman 1994, chapters 8 and 11).  With h the value of being at H_min after a merge,

       stop = saving + E h(after the merge) - g * time until then,    wait = E max(stop, wait) - g * decision,

   by relative value iteration, g by Newton's method on the cycle (Dinkelbach 1967).  Merge when stop >= wait, both
   averaged over the belief.

Before any request has come there is nothing to wait for, and it merges at once.  Where the load says nothing, stop and
wait differ by noise, and its merges cost what blind ones do.
"""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import NDArray

from protocol.scheduler import Observation

Array = NDArray[np.float64]

#: Seconds before the first fit, and most that a fit looks back on.
FIRST_S, WINDOW_S = 10, 1800
#: Prior, weak: a quarter of a spell of this length in each state, and so many seconds at the mean and at twice it.
PRIOR_SPELL_S, PRIOR_SPELLS, PRIOR_RATE_S = 30.0, 0.25, 5.0
#: No second may speak for one state more strongly than this: an outlier is no spell.
LEAST_LIKELIHOOD = 1e-9
#: Points on which numbers in flight are laid out.
LEVELS = 12


class Load:
    """A quiet and a busy state, in this order, fitted to counts a second.

    rate : requests a second, (2,).  leave : chance a second of leaving, (2,).  busy : chance that it is busy now.
    """

    def __init__(self) -> None:
        self.rate = np.zeros(2)
        self.leave = np.full(2, 1.0 / PRIOR_SPELL_S)
        self.busy = 0.5

    @property
    def share(self) -> Array:
        """Share of time in each state, (2,)."""
        return self.leave[::-1] / self.leave.sum()

    def transition(self, seconds: float = 1.0) -> Array:
        """Chances, (2, 2), of the state a while later."""
        decay = (1.0 - self.leave.sum()) ** seconds
        return self.share + decay * (np.eye(2) - self.share)

    def arrivals(self, seconds: float) -> Array:
        """Requests expected within a while, by the state at its start, (2,)."""
        speed = -math.log(1.0 - self.leave.sum())
        mean = float(self.share @ self.rate)
        return mean * seconds + (self.rate - mean) * -math.expm1(-speed * seconds) / speed

    def likelihood(self, counts: Array) -> Array:
        """Of each count in each state, relative to the likelier one, (n, 2)."""
        log = counts[:, None] * np.log(self.rate) - self.rate
        return np.maximum(np.exp(log - log.max(axis=1, keepdims=True)), LEAST_LIKELIHOOD)

    def update(self, counts: Array) -> list[tuple[float, float]]:
        """Filter some more seconds; chances of busy before and after each count was seen."""
        (_, from_quiet), (_, from_busy) = self.transition().tolist()
        busy, told = self.busy, []
        for quiet_like, busy_like in self.likelihood(counts).tolist():
            before = from_quiet + busy * (from_busy - from_quiet)
            odds = before * busy_like
            busy = odds / (odds + (1.0 - before) * quiet_like)
            told.append((before, busy))
        self.busy = busy
        return told

    def fit(self, counts: Array, passes: int = 2) -> None:
        """EM from the last fit on, then the belief at the end; counts hold a request."""
        mean = float(counts.mean())
        if not self.rate.any():
            self.rate = mean * np.array([1.0, 2.0])
        for _ in range(passes):
            self._pass(counts, mean)
        self.busy = float(self.share[1])
        self.update(counts)

    def _pass(self, counts: Array, mean: float) -> None:
        self.busy = float(self.share[1])
        told = self.update(counts)
        chance = self.transition().tolist()
        now = told[-1][1]  # smoothed chance of busy, from the last second back
        smooth, left_quiet, left_busy = [now], 0.0, 0.0
        for t in range(len(told) - 2, -1, -1):
            before, after = told[t + 1][0], told[t][1]
            left_quiet += (1.0 - after) * chance[0][1] * now / before
            to_quiet = after * chance[1][0] * (1.0 - now) / (1.0 - before)
            now = after * chance[1][1] * now / before + to_quiet
            left_busy += to_quiet
            smooth.append(now)
        share = np.array(smooth[::-1])
        both = np.stack([1.0 - share, share])
        stayed = both[:, :-1].sum(axis=1)
        left = np.array([left_quiet, left_busy])
        self.leave = np.minimum((left + PRIOR_SPELLS) / (stayed + PRIOR_SPELLS * PRIOR_SPELL_S), 0.49)
        rate = (both @ counts + PRIOR_RATE_S * mean * np.array([1.0, 2.0])) / (both.sum(axis=1) + PRIOR_RATE_S)
        self.rate = np.sort(np.maximum(rate, 0.02 * mean))


class Plan:
    """The stopping rule for one fitted load, one latency and one corridor; arrays are (states, levels of n)."""

    def __init__(self, load: Load, latency_s: float, most: float, obs: Observation, last: Plan | None) -> None:
        self.first = -(-obs.h_min // obs.decision_steps)
        self.gaps = obs.h_max // obs.decision_steps - self.first
        self.decision_s = obs.decision_steps * obs.step_s
        self.cycle_s = obs.merge_s + self.first * self.decision_s
        rate = load.rate
        top = max(most, rate[1] * latency_s + 3.0 * math.sqrt(rate[1] * latency_s), LEVELS - 1.0)
        self.unit = top / (LEVELS - 1)
        n = self.unit * np.arange(LEVELS)
        self.step = load.transition(self.decision_s)
        self.served = np.stack([_served(n, r, latency_s, self.decision_s) for r in rate]).swapaxes(1, 2)
        self.cycle = load.transition(self.cycle_s)
        self.settled = np.stack([_served(n, r, latency_s, self.cycle_s) for r in rate]).swapaxes(1, 2)
        usual = float(load.share @ rate) * (latency_s + obs.merge_s)
        self.saving = usual - n - load.arrivals(obs.merge_s)[:, None]
        # Any weights that sum to 1 fix the level of h; these are the chain's own.
        blind = np.stack([_served(n, r, latency_s, 99.0 * latency_s)[0] for r in rate])
        self.weights = load.share[:, None] * blind
        self.fresh: Array = np.zeros_like(self.saving)
        self.gain, sweeps = 0.0, 12
        if last is not None and last.fresh.shape == self.fresh.shape:
            self.fresh, self.gain, sweeps = last.fresh, last.gain, 4
        self.wait: list[Array] = []
        for _ in range(sweeps):
            self._sweep()

    def _sweep(self) -> None:
        back = np.matmul(self.fresh[:, None, :], self.settled)[:, 0]
        stop = self.saving + self.cycle @ back - self.gain * self.cycle_s
        value, length = stop, np.full_like(stop, self.cycle_s)  # saving, and seconds, until H_min after the next merge
        both = np.stack([value, length])
        self.stop, self.wait = stop, []
        for _ in range(self.gaps):
            ahead = np.matmul((self.step @ both)[:, :, None, :], self.served)[:, :, 0]
            wait, later = ahead[0] - self.gain * self.decision_s, ahead[1] + self.decision_s
            self.wait.append(wait)
            now = stop >= wait
            both = np.stack([np.where(now, stop, wait), np.where(now, self.cycle_s, later)])
        self.wait.reverse()  # by decisions since H_min
        more = float((self.weights * (both[0] - self.fresh)).sum())
        self.gain += more / float((self.weights * both[1]).sum())
        self.fresh = both[0] - float((self.weights * both[0]).sum())

    def merge(self, busy: float, present: float, waited: int) -> bool:
        """Whether to merge, after so many decisions from H_min on, with so many requests in flight or queued."""
        if waited >= self.gaps:
            return True
        at = min(present / self.unit, LEVELS - 1.0)
        low = min(int(at), LEVELS - 2)
        better = np.array([1.0 - busy, busy]) @ (self.stop - self.wait[waited])[:, low : low + 2]
        return bool(better[0] + (at - low) * (better[1] - better[0]) >= 0.0)


def _served(n: Array, rate: float, latency_s: float, t: float) -> Array:
    """Chances, (levels, levels), of the number in flight t seconds later: a normal law, laid on the levels by mean."""
    stay = math.exp(-t / latency_s)
    mean = n * stay + rate * latency_s * (1.0 - stay)
    deviation = np.sqrt(n * stay * (1.0 - stay) + rate * latency_s * (1.0 - stay))
    nodes, weight = np.polynomial.hermite_e.hermegauss(5)
    at = np.clip((mean[:, None] + deviation[:, None] * nodes) / (n[1] - n[0]), 0.0, len(n) - 1.0)
    low = np.minimum(at.astype(int), len(n) - 2)
    found, row = np.zeros((len(n), len(n))), np.arange(len(n))[:, None]
    weight = weight / weight.sum()
    np.add.at(found, (row, low), weight * (1.0 - at + low))
    np.add.at(found, (row, low + 1), weight * (at - low))
    return found


class Quiet:
    """The scheduler: learns as it goes, plans after every fit, and asks the plan at every decision."""

    def __init__(self) -> None:
        self.load = Load()
        self.plan: Plan | None = None
        self.seen, self.due = 0, FIRST_S
        self.latencies, self.answers, self.most = 0.0, 0, 0.0

    def decide(self, observation: Observation) -> bool:
        present = float(observation.in_flight + observation.queued)
        self.most = max(self.most, present)
        if observation.recent_e2e_s is not None:
            self.latencies, self.answers = self.latencies + observation.recent_e2e_s, self.answers + 1
        counts = observation.arrivals_per_s
        if len(counts) >= self.due and counts[-WINDOW_S:].any():
            self.load.fit(counts[-WINDOW_S:])
            latency_s = self.latencies / self.answers if self.answers else 1.0
            self.plan = Plan(self.load, max(latency_s, 1e-3), self.most, observation, self.plan)
            self.due = len(counts) + max(FIRST_S, len(counts) // 8)
        elif self.plan is not None:
            self.load.update(counts[self.seen :])
        self.seen = len(counts)
        if self.plan is None:
            return True
        waited = observation.steps_since_merge // observation.decision_steps - self.plan.first
        return self.plan.merge(self.load.busy, present, waited)
