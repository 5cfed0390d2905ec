"""What a sidecar is asked for and how it is held to it: request traces, SLOs; and the learner beside it.

May import: errors, reading.
"""
