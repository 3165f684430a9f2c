"""Read and write the results of `warmdesk calibrate` (the policy that preserves a model's answers, and whether it may
use its own words) and of `warmdesk calibrate-search` (the classifier of search results).

A result of `calibrate` is valid for one model, adapter, system text and number of neighbours. After a change of one of
them, `doctor` and the dashboard ask for a new one. Out of scope: measuring and fitting (`evals`), the classifier.
"""

import json
import logging
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec

from app.domain.errors import DeskError
from app.domain.setting_types import POLICIES, SHIPPED_DATA, AnswerMode, Policy
from app.domain.settings import Settings
from app.storage.files import replace_file
from cache.memory.keys import adapter_fingerprint, digest

if TYPE_CHECKING:  # `warmdesk stats` also reads calibrations, and does not wait for torch
    from retrieval.answerability import AnswerabilityClassifier

FILE = "calibration.json"
SHIPPED = SHIPPED_DATA / FILE

MOST_KL = 0.1
LEAST_GOLD = -0.15
MOST_LOST = 0.03
"""A policy preserves a model's answers if, compared with full attention, KL divergence per token is at most MOST_KL
nats, the log-probability of the right answer changes by at least LEAST_GOLD nats per token, and the share of right
answers falls by at most MOST_LOST.
"""

FALSE_REFUSALS = 0.10
"""Maximum share of the answerable calibration questions that a model may refuse. The sample is small, and other
questions are refused more often: with 0.10, 15 % of the answerable requests of docs/evidence.md were refused.
"""

TIE = 0.01


@dataclass(frozen=True, slots=True, kw_only=True)
class PolicyMetrics:
    """Results of a policy on the calibration questions; see `evals.answers.quality.quality_row`."""

    policy: str
    kl: float | None
    top1: float | None
    gold_logp_delta: float | None
    contains_gold: float | None
    recomputed_share: float
    ttft_ms: float


@dataclass(frozen=True, slots=True, kw_only=True)
class ModeMetrics:
    """Results of a mode on customers' questions. right: answerable questions whose answer shows all facts. wrong:
    confident answers that lack a fact, or whose question no page answers. words: median number of words of an answer.
    """

    mode: AnswerMode
    questions: int
    right: int
    wrong: int
    words: float | None

    @property
    def net(self) -> int:
        return self.right - self.wrong

    def line(self) -> str:
        name = "own words" if self.mode == "checked" else "quotations"
        return f"{name} {self.right} right, {self.wrong} wrong of {self.questions}, {self.words or 0:.0f} words"


@dataclass(frozen=True, slots=True, kw_only=True)
class Calibration:
    """A result of `warmdesk calibrate`. setup: digest of the settings for which it is valid (`setup_of`). measured:
    date. rows: full attention and the policies. modes: own words and quotations; empty in an older file. refusal_bias:
    added to the logit of the first token of `refusal_text`.
    """

    setup: str
    model: str
    measured: str
    questions: int
    rows: tuple[PolicyMetrics, ...]
    policy: Policy
    answer_mode: AnswerMode
    modes: tuple[ModeMetrics, ...] = ()
    refusal_bias: float = 0.0
    refusal_text: str = ""

    def bias_of(self, settings: Settings) -> float:
        """Return the bias of the refusal's logit. It is 0 if the setting `refusal_text` has changed."""
        return self.refusal_bias if self.refusal_text == settings.refusal_text else 0.0

    def line(self) -> str:
        figures = ", ".join(
            f"{row.policy} KL {row.kl:.3f} gold {row.gold_logp_delta:+.2f} right {row.contains_gold:.0%}"
            for row in self.rows
            if row.kl is not None and row.gold_logp_delta is not None and row.contains_gold is not None
        )
        modes = "".join(f"; {one.line()}" for one in self.modes)
        head = f"{self.policy}, answer mode {self.answer_mode}"
        return f"{head} ({figures}; {self.questions} questions, {self.measured}{modes})"


def setup_of(settings: Settings, *, with_rounding: bool = True) -> str:
    folder = settings.adapter_folder
    adapter = "" if folder is None else adapter_fingerprint(folder)
    rounding = {"weights": settings.weights, "kv_storage": settings.kv_storage} if with_rounding else {}
    further = [f"{name} {value}" for name, value in rounding.items() if value != "model"]
    return digest(
        "setup", settings.model or "bundled", adapter, settings.system_text, str(settings.neighbours), *further
    )


def best_policy(rows: Sequence[Mapping[str, Any]]) -> Policy:
    by_name = {row["policy"]: row for row in rows}
    full = by_name["full"]
    return next((p for p in POLICIES if p == "exact" or keeps(by_name[p], full)), "exact")


