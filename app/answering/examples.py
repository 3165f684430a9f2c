"""Questions that an empty conversation offers: headings of the desk's own documents that the desk surely answers.

Headings that are questions come before titles. One is offered only if the desk is sure of its answer and finds it in
the document whose heading it is. No model is asked. Not covered: when they are looked for (`app.desk.service`).
"""

from collections.abc import Callable, Iterable, Iterator

from retrieval.text.terms import COMMON, asked_words, stem

MOST = 4
TRIED = 32
"""Headings that are tried at most; each costs a search."""
TELLING = 3
"""Words that say what a question is about, which one must have at least."""
LONGEST = 90
"""Characters of an example."""

Headings = Iterable[tuple[str, tuple[str, ...]]]


def example_questions(headings: Headings, answered_from: Callable[[str], str | None]) -> list[str]:
    """headings: document and heading path of passages. answered_from: the document that surely answers a question."""
    chosen: dict[str, str] = {}
    for tried, (document, text) in enumerate(_candidates(headings)):
        if len(chosen) == MOST or tried == TRIED:
            break
        if document not in chosen and answered_from(text) == document:
            chosen[document] = text
    return list(chosen.values())


def _candidates(headings: Headings) -> Iterator[tuple[str, str]]:
    paths = [(document, path) for document, path in headings if path]
    questions = [(document, path[-1]) for document, path in paths if _is_question(path[-1])]
    titles = [(document, path[0]) for document, path in paths]
    for document, text in dict.fromkeys([*questions, *_spread(titles)]):
        if len(text) <= LONGEST:
            yield document, text.strip()


def _is_question(heading: str) -> bool:
    """Whether a heading is a question that is understood without its page: "How long do I have?" is not."""
    if not heading.rstrip().endswith(("?", "？")):
        return False
    return len({stem(word) for word in asked_words(heading) if len(word) > 1} - COMMON) >= TELLING


def _spread(titles: list[tuple[str, str]]) -> list[tuple[str, str]]:
    """Titles from all over the documents rather than from the first folder."""
    once = list(dict.fromkeys(titles))
    step = max(1, len(once) // TRIED)
    return once[::step]
