"""`warmdesk eval quality`: runs that can be stopped and continued, and their tables and plots for docs/evidence.md.
`warmdesk calibrate`: compares policies with full attention, on sample questions and the operator's own, and answers in
the model's own words with quotations.
"""

import datetime
import json
import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, fields, replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, TextIO

import torch

from app.desk.calibration import (
    FILE,
    Calibration,
    PolicyMetrics,
    best_mode,
    best_policy,
    find_calibration,
    refusal_bias,
    setup_of,
    write_calibration,
)
from app.desk.service import Service
from app.domain.errors import DeskError
from app.domain.setting_types import POLICIES, SHIPPED_DATA
from app.domain.settings import Settings
from app.knowledge.prompts import PromptBuilder
from cache.engine.engine import Engine
from cache.memory.keys import digest, file_digest
from cache.model.loading import find_device, load_model
from cache.prompt.parts import Text
from cache.prompt.tokenizer import run_tokens
from evals.answers.cases import Case, CaseReader
from evals.answers.helpdesk import compare_modes, folder_of
from evals.answers.quality import ARMS, FULL, NOISE, Bench, CaseOutcome, Report, rows_of
from evals.answers.questions import read_questions, sample
from evals.report import describe_machine, drawn, table
from retrieval.search.embedding import SentenceEmbedder

OutcomesByCase = dict[str, dict[str, CaseOutcome]]  # outcomes by the id of a case and the name of an arm


def measure_quality(
    settings: Settings,
    file: Path,
    *,
    policies: Sequence[str],
    passages: int,
    limit: int,
    conversations: bool,
    report: Report,
) -> dict[str, Any]:
    unknown = sorted(set(policies) - ARMS.keys())
    if unknown:
        raise DeskError(f"unknown policies {', '.join(unknown)}: choose from {', '.join(ARMS)}", code="usage")
    if not file.is_file():
        raise DeskError(f"{file}: no such file", code="no-such-file")
    with open_bench(settings) as (bench, reader):
        calibration = find_calibration(settings)
        bench.refusal_bias = None if calibration is None else calibration.bias_of(settings)
        cases = (reader.conversations if conversations else reader.read)(file, passages, limit)
        if not cases:
            raise DeskError(f"{file} has no question of the requested kind", code="no-cases")
        info = bench.engine.model.info
        decoding = f"{settings.repetition_penalty} {bench.refusal_bias} {settings.refusal_text}"
        arms = f"{settings.neighbours} {settings.embedder} {ARMS!r} {[one.name for one in fields(CaseOutcome)]}"
        machine = f"{find_device(settings.device)} {describe_machine()}"
        setup = digest(info.fingerprint, settings.system_text, decoding, file_digest(file), arms, machine)
        kept = settings.data_dir / "evals" / f"quality-{setup.partition(':')[2][:16]}.jsonl"
        kept.parent.mkdir(parents=True, exist_ok=True)
        with kept.open("a+", encoding="utf-8") as keeper:
            outcomes = run_missing(bench, cases, policies, keeper, report)
    names = [*policies, NOISE]
    sources = sorted({case.source for case in cases})
    return {
        "model": info.name,
        "adapter": None if settings.adapter_folder is None else str(settings.adapter_folder),
        "dtype": info.kv.dtype,
        "file": file.name,
        "passages": max(len(case.modules) for case in cases),  # a multi-hop file brings its own number
        "rows": rows_of(names, cases, outcomes),
        "sources": {
            source: rows_of(
                names,
                [case for case in cases if case.source == source],
                [found for case, found in zip(cases, outcomes, strict=True) if case.source == source],
            )
            for source in (sources if len(sources) > 1 else [])
        },
    }


