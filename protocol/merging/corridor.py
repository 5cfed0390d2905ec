"""The corridor: which placements of merges a control loop can produce, counted, drawn and optimised exactly.

A placement of K merges is a list of gaps g_1 .. g_K, each in [gap_min, gap_max] decisions.  With N their sum, it
fits when N grid + K merge <= horizon, and the loop stops there when the decision at gap_max after the last merge
would end too late: (N + gap_max) grid + (K + 1) merge > horizon.  So only K and N matter: the placements of K
merges are the bounded compositions of N into K parts, for all N of one range.  Where merges take different times, only
their sum, and what the merge after them would take, stand in the place of K merge and of the last one (`Spent`).
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numba
import numpy as np
from numpy.typing import ArrayLike, NDArray

from protocol.errors import BadInput, InfeasibleCorridor

#: Above this many float64 cells, layers are recomputed from checkpoints instead of kept.
_KEEP_CELLS = 12_000_000
#: A layer's largest count after scaling.  A placement's relative count within its layer is above exp(-0.4 K), so
#: with this head room nothing underflows up to the number of merges below.
_SCALE = 2.0**960
MOST_MERGES = 3_000


@dataclass(frozen=True)
class Spent:
    """What the merges of a placement take in all, and what the one after them would have taken, both in ns."""

    total_ns: int
    next_ns: int


@dataclass(frozen=True)
class Corridor:
    """H_min to H_max inner steps between merges, on a grid of decisions, within a horizon.

    A merge may be decided every `decision_steps` inner steps after the last one ended (or after time 0),
    from h_min on, and is forced at h_max.  Inner steps take `step_ns` each and stop while a merge runs.
    A decision whose merge would end after `horizon_ns` is never taken.

    Raises BadInput when a value is out of range or no decision lies between h_min and h_max.
    """

    h_min: int
    h_max: int
    decision_steps: int
    step_ns: int
    merge_ns: int
    horizon_ns: int

    def __post_init__(self) -> None:
        for name, least in (
            ("h_min", 1), ("h_max", 1), ("decision_steps", 1), ("step_ns", 1), ("merge_ns", 0), ("horizon_ns", 0),
        ):  # fmt: skip
            value = getattr(self, name)
            if isinstance(value, bool) or not isinstance(value, int | np.integer) or value < least:
                raise BadInput(f"corridor, {name}", repr(value), f"a whole number of at least {least}")
            object.__setattr__(self, name, int(value))
        if self.h_min > self.h_max:
            raise BadInput("corridor, h_min", f"{self.h_min}, above h_max {self.h_max}", "h_min <= h_max")
        if self.gap_min > self.gap_max:
            found = f"no multiple of {self.decision_steps} from h_min {self.h_min} to h_max {self.h_max}"
            raise BadInput("corridor, decision_steps", found, "a decision inside the corridor")

    @property
    def grid_ns(self) -> int:
        """Time between two decisions."""
        return self.decision_steps * self.step_ns

    @property
    def gap_min(self) -> int:
        """Fewest decisions between merges."""
        return -(-self.h_min // self.decision_steps)

    @property
    def gap_max(self) -> int:
        """Decision at which a merge is forced."""
        return self.h_max // self.decision_steps

    def start_ns(self, gaps: NDArray[np.integer], took_ns: NDArray[np.int64] | None = None) -> NDArray[np.int64]:
        """Merge starts from gaps in decisions; both shape (..., K).

        took_ns : int64, shape (..., K), how long each merge takes; None: all of them `merge_ns`.
        """
        wide = np.asarray(gaps, np.int64)
        if took_ns is None:
            return np.cumsum(wide, axis=-1) * self.grid_ns + np.arange(wide.shape[-1]) * self.merge_ns
        return np.cumsum(wide, axis=-1) * self.grid_ns + np.cumsum(took_ns, axis=-1) - took_ns

    # What fits ---------------------------------------------------------------------------------------------------

    def sum_range(self, k: int, spent: Spent | None = None) -> tuple[int, int]:
        """Least and largest sum of the gaps of k merges; the first exceeds the second when k merges do not fit.

        spent : what these merges take; None: `merge_ns` each.
        """
        taken = Spent(k * self.merge_ns, self.merge_ns) if spent is None else spent
        low = (self.horizon_ns - taken.total_ns - taken.next_ns) // self.grid_ns - self.gap_max + 1
        high = (self.horizon_ns - taken.total_ns) // self.grid_ns
        return max(k * self.gap_min, low), min(k * self.gap_max, high)

    def feasible_budgets(self) -> range:
        """Every number of merges that the control loop can make; it may begin at 0 in a short horizon.

        They have no holes: always waiting for h_max makes the fewest, never waiting makes the most, and the sums
        that end the loop span at least one step of the grid.
        """
        fewest = self.horizon_ns // (self.gap_max * self.grid_ns + self.merge_ns)
        most = self.horizon_ns // (self.gap_min * self.grid_ns + self.merge_ns)
        return range(fewest, most + 1)

    def check_budget(self, k: int, spent: Spent | None = None) -> None:
        """Raises InfeasibleCorridor, which says what fits, when k merges do not."""
        if spent is not None:
            low, high = self.sum_range(k, spent)
            if low > high:
                where = f"corridor of {self.h_min} to {self.h_max} steps in {self.horizon_ns / 1e9:g} s"
                found = f"{k} merges that take {spent.total_ns / 1e9:g} s in all"
                raise InfeasibleCorridor(where, found, "merges that fit between H_min and H_max")
            return
        if k in self.feasible_budgets():
            return
        fits = self.feasible_budgets()
        span = f"{fits[0]}" if len(fits) == 1 else f"{fits[0]} to {fits[-1]}"
        where = (
            f"corridor of {self.h_min} to {self.h_max} steps with merges of {self.merge_ns / 1e9:g} s "
            f"in {self.horizon_ns / 1e9:g} s"
        )
        raise InfeasibleCorridor(where, f"a budget of {k} merges", f"{span} merges, which is what fits")

    def count(self, k: int, spent: Spent | None = None) -> int:
        """Number of placements of k merges, exactly (0 when none fits).

        Compositions into k parts with upper bounds, by inclusion and exclusion (Stanley, Enumerative
        Combinatorics I, section 1.9 exercises): sum_j (-1)^j C(k, j) C(s - j (w + 1) + k, k) have a sum <= s.
        """
        low, high = self.sum_range(k, spent)
        if k < 0 or low > high:
            return 0
        base, width = k * self.gap_min, self.gap_max - self.gap_min

        def at_most(s: int) -> int:
            terms = range(0, min(k, s // (width + 1)) + 1) if s >= 0 else ()
            return sum((-1) ** j * math.comb(k, j) * math.comb(s - j * (width + 1) + k, k) for j in terms)

        return at_most(high - base) - at_most(low - base - 1)

    def log10_count(self, k: int) -> float:
        """log10 of `count`; -inf when k merges do not fit."""
        total = self.count(k)
        return math.log10(total) if total else -math.inf

    # Draws -------------------------------------------------------------------------------------------------------

    def sample(self, k: int, n: int, rng: np.random.Generator, spent: Spent | None = None) -> NDArray[np.int64]:
        """n independent placements of k merges, uniform over all of them: gaps, int64, shape (n, k).

        Backward sampling: with c_i(s) the number of ways in which i gaps sum to s, draw the total s_k from c_k,
        then each s_{i-1} from c_{i-1} on the window that one gap can bridge.  Counts are float64, scaled layer by
        layer and only kept where a whole placement can pass, so an answer is exact to about 1e-12 relative.

        Raises InfeasibleCorridor when k merges do not fit, BadInput above 3,000 merges or for n < 0.
        """
        self.check_budget(k, spent)
        if n < 0:
            raise BadInput("corridor, draws", str(n), "0 or more")
        if k > MOST_MERGES:
            raise BadInput("corridor, budget", f"{k} merges", f"at most {MOST_MERGES} for uniform draws")
        gaps = np.empty((k, n), np.int64)
        if k == 0 or n == 0:
            return np.ascontiguousarray(gaps.T)
        width = self.gap_max - self.gap_min
        low, high = (s - k * self.gap_min for s in self.sum_range(k, spent))
        # Sums of the first i gaps, less i gap_min, through which a placement can pass.
        first = [max(0, low - (k - i) * width) for i in range(k + 1)]
        last = [min(i * width, high) for i in range(k + 1)]
        cells = sum(b - a + 1 for a, b in zip(first, last, strict=True))
        block = k if cells <= _KEEP_CELLS else math.isqrt(k) + 1

        def grow(layer: _Layer, i: int) -> _Layer:
            return _next_layer(*layer, first[i - 1], first[i], last[i], width)

        layer: _Layer = (np.array([_SCALE]), 0)
        checkpoints = {0: layer}
        for i in range(1, k + 1):
            layer = grow(layer, i)
            if i % block == 0 or i == k:
                checkpoints[i] = layer
        total = np.empty(n, np.int64)
        _draw_total(*checkpoints[k], low, rng.random(n), total)
        top = k
        while top > 0:
            bottom = (top - 1) // block * block
            kept = [checkpoints[bottom]]
            for i in range(bottom + 1, top):
                kept.append(grow(kept[-1], i))
            for i in range(top, bottom, -1):
                _draw_gap(*kept.pop(), first[i - 1], last[i - 1], width, rng.random(n), total, gaps[i - 1])
            top = bottom
        gaps += self.gap_min
        return np.ascontiguousarray(gaps.T)

    def permuted(self, gaps: ArrayLike, n: int, rng: np.random.Generator) -> NDArray[np.int64]:
        """A placement's own gaps in n random orders, shape (n, k).  Only their sum matters, so all stay feasible."""
        own = np.asarray(gaps, np.int64)
        return rng.permuted(np.tile(own, (n, 1)), axis=1)

    def shifts(self, gaps: ArrayLike) -> NDArray[np.int64]:
        """Distinct other placements that a circular shift in time makes of this one, int64, shape (n, k).

        The circle holds the decisions left in the horizon beside k merges; what runs over its end comes in at its
        start, where the last gap and the first join.  Shifts that leave the corridor are not returned.
        """
        return self.turned(gaps)[0]

    def turned(self, gaps: ArrayLike, spent: Spent | None = None) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """The same, and which merge comes first in each, int64, shape (n,): the others follow in their order."""
        own = np.asarray(gaps, np.int64)
        k = len(own)
        if k == 0:
            return np.empty((0, 0), np.int64), np.empty(0, np.int64)
        low, high = self.sum_range(k, spent)
        circle = (self.horizon_ns - (k * self.merge_ns if spent is None else spent.total_ns)) // self.grid_ns
        joined = circle - int(own.sum()) + int(own[0])
        rows: dict[tuple[int, ...], int] = {}
        # Cut the circle inside the gap before merge j; `joined` is the gap that spans the old end and start.
        for j in range(k):
            cut = joined if j == 0 else int(own[j])
            rest = own[1:] if j == 0 else np.concatenate([own[j + 1 :], [joined], own[1:j]])
            if j and not self.gap_min <= joined <= self.gap_max:
                continue
            for gap in range(self.gap_min, min(self.gap_max, cut) + 1):
                if low <= circle - (cut - gap) <= high:
                    rows[(gap, *rest.tolist())] = j
        rows.pop(tuple(own.tolist()), None)
        return np.array(list(rows), np.int64).reshape(-1, k), np.array(list(rows.values()), np.int64)

    # Membership --------------------------------------------------------------------------------------------------

    def gaps(self, start_ns: ArrayLike, took_ns: NDArray[np.int64] | None = None) -> NDArray[np.int64]:
        """Gaps in decisions from merge starts, both int64, shape (K,).

        Raises BadInput when a start is not on the decision grid that begins where the merge before it ended.
        """
        start = np.asarray(start_ns)
        if start.ndim != 1 or (start.size and not np.issubdtype(start.dtype, np.integer)):
            raise BadInput("schedule, start", f"{start.dtype} of shape {start.shape}", "whole nanoseconds in a list")
        start = start.astype(np.int64)
        if took_ns is None:
            waits = np.diff(start, prepend=-self.merge_ns) - self.merge_ns
        else:
            waits = start - np.concatenate([[0], (start + took_ns)[:-1]])
        off = np.flatnonzero(waits % self.grid_ns)
        if off.size:
            i = int(off[0])
            found = f"a start at {start[i] / 1e9:g} s, {waits[i] / self.step_ns:g} inner steps after {self._before(i)}"
            raise BadInput(f"schedule, merge {i + 1}", found, f"a multiple of {self.decision_steps} steps")
        return waits // self.grid_ns

    def violation(
        self, start_ns: ArrayLike, took_ns: NDArray[np.int64] | None = None, next_ns: int | None = None
    ) -> str | None:
        """Why the control loop cannot have produced these merge starts, in one line; None when it can.

        took_ns : int64, shape (K,), how long each merge takes; next_ns : the one after them.  None: `merge_ns`.
        """
        try:
            gaps = self.gaps(start_ns, took_ns)
        except BadInput as problem:
            return str(problem)
        for i, gap in enumerate(gaps.tolist()):
            steps = gap * self.decision_steps
            if gap < self.gap_min:
                return f"merge {i + 1} starts {steps} inner steps after {self._before(i)}; H_min is {self.h_min}"
            if gap > self.gap_max:
                return f"merge {i + 1} starts {steps} inner steps after {self._before(i)}; H_max is {self.h_max}"
        k, total = len(gaps), int(gaps.sum())
        end_ns = total * self.grid_ns + (k * self.merge_ns if took_ns is None else int(took_ns.sum()))
        if end_ns > self.horizon_ns:
            return f"merge {k} ends at {end_ns / 1e9:g} s, past the horizon of {self.horizon_ns / 1e9:g} s"
        forced_ns = end_ns + self.gap_max * self.grid_ns
        if forced_ns + (self.merge_ns if next_ns is None else next_ns) <= self.horizon_ns:
            return (
                f"nothing merges after {self._before(k)} until the horizon of {self.horizon_ns / 1e9:g} s, "
                f"though H_max forces a merge at {forced_ns / 1e9:g} s"
            )
        return None

    @staticmethod
    def _before(i: int) -> str:
        return "time 0" if i == 0 else f"the end of merge {i}"

    # Optimum -----------------------------------------------------------------------------------------------------

    def optimum(self, k: int, cost: NDArray[np.float64], spent: Spent | None = None) -> NDArray[np.int64]:
        """Gaps, int64, shape (k,), of a placement of least total cost; of equals, the one that ends earliest.

        cost : float64, shape (k, N + 1), N = sum_range(k)[1]; cost[i, n] is the price of merge i after n decisions
            in total, that is of a start at n grid + i merge.  Cells that no placement reaches are not looked at.

        Dynamic programming with a sliding-window minimum, O(k N).  Raises InfeasibleCorridor when k merges do not
        fit, BadInput for a wrong shape or a cost that is not finite.
        """
        self.check_budget(k, spent)
        low, high = self.sum_range(k, spent)
        cost = np.ascontiguousarray(cost, np.float64)
        if cost.shape != (k, high + 1):
            raise BadInput("corridor, cost", f"shape {cost.shape}", f"{(k, high + 1)}")
        if k == 0:
            return np.empty(0, np.int64)
        for i in range(k):
            reached = cost[i, self.earliest(i, k, low) : self.latest(i, k, high) + 1]
            if not np.isfinite(reached).all():
                raise BadInput(f"corridor, cost of merge {i + 1}", "NaN or inf", "finite costs")
        bounds = np.array([(self.earliest(i, k, low), self.latest(i, k, high)) for i in range(k)], np.int64)
        return _optimum(cost, bounds, self.gap_min, self.gap_max)

    def earliest(self, i: int, k: int, low: int) -> int:
        """Least sum of the gaps up to merge i of k whose gaps sum to at least `low`."""
        return max((i + 1) * self.gap_min, low - (k - 1 - i) * self.gap_max)

    def latest(self, i: int, k: int, high: int) -> int:
        """Largest sum of the gaps up to merge i of k whose gaps sum to at most `high`."""
        return min((i + 1) * self.gap_max, high - (k - 1 - i) * self.gap_min)


