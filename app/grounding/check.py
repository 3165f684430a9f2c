"""Whether each sentence of an answer is what the passages say: its words, numbers, units, dates, names, negations.

A language model may mix up what it was given. Here every sentence is held against the sentences, list items and table
rows of the passages by rules that can be read; where it says something else, the passage's own sentence is shown.
Not covered: what follows from several passages by calculation or common sense, paraphrase with other words throughout,
and other words than numbers, names and negations that were exchanged ("before" for "after").
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

from app.grounding.claims import ECHO, Claim, claim
from app.grounding.clauses import ROW
from app.grounding.denial_check import clause_problem, yes_no_problem
from app.grounding.evidence import MARKER, Evidence, Unit, plain
from app.grounding.fact_check import fact_problem
from app.grounding.statements import facts
from app.grounding.words import all_words, content_words
from retrieval.text.sentences import sentences

ENOUGH_WORDS = 0.45
"""Share of a sentence's words that the passages must hold."""
QUOTABLE, SAME_KIND = 0.4, 0.1
"""Share of the words of sentence and question that a quotation must hold; what a fact of the kind in question adds."""
FIGURES = frozenset({"number", "time", "date"})
"""What is wrong most often, by kind of fact."""
LONGEST = 600
"""Characters of a sentence that is checked as one."""
COURTESY = content_words(
    "happy glad pleased welcome hello hi dear thanks thank sorry apologise apologize help assist assistance support "
    "question questions contact us let know feel free further else anything hope great sure course best regards day "
    "nice moment hesitate reach inconvenience understand certainly absolutely information following follows summary "
    "unfortunately customer service team look"
)
BARE_WORDS = frozenset(
    all_words(
        "yes no of course sure great certainly absolutely unfortunately sorry i you we they it that this there so not "
        "can cannot ca could may must do does is are will wo would should have has to need be also always never"
    )
)
"""Words that alone say no more than yes or no."""
VERDICT = re.compile(r"\b(?:possible|available|allowed|permitted)\b", re.IGNORECASE)
ALONE = re.compile(rf"\W*(?:yes|no|yep|nope)\b(?:{ECHO}\b)?\W*", re.IGNORECASE)
BARE = "a bare yes or no cannot be checked"
NOT_THERE = "the passages do not say this"


@dataclass(frozen=True, slots=True, kw_only=True)
class CheckedSentence:
    """A sentence of an answer. score: 0 to 1, the share of its words that the passages hold, at most 0.5 if there is a
    problem. problem: one short reason, or None. support: the best sentence of the passages, which stands in `passage`.
    """

    text: str
    score: float
    problem: str | None
    support: str | None
    passage: int | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Grounding:
    """An answer's sentences, checked."""

    sentences: tuple[CheckedSentence, ...]

    @property
    def score(self) -> float:
        """That of the weakest sentence: one wrong statement spoils an answer. 0 for an empty answer."""
        return min((sentence.score for sentence in self.sentences), default=0.0)

    @property
    def is_supported(self) -> bool:
        """Whether there is something and nothing in it lacks support."""
        return bool(self.sentences) and all(sentence.problem is None for sentence in self.sentences)


def check(answer: str, passages: Sequence[str]) -> Grounding:
    """Hold every sentence of an answer against the passages it was made from, each below its heading path."""
    evidence = Evidence(passages)
    found: list[CheckedSentence] = []
    before: frozenset[str] = frozenset()
    for text in statements_of(answer):
        found.append(checked(text, evidence, before))
        before = content_words(text)
    return Grounding(sentences=tuple(found))


