"""Merge once an island has trained on enough tokens.

Source: the adaptive-tokens baseline of WA-DiLoCo (2026), one million tokens.
"""

from __future__ import annotations

from protocol.scheduler import Observation


class AdaptiveTokens:
    def __init__(self, min_tokens: int = 1_000_000) -> None:
        self.min_tokens = min_tokens

    def decide(self, observation: Observation) -> bool:
        return observation.tokens >= self.min_tokens
