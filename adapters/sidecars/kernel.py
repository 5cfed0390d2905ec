"""Compiled iteration-level continuous batching with chunked prefill, in virtual time.

One island is one server.  An iteration with n decoding sequences and k prefill tokens lasts a + b n + c k,
times a slowdown while a merge is active at the iteration's start.  While nothing is being prefilled and
nothing can be admitted every iteration lasts equally long, so the clock jumps to the next event; decoding
sequences finish at a known iteration, kept in a binary heap: O(log n) per request event.

All times are int64 nanoseconds and every sum is one of integers, so splitting a run of iterations anywhere
changes nothing.  The only floating-point step is one correctly rounded product per prefill iteration, which
no compiler can contract, so results agree on every platform.

`serve` is the only simulation loop: replays, batches, sessions and merge prices all call it.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numba import njit
from numpy.typing import NDArray

I8 = NDArray[np.int64]
#: Later than every event.
NEVER = 1 << 62
#: Length of the window over which recent values and the serving pressure are taken.
RECENT_NS = 5_000_000_000

#: Slots of a server's state: time and number of the next iteration, decoding sequences, first request with
#: unread prompt and how much of it is read, next request to admit, KV tokens reserved, next merge, size of the
#: gap stack, requests finished, and for `observe`: how many of those are neither recent nor to be answered yet.
T, ITERATION, DECODING, PREFILL, READ, ADMIT, KV, MERGE, STACK, FINISHED, PAST = range(11)
STATE_SIZE = 11

#: Kinds of windows, rows of a model: no merge, one that slows the server as merges do, one that only sends.
NONE, WHOLE, SENDING = range(3)

#: What a run is for (flags): keep each request's times; follow gaps between tokens; check TTFT, TPOT and gaps
#: besides E2E; stop once the run is again what it would have been without the merge.
RECORD, GAPS, EVERY_LIMIT, COMPARE = 1, 2, 4, 8


class Requests(NamedTuple):
    """One row a request that fits the server, of one island in order of arrival, or of all, island by island."""

    arrival: I8
    prompt: NDArray[np.int32]
    output: NDArray[np.int32]


class Deadlines(NamedTuple):
    """An SLO: by row the latest server times that meet the E2E and the TTFT limit; limits on TPOT and on gaps."""

    finish_by: I8
    first_by: I8
    tpot_ns: int
    itl_ns: int


class Model(NamedTuple):
    """A server's parameters, as integers where they can be.

    slots : requests admitted at a time.  budget_tokens : of an iteration.  prefill_ps : picoseconds a prefill token.
    shift : bits of a request number in a heap key.  decode_ns : shape (3, slots + 1), duration of a pure decode
    iteration in each kind of window.  base_ps : shape (slots + 1,), of one with prefill, but for its tokens.
    prefill_factor : nanoseconds a picosecond of one with prefill, in each kind of window.
    """

    slots: int
    budget_tokens: int
    kv_tokens: int
    prefill_ps: int
    shift: int
    decode_ns: I8
    base_ps: I8
    prefill_factor: NDArray[np.float64]


class Merges(NamedTuple):
    """The first `n` half-open windows in which a merge is active on one island, and their kinds: WHOLE or SENDING."""

    begin: I8
    end: I8
    kind: I8
    n: int


class Server(NamedTuple):
    """Where a run is: see the slots of `state`; a row an island (`stack`: a row a request) where it holds all."""

    state: I8
    heap: I8
    stack: I8


class Times(NamedTuple):
    """What is filled in as requests get there: all but `first` only with RECORD.

    order : requests as they finish.  late : 1 where one missed a limit.  calm : 1 where one arrives at an idle server.
    """

    first: I8
    admitted: I8
    finished: I8
    gap: I8
    order: NDArray[np.int32]
    late: NDArray[np.uint8]
    calm: NDArray[np.uint8]


jit = njit(cache=True, nogil=True, error_model="numpy")


@jit
def _push(heap: I8, size: int, key: int) -> None:
    at = size
    while at > 0:
        parent = (at - 1) >> 1
        if heap[parent] <= key:
            break
        heap[at] = heap[parent]
        at = parent
    heap[at] = key


@jit
def _pop(heap: I8, size: int) -> None:
    """Remove the smallest of `size` keys."""
    last = heap[size - 1]
    size -= 1
    at = 0
    child = 1
    while child < size:
        if child + 1 < size and heap[child + 1] < heap[child]:
            child += 1
        if heap[child] >= last:
            break
        heap[at] = heap[child]
        at = child
        child = 2 * at + 1
    heap[at] = last


@jit
def _longest_gap(stack: I8, size: int, since: int) -> int:
    """Longest iteration after iteration number `since`: entries (number, duration), durations falling."""
    lo, hi = 0, size - 1
    while lo < hi:
        mid = (lo + hi) >> 1
        if stack[mid, 0] >= since:
            hi = mid
        else:
            lo = mid + 1
    return stack[lo, 1]


@jit
def _raise_gaps(stack: I8, size: int, duration: int) -> int:
    """Sequences that decode now have seen an iteration of this duration; returns the stack's new size.

    An entry stands for the sequences that began to decode after the previous entry's number and up to its
    own.  Entries not above `duration` now share it and become one, so durations fall along the stack, and
    there are never more entries than sequences.
    """
    top = size - 1
    if top < 0 or stack[top, 1] >= duration:
        return size
    number = stack[top, 0]
    while top > 0 and stack[top - 1, 1] <= duration:
        top -= 1
    stack[top, 0] = number
    stack[top, 1] = duration
    return top + 1


@jit
def serve(
    requests: Requests, deadlines: Deadlines, model: Model, merges: Merges, until: int, flags: int,
    server: Server, times: Times,
) -> int:  # fmt: skip
    """Run every iteration of one island that starts before `until`; returns how many finished requests missed a limit.

    With COMPARE `times` are those of a run without the merge.  The count is relative to it, and this run stops when it
    meets `calm` (from there on both are equal), or when 2 x slots requests in a row finish within one decode iteration
    of it: what remains then is only where the iterations fall.
    """
    arrival, prompt, output = requests
    finish_by, first_by, tpot_ns, itl_ns = deadlines
    slots, budget_tokens, kv_tokens, prefill_ps, shift, decode_ns, base_ps, prefill_factor = model
    begin, end, kind, n_merges = merges
    state, heap, stack = server
    first, admitted, finished, gap, order, was_late, calm = times
    record, gaps = flags & RECORD != 0, flags & GAPS != 0
    every_limit, compare = flags & EVERY_LIMIT != 0, flags & COMPARE != 0
    mask = (1 << shift) - 1
    t, iteration, n = state[T], state[ITERATION], state[DECODING]
    prefill, read, admit = state[PREFILL], state[READ], state[ADMIT]
    kv, merge, gap_count, done = state[KV], state[MERGE], state[STACK], state[FINISHED]
    rows = len(arrival)
    slow = NONE
    edge = begin[merge] if merge < n_merges else NEVER
    missed = 0
    alike = 0
    while True:
        active = n + admit - prefill
        if active == 0:
            if admit == rows:
                break
            if arrival[admit] >= t:
                t = arrival[admit]
                if compare and calm[admit] and t >= end[n_merges - 1]:
                    break
                if record:
                    calm[admit] = 1
        if t >= until:
            break
        while t >= edge:
            if slow != NONE:
                slow = NONE
                merge += 1
                edge = begin[merge] if merge < n_merges else NEVER
            else:
                slow = kind[merge]
                edge = end[merge]
        can_admit = False
        while admit < rows and active < slots and kv + prompt[admit] + output[admit] <= kv_tokens:
            if arrival[admit] > t:
                can_admit = True
                break
            kv += prompt[admit] + output[admit]
            if record:
                admitted[admit] = t
            active += 1
            admit += 1
        if prefill < admit:
            left = budget_tokens - n
            reading = prefill
            while prefill < admit and left > 0:
                rest = prompt[prefill] - read
                if rest > left:
                    read += left
                    left = 0
                    break
                left -= rest
                read = 0
                prefill += 1
            k = budget_tokens - n - left
            duration = max(1, np.int64(np.rint((base_ps[n] + prefill_ps * k) * prefill_factor[slow])))
            t += duration
            iteration += 1
            if gaps and n > 0:
                gap_count = _raise_gaps(stack, gap_count, duration)
        else:
            reading = prefill
            duration = decode_ns[slow, n]
            runs = (heap[0] >> shift) - iteration
            limit = min(edge, until)
            if can_admit and arrival[admit] < limit:
                limit = arrival[admit]
            span = limit - t
            if (runs - 1) * duration >= span:
                runs = (span + duration - 1) // duration
            t += runs * duration
            iteration += runs
            if gaps:
                gap_count = _raise_gaps(stack, gap_count, duration)
        while n > 0 and heap[0] >> shift == iteration:
            who = heap[0] & mask
            _pop(heap, n)
            n -= 1
            late = t > finish_by[who]
            kv -= prompt[who] + output[who]
            longest = 0
            if gaps:
                longest = _longest_gap(stack, gap_count, iteration - output[who] + 1)
            if every_limit and not late:
                late = first[who] > first_by[who] or t - first[who] > tpot_ns * (output[who] - 1) or longest > itl_ns
            missed += late
            if compare:
                missed -= was_late[who]
                alike = alike + 1 if abs(t - finished[who]) <= decode_ns[0, slots] else 0
            elif record:
                finished[who], gap[who], was_late[who], order[done] = t, longest, late, who
            done += 1
        if gaps and n == 0:
            gap_count = 0
        for who in range(reading, prefill):
            first[who] = t
            if output[who] > 1:
                _push(heap, n, ((iteration + output[who] - 1) << shift) | who)
                n += 1
            else:
                kv -= prompt[who] + 1
                late = t > finish_by[who] or (every_limit and t > first_by[who])
                missed += late
                if compare:
                    missed -= was_late[who]
                    alike = alike + 1 if abs(t - finished[who]) <= decode_ns[0, slots] else 0
                elif record:
                    finished[who], gap[who], was_late[who], order[done] = t, 0, late, who
                done += 1
        if gaps and prefill > reading and n > 0:
            stack[gap_count, 0] = iteration
            stack[gap_count, 1] = 0
            gap_count += 1
        if compare and alike >= 2 * slots and merge >= n_merges:
            break
    state[T], state[ITERATION], state[DECODING] = t, iteration, n
    state[PREFILL], state[READ], state[ADMIT] = prefill, read, admit
    state[KV], state[MERGE], state[STACK], state[FINISHED] = kv, merge, gap_count, done
    return missed


@jit
def _requests_of(all_: Requests, lo: int, hi: int) -> Requests:
    """One island's rows."""
    return Requests(all_.arrival[lo:hi], all_.prompt[lo:hi], all_.output[lo:hi])


