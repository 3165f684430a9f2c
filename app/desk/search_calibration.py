"""What search judges by: the result of `warmdesk calibrate-search`.

Not covered: fitting it (`evals`), what is fitted (`retrieval.answerability.classifier`).
"""

from app.domain.errors import DeskError
from app.domain.settings import Settings
from app.domain.shipped import SHIPPED_DATA
from retrieval.answerability.classifier import AnswerabilityClassifier, load_classifier, rule_of_thumb

SEARCH_FILE = "search.json"
SHIPPED_SEARCH = SHIPPED_DATA / SEARCH_FILE
"""Fitted for the embedder that comes with the program."""


def find_classifier(settings: Settings, embedder: str) -> AnswerabilityClassifier:
    """The first classifier that is for this embedder: fitted on the operator's questions, shipped, or a rule of thumb.
    Raises DeskError for a file that cannot be read.
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