def statements_of(answer: str) -> Iterator[str]:
    """Sentences of an answer; "Yes." stays with the sentence it belongs to, and endless ones are cut."""
    before = ""
    for text in sentences(answer):
        if ALONE.fullmatch(text) and not before:
            before = text + " "
            continue
        whole, before = before + text, ""
        while len(whole) > LONGEST:
            end = whole.rfind(" ", LONGEST // 2, LONGEST) + 1 or LONGEST
            yield whole[:end].rstrip()
            whole = whole[end:]
        yield whole
    if before:
        yield before.strip()


def checked(text: str, evidence: Evidence, before: frozenset[str]) -> CheckedSentence:
    """One sentence held against the passages."""
    if (i := evidence.texts.get(plain(text))) is not None:
        unit = evidence.units[i]
        return CheckedSentence(text=text, score=1.0, problem=None, support=unit.text, passage=evidence.passage_of[i])
    if ALONE.fullmatch(text):
        return CheckedSentence(text=text, score=0.0, problem=BARE, support=None, passage=None)
    said = claim(text, evidence, before)
    if is_courtesy(said):
        return CheckedSentence(text=text, score=1.0, problem=None, support=None, passage=None)
    different = {(fact.key, fact.beside): fact for fact in said.facts}.values()
    wrong_fact = next((p for fact in different if (p := fact_problem(fact, said, evidence))), None)
    found = evidence.best(said.words, said.weights)
    if not found:
        return CheckedSentence(text=text, score=0.0, problem=wrong_fact or NOT_THERE, support=None, passage=None)
    best = evidence.units[found[0]]
    share = shared(said, evidence, found)
    problem = (
        wrong_fact
        or (NOT_THERE if share < ENOUGH_WORDS else None)
        or next((p for part in said.clauses if (p := clause_problem(part, said, evidence))), None)
        or yes_no_problem(said, best)
    )
    score = min(share, 0.5) if problem else share
    return CheckedSentence(
        text=text, score=score, problem=problem, support=best.text, passage=evidence.passage_of[found[0]]
    )


def is_courtesy(said: Claim) -> bool:
    """Whether a sentence is politeness alone and leaves open what is so, possible or free."""
    says_free = any(part.says_free for part in said.clauses)
    if not said.words <= COURTESY or says_free or VERDICT.search(said.body):
        return False
    is_bare = BARE_WORDS.issuperset(all_words(said.body)) and not said.body.rstrip().endswith((":", "?"))
    return not is_bare or not (said.yes_no or any(part.denies or part.has_verb for part in said.clauses))


def shared(said: Claim, evidence: Evidence, found: Sequence[int]) -> float:
    """Share of a sentence's words that one place in the passages holds, or each clause's words one place of its own."""
    whole = max(evidence.units[i].held(said.words, said.weights) for i in found)
    weight = by_clause = 0.0
    for part in said.clauses:
        own = sum(said.weights[word] for word in part.words)
        places = evidence.best(part.words, said.weights, 3)
        weight += own
        by_clause += own * max((evidence.units[i].held(part.words, said.weights) for i in places), default=0.0)
    return max(whole, by_clause / weight if weight else 0.0)


def repaired(grounding: Grounding, question: str, passages: Sequence[str], refusal: str) -> tuple[str, bool]:
    """The text to show for a checked answer, and whether it holds quotations.

    Supported sentences stay. Another one is replaced by the sentence of the passages that shares most with it and the
    question, or dropped if none shares enough. Where nothing but courtesy is left, it is the refusal.
    """
    evidence = Evidence(passages)
    kept = {plain(s.support) for s in grounding.sentences if s.problem is None and s.support}
    shown: dict[str, str] = {}
    has_quotation = has_content = False
    for sentence in grounding.sentences:
        text = sentence.text
        if sentence.problem is not None:
            unit = quotation(sentence.text, question, evidence)
            if unit is None or plain(unit.text) in kept:
                continue
            text = quoted(unit)
            has_quotation = has_quotation or plain(text) not in shown
        has_content = has_content or sentence.problem is not None or sentence.support is not None
        shown.setdefault(plain(text), text)
    if not has_content:
        return refusal, False
    return joined(shown.values()), has_quotation


def quotation(sentence: str, question: str, evidence: Evidence) -> Unit | None:
    """The unit of the passages that shares most words with a sentence and the question; None if not enough."""
    said = claim(f"{sentence}\n{question}", evidence)
    asked = {fact.measures for fact in said.facts if fact.is_bound and fact.kind not in ("name", "code")}
    # what may be wrong must not choose its own correction
    told = {fact.key for fact in facts(sentence) if fact.kind in FIGURES} - {fact.key for fact in facts(question)}
    words = said.words - told
    shares = []
    for i in evidence.best(words, said.weights):
        unit = evidence.units[i]
        has_kind = any(fact.measures in asked for fact in unit.facts)
        if not unit.is_heading and not unit.text.rstrip().endswith(("?", ":")):
            shares.append((unit.held(words, said.weights) + SAME_KIND * has_kind, i))
    share, best = max(shares, default=(0.0, 0), key=lambda found: found[0])
    return evidence.units[best] if share >= QUOTABLE else None


def quoted(unit: Unit) -> str:
    """The text of a unit without its list marker; with the line above it if that turns round what it says."""
    text = MARKER.sub("", unit.text, count=1)
    return f"{unit.lead.rstrip(' :')}: {text}" if unit.lead else text


def joined(texts: Iterable[str]) -> str:
    """Sentences as one text; table rows stand on lines of their own."""
    lines: list[str] = []
    for text in texts:
        if lines and not ROW.match(text) and not ROW.match(lines[-1]):
            lines[-1] += " " + text
        else:
            lines.append(text)
    return "\n".join(lines)