@jit
def _deadlines_of(all_: Deadlines, lo: int, hi: int) -> Deadlines:
    return Deadlines(all_.finish_by[lo:hi], all_.first_by[lo:hi], all_.tpot_ns, all_.itl_ns)


@jit
def _most_rows(offsets: I8) -> int:
    """Of any island."""
    longest = 0
    for i in range(len(offsets) - 1):
        longest = max(longest, offsets[i + 1] - offsets[i])
    return longest


@jit
def new_server(slots: int, rows: int) -> Server:
    """An idle one of one island."""
    return Server(np.zeros(STATE_SIZE, np.int64), np.empty(slots, np.int64), np.empty((rows, 2), np.int64))


@jit
def new_times(first: int, others: int) -> Times:
    """Of so many rows."""
    return Times(
        np.zeros(first, np.int64), np.zeros(others, np.int64), np.zeros(others, np.int64), np.zeros(others, np.int64),
        np.zeros(others, np.int32), np.zeros(others, np.uint8), np.zeros(others, np.uint8),
    )  # fmt: skip


@jit
def advance(
    offsets: I8, requests: Requests, model: Model, server: Server, times: Times, windows: I8, n_merges: I8, until: int
) -> None:  # fmt: skip
    """Every island's iterations that start before `until`, with each request's times kept.

    Requests of island i are rows offsets[i] .. offsets[i + 1]; its windows, of shape (3, islands, most of one), state
    and heap are row i.  Here and in `observe`, which every decision calls, tuples come without their names: it takes
    numba three times as long to accept named ones.
    """
    all_requests, limits, servers, filled = Requests(*requests), Model(*model), Server(*server), Times(*times)
    for i in range(len(offsets) - 1):
        lo, hi = offsets[i], offsets[i + 1]
        mine = Times(
            filled.first[lo:hi], filled.admitted[lo:hi], filled.finished[lo:hi], filled.gap[lo:hi],
            filled.order[lo:hi], filled.late[lo:hi], filled.calm[lo:hi],
        )  # fmt: skip
        # No limit is checked: `finished` stands in for the latest times, which only feed the unused count.
        unlimited = Deadlines(mine.finished, mine.finished, until, until)
        merges = Merges(windows[0, i], windows[1, i], windows[2, i], n_merges[i])
        at = Server(servers.state[i], servers.heap[i], servers.stack[lo:hi])
        serve(_requests_of(all_requests, lo, hi), unlimited, limits, merges, until, RECORD | GAPS, at, mine)