def best_mode(own_words: ModeMetrics, quotations: ModeMetrics) -> AnswerMode:
    """Return the mode with more right answers minus wrong ones: own words only if they are better, or as good and
    shorter.
    """
    is_shorter = (own_words.words or 0) < (quotations.words or 0)
    is_better = own_words.net > quotations.net or (own_words.net == quotations.net and is_shorter)
    return "checked" if is_better else "quote"


def keeps(row: Mapping[str, Any], full: Mapping[str, Any]) -> bool:
    if row["kl"] is None or row["gold_logp_delta"] is None or row["contains_gold"] is None:
        return False
    lost = full["contains_gold"] - row["contains_gold"]
    return bool(row["kl"] <= MOST_KL and row["gold_logp_delta"] >= LEAST_GOLD and lost <= MOST_LOST)


def refusal_bias(margins: Sequence[float]) -> float:
    """Return the bias of the refusal's logit with which at most the share FALSE_REFUSALS of these questions is refused.
    margins: of answerable questions, see `evals.answers.quality.CaseOutcome`.
    """
    if not margins:
        return 0.0
    highest = sorted(margins, reverse=True)[int(FALSE_REFUSALS * len(margins))]
    if highest < 0:
        return 0.0
    return -round(highest + TIE, 2)  # logits of bfloat16 have steps of up to a quarter, so many are equal


def find_calibration(settings: Settings) -> Calibration | None:
    """Return this installation's result if it is valid for the settings, else the bundled one. If none is valid, accept
    a result measured without the rounding of the settings, which `doctor` reports. Raises DeskError.
    """
    stored = [found for file in (settings.data_dir / FILE, SHIPPED) if (found := read_calibration(file)) is not None]
    setups = (setup_of(settings, with_rounding=it) for it in (True, False))
    return next((found for setup in setups for found in stored if found.setup == setup), None)


def policy_of(settings: Settings, calibration: Calibration | None) -> Policy:
    """Return the default policy. It is exact for a remote model, which reuses only exact prefixes."""
    if settings.model_server is not None:
        return "exact"
    if settings.policy != "auto":
        return settings.policy
    return "fast" if calibration is None else calibration.policy


def answer_mode_of(settings: Settings, calibration: Calibration | None) -> AnswerMode:
    if settings.answer_mode != "auto":
        return settings.answer_mode
    if calibration is None:
        return "quote" if settings.model_server is None else "checked"
    return calibration.answer_mode


def read_calibration(file: Path) -> Calibration | None:
    if not file.is_file():
        return None
    try:
        return msgspec.json.decode(file.read_bytes(), type=Calibration)
    except (OSError, ValueError, RecursionError) as error:  # ValueError: not JSON, or other fields
        raise DeskError(f"{file} cannot be read: run `warmdesk calibrate` again", code="calibration") from error


def write_calibration(file: Path, calibration: Calibration) -> None:
    file.parent.mkdir(parents=True, exist_ok=True)
    replace_file(file, json.dumps(asdict(calibration), indent=2).encode())


log = logging.getLogger(__name__)

SEARCH_FILE = "search.json"
SHIPPED_SEARCH = SHIPPED_DATA / SEARCH_FILE
RANKER_FOLDER = "ranker"
SHIPPED_RANKER = SHIPPED_DATA / RANKER_FOLDER


def find_ranker(settings: Settings) -> Path:
    from retrieval.ranking.encoder import CARD

    own = settings.data_dir / RANKER_FOLDER
    return own if (own / CARD).is_file() else SHIPPED_RANKER


def find_classifier(settings: Settings, embedder: str, ranker: str) -> "AnswerabilityClassifier":
    """Return the operator's classifier, the bundled one, or a simple rule. Raises DeskError for a damaged file."""
    from retrieval.answerability import rule_of_thumb

    for file in (settings.data_dir / SEARCH_FILE, SHIPPED_SEARCH):
        if file.is_file():
            classifier = read_classifier(file)
            if (classifier.embedder, classifier.ranker) == (embedder, ranker):
                return classifier
    log.warning(
        "search is not calibrated for embedder %s and ranker %s: run warmdesk calibrate-search", embedder, ranker
    )
    return rule_of_thumb(embedder, ranker)


def read_classifier(file: Path) -> "AnswerabilityClassifier":
    from retrieval.answerability import load_classifier

    try:
        return load_classifier(file)
    except (OSError, ValueError, TypeError, KeyError, RecursionError) as error:
        raise DeskError(
            f"{file} cannot be used ({error}): delete it or run warmdesk calibrate-search", code="bad-calibration"
        ) from error


def write_classifier(file: Path, classifier: "AnswerabilityClassifier") -> None:
    from retrieval.answerability import as_json

    file.parent.mkdir(parents=True, exist_ok=True)
    replace_file(file, as_json(classifier).encode())