@contextmanager
def open_bench(settings: Settings) -> Iterator[tuple[Bench, CaseReader]]:
    if settings.threads is not None:
        torch.set_num_threads(settings.threads)
    model = load_model(
        settings.model,
        device=settings.device,
        converted=settings.models_folder,
        adapter=settings.adapter_folder,
        weights=settings.weights,
    )
    prompts = PromptBuilder(model.tokenizer.template, settings.system_text)
    embedder = SentenceEmbedder(settings.embedder)
    reader = CaseReader(prompts, model.tokenizer, embedder, neighbours=settings.neighbours)
    system = prompts.prompt([])[0]
    assert not isinstance(system, Text)
    tokens = run_tokens(system.pieces, model.tokenizer)
    engine = Engine(model, memory=settings.device_memory, kv_storage=settings.kv_storage).start()
    try:
        yield Bench(settings, engine, tokens), reader
    finally:
        engine.close()


def run_missing(
    bench: Bench, cases: Sequence[Case], policies: Sequence[str], keeper: TextIO | None, report: Report
) -> list[dict[str, CaseOutcome]]:
    """Return the outcomes of all cases, in order. keeper: file with earlier outcomes, to which new ones are added."""
    found: OutcomesByCase = {}
    if keeper is not None:
        found = read_outcomes(keeper)
        keeper.write("\n")  # an interruption may have cut a line
    for number, case in enumerate(cases, start=1):
        missing = [name for name in dict.fromkeys([FULL, *policies]) if name not in found.get(case.id, {})]
        if missing:
            outcomes = bench.run(case, missing)
            found.setdefault(case.id, {}).update(outcomes)
            if keeper is not None:
                kept = {name: asdict(outcome) for name, outcome in outcomes.items()}
                keeper.write(json.dumps({"case": case.id, "outcomes": kept}) + "\n")
                keeper.flush()
                os.fsync(keeper.fileno())
        report(f"{number}/{len(cases)}")
    return [found[case.id] for case in cases]


def read_outcomes(keeper: TextIO) -> OutcomesByCase:
    keeper.seek(0)
    found: OutcomesByCase = {}
    for line in keeper:
        try:
            row = json.loads(line)
        except ValueError:
            continue
        outcomes = {name: CaseOutcome(**values) for name, values in row["outcomes"].items()}
        found.setdefault(row["case"], {}).update(outcomes)
    return found


COLUMNS = {
    "arm": "arm",
    "kl": "KL [95 %]",
    "top1": "top-1",
    "agree": "same answer",
    "gold": "gold log-probability [95 %]",
    "contains_gold": "holds gold",
    "f1": "F1",
    "refused_right": "refused rightly",
    "refused_wrong": "wrongly",
    "recomputed": "passage tokens computed",
    "ttft_ms": "first token, ms",
}
FORMS = {"top1": ".2f", "f1": ".2f", "ttft_ms": ",.0f"}
FORMS |= dict.fromkeys(("agree", "contains_gold", "refused_right", "refused_wrong"), ".0%")


def markdown(result: dict[str, Any], command: str) -> str:
    rows = [cells(row) for row in result["rows"]]
    questions = result["rows"][0]["n"]
    adapter = f", adapter {Path(result['adapter']).name}" if result["adapter"] else ", no adapter"
    head = (
        f"`{command}`: {result['model']}{adapter}, {result['dtype']}; {questions} questions of {result['file']}, "
        f"{result['passages']} passages; {describe_machine()}.\n"
    )
    return f"{head}\n{table(rows, COLUMNS, **FORMS)}\n"


def cells(row: dict[str, Any]) -> dict[str, Any]:
    return {
        **row,
        "arm": f"`{row['policy']}`",
        "kl": with_interval(row["kl"], row["kl_interval"], ".3f"),
        "gold": with_interval(row["gold_logp_delta"], row["gold_logp_delta_interval"], "+.2f"),
        "recomputed": f"{row['recomputed_tokens']:,.0f} ({row['recomputed_share']:.0%})",
    }


