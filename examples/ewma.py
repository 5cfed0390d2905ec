"""A forecast in the decision: an exponentially weighted moving average (EWMA) of the arrivals.

Merge when the forecast for the coming seconds is at or below the usual rate, and be less choosy the nearer
H_max comes, since the merge that is forced there is placed by nobody.

Expected: PASS, like `ten_line.py` and for the same reason: the two bursty regimes.  On real traces it depends on
whether the load can be forecast at all (`protocol traces inspect FILE` says how well an EWMA does out of sample).
"""


class MergeWhenForecastIsLow:
    smoothing = 0.2  # weight of the newest second

    def decide(self, observation):
        forecast = 0.0
        for arrivals in observation.arrivals_per_s[-60:]:
            forecast += self.smoothing * (arrivals - forecast)
        usual = observation.arrivals_per_s.mean()
        used = (observation.steps_since_merge - observation.h_min) / (observation.h_max - observation.h_min)
        return forecast <= usual * (1.0 + 0.5 * used)
