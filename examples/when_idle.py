"""Merge when the server has fewer requests than it had on average so far; for load that changes within a second.

Expected: it drives the training loop of torchft_loop.py.  Of the log of half a minute that this writes, G0, G2 and G4
pass and G3 does not.
"""


class MergeWhenIdle:
    def __init__(self):
        self.total = self.asked = 0

    def decide(self, observation):
        now = observation.in_flight + observation.queued
        self.total, self.asked = self.total + now, self.asked + 1
        return now * self.asked <= self.total
