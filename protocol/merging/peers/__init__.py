"""Merges of some islands: who exchanges with whom, how long it takes, and their random controls.

May import: errors, merging, reading, workload.
"""
