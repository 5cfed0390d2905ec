"""Output folders: nothing of the user's is overwritten or removed, and what cannot be written is said by its name."""

from __future__ import annotations

import errno
import os
import resource
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from protocol import files
from protocol.errors import BadInput
from protocol.evidence.partial import locked

OURS = '{"schema":"diloco-protocol/certificate","files":{"a.parquet":"0"},"pages":["report.html","tables/t.csv"]}'


def tree(folder: Path) -> dict[str, str]:
    return {name: (folder / name).read_text() for name in files.names_in(folder)}


def fill(folder: Path, **texts: str) -> None:
    for name, text in texts.items():
        path = folder / name.replace("__", "/").replace("_dot_", ".")
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)


def finished(folder: Path) -> None:
    """An output folder with what its certificate lists."""
    fill(folder, raw__a_dot_parquet="old", report_dot_html="old", tables__t_dot_csv="old", certificate_dot_json=OURS)


def write(folder: Path, *names: str) -> None:
    with files.replacing(folder, files.claim_folder(folder)) as fresh:
        for name in names:
            (fresh / name).parent.mkdir(parents=True, exist_ok=True)
            (fresh / name).write_text("new")


def test_new_and_empty_folders_are_made(tmp_path: Path) -> None:
    for folder in (tmp_path / "deep" / "er", tmp_path / "empty"):
        write(folder, "certificate.json", "raw/a.parquet")
        assert tree(folder) == {"certificate.json": "new", "raw/a.parquet": "new"}


def test_only_what_the_certificate_lists_is_replaced_or_removed(tmp_path: Path) -> None:
    finished(tmp_path)
    fill(tmp_path, figures__mine_dot_pdf="mine", tables__mine_dot_csv="mine", raw__notes="mine", paper_dot_tex="mine")
    write(tmp_path, "certificate.json", "report.html", "raw/b.parquet")
    assert tree(tmp_path) == {
        "certificate.json": "new", "report.html": "new", "raw/b.parquet": "new",
        "figures/mine.pdf": "mine", "tables/mine.csv": "mine", "raw/notes": "mine", "paper.tex": "mine",
    }  # fmt: skip


def test_folders_that_get_empty_go(tmp_path: Path) -> None:
    finished(tmp_path)
    write(tmp_path, "certificate.json")
    assert sorted(p.name for p in tmp_path.iterdir()) == ["certificate.json"]


@pytest.mark.parametrize(
    ("name", "text"),
    [("main.tex", "x"), ("figures/1.pdf", "x"), (".partial/other", "x"), ("certificate.json", '{"schema":"of-others"}'),
     ("certificate.json", "[" * 100_000), ("certificate.json", "no JSON")],
)  # fmt: skip
def test_folders_of_somebody_else_are_refused_untouched(tmp_path: Path, name: str, text: str) -> None:
    (tmp_path / name).parent.mkdir(exist_ok=True)
    (tmp_path / name).write_text(text)
    if name.startswith(".partial"):
        (tmp_path / "more").write_text("x")
    before = tree(tmp_path)
    with pytest.raises(BadInput, match="touched"):
        files.claim_folder(tmp_path)
    assert tree(tmp_path) == before


@pytest.mark.parametrize("name", [".partial/thesis.tex", ".lock", ".partial", "scheduler.log/notes", "link"])
def test_names_of_ours_that_hold_something_else_are_refused_untouched(tmp_path: Path, name: str) -> None:
    """An unfinished run's folder is removed in the end: one of somebody else's by that name must not be."""
    folder = tmp_path / "out"
    folder.mkdir()
    if name == "link":
        fill(tmp_path / "elsewhere", plan_dot_json="mine")
        (folder / ".partial").symlink_to(tmp_path / "elsewhere")
    else:
        (folder / name).parent.mkdir(exist_ok=True)
        (folder / name).write_text("mine")
    before = tree(tmp_path)
    for claim in (files.claim_folder, lambda f: locked(f).__enter__()):
        with pytest.raises(BadInput, match="nothing there was touched"):
            claim(folder)
    assert tree(tmp_path) == before


def test_an_unfinished_run_goes_on_where_it_was(tmp_path: Path) -> None:
    fill(tmp_path, **{".partial__plan_dot_json": '{"a": 1}', "scheduler_dot_log": "said", ".lock": ""})
    assert files.claim_folder(tmp_path) == frozenset()
    (tmp_path / "notes").write_text("mine")
    write(tmp_path, "certificate.json")
    assert tree(tmp_path)["notes"] == "mine"


