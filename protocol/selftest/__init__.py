"""The harness tried on schedulers whose truth is known: how often it is wrong.

May import: campaign, errors, evidence, gates, merging, replay, seeds, stats, workload.
"""
