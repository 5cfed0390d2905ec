"""Where a scheduler or planner puts its merges: the control loop, step by step, beside a sidecar that serves.

May import: errors, merging, replay, scheduler, workload.
"""
