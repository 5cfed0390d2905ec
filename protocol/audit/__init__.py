"""Published comparisons judged again: what their own numbers license.

May import: errors, gates, replay, seeds, stats.
"""
