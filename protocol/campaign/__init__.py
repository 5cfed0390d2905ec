"""Making evidence: every arm of every seed, in simulation, on a real server, or live.

May import: errors, evidence, merging, placement, replay, scheduler, seeds, stats, workload.
"""
