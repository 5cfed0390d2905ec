"""Compiled iteration-level continuous batching with chunked prefill, in virtual time (SPEC 4.2).

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

#: Slots of a model's limits: max_num_seqs, max_batched_tokens, kv_tokens, picoseconds per prefill token, bits
#: of a request number in a heap key, and the limits on TPOT and on the gap between tokens.
SLOTS, BUDGET, KV_TOKENS, PREFILL_PS, SHIFT, TPOT_LIMIT, ITL_LIMIT = range(7)
LIMITS_SIZE = 7

#: What a run is for (flags): keep each request's times; follow gaps between tokens; check TTFT, TPOT and gaps
#: besides E2E; stop once the run is again what it would have been without the merge.
RECORD, GAPS, EVERY_LIMIT, COMPARE = 1, 2, 4, 8

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
    arrival: I8,
    prompt: NDArray[np.int32],
    output: NDArray[np.int32],
    finish_by: I8,
    first_by: I8,
    limits: I8,
    decode_ns: I8,
    base_ps: I8,
    prefill_factor: NDArray[np.float64],
    begin: I8,
    end: I8,
    n_merges: int,
    until: int,
    flags: int,
    state: I8,
    heap: I8,
    stack: I8,
    first: I8,
    admitted: I8,
    finished: I8,
    gap: I8,
    order: NDArray[np.int32],
    calm: NDArray[np.uint8],
    base_finished: I8,
    base_late: NDArray[np.uint8],
) -> int:
    """Run every iteration that starts before `until`; returns how many finished requests missed a limit.

    arrival, prompt, output, finish_by, first_by : one row a request that fits the server; the last two are
    the latest server times that meet the E2E and the TTFT limit.  decode_ns : shape (2, slots + 1), duration
    of a pure decode iteration without and with a merge.  begin, end : merges, half-open windows.
    first, admitted, finished, gap : filled in as requests get there (all but `first` only with RECORD).
    order : requests as they finish.  calm : 1 where a request arrives at an idle server; written with RECORD.
    With COMPARE the count is relative to `base_late`, and the run stops when it meets `calm` (from there on
    both runs are equal), or when 2 x slots requests in a row finish within one decode iteration of
    `base_finished`: what remains then is only where the iterations fall.
    """
    record, gaps = flags & RECORD != 0, flags & GAPS != 0
    every_limit, compare = flags & EVERY_LIMIT != 0, flags & COMPARE != 0
    slots, budget_tokens, kv_tokens = limits[SLOTS], limits[BUDGET], limits[KV_TOKENS]
    prefill_ps, shift = limits[PREFILL_PS], limits[SHIFT]
    mask = (1 << shift) - 1
    t, iteration, n = state[T], state[ITERATION], state[DECODING]
    prefill, read, admit = state[PREFILL], state[READ], state[ADMIT]
    kv, merge, gap_count, done = state[KV], state[MERGE], state[STACK], state[FINISHED]
    requests = len(arrival)
    slow = 0
    edge = begin[merge] if merge < n_merges else NEVER
    missed = 0
    alike = 0
    while True:
        active = n + admit - prefill
        if active == 0:
            if admit == requests:
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
            if slow:
                slow = 0
                merge += 1
                edge = begin[merge] if merge < n_merges else NEVER
            else:
                slow = 1
                edge = end[merge]
        can_admit = False
        while admit < requests and active < slots and kv + prompt[admit] + output[admit] <= kv_tokens:
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
                late = (
                    first[who] > first_by[who]
                    or t - first[who] > limits[TPOT_LIMIT] * (output[who] - 1)
                    or longest > limits[ITL_LIMIT]
                )
            if record:
                finished[who] = t
                gap[who] = longest
                order[done] = who
            done += 1
            missed += late
            if compare:
                missed -= base_late[who]
                alike = alike + 1 if abs(t - base_finished[who]) <= decode_ns[0, slots] else 0
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
                if record:
                    finished[who] = t
                    gap[who] = 0
                    order[done] = who
                done += 1
                missed += late
                if compare:
                    missed -= base_late[who]
                    alike = alike + 1 if abs(t - base_finished[who]) <= decode_ns[0, slots] else 0
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
def advance(
    offsets: I8,
    arrival: I8,
    prompt: NDArray[np.int32],
    output: NDArray[np.int32],
    limits: I8,
    decode_ns: I8,
    base_ps: I8,
    prefill_factor: NDArray[np.float64],
    begin: I8,
    end: I8,
    n_merges: I8,
    until: int,
    state: I8,
    heap: I8,
    stack: I8,
    first: I8,
    admitted: I8,
    finished: I8,
    gap: I8,
    order: NDArray[np.int32],
    calm: NDArray[np.uint8],
) -> None:
    """Every island's iterations that start before `until`, with each request's times kept.

    Requests of island i are rows offsets[i] .. offsets[i + 1]; its merges, state and heap are row i.
    """
    no_times, no_flags = np.empty(0, np.int64), np.empty(0, np.uint8)
    for i in range(len(offsets) - 1):
        lo, hi = offsets[i], offsets[i + 1]
        # No limit is checked: `finished` stands in for the latest times, which only feed the unused count.
        serve(
            arrival[lo:hi], prompt[lo:hi], output[lo:hi], finished[lo:hi], finished[lo:hi],
            limits, decode_ns, base_ps, prefill_factor, begin[i], end[i], n_merges[i], until, RECORD | GAPS,
            state[i], heap[i], stack[lo:hi], first[lo:hi], admitted[lo:hi], finished[lo:hi], gap[lo:hi],
            order[lo:hi], calm[lo:hi], no_times, no_flags,
        )  # fmt: skip


@jit
def count(
    offsets: I8,
    arrival: I8,
    prompt: NDArray[np.int32],
    output: NDArray[np.int32],
    finish_by: I8,
    first_by: I8,
    limits: I8,
    decode_ns: I8,
    base_ps: I8,
    prefill_factor: NDArray[np.float64],
    starts: I8,
    busy: I8,
    schedule_offsets: I8,
    flags: int,
) -> I8:
    """Requests that miss a limit under each schedule; merges of schedule s are rows
    schedule_offsets[s] .. schedule_offsets[s + 1] of `starts` and of `busy` (one column an island).
    """
    schedules, islands = len(schedule_offsets) - 1, len(offsets) - 1
    longest, most = 0, 0
    for i in range(islands):
        longest = max(longest, offsets[i + 1] - offsets[i])
    for s in range(schedules):
        most = max(most, schedule_offsets[s + 1] - schedule_offsets[s])
    state, heap = np.zeros(STATE_SIZE, np.int64), np.empty(limits[SLOTS], np.int64)
    stack = np.empty((longest, 2) if flags & GAPS else (0, 2), np.int64)
    first = np.empty(longest, np.int64)
    begin, end = np.empty(most, np.int64), np.empty(most, np.int64)
    no_times, no_order = np.empty(0, np.int64), np.empty(0, np.int32)
    no_flags = np.empty(0, np.uint8)
    missed = np.zeros(schedules, np.int64)
    for s in range(schedules):
        for i in range(islands):
            lo, hi = offsets[i], offsets[i + 1]
            n_merges = 0
            for k in range(schedule_offsets[s], schedule_offsets[s + 1]):
                if busy[k, i] > 0:
                    begin[n_merges], end[n_merges] = starts[k], starts[k] + busy[k, i]
                    n_merges += 1
            state[:] = 0
            missed[s] += serve(
                arrival[lo:hi], prompt[lo:hi], output[lo:hi], finish_by[lo:hi], first_by[lo:hi],
                limits, decode_ns, base_ps, prefill_factor, begin, end, n_merges, NEVER, flags,
                state, heap, stack, first, no_times, no_times, no_times,
                no_order, no_flags, no_times, no_flags,
            )  # fmt: skip
    return missed


@jit
def observe(
    now: int,
    offsets: I8,
    arrival: I8,
    overhead: I8,
    limits: I8,
    state: I8,
    heap: I8,
    first: I8,
    admitted: I8,
    finished: I8,
    order: NDArray[np.int32],
    seen: I8,
) -> None:
    """Fill `seen`, one row an island, from what happened up to `now`, to which all islands were advanced.

    Columns: arrived and not finished; arrived and not admitted; answered; answered recently; sums of those
    requests' E2E and TTFT; slot-nanoseconds in use over the recent window.
    """
    since = max(now - RECENT_NS, 0)
    mask = (1 << limits[SHIFT]) - 1
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
    offsets: I8,
    arrival: I8,
    prompt: NDArray[np.int32],
    output: NDArray[np.int32],
    finish_by: I8,
    first_by: I8,
    limits: I8,
    decode_ns: I8,
    base_ps: I8,
    prefill_factor: NDArray[np.float64],
    starts: I8,
    merge_ns: int,
    flags: int,
) -> I8:
    """Violations that one all-islands merge adds to a run without merges, for each of the rising `starts`.

    A first run without merges keeps who is late and where the server is idle.  A second one stops at every
    start; from a copy of its state the merge is played until its aftermath is over (see `serve`).
    """
    longest = 0
    for i in range(len(offsets) - 1):
        longest = max(longest, offsets[i + 1] - offsets[i])
    slots = limits[SLOTS]
    state, heap = np.empty(STATE_SIZE, np.int64), np.empty(slots, np.int64)
    state_copy, heap_copy = np.empty(STATE_SIZE, np.int64), np.empty(slots, np.int64)
    stack, stack_copy = np.empty((longest, 2), np.int64), np.empty((longest, 2), np.int64)
    first, finished, times = np.empty(longest, np.int64), np.empty(longest, np.int64), np.empty(longest, np.int64)
    gap, order = np.empty(longest, np.int64), np.empty(longest, np.int32)
    calm, late = np.empty(longest, np.uint8), np.empty(longest, np.uint8)
    begin, end = np.empty(1, np.int64), np.empty(1, np.int64)
    added = np.zeros(len(starts), np.int64)
    for i in range(len(offsets) - 1):
        lo, hi = offsets[i], offsets[i + 1]
        calm[:] = 0
        # Runs 0: no merge, to the end.  1, 3, ..: no merge, up to the next start.  2, 4, ..: from there with the
        # merge.  They share `first`: a run with the merge writes only rows that the other will write before it
        # reads them.  One call of `serve` for all three, because each takes seconds to compile.
        for run in range(1 + 2 * len(starts)):
            s = (run - 1) // 2
            merged = run > 0 and run % 2 == 0
            until = starts[s] if run % 2 else NEVER
            use = RECORD if run == 0 else COMPARE if merged else 0
            if run < 2:
                state[:] = 0
            if merged:
                state_copy[:] = state
                heap_copy[: state[DECODING]] = heap[: state[DECODING]]
                stack_copy[: state[STACK]] = stack[: state[STACK]]
                begin[0], end[0] = starts[s], starts[s] + merge_ns
            missed = serve(
                arrival[lo:hi], prompt[lo:hi], output[lo:hi], finish_by[lo:hi], first_by[lo:hi],
                limits, decode_ns, base_ps, prefill_factor, begin, end, int(merged), until, flags | use,
                state_copy if merged else state, heap_copy if merged else heap, stack_copy if merged else stack,
                first, times, finished, gap, order, calm, finished, late,
            )  # fmt: skip
            if merged:
                added[s] += missed
            elif run == 0:
                for who in range(hi - lo):
                    late[who] = finished[who] > finish_by[lo + who]
                    if flags & EVERY_LIMIT:
                        late[who] |= (
                            first[who] > first_by[lo + who]
                            or finished[who] - first[who] > limits[TPOT_LIMIT] * (output[lo + who] - 1)
                            or (flags & GAPS != 0 and gap[who] > limits[ITL_LIMIT])
                        )
    return added
