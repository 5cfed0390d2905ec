"""Files shaped like the WA-DiLoCo artifact's, made by hand: replays of known schedules, with known numbers."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

SEEDS = (23, 29, 31, 37, 41)


def summary(
    merges: int,
    schedule_s: float,
    requests: int = 6000,
    violations: int = 400,
    run_s: float = 600.0,
    startup_s: float = 20.0,
    stress: str = "sync",
    **changes: Any,
) -> dict[str, Any]:
    """One replay: 8 at a time, 128 tokens a request, first request at `startup_s`, last one just before the end."""
    tokens = requests * 128
    real = {
        "requests": requests,
        "output_tokens": tokens,
        "tokens_per_sec": tokens / (run_s - startup_s - 0.5),
        "slo_violation_count": violations,
        "slo_violation_rate": violations / requests,
        "slo_ms": 1000.0,
        "latency_p50_ms": 725.0,
        "latency_p95_ms": 1200.0,
        "latency_p99_ms": 1300.0,
        "sync_active_count": violations,
        "sync_active_p95_ms": 1300.0,
        "sync_inactive_p95_ratio": 1.75,
        "high_low_p95_ratio": 1.0,
    }
    found = {
        "backend": "vllm",
        "concurrency": 8,
        "duration_sec": run_s,
        "max_new_tokens": 128,
        "real": real,
        "simulator": {"sync_inactive_p95_ratio": 1.07, "high_low_p95_ratio": 1.7},
        "stress_mode": stress,
        "sync_event_count": merges,
        "sync_events_jsonl": "workspaces/none/events/coordinator.jsonl",
        "sync_events_repeat": True,
        "sync_trace_duration_sec": schedule_s,
        "sync_window_sec": 8.0,
    }
    for name, value in changes.items():
        (real if name in real else found)[name] = value
    return found


def write(path: Path, value: Any) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(value))
    return path


def write_steady(folder: Path, arms: dict[str, tuple[int, float, int, int]]) -> Path:
    """Per-run summaries of every arm on every seed; an arm is (merges, schedule_s, requests, violations)."""
    for arm, (merges, schedule_s, requests, violations) in arms.items():
        for i, seed in enumerate(SEEDS):
            # Seeds differ a little, so that intervals exist.
            value = summary(merges, schedule_s + 2 * i, requests + 8 * i, violations + 8 * (i % 3))
            value["real"]["sync_inactive_p95_ratio"] = 1.7 + 0.02 * i
            write(folder / "sync" / f"{arm}-s{seed}" / "summary.json", value)
    return folder
