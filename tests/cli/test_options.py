"""Shared options: groups become options of their own, and what is out of range is refused."""

from __future__ import annotations

from dataclasses import dataclass

import pytest
import typer
from typer.testing import CliRunner

from protocol.cli import options
from protocol.errors import BadInput


@dataclass(frozen=True)
class Design:
    """Two options that exclude each other."""

    sidecar: options.Sidecar
    alpha: options.Alpha = 0.05
    chat: options.Chat = False
    effect: options.MinEffect = 0.0

    def __post_init__(self) -> None:
        if self.chat and self.alpha < 0.01:
            raise BadInput("--chat", "a small --alpha beside it", "one of the two")


@options.grouped
def command(
    name: options.Scheduler, design: Design, seed: options.MaybeSeed = None, json_: options.Json = False
) -> None:
    """What the help says."""
    typer.echo(f"{name} {design} {seed} {json_}")


@pytest.fixture
def app() -> typer.Typer:
    made = typer.Typer()
    made.command()(command)
    return made


def test_the_fields_of_a_group_are_options(app: typer.Typer) -> None:
    words = ["ewma.py", "--sidecar", "http://h", "--chat", "--alpha", "0.1", "--seed", "3", "--json"]
    found = CliRunner().invoke(app, words)
    assert found.output == "ewma.py Design(sidecar='http://h', alpha=0.1, chat=True, effect=0.0) 3 True\n"
    assert "alpha=0.05, chat=False," in CliRunner().invoke(app, words[:3]).output
    help_ = CliRunner().invoke(app, ["--help"]).output
    assert "What the help says." in help_ and "--design" not in help_ and "--alpha" in help_


def test_a_bad_group_is_refused(app: typer.Typer) -> None:
    found = CliRunner().invoke(app, ["x", "--sidecar", "http://h", "--chat", "--alpha", "0.001"]).exception
    assert isinstance(found, BadInput) and "--chat: found a small --alpha beside it" in str(found)


@pytest.mark.parametrize(
    "words", [(), ("--alpha", "0.9"), ("--alpha", "nan"), ("--effect", "inf"), ("--effect", "nan")]
)
def test_ranges_and_required_options_hold(app: typer.Typer, words: tuple[str, ...]) -> None:
    found = CliRunner().invoke(app, ["x", *(("--sidecar", "http://h") if words else ()), *words])
    assert found.exit_code == 2 and (words[:1] or ("--sidecar",))[0] in found.output