# Kernels ---------------------------------------------------------------------------------------------------------
# A layer is held as its cumulative counts and the index of its largest count: up to that index the sums run from
# the left, after it from the right.  Counts are log-concave in s, so on either side the sums that a window
# subtracts are of the window's own size, and no digits cancel.

_Layer = tuple[NDArray[np.float64], int]


@numba.njit(cache=True, nogil=True)
def _parts(cum: NDArray[np.float64], peak: int, p: int, q: int) -> tuple[float, float]:
    """Mass of the window p..q up to the peak, and after it."""
    left = right = 0.0
    if p <= peak:
        left = cum[min(q, peak)] - (cum[p - 1] if p > 0 else 0.0)
    if q > peak:
        right = cum[max(p, peak + 1)] - (cum[q + 1] if q + 1 < cum.size else 0.0)
    return left, right


@numba.njit(cache=True, nogil=True)
def _next_layer(
    cum: NDArray[np.float64], peak: int, below: int, first: int, last: int, width: int
) -> tuple[NDArray[np.float64], int]:
    """The layer of sums first..last, from the one before, whose sums begin at `below`."""
    out = np.empty(last - first + 1)
    for s in range(first, last + 1):
        left, right = _parts(cum, peak, max(s - width - below, 0), min(s - below, cum.size - 1))
        out[s - first] = left + right
    top = int(np.argmax(out))
    scale = _SCALE / out[top]
    total = 0.0
    for x in range(top + 1):
        total += out[x] * scale
        out[x] = total
    total = 0.0
    for x in range(out.size - 1, top, -1):
        total += out[x] * scale
        out[x] = total
    return out, top


