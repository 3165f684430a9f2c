"""What a customer may ask next: headings of the pages that were found for the last question. No model is asked."""

import re

from app.domain.answers import Answer

MOST = 3
_NUMBER = re.compile(r"\s*\(\d+\)$")
_WORD = re.compile(r"\w+")


def suggestions(question: str, answer: Answer) -> list[str]:
    """Up to MOST topics, those of pages first that the answer says nothing of; none that the question names already."""
    topics: list[str] = []
    for citation in sorted(answer.citations, key=lambda one: not one.see_also):
        heading = _NUMBER.sub("", citation.passage).rpartition(" > ")[2].strip()
        for topic in (heading, citation.title):
            if topic and not any(_names(known, topic) for known in (question, *topics)):
                topics.append(topic)
                break
    return topics[:MOST]


def _names(text: str, topic: str) -> bool:
    """Whether a text holds every word of a topic."""
    return {word.lower() for word in _WORD.findall(topic)} <= {word.lower() for word in _WORD.findall(text)}
