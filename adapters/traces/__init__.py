"""Request traces: readers of published formats and generators."""
