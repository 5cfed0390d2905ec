"""One self-contained page about one live session; like `reports.html`, it shows stored results and computes nothing."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from protocol.files import write_text
from reports.html import environment


def write_live_report(certificate: Mapping[str, Any], path: Path) -> None:
    """Write the page to `path`."""
    write_text(path, environment().get_template("live.html.j2").render(c=certificate))