@jit
def count(
    offsets: I8, requests: Requests, deadlines: Deadlines, model: Model, starts: I8, busy: I8, kinds: I8,
    schedule_offsets: I8, flags: int,
) -> I8:  # fmt: skip
    """Requests that miss a limit under each schedule; windows of schedule s are rows
    schedule_offsets[s] .. schedule_offsets[s + 1] of `starts`, of `busy` (one column an island) and of `kinds`.
    """
    schedules, islands, rows, most = len(schedule_offsets) - 1, len(offsets) - 1, _most_rows(offsets), 0
    for s in range(schedules):
        most = max(most, schedule_offsets[s + 1] - schedule_offsets[s])
    server, times = new_server(model.slots, rows if flags & GAPS else 0), new_times(rows, 0)
    begin, end, kind = np.empty(most, np.int64), np.empty(most, np.int64), np.empty(most, np.int64)
    missed = np.zeros(schedules, np.int64)
    for s in range(schedules):
        for i in range(islands):
            lo, hi = offsets[i], offsets[i + 1]
            n_merges = 0
            for k in range(schedule_offsets[s], schedule_offsets[s + 1]):
                if busy[k, i] > 0:
                    begin[n_merges], end[n_merges], kind[n_merges] = starts[k], starts[k] + busy[k, i], kinds[k]
                    n_merges += 1
            server.state[:] = 0
            missed[s] += serve(
                _requests_of(requests, lo, hi), _deadlines_of(deadlines, lo, hi), model,
                Merges(begin, end, kind, n_merges), NEVER, flags, server, times,
            )  # fmt: skip
    return missed


