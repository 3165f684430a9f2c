"""How a question ends, decided before anything is computed: answered, unsure, nothing, or small talk.

Search says how likely the documents answer; two thresholds make three outcomes of it. Greetings and the like need no
search, and a message too vague to search for gets one question back. Not covered: the words (`app.replies`), and an
answer of the model that turns out to be a refusal (`check`).
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import partial

from app.answering.compose import composed
from app.answering.curated import CuratedAnswer, CuratedAnswers
from app.domain.answers import Outcome
from app.domain.settings import Settings
from app.knowledge.finder import (
    NOTHING,
    Finder,
    FoundPassage,
    RankedStatement,
    SearchResults,
    may_stand_alone,
)
from app.replies.answers import human_text, nothing_text, vague_text
from app.replies.contacts import contact_links
from app.replies.languages import texts_in
from app.replies.smalltalk import heard
from app.storage.history import PastMessage
from retrieval.text.language import language_of
from retrieval.text.sentences import as_said
from retrieval.text.terms import COMMON, asked_words, stem

TOPICS = 3
"""How many topics a question back names."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Decision:
    """results: what was searched, as far as the answer may use it. says: the desk's own words: the whole answer, or if
    `asks_model` the line before what the documents say (empty where the desk is sure). nothing: what to say if the
    model finds no answer after all. faq: the number of the pair that answers by itself.
    """

    outcome: Outcome
    results: SearchResults
    says: str = ""
    asks_model: bool = False
    nothing: str = ""
    faq: int | None = None

    @property
    def statements(self) -> list[RankedStatement]:
        """What is shown of the documents, best first."""
        texts = {one.passage.id: one.passage.text for one in self.results.passages}
        return composed(self.results.statements, texts, sure=self.outcome != "unsure")


class Decider:
    """Decides by the settings, and where they leave it open, by what was fitted for the embedder."""

    def __init__(self, settings: Settings, finder: Finder, curated: CuratedAnswers | None = None) -> None:
        """curated: the FAQ; None for what is measured without it."""
        self._settings, self._finder, self._curated = settings, finder, curated

    def decide(self, question: str, past: Sequence[PastMessage], collections: Sequence[str] = ()) -> Decision:
        """Search where it is needed, and decide. A follow-up is also searched together with the question before it."""
        with self._finder.one_question():
            return self._decided(question, past, collections)

    def _decided(self, question: str, past: Sequence[PastMessage], collections: Sequence[str]) -> Decision:
        earlier = earlier_question(past)
        language = language_of(question, "en" if earlier is None else language_of(earlier))
        stands_alone = earlier is None or may_stand_alone(question)
        if self._curated is not None and stands_alone and (found := self._curated.answer(question, collections)):
            return _from_faq(found)
        find = partial(self._finder.find, count=self._settings.passages, collections=collections)
        said = heard(question, language)
        if said is not None and said.kind != "vague":
            says = texts_in(said.language).says
            if said.kind != "human":
                return Decision(outcome="smalltalk", results=NOTHING, says=says[said.kind])
            if contact_links(self._settings):
                return Decision(outcome="smalltalk", results=NOTHING, says=human_text(self._settings, said.language))
            return self._contact_page(find(says["contact_question"]), said.language)
        results = find(question, earlier=earlier)
        if said is not None and earlier is None and results.passages:
            return _question_back(results, said.language)
        nothing = nothing_text(self._settings, language)
        if not results.passages or results.relevance < self.refuse_below:
            return Decision(outcome="nothing", results=results, says=nothing)
        if results.relevance >= self.answer_above:
            return Decision(outcome="answered", results=results, asks_model=True, nothing=nothing)
        if not results.statements or (earlier is None and is_topic(question)):
            return _question_back(results, language)
        lead = texts_in(language).says["unsure"]
        return Decision(outcome="unsure", results=results, says=lead, asks_model=True, nothing=nothing)

    @property
    def refuse_below(self) -> float:
        """Chance that the documents answer, below which the desk says that they do not."""
        own = self._settings.refuse_below
        return self._finder.classifier.threshold if own is None else own

    @property
    def answer_above(self) -> float:
        """Chance from which on it is sure."""
        own = self._settings.answer_above
        return self._finder.classifier.certain if own is None else own

    def _contact_page(self, results: SearchResults, language: str) -> Decision:
        """What the documents say about reaching a person, if they surely do."""
        if not results.statements or results.relevance < self.answer_above:
            return Decision(outcome="smalltalk", results=NOTHING, says=human_text(self._settings, language))
        best = results.statements[0].text
        holding = [one for one in results.passages if best in one.passage.text] or results.passages
        says = human_text(self._settings, language, as_said(best))
        return Decision(outcome="smalltalk", results=replace(results, passages=tuple(holding[:1])), says=says)


def earlier_question(past: Sequence[PastMessage]) -> str | None:
    """The last question that was not small talk."""
    small_talk = False
    for message in reversed(past):
        if message.role == "assistant":
            small_talk = message.outcome == "smalltalk"
        elif not small_talk:
            return message.text
    return None


def is_topic(question: str) -> bool:
    """Whether a question names one thing ("delivery") and asks nothing about it; a code or a model asks enough."""
    terms = {stem(word) for word in asked_words(question)} - COMMON
    return len(terms) == 1 and not any(map(str.isdigit, question))


def _from_faq(curated: CuratedAnswer) -> Decision:
    found = tuple(
        FoundPassage(passage=one, score=curated.nearest.likeness, cosine=curated.nearest.likeness)
        for one in curated.passages
    )
    results = replace(NOTHING, passages=found, found=found, relevance=1.0)
    return Decision(outcome="answered", results=results, says=curated.pair.answer, faq=curated.pair.id)


def _question_back(results: SearchResults, language: str) -> Decision:
    topics = topics_of(results.passages)
    shown = replace(results, passages=tuple(topics.values()))
    return Decision(outcome="unsure", results=shown, says=vague_text(list(topics), language))


def topics_of(found: Sequence[FoundPassage]) -> dict[str, FoundPassage]:
    """What passages are about, the nearest first: the titles of their documents, or within one its headings."""
    by_title = {one.passage.title or one.passage.document: one for one in reversed(found)}
    if len(by_title) == 1:
        by_title = {(one.passage.heading_path or (one.passage.title,))[-1]: one for one in reversed(found)}
    return dict(list(reversed(by_title.items()))[:TOPICS])
