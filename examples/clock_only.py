"""A scheduler that looks at nothing but the clock: merge at the first chance in every half minute.

Expected: FAIL.  It may place its merges more evenly than chance does, but no moment it picks has anything to do
with the load: the phase of the bursts is drawn anew for every seed.
"""


class MergeOnTheHalfMinute:
    def decide(self, observation):
        return observation.time_s % 30 < 1