@jit
def observe(
    now: int, offsets: I8, requests: Requests, model: Model, server: Server, times: Times, overhead: I8, seen: I8
) -> None:  # fmt: skip
    """Fill `seen`, one row an island, from what happened up to `now`, to which all islands were advanced.

    Columns: arrived and not finished; arrived and not admitted; answered; answered recently; sums of those
    requests' E2E and TTFT; slot-nanoseconds in use over the recent window.
    """
    arrival, _, _ = requests
    state, heap, _ = server
    first, admitted, finished, _, order, _, _ = times
    since = max(now - RECENT_NS, 0)
    mask = (1 << Model(*model).shift) - 1
    for i in range(len(offsets) - 1):
        lo = offsets[i]
        arrived = np.searchsorted(arrival[lo : offsets[i + 1]], now, side="right")
        n, admit, done, past = state[i, DECODING], state[i, ADMIT], state[i, FINISHED], state[i, PAST]
        while past < done and finished[lo + order[lo + past]] + overhead[lo + order[lo + past]] <= now - RECENT_NS:
            past += 1
        state[i, PAST] = past
        served, answered, recent, e2e, ttft, used = past, past, 0, 0, 0, 0
        for position in range(past, done):
            who = lo + order[lo + position]
            # The iteration in progress has already been computed to its end, which nobody can know yet.
            served += finished[who] <= now
            used += max(min(finished[who], now) - max(admitted[who], since), 0)
            answer = finished[who] + overhead[who]
            answered += answer <= now
            if now - RECENT_NS < answer <= now:
                recent += 1
                e2e += answer - arrival[who]
                ttft += first[who] + overhead[who] - arrival[who]
        for position in range(n):
            used += now - max(admitted[lo + (heap[i, position] & mask)], since)
        for who in range(lo + state[i, PREFILL], lo + admit):
            used += now - max(admitted[who], since)
        seen[i, 0], seen[i, 1], seen[i, 2], seen[i, 3] = arrived - served, arrived - admit, answered, recent
        seen[i, 4], seen[i, 5], seen[i, 6] = e2e, ttft, used


