"""Every format in one place, and what a set of paths gives."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field, replace
from pathlib import Path

from adapters.published import parsing, request_logs, table, vllm_bench, wa_diloco
from adapters.published.wa_comparisons import INTRODUCTION, Artifact
from protocol.audit.imported import Comparison, Imported, Run, Support
from protocol.errors import BadInput
from protocol.replay.measurements import Measurements
from protocol.workload.slo import Slo

_SUFFIXES = (".json", ".jsonl", ".csv", ".md")


@dataclass(frozen=True)
class Format:
    """sniff : whether a document has this format.  load : its content, None where only a set of files has one."""

    name: str
    sniff: Callable[[parsing.Document], bool]
    load: Callable[[parsing.Document], list[Imported]] | None
    supports: tuple[Support, ...]


#: In the order in which they are tried; no document fits two.
FORMATS = (
    Format("WA-DiLoCo stage 10", wa_diloco.is_stage10, None, (wa_diloco.SUPPORT,)),
    Format("WA-DiLoCo stage 11", wa_diloco.is_stage11, None, (wa_diloco.SUPPORT,)),
    Format("WA-DiLoCo stage 13", wa_diloco.is_stage13, None, (wa_diloco.SUPPORT,)),
    Format("WA-DiLoCo stage 14", wa_diloco.is_stage14, None, (wa_diloco.SUPPORT,)),
    Format("WA-DiLoCo run summary", wa_diloco.is_run_summary, None, (wa_diloco.SUPPORT,)),
    Format("WA-DiLoCo coordinator log", wa_diloco.is_coordinator_log, None, (wa_diloco.SUPPORT,)),
    Format("WA-DiLoCo printed tables", wa_diloco.is_printed, None, (wa_diloco.SUPPORT,)),
    Format(
        "vLLM bench serve",
        vllm_bench.is_vllm,
        vllm_bench.load,
        (vllm_bench.DETAILED, vllm_bench.SCHEDULED, vllm_bench.SUMMARY),
    ),
    Format("SGLang bench_serving", vllm_bench.is_sglang, vllm_bench.load, (vllm_bench.SGLANG,)),
    Format(
        "GuideLLM",
        request_logs.is_guidellm,
        request_logs.load_guidellm,
        (request_logs.GUIDELLM, request_logs.GUIDELLM_ACTUAL),
    ),
    Format(
        "AIPerf", request_logs.is_aiperf, request_logs.load_aiperf, (request_logs.AIPERF, request_logs.AIPERF_CREDIT)
    ),
    Format(
        "inference-perf per-request",
        request_logs.is_inference_perf,
        request_logs.load_inference_perf,
        (request_logs.INFERENCE_PERF,),
    ),
    Format(
        "inference-perf stage",
        request_logs.is_inference_perf_stage,
        request_logs.load_inference_perf_stage,
        (request_logs.INFERENCE_PERF_STAGE,),
    ),
    Format(
        "LLMServingSim", request_logs.is_llmservingsim, request_logs.load_llmservingsim, (request_logs.LLMSERVINGSIM,)
    ),
    Format("per-seed table", table.is_table, None, (table.SUPPORT,)),
)


@dataclass
class Reading:
    """What a set of paths gave.  skipped : files of a folder that no format fits."""

    comparisons: list[Comparison] = field(default_factory=list)
    files: list[Imported] = field(default_factory=list)
    skipped: list[Path] = field(default_factory=list)
    introduction: tuple[str, ...] = ()


def recognise(document: parsing.Document) -> Format | None:
    return next((known for known in FORMATS if known.sniff(document)), None)


def read(
    paths: Iterable[Path], slo: Slo | None = None, policy: str | None = None, random_arm: str | None = None
) -> Reading:
    """Read files and folders.

    slo : with it, per-request files become runs and are compared with each other; arm and seed come from names like
    `ARM-sSEED.json`.  policy, random_arm : for tables and per-request files.

    Raises BadInput on a malformed file, and on a named file of no known format.
    """
    reading, artifact, requests = Reading(), Artifact(), dict[str, list[Run]]()
    for path, named in _files(paths):
        document = parsing.read_document(path)
        known = recognise(document)
        if known is None:
            if named:
                raise BadInput(str(path), "a file of no known format", ", ".join(f.name for f in FORMATS))
            reading.skipped.append(path)
        elif known.load is not None:
            found = known.load(document)
            reading.files += [replace(one, name=known.name) for one in found]
            mine = [_run(one, slo, number) for number, one in enumerate(found) if one.log is not None and slo]
            requests.setdefault(known.name, []).extend(mine)
        elif known.name == "per-seed table":
            reading.files.append(Imported(path, table.SUPPORT, name=known.name))
            reading.comparisons += table.comparisons(table.runs(document), path.stem, policy, random_arm)
        else:
            _add(artifact, known.name, document)
            reading.files.append(Imported(path, wa_diloco.SUPPORT, name=known.name))
    reading.comparisons += artifact.comparisons()
    if reading.comparisons and any(one.name.startswith("WA-DiLoCo") for one in reading.files):
        reading.introduction = INTRODUCTION
    # What two tools measured differs in more than the arm, so only files of one format are compared.
    for name, mine in requests.items():
        if mine:
            reading.comparisons += table.comparisons(mine, f"{name}, {slo}", policy, random_arm)
    if not reading.files:
        raise BadInput(", ".join(map(str, paths)), "no result file", ", ".join(f.name for f in FORMATS))
    return reading


def _files(paths: Iterable[Path]) -> list[tuple[Path, bool]]:
    """Files in a fixed order, each once, and whether the user named it."""
    found: dict[Path, bool] = {}
    for path in paths:
        if path.is_dir():
            inside = sorted(p for p in path.rglob("*") if p.suffix.lower() in _SUFFIXES and p.is_file())
            for one in inside:
                found.setdefault(one, False)
        else:
            found[path] = True
    return list(found.items())


def _add(artifact: Artifact, name: str, document: parsing.Document) -> None:
    rows = [(f"{document.where}, row {i}", row) for i, row in enumerate(document.value, 1)]
    if name.endswith("stage 10"):
        artifact.stage10 += [row for _, row in rows]
    elif name.endswith("stage 11"):
        artifact.stage11 += rows
    elif name.endswith("stage 13"):
        artifact.stage13 += rows
    elif name.endswith("stage 14"):
        artifact.stage14 += [row for _, row in rows]
    elif name.endswith("run summary"):
        artifact.summaries.append(wa_diloco.run_summary(document))
    elif name.endswith("coordinator log"):
        artifact.logs.append(wa_diloco.merge_log(document))
    else:
        tables, tests = wa_diloco.printed_tables(document)
        artifact.printed |= tables
        artifact.tests |= tests


def _run(one: Imported, slo: Slo | None, number: int) -> Run:
    assert one.log is not None and slo is not None  # the caller has asked
    arm, draw, seed = wa_diloco.named(one.path)
    missed = one.log.violates(slo)
    planned = one.support.start == "scheduled"
    return Run(
        regime="",
        arm=arm or (one.path.stem if number == 0 else f"{one.path.stem} {number + 1}"),
        seed=seed if arm else 0,
        violation_pct=100 * float(missed.mean()),
        requests=len(one.log),
        draw=draw,
        offered=load_digest(one.log) if planned else None,
    )


def load_digest(log: Measurements) -> str:
    """SHA-256 of arrivals (to the microsecond, since clocks are floats) and prompt tokens."""
    sha = hashlib.sha256()
    for column in ((log.arrival_ns + 500) // 1000, log.prompt_tokens):
        sha.update(column.astype("<i8").tobytes())
    return f"sha256:{sha.hexdigest()[:16]}"