@pytest.mark.parametrize("name", ["tables/mine.csv", "raw", "figures"])
def test_what_is_in_the_way_and_not_listed_stops_everything(tmp_path: Path, name: str) -> None:
    """A file of the user's that has the name of a new one, and one where a folder is needed."""
    folder = tmp_path / "out"
    fill(folder, report_dot_html="old", certificate_dot_json=OURS.replace("tables/t.csv", "x"))
    (folder / name).parent.mkdir(exist_ok=True)
    (folder / name).write_text("mine")
    before = tree(folder)
    with pytest.raises(BadInput, match=f"{name}.*not touched"):
        write(folder, "certificate.json", "report.html", "raw/a.parquet", "tables/mine.csv", "figures/1.pdf")
    assert tree(folder) == before and not (folder / files.WAITING).exists()


def test_links_lead_nowhere_outside(tmp_path: Path) -> None:
    """`raw` is a link to a folder of the user's with a file of the listed name."""
    folder, elsewhere = tmp_path / "out", tmp_path / "elsewhere"
    fill(elsewhere, a_dot_parquet="mine")
    fill(folder, certificate_dot_json=OURS)
    (folder / "raw").symlink_to(elsewhere)
    write(folder, "certificate.json", "report.html")
    assert tree(elsewhere) == {"a.parquet": "mine"}
    with pytest.raises(BadInput, match="raw: found a link"):
        (folder / "certificate.json").write_text(OURS)
        write(folder, "certificate.json", "raw/a.parquet")
    assert tree(elsewhere) == {"a.parquet": "mine"}


def test_a_certificate_cannot_list_what_lies_elsewhere(tmp_path: Path) -> None:
    folder = tmp_path / "out"
    fill(tmp_path, precious="mine")
    names = ["../precious", str(tmp_path / "precious"), "a/../../precious", ""]
    fill(folder, certificate_dot_json=OURS.replace('"tables/t.csv"', ", ".join(f'"{n}"' for n in names)))
    write(folder, "certificate.json")
    assert tree(folder) == {"certificate.json": "new"} and (tmp_path / "precious").read_text() == "mine"


def test_an_error_half_way_leaves_the_old_results(tmp_path: Path) -> None:
    finished(tmp_path)
    before = tree(tmp_path)
    with pytest.raises(RuntimeError), files.replacing(tmp_path, files.claim_folder(tmp_path)) as fresh:
        (fresh / "report.html").write_text("half")
        raise RuntimeError
    assert tree(tmp_path) == before


def test_places_that_are_no_folders(tmp_path: Path) -> None:
    (tmp_path / "dangling").symlink_to(tmp_path / "gone")
    (tmp_path / "file").write_text("mine")
    (tmp_path / "circle").symlink_to(tmp_path / "circle")
    for name, said in (
        ("dangling", "a link that leads nowhere"),
        ("file", "found a file; expected a folder"),
        ("file/below", "not a directory"),
        ("dangling/below", "dangling"),
        ("circle", "circle"),
        ("n" * 300, "file name too long; expected a shorter name"),
    ):
        with pytest.raises(BadInput, match=said) as caught:
            files.claim_folder(tmp_path / name)
        assert str(tmp_path / name) in str(caught.value)


@contextmanager
def at_most(size: int) -> Iterator[None]:
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))


def test_a_file_that_cannot_be_written_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "big.json"
    said = r"big\.json: found file too large; expected room below the limit"
    with at_most(1000), pytest.raises(BadInput, match=said):
        files.write_text(path, "x" * 5000)
    files.write_text(tmp_path / ("n" * 255), "as long as a name can be")
    with pytest.raises(BadInput, match="n{256}: found file name too long"):
        files.write_text(tmp_path / ("n" * 256), "")
    with pytest.raises(BadInput, match=r"gone/a: found no such file"):
        files.write_text(tmp_path / "gone" / "a", "")

    def full(*_: object, **__: object) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(Path, "write_text", full)
    with pytest.raises(BadInput, match=r"big\.json: found no space left on device; expected room on its disk"):
        files.write_text(path, "")
    monkeypatch.undo()
    assert [p.name for p in tmp_path.iterdir()] == ["n" * 255]


def test_an_error_of_another_file_keeps_its_name(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError, match="/nowhere/source"), files.atomic(tmp_path / "a") as temporary:
        temporary.write_text(Path("/nowhere/source").read_text())
    assert not list(tmp_path.iterdir())
