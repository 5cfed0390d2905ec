"""A clock that has learnt when the bursts come, and never looks at the load.

In `examples/same_phase.toml` every seed has its bursts in the first half of each minute.  Merging in the second half
beats uniform placement in every seed.  Expected: FAIL all the same, because exchanging its schedules between traces
changes nothing: they do not follow the load.
"""


class BurstClock:
    def decide(self, observation):
        return 30 <= observation.time_s % 60 < 52
