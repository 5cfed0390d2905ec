"""From evidence to a verdict on one claim: one module a gate, plain functions of evidence and of what was asked.

May import: calibration, errors, evidence, merging, replay, seeds, stats, workload.
"""
