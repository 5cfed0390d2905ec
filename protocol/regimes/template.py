"""The regime that `protocol regime new` writes: every key with its unit, range and meaning, in a file that loads."""

from __future__ import annotations

#: Sections that say what the requests are like; `protocol regime fit` proposes them from a trace.
LOAD = """[arrivals]
# How requests come to one sidecar.  `protocol regime fit --trace FILE` proposes this table and the two of tokens.
# With a real trace (--trace FILE --regime THIS.toml) the trace takes the place of all three.
process = "bursts-aperiodic" # steady, bursts-periodic or bursts-aperiodic
rate_per_s = 2.0 # requests/s; in quiet spells, where there are bursts
busy_rate_per_s = 6.0 # requests/s in bursts
busy_s = 20 # mean length of a burst, s
quiet_s = 60 # mean length between bursts, s
spell_cv = 1.0 # coefficient of variation of those lengths; 1: memoryless
cv = 1.0 # coefficient of variation of the gaps between requests; 1: independent users (Poisson)

[tokens.prompt]
# One of these counts, each equally likely (weights = [...] for others), times a log-normal spread.
values = [200, 800]
sigma = 0.0 # standard deviation of the logarithm; 0: exactly these values

[tokens.output]
values = [128]
sigma = 0.0
"""

_TEMPLATE = """# A regime: the world in which schedulers are judged.  Every value below is an example: put your own.
# protocol certify my_sched.py --regime {file}                      in generated load
# protocol certify my_sched.py --regime {file} --trace FILE         a real trace in this system, one claim

[regime]
name = "{name}"
version = 1 # raise it when you change the file: certificates name it
summary = "what this system is"
slo = "ttft<=500ms,e2e<=4s" # e2e, ttft, tpot (mean time per token) and itl (longest gap), all of them
horizon_s = 900 # seconds in which merges may run; long enough for several
cooldown_s = 30 # seconds after that, so that the last merge's aftermath counts
islands = 1 # training replicas, each with a sidecar on its host
seeds = 20 # independent loads (windows of a trace); 8 is little
planner_budget = 12 # merges that an offline planner is given

[pace]
# Your training loop: measure these, they decide how often merges come.
step_s = 0.25 # seconds an inner step takes while no merge runs
h_min = 64 # fewest inner steps between merges
h_max = 256 # most
decision_steps = 8 # inner steps between decisions
merge_s = 12 # seconds a merge occupies its hosts

# Merges that are not all alike have tables of their own, such as:
# [merge]
# fragments = 4 # of the model, merged in turn
# sync_delay_steps = 2 # inner steps trained between sending a fragment and applying it
# send_slowdown = 1.2 # of the server's iterations while sending
# apply_s = 0.5 # seconds of applying, in which training stops
# failed_share = 0.02 # of merges that are not committed
# [merge.duration]
# follows = "uniform" # or given, drawn (both of values_s), lognormal (median_s, sigma)
# least_s = 8
# most_s = 30

{load}
[pressure.network]
# A signal from 0 to 1 that schedulers see: constant (low), wave (low, high, period_s), pulse (high for high_s of every
# period_s) or busy (high in bursts).
follows = "constant"
low = 0.0

[pressure.checkpoint]
follows = "constant"
low = 0.0

[learner]
# A model of the loss, so that schedulers which read it have something to read:
# floor + scale * (1 + steps / offset_steps) ** -exponent.
floor = 2.0
scale = 1.9
offset_steps = 6000
exponent = 0.5
tokens_per_step = 2048 # tokens that one inner step of one island trains on

[sidecar]
# The simulated server: a shipped model (`protocol list`), and what differs.  --calibration FOLDER puts one that was
# measured on your server in its place; without it a certificate is a stress test.
model = "reference"
decode_slowdown = 1.7 # an iteration lasts this many times as long while a merge runs
prefill_slowdown = 1.7
"""


def template(name: str, file: str) -> str:
    """The text of a commented regime.  name : of the regime; file : what the comments call the file."""
    return _TEMPLATE.format(name=name, file=file, load=LOAD)
