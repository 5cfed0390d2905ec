"""Hooks of the site: one page a command, made from the command itself; links out of docs/ become names of files."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files
from typer.main import get_command

from protocol.cli.main import COMMANDS, build

DOCS = Path(__file__).parents[1]
#: A link to a place that is no page: outside of docs/, or a folder of results.
OUTSIDE = re.compile(r"\[([^\]]+)\]\((\.\./[^)]+|results/[^)#]*)\)")


def on_config(config: MkDocsConfig) -> MkDocsConfig:
    for section in config.nav or ():
        if "Commands" in section:
            section["Commands"] = [{f"protocol {name}": f"commands/{name}.md"} for name in COMMANDS]
    return config


def on_files(files: Files, config: MkDocsConfig) -> Files:
    app: Any = get_command(build())
    for name in COMMANDS:
        text = "\n".join(_page(app.commands[name], f"protocol {name}", 1))
        files.append(File.generated(config, f"commands/{name}.md", content=text))
    return files


def on_page_markdown(markdown: str, **_: object) -> str:
    return OUTSIDE.sub(lambda link: f"{link[1]} (`{(DOCS / link[2]).resolve().relative_to(DOCS.parent)}`)", markdown)


def _page(command: Any, name: str, level: int) -> Iterator[str]:
    """Headings, help and a table of what a command takes; of a group, its commands after one another."""
    yield f"{'#' * level} {name}\n"
    yield f"{(command.help or '').strip()}\n"
    inner = getattr(command, "commands", None)
    if inner is not None:
        for key, each in inner.items():
            yield from _page(each, f"{name} {key}", level + 1)
        return
    named = [p.name for p in command.params if p.param_type_name == "argument"]
    yield f"```\n{name} {' '.join(n.upper() for n in named)} [OPTIONS]\n```\n"
    yield "| | takes | default | what it is |"
    yield "|---|---|---|---|"
    for parameter in command.params:
        if parameter.name == "help":
            continue
        words = parameter.opts if parameter.param_type_name == "option" else [str(parameter.name).upper()]
        kind = "" if getattr(parameter, "is_bool_flag", False) else _kind(parameter)
        default = "" if parameter.default in (None, False, ()) or callable(parameter.default) else parameter.default
        shown = (", ".join(f"`{word}`" for word in words), kind, f"{default}", parameter.help or "")
        yield "| " + " | ".join(" ".join(str(cell).split()).replace("|", "\\|") for cell in shown) + " |"
    yield ""


def _kind(parameter: Any) -> str:
    """What a value is: `list[Path]` as `path, repeatable`."""
    annotation = parameter.type_descriptor.annotation
    inner = getattr(annotation, "__args__", ())
    name = getattr(inner[0] if inner else annotation, "__name__", str(annotation)).lower()
    shown = {"str": "text", "int": "number", "float": "number"}.get(name, name)
    return f"{shown}, repeatable" if parameter.multiple else shown
