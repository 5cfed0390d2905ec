"""Bar: 100,000 uniform placements of 30 merges in 600 s on a 0.1 s grid, counted and drawn, in at most 1 s.

Merges take 8 s and start 17.4 to 45.6 s apart (94 to 376 steps of 0.1 s between them).  Compilation is not timed.
"""

from __future__ import annotations

import sys
import time

import numpy as np

from protocol.merging.corridor import Corridor

BAR_S = 1.0


def main() -> int:
    corridor = Corridor(
        h_min=94, h_max=376, decision_steps=1, step_ns=100_000_000, merge_ns=8_000_000_000, horizon_ns=600_000_000_000
    )
    corridor.sample(30, 10, np.random.default_rng(0))
    times = []
    for repeat in range(5):
        begin = time.perf_counter()
        size = corridor.log10_count(30)
        drawn = corridor.sample(30, 100_000, np.random.default_rng(repeat))
        times.append(time.perf_counter() - begin)
        feasible = all(corridor.violation(corridor.start_ns(gaps)) is None for gaps in drawn[:1000])
    ok = feasible and min(times) <= BAR_S
    print(f"10^{size:.2f} placements; 100,000 draws of 30: best {min(times):.3f} s, worst {max(times):.3f} s of 5; "
          f"bar {BAR_S:g} s: {'met' if ok else 'MISSED'}")  # fmt: skip
    return 0 if ok else 1


if __name__ == "__main__":
    sys.exit(main())
