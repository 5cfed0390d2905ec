def decide(obs):
    return len(obs.arrivals_per_s) > 4 and sum(obs.arrivals_per_s[-4:]) <= 6
