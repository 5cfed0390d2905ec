"""What a server says of itself, and what it runs on."""

from __future__ import annotations

import json
import os
import platform
import re
import urllib.error
from pathlib import Path
from typing import Any

from adapters.sidecars.probing import OPENER
from protocol.errors import SidecarError

_PATIENCE_S = 5.0
_CACHE = re.compile(r"^vllm:cache_config_info\{(.*)\}", re.MULTILINE)


def server_version(url: str) -> str:
    """`vLLM VERSION` from /version, else the server header of /v1/models.  Raises SidecarError when nobody answers."""
    try:
        return f"vLLM {json.loads(_get(url, '/version')[0])['version']}"
    except (ValueError, KeyError, TypeError, urllib.error.HTTPError):
        pass
    try:
        header = _get(url, "/v1/models")[1]
    except urllib.error.HTTPError as error:
        header = error.headers.get("Server")
    return f"OpenAI-compatible server ({header or 'no server header'})"


def kv_tokens(url: str) -> int | None:
    """Tokens that the server's KV cache holds, from its metrics; None where it does not say."""
    try:
        labels = _CACHE.search(_get(url, "/metrics")[0])
    except urllib.error.HTTPError:
        return None
    if labels is None:
        return None
    found = dict(re.findall(r'(\w+)="([^"]*)"', labels[1]))
    blocks, size = found.get("num_gpu_blocks", ""), found.get("block_size", "")
    return int(blocks) * int(size) if blocks.isdigit() and size.isdigit() else None


def host_facts() -> dict[str, Any]:
    """Processor, cores, memory and system of this machine."""
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 2**30
    return {
        "system": platform.platform(terse=True),
        "processor": processor(),
        "cores": len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count(),
        "memory_gib": round(memory, 1),
    }


def processor() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        return platform.processor() or platform.machine()
    return next((line.split(":", 1)[1].strip() for line in lines if line.startswith("model name")), platform.machine())


def _get(url: str, path: str) -> tuple[str, str | None]:
    """Body and server header.  Raises HTTPError on another status than 200, SidecarError when nobody answers."""
    try:
        with OPENER.open(f"{url.rstrip('/')}{path}", timeout=_PATIENCE_S) as answer:
            return answer.read().decode("utf-8", "replace"), answer.headers.get("Server")
    except urllib.error.HTTPError:
        raise
    except (OSError, ValueError) as error:
        why = getattr(error, "reason", error)
        raise SidecarError(f"{url}: nobody answers there ({why}); expected a server that speaks OpenAI's API") from None
