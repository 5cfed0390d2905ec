"""The one import of torch."""

from __future__ import annotations

from protocol.errors import ProtocolError

try:
    import torch
except ModuleNotFoundError as missing:
    if missing.name != "torch":
        raise
    raise ProtocolError("training needs torch; install it with: pip install 'diloco-protocol[train]'") from None

__all__ = ["torch"]
