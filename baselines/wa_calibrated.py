"""Workload-aware DiLoCo with the serving cost of a merge in its score, from what can be seen at the decision.

Source: WA-DiLoCo (2026), the online calibrated variant: the published score plus a serving-sync-cost term of
weight 1 and scale 1.  The published telemetry read that cost off the burst clock of the replayed load itself
(the busy share of the coming 8 s: 0 in a quiet window, 1 inside a burst), which a live controller cannot know.
Here it comes from observed load.  A merge violates the SLO of the requests that it exposes, so

    exposed now     = in flight + queued + expected arrivals during the merge
    exposed usually = mean arrival rate so far * (merge + latency)          (Little's law)
    sync cost       = exposed now / exposed usually - 1

that is, the extra violations of a merge started now over one at an average moment, in units of the latter: 0 at
or below the usual load, 1 (full weight) at twice the usual load.

`WaCalibrated` expects arrivals to go on as in the last 4 s.  `WaCalibratedForecast` forecasts them one step of
a merge's length ahead with an exponentially weighted moving average (EWMA) of the counts in such steps.  The
published smoothing factor is not known to us; 0.5 is this project's choice.
"""

from __future__ import annotations

from dataclasses import replace

from baselines.wa_diloco import PUBLISHED, WaDiloco
from protocol.scheduler import Observation


class WaCalibrated(WaDiloco):
    """Cost from the arrival rate of the last seconds."""

    weights = replace(PUBLISHED, sync_cost=1.0)
    lookback_s = 4

    def sync_cost(self, observation: Observation) -> float:
        usual_rate = float(observation.arrivals_per_s.mean()) if len(observation.arrivals_per_s) else 0.0
        if usual_rate == 0.0:
            return 0.0
        now = observation.in_flight + observation.queued + self.expected_arrivals(observation)
        usually = usual_rate * (observation.merge_s + (observation.recent_e2e_s or 0.0))
        return now / usually - 1.0

    def expected_arrivals(self, observation: Observation) -> float:
        """Requests expected during a merge that starts now."""
        return float(observation.arrivals_per_s[-self.lookback_s :].mean()) * observation.merge_s


class WaCalibratedForecast(WaCalibrated):
    """Cost from an EWMA forecast of the arrivals during the merge."""

    smoothing = 0.5

    def expected_arrivals(self, observation: Observation) -> float:
        step = max(1, round(observation.merge_s))
        per_s = observation.arrivals_per_s
        counts = per_s[len(per_s) % step :].reshape(-1, step).sum(axis=1)
        if not len(counts):
            return float(per_s.mean()) * observation.merge_s
        level = float(counts[0])
        for count in counts[1:]:
            level += self.smoothing * (float(count) - level)
        return level * observation.merge_s / step
