"""A slow, obvious server: one iteration at a time, one token at a time.  The tests' reference."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass

from adapters.sidecars.simulated import SidecarModel
from protocol.merging.schedule import Schedule
from protocol.workload.trace import RequestTrace


@dataclass
class Served:
    arrival: int
    prompt_left: int
    output_left: int
    reserved: int
    admitted: int = -1
    tokens: tuple[int, ...] = ()

    @property
    def first(self) -> int:
        return self.tokens[0]

    @property
    def finished(self) -> int:
        return self.tokens[-1]

    @property
    def max_itl(self) -> int:
        return max((b - a for a, b in zip(self.tokens, self.tokens[1:], strict=False)), default=0)


def serve(model: SidecarModel, trace: RequestTrace, schedule: Schedule) -> dict[int, Served]:
    """Every request that is not refused, by its row in the trace; server times, without overhead."""
    served: dict[int, Served] = {}
    for island in range(trace.n_islands):
        rows = [i for i in range(len(trace)) if trace.island[i] == island]
        begin, end = schedule.windows_ns(island)
        served |= _island(model, trace, rows, list(zip(begin.tolist(), end.tolist(), strict=True)))
    return served


def _island(
    model: SidecarModel, trace: RequestTrace, rows: list[int], merges: list[tuple[int, int]]
) -> dict[int, Served]:
    mine = {}
    for row in rows:
        prompt, output = int(trace.prompt_tokens[row]), int(trace.output_tokens[row])
        if prompt + output <= model.kv_tokens:
            mine[row] = Served(int(trace.arrival_ns[row]), prompt, output, prompt + output)
    waiting, reading, decoding = deque(mine.values()), deque(), []
    now = 0
    while waiting or reading or decoding:
        if not reading and not decoding:
            now = max(now, waiting[0].arrival)
        while waiting and waiting[0].arrival <= now:
            inside = [*reading, *decoding]
            reserved = sum(r.reserved for r in inside) + waiting[0].reserved
            if len(inside) == model.max_num_seqs or reserved > model.kv_tokens:
                break
            waiting[0].admitted = now
            reading.append(waiting.popleft())
        room = model.max_batched_tokens - len(decoding)
        prefilled = 0
        ready = []
        while reading and room > 0:
            chunk = min(room, reading[0].prompt_left)
            reading[0].prompt_left -= chunk
            prefilled += chunk
            room -= chunk
            if reading[0].prompt_left == 0:
                ready.append(reading.popleft())
        picoseconds = (
            round(model.a_s * 1e12) + len(decoding) * round(model.b_s * 1e12) + prefilled * round(model.c_s * 1e12)
        )
        slowdown = 1.0
        if any(s <= now < e for s, e in merges):
            slowdown = model.prefill_slowdown if prefilled else model.decode_slowdown
        now += max(1, round(picoseconds * (slowdown / 1000)))
        for request in [*decoding, *ready]:
            request.tokens += (now,)
            request.output_left -= 1
        decoding = [r for r in [*decoding, *ready] if r.output_left]
    return mine