@numba.njit(cache=True, nogil=True)
def _pick(cum: NDArray[np.float64], peak: int, p: int, q: int, u: float) -> int:
    """An index of p..q with probability proportional to its count, from u in [0, 1)."""
    left, right = _parts(cum, peak, p, q)
    t = u * (left + right)
    if t < left:
        t += cum[p - 1] if p > 0 else 0.0
        a, b = p, min(q, peak)
        while a < b:
            mid = (a + b) // 2
            if cum[mid] > t:
                b = mid
            else:
                a = mid + 1
        return a
    # Measured from the right end: the largest x whose sum from the right reaches t.
    t = left + right - t + (cum[q + 1] if q + 1 < cum.size else 0.0)
    a, b = max(p, peak + 1), q
    while a < b:
        mid = (a + b + 1) // 2
        if cum[mid] >= t:
            a = mid
        else:
            b = mid - 1
    return a


@numba.njit(cache=True, nogil=True)
def _draw_total(
    cum: NDArray[np.float64], peak: int, first: int, u: NDArray[np.float64], total: NDArray[np.int64]
) -> None:
    for d in range(u.size):
        total[d] = first + _pick(cum, peak, 0, cum.size - 1, u[d])


@numba.njit(cache=True, nogil=True)
def _draw_gap(
    cum: NDArray[np.float64], peak: int, first: int, last: int, width: int,
    u: NDArray[np.float64], total: NDArray[np.int64], gap: NDArray[np.int64],
) -> None:  # fmt: skip
    """Draw the gap that leads to each total, and leave the total before it."""
    for d in range(u.size):
        before = first + _pick(cum, peak, max(total[d] - width, first) - first, min(total[d], last) - first, u[d])
        gap[d] = total[d] - before
        total[d] = before


@numba.njit(cache=True, nogil=True)
def _optimum(cost: NDArray[np.float64], bounds: NDArray[np.int64], gap_min: int, gap_max: int) -> NDArray[np.int64]:
    k, size = cost.shape
    best = np.full(size, np.inf)
    best[0] = 0.0
    came = np.zeros((k, size), np.int32)
    queue = np.empty(size, np.int64)
    for i in range(k):
        now = np.full(size, np.inf)
        head = tail = 0
        entering = max(bounds[i, 0] - gap_max, 0)
        for n in range(bounds[i, 0], bounds[i, 1] + 1):
            while entering <= n - gap_min:
                if best[entering] < np.inf:
                    while tail > head and best[queue[tail - 1]] > best[entering]:
                        tail -= 1
                    queue[tail] = entering
                    tail += 1
                entering += 1
            while head < tail and queue[head] < n - gap_max:
                head += 1
            if head < tail:
                now[n] = best[queue[head]] + cost[i, n]
                came[i, n] = n - queue[head]
        best = now
    n = int(np.argmin(best))
    gaps = np.empty(k, np.int64)
    for i in range(k - 1, -1, -1):
        gaps[i] = came[i, n]
        n -= came[i, n]
    return gaps
