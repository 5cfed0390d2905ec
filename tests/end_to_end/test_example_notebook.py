"""The notebook in examples/ runs from top to bottom, and shows what it showed."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

NOTEBOOK = Path(__file__).parents[2] / "examples" / "first_certificate.ipynb"


def shown(cell: Any) -> list[str]:
    """The plain text of a cell's results."""
    return [o["data"]["text/plain"] for o in cell.get("outputs", ()) if "data" in o and "text/plain" in o["data"]]


@pytest.mark.slow
def test_the_notebook_runs_and_says_what_it_says(tmp_path: Path) -> None:
    nbclient = pytest.importorskip("nbclient", reason="NO NBCLIENT: pip install -e '.[notebook]'")
    nbformat = pytest.importorskip("nbformat", reason="NO NBFORMAT: pip install -e '.[notebook]'")
    stored = nbformat.read(NOTEBOOK, as_version=4)
    again = nbformat.read(NOTEBOOK, as_version=4)
    resources = {"metadata": {"path": str(tmp_path)}}
    nbclient.NotebookClient(again, timeout=900, kernel_name="python3", resources=resources).execute()
    assert [shown(cell) for cell in again.cells] == [shown(cell) for cell in stored.cells]


def test_the_notebook_names_no_machine() -> None:
    text = NOTEBOOK.read_text("utf-8")
    assert "/tmp/" not in text and "/home/" not in text and "/root/" not in text and "Traceback" not in text
