"""Does a core of its own make the client send in time while merges occupy the host?  Both ways, in turns, in one run.

    python benchmarks/cores.py [--nice]

A local server of streams, a merge load that wants every core, and our client replay the same arrivals: *shared*, all
of them on all cores, and *apart*, server and load on all cores but the last, which is the client's.  Bar: apart, 99 %
are sent within 5 ms of schedule, merges or not.  What else runs on the machine is in every row; look at the difference.
With --nice the client does without real time, as most users must.
"""

from __future__ import annotations

import argparse
import os
import sys
from contextlib import ExitStack

import numpy as np
from stream_server import serving

from adapters.cores import Cores, available, pinned
from adapters.merge_loads.runner import MergeLoad
from adapters.sidecars.openai import Target
from adapters.sidecars.real import RealSidecar, client_priority
from protocol.merging.schedule import Schedule
from protocol.replay.measurements import Measurements
from protocol.replay.replay import SENT_SHARE, SENT_WITHIN_NS
from protocol.workload.trace import NS_PER_S, RequestTrace

SEED, PROMPT, OUTPUT = 7, 64, 32


def replayed(cores: Cores, load: MergeLoad, trace: RequestTrace, merges: Schedule) -> Measurements:
    """The rows of one replay on a fresh server on its cores."""
    with ExitStack() as stack:
        with pinned(cores.server):
            server = stack.enter_context(serving())
        return RealSidecar(Target(server.url, "mock"), load, pin=cores).replay(trace, merges).rows


def refused(*arguments: object) -> None:
    raise PermissionError


def in_time(rows: Measurements, which: np.ndarray) -> str:
    share = np.mean((rows.sent_ns - rows.arrival_ns)[which] <= SENT_WITHIN_NS)
    late = (rows.sent_ns - rows.arrival_ns)[which]
    return f"{100 * share:.1f} (p99 {np.percentile(late, 99) / 1e6:.1f} ms)"


def main() -> int:
    options = argparse.ArgumentParser(description="How many requests leave in time, with and without own cores.")
    options.add_argument("--rate", type=float, default=20.0, help="requests per second")
    options.add_argument("--seconds", type=float, default=20.0)
    options.add_argument("--repeats", type=int, default=3)
    options.add_argument("--nice", action="store_true", help="a nice value only, no real time")
    asked = options.parse_args()
    if asked.nice:
        os.sched_setscheduler = refused
    mine = available()
    if len(mine) < 2:
        print("one core: nothing to compare")
        return 1
    ways = {"shared": Cores(None, mine, mine), "apart": Cores(mine[:-1], mine[:-1], mine[-1:])}
    load = MergeLoad.parse(f"host:processes={len(mine)}")
    merge_ns = int(asked.seconds * NS_PER_S / 5)
    merges = Schedule.all_islands(np.array([merge_ns, 3 * merge_ns]), merge_ns)
    n = round(asked.rate * asked.seconds)
    rng = np.random.default_rng(SEED)
    arrival = np.sort(rng.integers(0, int(asked.seconds * NS_PER_S), n))
    trace = RequestTrace(arrival, np.full(n, PROMPT), np.full(n, OUTPUT))
    inside = ((arrival // merge_ns) % 2 == 1) & (arrival < 4 * merge_ns)
    print(
        f"{len(mine)} cores, load average {os.getloadavg()[0]:.1f}; client: {client_priority()}; {n} Poisson arrivals "
        f"in {asked.seconds:g} s, two merges of {merge_ns / NS_PER_S:g} s, {load}\n\n"
        "| cores | sent within 5 ms in merges, % | outside | all |\n| --- | --- | --- | --- |"
    )
    kept: dict[str, list[Measurements]] = {name: [] for name in ways}
    for _ in range(asked.repeats):
        for name in rng.permutation(list(ways)):
            rows = replayed(ways[name], load, trace, merges)
            kept[name].append(rows)
            cells = [in_time(rows, which) for which in (inside, ~inside, np.ones(n, bool))]
            print(f"| {name}: {ways[name]} | " + " | ".join(cells) + " |", flush=True)
    met = all(np.mean(r.sent_ns - r.arrival_ns <= SENT_WITHIN_NS) >= SENT_SHARE for r in kept["apart"])
    print(f"\nbar: {100 * SENT_SHARE:g} % within 5 ms with cores of its own: {'met' if met else 'MISSED'}")
    return 0 if met else 1


if __name__ == "__main__":
    sys.exit(main())