def with_interval(value: float | None, interval: tuple[float, float] | None, form: str) -> str:
    if value is None or interval is None:
        return ""
    return f"{value:{form}} [{interval[0]:{form}}, {interval[1]:{form}}]"


def draw(result: dict[str, Any], file: Path) -> None:
    with drawn(file) as (axes,):
        for row in result["rows"]:
            if row["kl"] is None or row["policy"] in ("none", NOISE):
                continue
            low, high = row["kl_interval"]
            at, spread = (row["ttft_ms"], row["kl"]), [[row["kl"] - low], [high - row["kl"]]]
            axes.errorbar(*at, yerr=spread, fmt="o", capsize=3)
            axes.annotate(row["policy"], at, xytext=(6, 4), textcoords="offset points", fontsize=8)
        axes.set(xscale="log", xlabel="time to the first token, ms", ylabel="KL to full attention, nats per token")


SAMPLES = SHIPPED_DATA
MEASURED_ARMS = (FULL, *POLICIES)


def calibrate(
    settings: Settings, own: Path | None, customers: tuple[Path, Path] | None = None, *, limit: int, report: Report
) -> Calibration:
    """Measure, choose a policy and an answer mode, and write the result into the data folder. own: a file of the
    operator's questions and passages. customers: a folder of documents and a file of customers' questions about them;
    default: the sample shop. limit: approximate maximum number of questions per file. Raises DeskError, CacheError.
    """
    if settings.model_server is not None:
        exact = "the language model is remote and uses full attention: there is no policy to find"
        raise DeskError(f"{exact}; set answer_mode to checked, quote or free yourself", code="runs-elsewhere")
    documents, file = customers or (SAMPLES / "knowledge", SAMPLES / "questions.jsonl")
    folder, asked = folder_of(documents), sample(read_questions(file), limit)
    found = measure_policies(settings, own, limit, report)  # frees the model: the desk below loads its own
    with TemporaryDirectory(prefix="warmdesk-") as temporary:
        write_calibration(Path(temporary) / FILE, found)  # policy and refusals as they will be
        values = {**settings.model_dump(exclude={"database_url"}), "data_dir": temporary, "answer_mode": "checked"}
        with Service(Settings(**values)) as service:
            modes = compare_modes(service, folder, asked, report)
    found = replace(found, modes=modes, answer_mode=best_mode(*modes))
    write_calibration(settings.data_dir / FILE, found)
    return found


def measure_policies(settings: Settings, own: Path | None, limit: int, report: Report) -> Calibration:
    """Choose a policy. Returns a calibration with answer mode "quote". Arguments: see `calibrate`."""
    with open_bench(settings) as (bench, reader):
        cases = reader.knowledge(SAMPLES / "questions.jsonl", SAMPLES / "knowledge", settings.passages, limit)
        if own is not None:
            cases += reader.read(own, settings.passages, limit)
        outcomes = run_missing(bench, cases, MEASURED_ARMS, None, report)
        policy = best_policy(rows_of(MEASURED_ARMS, cases, outcomes))
        margins = [found[policy].refusal_margin for case, found in zip(cases, outcomes, strict=True) if case.answers]
        bench.refusal_bias = refusal_bias([margin for margin in margins if margin is not None])
        if bench.refusal_bias:  # measure again, with refusals as the product will give them
            outcomes = run_missing(bench, cases, MEASURED_ARMS, None, report)
        rows = rows_of(MEASURED_ARMS, cases, outcomes)
        names = [field.name for field in fields(PolicyMetrics)]
        return Calibration(
            setup=setup_of(settings),
            model=bench.engine.model.info.name,
            measured=datetime.date.today().isoformat(),
            questions=len(cases),
            rows=tuple(PolicyMetrics(**{name: row[name] for name in names}) for row in rows),
            policy=best_policy(rows),
            answer_mode="quote",
            refusal_bias=bench.refusal_bias,
            refusal_text=settings.refusal_text,
        )
