"""What training runs are compared by, and judged schedules as rounds that islands can train.

May import: errors, evidence, merging, replay.
"""
