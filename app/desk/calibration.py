"""What `warmdesk calibrate` found: which policy keeps a model's answers, and whether it can be trusted to word them.

A finding holds for one model, adapter and system text; when one of them changes it says nothing any more, and
`doctor` and the dashboard ask for a new one. How it is measured is in `evals`.
"""

from __future__ import annotations

import json
import os
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from app.domain.errors import DeskError
from app.domain.policies import POLICIES, AnswerMode, Policy
from app.domain.settings import Settings
from app.domain.shipped import SHIPPED_DATA
from cache.memory.keys import digest
from cache.model.adapters import adapter_fingerprint
from retrieval.answerability.classifier import AnswerabilityClassifier, load_classifier, rule_of_thumb

FILE = "calibration.json"
SHIPPED = SHIPPED_DATA / FILE
"""The finding for the model that comes with the program."""

MOST_KL = 0.1
LEAST_GOLD = -0.15
MOST_LOST = 0.03
"""A policy keeps a model's answers if they are, token by token, at most so many nats away from full attention's, if
the right answer is at most so many nats per token less likely, and if so small a share of answers is lost."""

TRUSTED = 0.6
"""Share of answers that must hold the facts for a model to word its answers itself."""

FALSE_REFUSALS = 0.10
"""Share of the calibration questions with an answer that a model may refuse, at most. They are few, and on others it is
more: with 0.10, 15 % of the answerable requests of docs/evidence.md were refused."""

TIE = 0.01
"""What decides between two equal logits."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Measured:
    """A policy over the calibration questions; see `evals.quality.QualityRow`."""

    policy: str
    kl: float | None
    top1: float | None
    gold_logp_delta: float | None
    contains_gold: float | None
    recomputed_share: float
    ttft_ms: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Calibration:
    """setup: of what it holds for (`setup_of`). measured: date. rows: full attention and the policies. refusal_bias:
    what is added to the logit with which a model begins to refuse, so that it refuses as often as it should;
    refusal_text: the refusal it was measured with.
    """

    setup: str
    model: str
    measured: str
    questions: int
    rows: tuple[Measured, ...]
    policy: Policy
    answer_mode: AnswerMode
    refusal_bias: float = 0.0
    refusal_text: str = ""

    def bias_of(self, settings: Settings) -> float:
        """What to add to the refusal's logit: nothing if the refusal reads another way now."""
        return self.refusal_bias if self.refusal_text == settings.refusal_text else 0.0

    def line(self) -> str:
        """The finding with its figures, for people."""
        figures = ", ".join(
            f"{row.policy} KL {row.kl:.3f} gold {row.gold_logp_delta:+.2f} right {row.contains_gold:.0%}"
            for row in self.rows
            if row.kl is not None and row.gold_logp_delta is not None and row.contains_gold is not None
        )
        return f"{self.policy}, wording {self.answer_mode} ({figures}; {self.questions} questions, {self.measured})"


def setup_of(settings: Settings) -> str:
    """Identity of what a finding holds for: model, adapter and what is said before passages."""
    folder = settings.adapter_folder
    adapter = "" if folder is None else adapter_fingerprint(folder)
    return digest("setup", settings.model or "bundled", adapter, settings.system_text, str(settings.neighbours))


def decide(rows: Sequence[Mapping[str, Any]]) -> tuple[Policy, AnswerMode]:
    """The fastest policy that keeps the model's answers, and how they are to be worded."""
    by_name = {row["policy"]: row for row in rows}
    full = by_name["full"]
    kept: Policy = next((p for p in POLICIES if p == "exact" or keeps(by_name[p], full)), "exact")
    right = by_name.get(kept, full)["contains_gold"]
    return kept, "checked" if right is not None and right >= TRUSTED else "quote"


def keeps(row: Mapping[str, Any], full: Mapping[str, Any]) -> bool:
    """Whether a policy's answers are as good as full attention's."""
    if row["kl"] is None or row["gold_logp_delta"] is None or row["contains_gold"] is None:
        return False
    lost = full["contains_gold"] - row["contains_gold"]
    return bool(row["kl"] <= MOST_KL and row["gold_logp_delta"] >= LEAST_GOLD and lost <= MOST_LOST)


def refusal_bias(margins: Sequence[float]) -> float:
    """What must be added to the logit of the refusal so that of these questions, all with an answer, no more than
    FALSE_REFUSALS are refused. margins: see `evals.quality.Outcome`.
    """
    if not margins:
        return 0.0
    highest = sorted(margins, reverse=True)[int(FALSE_REFUSALS * len(margins))]
    if highest < 0:
        return 0.0
    return -round(highest + TIE, 2)  # logits of bfloat16 have steps of up to a quarter: many are equal


def find_calibration(settings: Settings) -> Calibration | None:
    """The finding that holds for these settings: the desk's own, else the shipped one. Raises DeskError for a file that
    cannot be read.
    """
    for file in (settings.data_dir / FILE, SHIPPED):
        found = read_calibration(file)
        if found is not None and found.setup == setup_of(settings):
            return found
    return None


def read_calibration(file: Path) -> Calibration | None:
    """None if there is none. Raises DeskError."""
    if not file.is_file():
        return None
    try:
        values = json.loads(file.read_text(encoding="utf-8"))
        rows = tuple(Measured(**row) for row in values.pop("rows"))
        for old, new in (("profile", "policy"), ("wording", "answer_mode")):  # as version 0.1 wrote them
            if old in values:
                values[new] = values.pop(old)
        return Calibration(rows=rows, **values)
    except (OSError, ValueError, TypeError, KeyError, AttributeError) as error:
        raise DeskError(f"{file} cannot be read: run `warmdesk calibrate` again", code="calibration") from error


def write_calibration(file: Path, calibration: Calibration) -> None:
    """Whole or not at all."""
    file.parent.mkdir(parents=True, exist_ok=True)
    temporary = file.with_suffix(".tmp")
    with temporary.open("w", encoding="utf-8") as out:
        json.dump(asdict(calibration), out, indent=2)
        out.flush()
        os.fsync(out.fileno())
    os.replace(temporary, file)


SEARCH_FILE = "search.json"
SHIPPED_SEARCH = SHIPPED.with_name(SEARCH_FILE)
"""What was fitted for the embedder that comes with the program."""


def find_classifier(settings: Settings, embedder: str) -> AnswerabilityClassifier:
    """What search judges by: fitted on the operator's questions, else shipped, else a rule of thumb, whichever is for
    this embedder. Raises DeskError for a file that cannot be read.
    """
    for file in (settings.data_dir / SEARCH_FILE, SHIPPED_SEARCH):
        if file.is_file():
            try:
                classifier = load_classifier(file)
            except (OSError, ValueError, TypeError, KeyError) as error:
                raise DeskError(
                    f"{file} cannot be used ({error}): delete it or run warmdesk calibrate-search",
                    code="bad-calibration",
                ) from error
            if classifier.embedder == embedder:
                return classifier
    return rule_of_thumb(embedder)
