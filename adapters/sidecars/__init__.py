"""Sidecars: simulated, real and recorded."""
