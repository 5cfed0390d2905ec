"""The declared worlds in which a scheduler is judged, one TOML file each.

May import: errors, files, merging, reading, workload.
"""
