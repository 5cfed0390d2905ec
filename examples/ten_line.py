"""A scheduler in ten lines: merge when fewer requests than usual have come lately.

Expected: PASS, on the strength of the two bursty regimes.  A busy spell outlasts a merge, so the last eight
seconds say a good deal about the next eight.  In steady load there is nothing to see, where merges hardly slow
serving nothing to gain, and those regimes are not certified.
"""


class MergeWhenQuiet:
    def decide(self, observation):
        usual = observation.arrivals_per_s.mean()
        lately = observation.arrivals_per_s[-8:].mean()
        return lately <= usual