@jit
def price(
    offsets: I8, requests: Requests, deadlines: Deadlines, model: Model, starts: I8, windows: I8, flags: int
) -> I8:  # fmt: skip
    """Violations that one all-islands merge adds to a run without merges, for each of the rising `starts`.

    windows : shape (windows, 3), begin and end of each of the merge's, from its start, and its kind.

    A first run without merges keeps who is late and where the server is idle.  A second one stops at every
    start; from a copy of its state the merge is played until its aftermath is over (see `serve`).
    """
    rows = _most_rows(offsets)
    plain, copy = new_server(model.slots, rows), new_server(model.slots, rows)
    times = new_times(rows, rows)
    begin, end, kind = np.empty(len(windows), np.int64), np.empty(len(windows), np.int64), windows[:, 2].copy()
    added = np.zeros(len(starts), np.int64)
    for i in range(len(offsets) - 1):
        lo, hi = offsets[i], offsets[i + 1]
        mine, due = _requests_of(requests, lo, hi), _deadlines_of(deadlines, lo, hi)
        times.calm[:] = 0
        # Runs 0: no merge, to the end.  1, 3, ..: no merge, up to the next start.  2, 4, ..: from there with the
        # merge.  They share `first`: a run with the merge writes only rows that the other will write before it
        # reads them.  One call of `serve` for all three, because each takes seconds to compile.
        for run in range(1 + 2 * len(starts)):
            s = (run - 1) // 2
            merged = run > 0 and run % 2 == 0
            use = RECORD if run == 0 else COMPARE if merged else 0
            if run < 2:
                plain.state[:] = 0
            if merged:
                copy.state[:] = plain.state
                copy.heap[: plain.state[DECODING]] = plain.heap[: plain.state[DECODING]]
                copy.stack[: plain.state[STACK]] = plain.stack[: plain.state[STACK]]
                begin[:], end[:] = starts[s] + windows[:, 0], starts[s] + windows[:, 1]
            missed = serve(
                mine, due, model, Merges(begin, end, kind, len(windows) * merged), starts[s] if run % 2 else NEVER,
                flags | use, copy if merged else plain, times,
            )  # fmt: skip
            if merged:
                added[s] += missed
    return added
