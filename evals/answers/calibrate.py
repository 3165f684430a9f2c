"""`warmdesk calibrate`: compare the policies with full attention on the sample questions and on the operator's own."""

import datetime
from dataclasses import fields
from pathlib import Path

from app.desk.calibration import FILE, Calibration, PolicyMetrics, decide, refusal_bias, setup_of, write_calibration
from app.domain.errors import DeskError
from app.domain.setting_types import POLICIES, SHIPPED_DATA
from app.domain.settings import Settings
from evals.answers.quality import FULL, Report, rows_of
from evals.answers.quality_run import open_bench, run_missing

SAMPLES = SHIPPED_DATA
MEASURED_ARMS = (FULL, *POLICIES)


def calibrate(settings: Settings, own: Path | None, *, limit: int, report: Report) -> Calibration:
    """Measure, decide, and write the result into the data folder. own: a file of the operator's questions. Raises
    DeskError, CacheError.
    """
    if settings.model_server is not None:
        exact = "the language model runs elsewhere and reads everything exactly: there is no policy to find"
        raise DeskError(f"{exact}; set answer_mode to checked, quote or free yourself", code="runs-elsewhere")
    with open_bench(settings) as (bench, reader):
        cases = reader.knowledge(SAMPLES / "questions.jsonl", SAMPLES / "knowledge", settings.passages, limit)
        if own is not None:
            cases += reader.read(own, settings.passages, limit)
        outcomes = run_missing(bench, cases, MEASURED_ARMS, None, report)
        policy, _ = decide(rows_of(MEASURED_ARMS, cases, outcomes))
        margins = [found[policy].refusal_margin for case, found in zip(cases, outcomes, strict=True) if case.answers]
        bench.refusal_bias = refusal_bias([margin for margin in margins if margin is not None])
        if bench.refusal_bias:  # measure again, with refusals as the product will give them
            outcomes = run_missing(bench, cases, MEASURED_ARMS, None, report)
        rows = rows_of(MEASURED_ARMS, cases, outcomes)
        policy, answer_mode = decide(rows)
        names = [field.name for field in fields(PolicyMetrics)]
        found = Calibration(
            setup=setup_of(settings),
            model=bench.engine.model.info.name,
            measured=datetime.date.today().isoformat(),
            questions=len(cases),
            rows=tuple(PolicyMetrics(**{name: row[name] for name in names}) for row in rows),
            policy=policy,
            answer_mode=answer_mode,
            refusal_bias=bench.refusal_bias,
            refusal_text=settings.refusal_text,
        )
    write_calibration(settings.data_dir / FILE, found)
    return found
