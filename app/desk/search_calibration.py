"""What search judges by: the result of `warmdesk calibrate-search`.

Not covered: fitting it (`evals`), what is fitted (`retrieval.answerability.classifier`).
"""

import logging
from pathlib import Path

from app.domain.errors import DeskError
from app.domain.settings import Settings
from app.domain.shipped import SHIPPED_DATA
from app.storage.files import replace_file
from retrieval.answerability.classifier import AnswerabilityClassifier, as_json, load_classifier, rule_of_thumb
from retrieval.ranking.encoder import CARD

log = logging.getLogger(__name__)

SEARCH_FILE = "search.json"
SHIPPED_SEARCH = SHIPPED_DATA / SEARCH_FILE
"""Fitted for the embedder and the ranker that come with the program."""
RANKER_FOLDER = "ranker"
SHIPPED_RANKER = SHIPPED_DATA / RANKER_FOLDER


def find_ranker(settings: Settings) -> Path:
    """The folder of the ranker: trained on the operator's questions, or shipped."""
    own = settings.data_dir / RANKER_FOLDER
    return own if (own / CARD).is_file() else SHIPPED_RANKER


def find_classifier(settings: Settings, embedder: str, ranker: str) -> AnswerabilityClassifier:
    """The first classifier that is for this embedder and ranker: fitted on the operator's questions, shipped, or a
    rule of thumb. Raises DeskError for a file that cannot be read.
    """
    for file in (settings.data_dir / SEARCH_FILE, SHIPPED_SEARCH):
        if file.is_file():
            classifier = read_classifier(file)
            if (classifier.embedder, classifier.ranker) == (embedder, ranker):
                return classifier
    log.warning(
        "search is not calibrated for embedder %s and ranker %s: run warmdesk calibrate-search", embedder, ranker
    )
    return rule_of_thumb(embedder, ranker)


def read_classifier(file: Path) -> AnswerabilityClassifier:
    """The classifier in a file. Raises DeskError for one that cannot be read."""
    try:
        return load_classifier(file)
    except (OSError, ValueError, TypeError, KeyError, RecursionError) as error:
        raise DeskError(
            f"{file} cannot be used ({error}): delete it or run warmdesk calibrate-search", code="bad-calibration"
        ) from error


def write_classifier(file: Path, classifier: AnswerabilityClassifier) -> None:
    """Write the file completely or not at all. Raises OSError."""
    file.parent.mkdir(parents=True, exist_ok=True)
    replace_file(file, as_json(classifier).encode())
