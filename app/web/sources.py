"""The sources of an answer as the chat shows them: numbered, each paragraph with the numbers of what it rests on, each
passage with the words that the answer says marked.

Not covered: which passages are cited (`app.answering.cite`).
"""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import PurePath

from markupsafe import Markup, escape

from app.domain.answers import BETWEEN, Answer, Citation, Mark
from app.domain.settings import FAQ_FILE
from app.web.markup import answer_html, at_its_end, without_controls


@dataclass(frozen=True, slots=True)
class Source:
    """A citation with its number, from 1."""

    number: int
    citation: Citation

    @property
    def has_file(self) -> bool:
        """Whether customers may have its file: that of the desk's own FAQ has everything else in it, too."""
        return PurePath(self.citation.document).name != FAQ_FILE

    @property
    def quote(self) -> Markup:
        """The passage, with what the answer says in <mark>."""
        text = without_controls(self.citation.quote)
        if len(text) != len(self.citation.quote):
            return escape(text)  # the places of the marks are not known any more
        html, at = Markup(), 0
        for start, end in _joined(self.citation.marks, len(text)):
            html += escape(text[at:start]) + Markup("<mark>%s</mark>") % text[start:end]
            at = end
        return html + escape(text[at:])


def _joined(marks: Sequence[Mark], length: int) -> list[tuple[int, int]]:
    """Places in order; those that overlap or meet are one."""
    joined: list[tuple[int, int]] = []
    for start, end in sorted((mark.start, min(mark.end, length)) for mark in marks):
        if joined and start <= joined[-1][1]:
            joined[-1] = joined[-1][0], max(joined[-1][1], end)
        elif start < end:
            joined.append((start, end))
    return joined


def sources_of(answer: Answer) -> list[Source]:
    """What the answer rests on, then what is only near, numbered from 1."""
    ordered = sorted(answer.citations, key=lambda one: one.see_also)
    return [Source(number, one) for number, one in enumerate(ordered, start=1)]


def statements_html(answer: Answer, label: str) -> Markup:
    """The answer's text; behind each paragraph from the documents buttons with its sources' numbers. label: what a
    button is called, with %(number)s.
    """
    numbers: dict[int, list[int]] = {}
    for source in sources_of(answer):
        for said in sorted({mark.paragraph for mark in source.citation.marks}):
            numbers.setdefault(said, []).append(source.number)
    paragraphs = answer.answer.split(BETWEEN)
    lead = len(paragraphs) - len(answer.statements) if answer.statements else len(paragraphs)
    html = Markup()
    for place, paragraph in enumerate(paragraphs):
        buttons = Markup().join(
            Markup(
                '<button type="button" class="wd-ref" data-act="source" data-source="%s" aria-label="%s">%s</button>'
            )
            % (number, label % {"number": number}, number)
            for number in numbers.get(place - lead, ())
        )
        html += at_its_end(answer_html(paragraph), buttons)
    return html
