"""Every format in one place, and what a set of paths gives."""

from __future__ import annotations

import hashlib
import math
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field, replace
from pathlib import Path

from adapters.published import llm_d, parsing, request_logs, table, vllm_bench, wa_diloco
from adapters.published.wa_comparisons import INTRODUCTION, Artifact
from protocol.audit.imported import Comparison, Imported, Run, Support
from protocol.errors import BadInput
from protocol.replay.measurements import SERVED, Measurements
from protocol.workload.slo import Slo
from protocol.workload.trace import NS_PER_S

_SUFFIXES = (".json", ".jsonl", ".csv", ".md", ".yaml", ".yml")
#: Latencies that each limit of an SLO needs, and what they are called.
_NEEDS = {"e2e": "e2e_ns", "ttft": "ttft_ns", "tpot": "ttft_ns", "itl": "max_itl_ns"}


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
    Format("llm-d benchmark report", llm_d.is_report, llm_d.load, (llm_d.REPORT,)),
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
            found_table = table.runs(document)
            reading.comparisons += table.comparisons(found_table.runs, path.stem, policy, random_arm, found_table.notes)
        else:
            _add(artifact, known.name, document)
            reading.files.append(Imported(path, wa_diloco.SUPPORT, name=known.name))
    reading.comparisons += artifact.comparisons()
    if reading.comparisons and any(one.name.startswith("WA-DiLoCo") for one in reading.files):
        reading.introduction = INTRODUCTION
    # What two tools measured differs in more than the arm, so only files of one format are compared.
    for name, mine in requests.items():
        if mine:
            notes = tuple(dict.fromkeys(run.unjudged for run in mine if run.unjudged))
            reading.comparisons += table.comparisons(mine, f"{name}, {slo}", policy, random_arm, notes)
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
    unjudged = lacking(one.log, slo, one.path.name)
    planned = one.support.start == "scheduled"
    return Run(
        regime="",
        arm=arm or (one.path.stem if number == 0 else f"{one.path.stem} {number + 1}"),
        seed=seed if arm else 0,
        violation_pct=None if unjudged else 100 * float(one.log.violates(slo).mean()),
        requests=len(one.log),
        draw=draw,
        offered=load_digest(one.log) if planned else None,
        unjudged=unjudged,
        achieved=_achieved(one),
    )


def lacking(log: Measurements, slo: Slo, name: str) -> str:
    """Why requests cannot be judged by an SLO: a served one has no such latency; "" where all have."""
    served = log.outcome == SERVED
    for metric, column in _NEEDS.items():
        if getattr(slo, f"{metric}_ns") is None:
            continue
        # One token has no time per further token.
        without = served & (getattr(log, column) < 0) & ((log.output_tokens > 1) if metric == "tpot" else True)
        if without.any():
            told = f"{name}: {int(without.sum())} of {int(served.sum())} served requests have no {metric.upper()} "
            return f"{told}(replies that were not streamed, or a file that leaves it out), so {metric} cannot be judged"
    return ""


def _achieved(one: Imported) -> float | None:
    """Achieved over offered rate where the file states a rate and the starts fall short of it by more than chance."""
    rate = one.facts.get("request_rate")
    if one.log is None or not isinstance(rate, float) or not 0 < rate < math.inf or len(one.log) < 20:
        return None
    span_s = float(one.log.sent_ns.max() - one.log.sent_ns.min()) / NS_PER_S
    share = (len(one.log) - 1) / span_s / rate if span_s > 0 else math.inf
    return share if share < 1 - 3 / math.sqrt(len(one.log)) else None


def load_digest(log: Measurements) -> str:
    """SHA-256 of arrivals (to the microsecond, since clocks are floats) and prompt tokens."""
    sha = hashlib.sha256()
    for column in ((log.arrival_ns + 500) // 1000, log.prompt_tokens):
        sha.update(column.astype("<i8").tobytes())
    return f"sha256:{sha.hexdigest()[:16]}"
