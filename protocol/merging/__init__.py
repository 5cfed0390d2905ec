"""Merges and where they may lie: corridor, schedule, placements with their costs; pairs and rings in `peers`.

May import: errors, reading, workload.
"""
