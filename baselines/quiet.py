"""Merge when the load is quiet, and wait for it as long as waiting pays: a filter of the load and a stopping rule.

Each step from what the scheduler itself has seen; nothing is tuned on any trace.

1. *Rates.*  The load is quiet or busy, and requests of a second are Poisson with the state's rate.  Rates, and which
   seconds were busy, are found by expectation maximisation in a hidden Markov model (Rabiner 1989) with a weak prior.
2. *Spells.*  How long spells last is Weibull with unknown scale and shape, by Bayes' rule: the scale's prior is uniform
   on the log, and one shape is common to both states, because what keeps a clock keeps it in both.  Shapes from 1/2 to
   64 are equally likely: 1 is a spell without memory, 64 a clock.  The spells seen weigh them, and the mean over what
   is left gives the chance that a spell of some age ends now: after two bursts on a clock it is expected to strike
   again, and of a load that keeps no time the age says next to nothing.  A spell that began before time 0 counts with
   its residual's density, survival / mean (renewal theory; Cox 1962).
3. *Now.*  A filter over (state, age of the spell) takes each second's count (a hidden semi-Markov model; Yu 2010), and
   the requests so far in the second that is running.  Telemetry that is old is carried on to now.
4. *A merge exposes* the requests that arrive while it lasts, and half of the life of those in flight or queued.  What
   it saves over a merge at a blind moment is mean exposure - exposure.
5. *When to stop waiting*: the largest long-run saving a second, g, over (state, age, time since H_min), merging at once
   at H_max (average reward; Puterman 1994, chapters 8 and 11).  With h the value of being at H_min after a merge,

       stop = saving + E h(after the merge) - g * time until then,    wait = E max(stop, wait) - g * time,

   by relative value iteration, g by Newton's method on the cycle (Dinkelbach 1967).  Requests in flight vary from one
   step to the next about rate * latency (Little's law), which makes `stop` vary inside the maximum.  Merge when
   stop >= wait, both averaged over the belief.

Before any request has come there is nothing to wait for, and it merges at once.  Where the load says nothing, stop and
wait differ by noise, and its merges cost what blind ones do.  Learning and planning are done in pieces, a few
milliseconds of them a decision.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from functools import cache

import numpy as np
from numpy.typing import NDArray

from protocol.scheduler import Observation

Array = NDArray[np.float64]

#: Seconds before the first fit, and most that a fit looks back on.
FIRST_S, WINDOW_S = 10, 1800
#: Prior of the hidden Markov model, weak: a quarter of a spell of this length in each state, and so many seconds at the
#: mean and at twice it.
PRIOR_SPELL_S, PRIOR_SPELLS, PRIOR_RATE_S = 30.0, 0.25, 5.0
#: No second, and no spell, may speak more strongly than this for one of two: an outlier is no proof.
LEAST_LIKELIHOOD = 1e-9
#: Ages of a spell are told apart up to this many seconds.  Shapes; scales follow each other in steps of the log of
#: SCALE_STEP / shape, which is about the deviation that a spell of that shape has.
AGES_S, SHAPES, SCALE_STEP = 300, (0.5, 1.0, 2.0, 4.0, 8.0, 16.0, 32.0, 64.0), 1.28
#: Seconds that the filter goes over again after a fit.
AGAIN_S = 60
#: Share of its life that a request in flight has before it.
LEFT = 0.5
#: Steps of the plan from H_min to H_max, at most; more decisions than that are taken together.
STEPS = 32
#: Learning stops for this decision after about so many microseconds; they are counted by hand, no clock is read.
WORK = 1500
#: What a second of a pass of EM, of the filter, a step of the plan, and Bayes' rule over spells take.
PASS_COST, FILTER_COST, STEP_COST, SPELLS_COST = 1, 15, 25, 1000


@cache
def weibull() -> tuple[Array, Array, NDArray[np.int64]]:
    """Laws of a spell: chance to outlast 0, 1, ... AGES_S + 1 seconds, (laws, ages); mean, number of shape, (laws,)."""
    each = [np.exp(np.arange(math.log(2.0), math.log(WINDOW_S), min(SCALE_STEP / k, 0.3))) for k in SHAPES]
    number = np.repeat(np.arange(len(SHAPES)), [len(scale) for scale in each])
    scale, shape = np.concatenate(each), np.array(SHAPES)[number]
    mean = scale * np.array([math.gamma(1.0 + 1.0 / k) for k in SHAPES])[number]
    return np.exp(-((np.arange(AGES_S + 2.0) / scale[:, None]) ** shape[:, None])), mean, number


@cache
def lasted(length: int) -> Array:
    """Log chance of a spell of so many seconds, to within one, (laws,)."""
    outlast = weibull()[0]
    return np.asarray(np.log(np.maximum(outlast[:, max(length - 1, 0)] - outlast[:, length + 1], LEAST_LIKELIHOOD)))


def outlasting(spells: tuple[list[int], list[int]], cut: tuple[int, int] | None) -> Array:
    """Chance that the next quiet and the next busy spell outlast 0, 1, ... AGES_S + 1 seconds, (2, AGES_S + 2).

    spells : lengths in seconds of the quiet and of the busy spells seen from begin to end, each known to a second.
    cut : state and length of the one whose beginning was not seen, where it has ended.
    """
    outlast, mean, number = weibull()
    logs = np.tile(-np.log(np.bincount(number))[number], (2, 1))
    for state, lengths in enumerate(spells):
        for length in lengths:
            logs[state] += lasted(min(length, AGES_S))
    if cut is not None:
        logs[cut[0]] += np.log(np.maximum(outlast[:, min(cut[1], AGES_S)] / mean, LEAST_LIKELIHOOD))
    weight = np.exp(logs - logs.max(axis=1, keepdims=True))
    by_shape = np.stack([np.bincount(number, one) for one in weight])
    shape = by_shape.prod(axis=0)
    return np.asarray((weight * (shape / shape.sum() / by_shape)[:, number]) @ outlast)


class Load:
    """A quiet and a busy state, in this order, fitted to counts a second.

    rate : requests a second, (2,).  leave : chance a second of leaving in the hidden Markov model, (2,).
    outlast : chance that a spell lasts longer than 0, 1, ... seconds, (2, AGES_S + 2).
    belief : chances of (state, seconds of its spell before this one), (2, AGES_S).  counts : all seen so far.
    """

    def __init__(self) -> None:
        self.rate = np.zeros(2)
        self.leave = np.full(2, 1.0 / PRIOR_SPELL_S)
        self.learn_spells(np.zeros(1, int))
        self.belief = self.law
        self.counts: Array = np.zeros(0)

    @property
    def busy(self) -> float:
        """Chance that it is busy now."""
        return float(self.belief[1].sum())

    @property
    def law(self) -> Array:
        """Chances of state and age at a blind moment."""
        lasting = self.outlast[:, :AGES_S]
        return np.asarray(lasting / lasting.sum())

    def likelihood(self, counts: Array, seconds: float = 1.0) -> Array:
        """Of each count in each state, relative to the likelier one, (n, 2)."""
        expected = self.rate * seconds
        log = counts[:, None] * np.log(expected) - expected
        return np.maximum(np.exp(log - log.max(axis=1, keepdims=True)), LEAST_LIKELIHOOD)

    def later(self, belief: Array) -> Array:
        """The belief a second later."""
        left = belief * self.ends
        stayed = belief - left
        found = np.empty_like(belief)
        found[:, 1:] = stayed[:, :-1]
        found[:, -1] += stayed[:, -1]
        found[:, 0] = left.sum(axis=1)[::-1]
        return found

    def see(self, counts: Array) -> None:
        """All counts so far, of which the last are new."""
        new = counts[len(self.counts) :]
        self.counts = counts
        if self.rate.any():
            self.update(new)

    def update(self, counts: Array) -> None:
        """Filter some more seconds."""
        for likelihood in self.likelihood(counts):
            belief = self.later(self.belief) * likelihood[:, None]
            self.belief = belief / belief.sum()

    def now(self, unseen_s: float, more: float | None) -> Array:
        """The belief so long after the last full second that was counted; `more` requests came since, where known."""
        belief = self.belief
        for _ in range(min(int(unseen_s), AGES_S)):
            belief = self.later(belief)
        if more is not None and 0 < unseen_s < 1:
            belief = unseen_s * self.later(belief) + (1.0 - unseen_s) * belief
            belief = belief * self.likelihood(np.array([more]), unseen_s).T
            belief = belief / belief.sum()
        return belief

    def fit(self, counts: Array, passes: int = 2) -> Iterator[int]:
        """EM from the last fit on, then spells, then the belief at the end; yields what each piece has cost."""
        start = len(self.counts) - len(counts)
        mean = float(counts.mean())
        if not self.rate.any():
            self.rate = mean * np.array([1.0, 2.0])
        for _ in range(passes):
            busy = self.expect(counts, mean)
            yield PASS_COST * len(counts)
        edges = self.learn_spells((busy > 0.5).astype(int))
        yield SPELLS_COST
        again = max(len(counts) - AGAIN_S, 0)
        self.belief = self.law
        if again:
            since = again - int(edges[edges < again].max(initial=0))
            state, chance = int(busy[again - 1] > 0.5), float(busy[again - 1])
            self.belief = np.zeros((2, AGES_S))
            self.belief[:, 0] = 1.0 - chance, chance
            if since > 1:
                self.belief[state, min(since, AGES_S) - 1], self.belief[state, 0] = self.belief[state, 0], 0.0
        more = self.counts[start + again :]
        self.update(more)
        yield FILTER_COST * len(more)

    def expect(self, counts: Array, mean: float) -> Array:
        """A pass of EM; chances of busy of each second, (n,), before it."""
        stay = 1.0 - self.leave
        busy, told = float(self.leave[0] / self.leave.sum()), []
        to_busy, still_busy = float(self.leave[0]), float(stay[1])
        for quiet_like, busy_like in self.likelihood(counts).tolist():
            before = to_busy + busy * (still_busy - to_busy)
            odds = before * busy_like
            busy = odds / (odds + (1.0 - before) * quiet_like)
            told.append((before, busy))
        now = told[-1][1]  # smoothed chance of busy, from the last second back
        smooth, left_quiet, left_busy = [now], 0.0, 0.0
        for t in range(len(told) - 2, -1, -1):
            before, after = told[t + 1][0], told[t][1]
            left_quiet += (1.0 - after) * to_busy * now / before
            to_quiet = after * (1.0 - still_busy) * (1.0 - now) / (1.0 - before)
            now = after * still_busy * now / before + to_quiet
            left_busy += to_quiet
            smooth.append(now)
        share = np.array(smooth[::-1])
        both = np.stack([1.0 - share, share])
        stayed = both[:, :-1].sum(axis=1)
        left = np.array([left_quiet, left_busy])
        self.leave = np.minimum((left + PRIOR_SPELLS) / (stayed + PRIOR_SPELLS * PRIOR_SPELL_S), 0.49)
        rate = (both @ counts + PRIOR_RATE_S * mean * np.array([1.0, 2.0])) / (both.sum(axis=1) + PRIOR_RATE_S)
        self.rate = np.sort(np.maximum(rate, 0.02 * mean))
        return share

    def learn_spells(self, state: NDArray[np.int64]) -> NDArray[np.int64]:
        """What is known of spells from the state of each second; seconds at which one began, but for the first."""
        edges = np.flatnonzero(np.diff(state)) + 1
        lengths = np.diff(edges)
        spells = [lengths[state[edges[:-1]] == s].tolist() for s in (0, 1)]
        cut = (int(state[0]), int(edges[0])) if len(edges) else None
        self.outlast = np.maximum(outlasting((spells[0], spells[1]), cut), 1e-12)
        self.ends = np.clip(1.0 - self.outlast[:, 1 : AGES_S + 1] / self.outlast[:, :AGES_S], 1e-6, 0.999)
        return edges


def stopping(better: Array, varies: Array) -> tuple[Array, Array]:
    """Chance to stop, and what the choice earns over its mean, where stopping is better by `better` + u, u uniform on
    -varies .. varies, and one stops when that is >= 0."""
    least = np.minimum(np.maximum(-better / varies, -1.0), 1.0)  # of u / varies
    return 0.5 * (1.0 - least), 0.25 * varies * (1.0 - least * least)


class Plan:
    """The stopping rule for one fitted load, one latency and one corridor; arrays are (states, ages in steps)."""

    def __init__(self, load: Load, latency_s: float, late_s: int, obs: Observation, last: Plan | None) -> None:
        self.first = -(-obs.h_min // obs.decision_steps)
        decisions = obs.h_max // obs.decision_steps - self.first
        self.stride = -(-decisions // STEPS) or 1  # decisions a step
        self.gaps = -(-decisions // self.stride)
        self.step_s = self.stride * obs.decision_steps * obs.step_s
        cycle_s = obs.merge_s + self.first * obs.decision_steps * obs.step_s
        self.cycle_steps = max(round(cycle_s / self.step_s), 1)
        self.cycle_s = self.cycle_steps * self.step_s
        ages = max(math.ceil(AGES_S / self.step_s), 2)
        at = np.minimum(np.arange(ages + 1) * self.step_s, AGES_S)
        outlast = np.exp([np.interp(at, np.arange(AGES_S + 2), one) for one in np.log(load.outlast)])
        self.ends = np.clip(1.0 - outlast[:, 1:] / outlast[:, :-1], 1e-7, 0.9999)
        self.stays = 1.0 - self.ends
        self.age = np.minimum((np.arange(AGES_S) / self.step_s).astype(int), ages - 1)  # of each second, in steps
        # Any weights that sum to 1 fix the level of h; these are the chain's own.
        self.weights = outlast[:, :-1] / outlast[:, :-1].sum()
        exposed, merge_steps = np.zeros((2, ages)), obs.merge_s / self.step_s
        for _ in range(max(round(merge_steps), 1)):
            exposed = load.rate[:, None] * self.step_s + self.ahead(exposed)
        exposed *= merge_steps / max(round(merge_steps), 1)
        # Where so many full seconds have not been told, states are of the last that was, and what follows is expected.
        late = round(late_s / self.step_s)
        self.late_s = late * self.step_s
        for _ in range(late):
            exposed = self.ahead(exposed)
        self.saving = float((self.weights * exposed).sum()) - exposed
        self.usual = load.rate * latency_s
        # Of those in flight when telemetry was read, as many are left as are not yet answered.
        self.left = LEFT * max(1.0 - obs.telemetry_age_s / latency_s, 1e-3)
        # Uniform with the deviation of left * Poisson, half of its width.
        self.varies = self.left * np.sqrt(3.0 * self.usual)[:, None]
        self.fresh: Array = np.zeros((2, ages))
        self.gain, self.sweeps = 0.0, 12
        if last is not None and last.fresh.shape == self.fresh.shape:
            self.fresh, self.gain, self.sweeps = last.fresh, last.gain, 4
        self.stop: Array = self.saving
        self.wait: list[Array] = []

    def ahead(self, value: Array) -> Array:
        """Expected value a step later, of values (..., states, ages)."""
        found = np.empty_like(value)
        found[..., :-1] = value[..., 1:]
        found[..., -1] = value[..., -1]
        found *= self.stays
        found += self.ends * value[..., ::-1, :1]
        return found

    def improve(self) -> Iterator[int]:
        for _ in range(self.sweeps):
            self.sweep()
            yield STEP_COST * (self.gaps + self.cycle_steps // 2)

    def sweep(self) -> None:
        back = self.fresh
        for _ in range(self.cycle_steps):
            back = self.ahead(back)
        stop = self.saving + back - self.gain * self.cycle_s
        # Saving, and seconds, until H_min after the next merge.
        both = ended = np.stack([stop, np.full_like(stop, self.cycle_s)])
        waits = []
        for _ in range(self.gaps):
            wait = self.ahead(both)
            wait[0] -= self.gain * self.step_s
            wait[1] += self.step_s
            waits.append(wait[0])
            chance, chosen = stopping(stop - wait[0], self.varies)
            both = wait + chance * (ended - wait)
            both[0] += chosen
        self.stop, self.wait = stop, waits[::-1]  # by steps since H_min
        more = float((self.weights * (both[0] - self.fresh)).sum())
        self.gain += more / float((self.weights * both[1]).sum())
        self.fresh = both[0] - float((self.weights * both[0]).sum())

    def better(self, belief: Array, present: float, waited: int) -> float:
        """Requests by which merging now is better than waiting, after so many decisions from H_min on and with so many
        requests in flight or queued; infinite at H_max."""
        step = waited // self.stride
        if step >= self.gaps:
            return math.inf
        better = float((belief * (self.stop - self.wait[step])[:, self.age]).sum())
        return better - self.left * (present - float(belief.sum(axis=1) @ self.usual))


class Watch:
    """What is known of the load of one server, and the plan for it; both are made as it goes."""

    def __init__(self) -> None:
        self.load = Load()
        self.plan: Plan | None = None
        self.work: Iterator[int] = iter(())
        self.due = FIRST_S
        self.latencies, self.answers = 0.0, 0

    def see(self, counts: Array, latency_s: float | None) -> None:
        """All full seconds so far, and how long the requests took that were answered lately."""
        if latency_s is not None:
            self.latencies, self.answers = self.latencies + latency_s, self.answers + 1
        self.load.see(counts)

    def learn(self, seen: Observation, work: int) -> None:
        """Work for about so long, with the corridor and the length of a merge that are seen."""
        counts, spent = self.load.counts, 0
        while spent < work:
            cost = next(self.work, None)
            if cost is not None:
                spent += cost
            elif len(counts) >= self.due and counts[-WINDOW_S:].any():
                self.due = len(counts) + max(FIRST_S, len(counts) // 8)
                self.work = self.pieces(seen)
            else:
                break

    def pieces(self, seen: Observation) -> Iterator[int]:
        """Fit and plan; yields what each piece has cost."""
        late_s = max(int(seen.time_s) - len(self.load.counts), 0)
        yield from self.load.fit(self.load.counts[-WINDOW_S:])
        latency_s = self.latencies / self.answers if self.answers else 1.0
        plan = Plan(self.load, max(latency_s, 1e-3), late_s, seen, self.plan)
        for cost in plan.improve():
            self.plan = plan
            yield cost

    def better(self, seen: Observation, more: float, present: float, waited: int) -> float:
        """As `Plan.better`, when `more` requests came after the last full second; infinite before there is a plan.

        waited : decisions since the merge.
        """
        if self.plan is None:
            return math.inf
        told = more >= 0 and seen.telemetry_age_s == 0
        unseen_s = seen.time_s - len(self.load.counts) - self.plan.late_s
        belief = self.load.now(max(unseen_s, 0.0), more if told else None)
        return self.plan.better(belief, present, waited - self.plan.first)


class Quiet:
    """The scheduler: learns and plans as it goes, and asks the plan at every decision."""

    def __init__(self) -> None:
        self.watch = Watch()

    def decide(self, observation: Observation) -> bool:
        counts = observation.arrivals_per_s
        self.watch.see(counts, observation.recent_e2e_s)
        self.watch.learn(observation, WORK)
        present = float(observation.in_flight + observation.queued)
        more = observation.completed + present - float(counts.sum())
        waited = observation.steps_since_merge // observation.decision_steps
        return self.watch.better(observation, more, present, waited) >= 0
