"""From gates to a certificate: model, sentence, correction over claims, signature, verification, comparison.

May import: calibration, errors, evidence, files, gates, merging, reading, replay, seeds, stats, workload.
"""
