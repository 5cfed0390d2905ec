"""A scheduler in ten lines: merge when fewer requests are in flight than usual."""


class MergeWhenQuiet:
    def decide(self, observation):
        usual = observation.arrivals_per_s.mean()
        lately = observation.arrivals_per_s[-8:].mean()
        return observation.queued == 0 and lately < usual
