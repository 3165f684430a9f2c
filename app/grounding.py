"""Whether each sentence of an answer is what the passages say: its words, numbers, units, dates, names, negations.

A language model may mix up what it was given. Here every sentence is held against the sentences, list items and table
rows of the passages by rules that can be read; where it says something else, the passage's own sentence is shown.
Not covered: statements that follow from several passages by calculation, paraphrases with other words throughout,
words that were exchanged for others when they are neither numbers nor names ("before" for "after").
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass

from app.clauses import ROW, Clause, clauses
from app.evidence import MARKER, Evidence, Unit, plain
from app.statements import CURRENCIES, Fact, facts
from app.words import content_words, stem
from retrieval.sentences import sentences

ENOUGH_WORDS = 0.45
"""Share of a sentence's words that the passages must hold."""
ELSEWHERE = 0.1
"""How much better the words of a fact may fit another fact of its kind than the one stated."""
SAME_UNIT = 0.03
BESIDE = 0.4
FAR, BEFORE = 0.5, 0.25
NAME_ELSEWHERE = 0.3
SAME_BUT_FACT = 0.85
SAME_BUT_NAME = 0.85
MENTIONED = 0.1
"""Share of the words around a fact that its place in the passages must hold."""
SAME_CLAUSE = 0.05
ALIKE = 0.6
"""Share of a clause's words from which on a clause of a passage says the same or the opposite."""
REWORDED = 0.8
"""Share from which on a sentence is a rewording of one unit and compared with that only."""
QUOTABLE = 0.3
LONGEST = 600
"""Characters of a sentence that is checked as one."""
COURTESY = content_words(
    "happy glad pleased welcome hello hi dear thanks thank sorry apologise apologize help assist assistance support "
    "question questions contact us let know feel free further else anything hope great sure course best regards day nice "
    "moment hesitate reach inconvenience understand certainly absolutely information following follows summary "
    "unfortunately customer service team look"
)
OPENING = re.compile(r"(?:please\s)?(?:note|be aware|keep in mind|remember)\s(?:also\s)?that\s", re.IGNORECASE)
YES_NO = re.compile(
    r"\s*(?P<word>yes|no|yep|nope|correct|certainly|absolutely)\s*(?P<stop>[,.!:;–—-]|$)\s*", re.IGNORECASE
)
ALONE = re.compile(r"\s*(?:yes|no|yep|nope|correct|certainly|absolutely)\s*[,.!]?\s*", re.IGNORECASE)
BURDEN = re.compile(
    r"\b(?:needs?|needed|require[sd]?|have to|must|costs?|charge[sd]?|fees?|pay|free|reason|wait|limit|minimum|appointment|"
    r"only|instead|except|unless|until)\b",
    re.IGNORECASE,
)
"""Words with which a clause may follow on yes or no alike, with or without "not"."""


NOT_THERE = "the passages do not say this"
FREE = stem("free")
KIND_NAMES = {"code": "name", "weekday": "day"}


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
    """Hold every sentence of an answer against the passages it was made from, each with its heading path as first line."""
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


@dataclass(frozen=True, slots=True, kw_only=True)
class _Statement:
    """A sentence to check, taken apart. body: without list marker and leading yes or no."""

    body: str
    yes_no: str
    facts: tuple[Fact, ...]
    clauses: tuple[Clause, ...]
    words: frozenset[str]
    before: frozenset[str]
    weights: dict[str, float]


def statement(text: str, evidence: Evidence, before: frozenset[str] = frozenset()) -> _Statement:
    """Take a sentence apart. before: words of the sentence before, which "it" or "the link" may speak of."""
    body = MARKER.sub("", text, count=1)
    lead = YES_NO.match(body)
    body = OPENING.sub("", body[lead.end() :] if lead else body, count=1)
    found = tuple(facts(body))
    parts = tuple(clauses(body, [fact for fact in found if fact.is_bound or fact.kind == "name"]))
    words = frozenset(word for part in parts for word in part.words)
    return _Statement(
        body=body,
        yes_no="" if not lead else "no" if lead["word"].lower().startswith("no") else "yes",
        facts=found,
        clauses=parts,
        words=words,
        before=before - words,
        weights=evidence.weights(words | before),
    )


def checked(text: str, evidence: Evidence, before: frozenset[str]) -> CheckedSentence:
    """One sentence held against the passages."""
    if (i := evidence.texts.get(plain(text))) is not None:
        unit = evidence.units[i]
        return CheckedSentence(text=text, score=1.0, problem=None, support=unit.text, passage=unit.passage)
    said = statement(text, evidence, before)
    if said.words <= COURTESY:
        return CheckedSentence(text=text, score=1.0, problem=None, support=None, passage=None)
    found = evidence.best(said.words, said.weights)
    if not found:
        return CheckedSentence(text=text, score=0.0, problem=NOT_THERE, support=None, passage=None)
    best = evidence.units[found[0]]
    share = shared(said, evidence, found)
    problem = (
        next((p for fact in said.facts if (p := fact_problem(fact, said, evidence))), None)
        or (NOT_THERE if share < ENOUGH_WORDS else None)
        or next((p for part in said.clauses if (p := clause_problem(part, said, evidence))), None)
        or yes_no_problem(said, best)
    )
    score = min(share, 0.5) if problem else share
    return CheckedSentence(text=text, score=score, problem=problem, support=best.text, passage=best.passage)


def shared(said: _Statement, evidence: Evidence, found: Sequence[int]) -> float:
    """Share of a sentence's words that one place in the passages holds, or each clause's words one place of its own."""
    whole = max(held(evidence.units[i], said.words, said.weights) for i in found)
    weight = by_clause = 0.0
    for part in said.clauses:
        own = sum(said.weights[word] for word in part.words)
        places = evidence.best(part.words, said.weights, 3)
        weight += own
        by_clause += own * max((held(evidence.units[i], part.words, said.weights) for i in places), default=0.0)
    return max(whole, by_clause / weight if weight else 0.0)


def held(unit: Unit, words: Collection[str], weights: dict[str, float]) -> float:
    """Share of words that a unit or what stands around it holds."""
    total = sum(weights[word] for word in words)
    return sum(weights[word] for word in words if word in unit.words or word in unit.around) / total if total else 0.0


def fact_problem(fact: Fact, said: _Statement, evidence: Evidence) -> str | None:
    """What is wrong with a fact of a sentence: it is nowhere, or it belongs to something else."""
    kind = KIND_NAMES.get(fact.kind, fact.kind)
    if fact.kind in ("name", "code"):
        return name_problem(fact, kind, said, evidence)
    if not fact.is_bound:
        return None
    places = evidence.stating(fact)
    if not places:
        return f'the {kind} "{fact.text}" is not in the passages'
    if rival := in_its_place(fact, said, evidence):
        return f'the passages say "{rival.text}" there, not "{fact.text}"'
    near, far = surroundings(fact, said)
    around = {**dict.fromkeys(said.before, BEFORE), **dict.fromkeys(far, FAR), **dict.fromkeys(near, 1.0)}
    weights = {word: share * said.weights[word] for word, share in around.items()}
    total = sum(weights.values())
    stated = [(fit(evidence.units[i], other, weights), i, other) for i, other in places]
    here = max(value for value, *_ in stated)
    for i, rival in evidence.rivals(fact):
        same_unit = [other for value, j, other in stated if j == i and value >= here - SAME_CLAUSE * total]
        there = fit(evidence.units[i], rival, weights)
        is_said = rival.key in near
        if not is_said and there - here > (SAME_UNIT if same_unit else ELSEWHERE) * total:
            return f'the passages say "{rival.text}" there, not "{fact.text}"'
        own = [other for _, _, other in stated]
        if is_said:
            is_wrong = any(goes_with(o, own[0], [rival], evidence) for o in said.facts if o.key == rival.key)
        else:
            is_wrong = bool(same_unit) or there >= here
        if is_wrong and goes_with(fact, rival, own, evidence):
            return f'the passages say "{rival.text}" there, not "{fact.text}"'
    if len(near) > 1 and here < MENTIONED * total:
        return f'the {kind} "{fact.text}" stands for something else in the passages'
    return None


def in_its_place(fact: Fact, said: _Statement, evidence: Evidence) -> Fact | None:
    """The fact of the same kind that stands in a unit of which the sentence is a rewording, if the given one does not."""
    words = frozenset(word for word in said.words if not word.startswith("#"))
    units = [evidence.units[i] for i in evidence.best(said.words, said.weights, 3)]
    same = [unit for unit in units if len(words) > 2 and own_share(unit, words, said.weights) >= SAME_BUT_FACT]
    if any(unit.mentions(fact.key) for unit in same):
        return None
    said_keys = [other.key for other in said.facts]
    for unit in same:
        keys = [other.key for other in unit.facts]
        for other in unit.facts:
            is_rival = other.is_bound and (other.kind, other.unit) == (fact.kind, fact.unit)
            if is_rival and keys.count(other.key) > said_keys.count(other.key):
                return other
    return None


def surroundings(fact: Fact, said: _Statement) -> tuple[frozenset[str], frozenset[str]]:
    """Words of the fact's clause, and of the clauses that belong to it because they have no fact of its kind."""
    rivals = {other.key for other in said.facts if (other.kind, other.unit) == (fact.kind, fact.unit)}
    home = next((i for i, part in enumerate(said.clauses) if fact.key in part.words), None)
    if home is None:
        return frozenset(), frozenset(said.words)
    others = [i for i, part in enumerate(said.clauses) if i != home and not rivals.isdisjoint(part.words)]
    first = max((i + 1 for i in others if i < home), default=0)
    last = min((i for i in others if i > home), default=len(said.clauses))
    # what stands between two of them belongs to the earlier
    first = home if first else 0
    near = said.clauses[home].words - {fact.key}
    return near, frozenset(word for part in said.clauses[first:last] for word in part.words) - near - {fact.key}


def goes_with(fact: Fact, rival: Fact, stated: Sequence[Fact], evidence: Evidence) -> bool:
    """Whether the words beside a fact of the sentence stand beside a rival in the passage, and not beside the fact."""
    weights = evidence.weights(fact.beside)
    here = max(sum(weights[word] for word in fact.beside & other.beside) for other in stated)
    there = sum(weights[word] for word in fact.beside & rival.beside)
    return there - here > BESIDE * sum(weights.values())


def fit(unit: Unit, fact: Fact, weights: dict[str, float]) -> float:
    """How well the words around a fact fit the place where a unit states it."""
    homes = [part for part in unit.clauses if fact.key in part.words] or list(unit.clauses)
    return max((unit.cover(weights, weights, part) for part in homes), default=0.0)


def name_problem(fact: Fact, kind: str, said: _Statement, evidence: Evidence) -> str | None:
    """What is wrong with a name or a model number: as for other facts, but a heading may say it for all below."""
    name = fact.value if fact.kind == "name" else fact.key
    words = said.words - {name}
    total = sum(said.weights[word] for word in words)
    found = evidence.best(words, said.weights)
    if name not in evidence.known:
        stands_for = found and not fact.is_bound and took_a_name(evidence.units[found[0]], words, said, evidence)
        return f'the {kind} "{fact.text}" is not in the passages' if fact.is_bound or stands_for else None
    if not fact.is_bound and fact.text not in evidence.proper:
        return None
    covers_of = {i: evidence.units[i].cover(words, said.weights) for i in {*found, *evidence.with_word.get(name, ())}}
    there = max((covers_of[i] for i in found), default=0.0)
    own = max((value for i, value in covers_of.items() if evidence.units[i].states(name)), default=0.0)
    here = max((value for i, value in covers_of.items() if evidence.units[i].mentions(name)), default=0.0)
    is_taken = there - own > ELSEWHERE * total and took_a_name(evidence.units[found[0]], words, said, evidence)
    if is_taken or there - here > NAME_ELSEWHERE * total:
        return f'the {kind} "{fact.text}" stands for something else in the passages'
    return None


def took_a_name(unit: Unit, words: frozenset[str], said: _Statement, evidence: Evidence) -> bool:
    """Whether a unit says the same as the sentence with another name in place of the one given."""
    names = {f.value for f in unit.facts if f.kind == "name" and f.value in evidence.names}
    names |= {f.key for f in unit.facts if f.kind == "code"}
    return not names <= said.words and own_share(unit, words, said.weights) > SAME_BUT_NAME


def clause_problem(part: Clause, said: _Statement, evidence: Evidence) -> str | None:
    """What a clause denies, restricts or calls free otherwise than the passages."""
    near = alike(part, said, evidence)
    if not near:
        return None
    parts = [other for _, other in near]
    around = [other for unit, _ in near for other in unit.clauses]
    if part.denies is not None and all(opposes(o, part) for o in parts):
        if part.denies and not any(o.is_exception and o.words & part.words for o in around):
            return "the passages do not deny this"
        if not part.denies and (part.has_verb or not all(o.inherits for o in parts)):
            return "the passages deny this"
    if not part.denies and any(o.is_exception and has_half(part, only_in(o, unit)) for unit, _ in near for o in unit.clauses):
        return "the passages deny this"
    if part.says_only and not any(o.limits or o.denies for o in around):
        return 'the passages do not say "only"'
    is_rewording = all(own_share(unit, said.words, said.weights) >= REWORDED for unit, _ in near)
    is_limited = any(p.limits or p.denies for p in said.clauses)
    if is_rewording and not is_limited and all(o.says_only and covers(part, o) for o in parts):
        return 'the passages say "only"'
    if part.says_free and not any(o.says_free or FREE in unit.around for unit, _ in near for o in unit.clauses):
        return 'the passages do not say "free"'
    says_free = all(o.says_free for o in parts) and not any(o.says_not_free for o in around)
    has_cost = has_price(part) or any(o.says_paid or has_price(o) for o in around)
    if says_free and (part.says_not_free or (part.says_paid and not part.says_free and not has_cost)):
        return 'the passages say "free"'
    return None


def has_half(part: Clause, words: frozenset[str]) -> bool:
    """Whether a clause holds half of some words."""
    return bool(words) and 2 * len(words & part.words) >= len(words)


def only_in(part: Clause, unit: Unit) -> frozenset[str]:
    """Words of a unit that stand in one of its clauses alone."""
    return part.words - {word for other in unit.clauses if other is not part for word in other.words}


def has_price(part: Clause) -> bool:
    """Whether a clause names an amount of money."""
    return any(word.endswith(currency) for word in part.words for currency in CURRENCIES if word.startswith("#number"))


def opposes(other: Clause, part: Clause) -> bool:
    """Whether a clause of the passages denies what the sentence affirms, or the other way round. Where the introduction
    of a list may or may not deny its items, a denial has to speak of it.
    """
    if other.denies is None:
        return bool(part.denies and other.inherits and other.inherits.isdisjoint(part.words))
    # "until it is packed" may stand for "as long as it is not packed"
    return other.denies != part.denies and part.is_until == other.is_until


def alike(part: Clause, said: _Statement, evidence: Evidence) -> list[tuple[Unit, Clause]]:
    """Clauses of the passages that are about the same as a clause, each with its unit; none if none is near enough."""
    total = sum(said.weights[word] for word in part.words)
    rest = said.words - part.words
    whole = evidence.best(said.words, said.weights)
    same = [i for i in whole if own_share(evidence.units[i], said.words, said.weights) >= REWORDED]
    if not same and len(part.words) < 2:
        return []
    places = set(same) if same else {*evidence.best(part.words, said.weights), *whole}
    fits = [
        (evidence.units[i].cover(part.words, said.weights, other), evidence.units[i], other)
        for i in places
        for other in evidence.units[i].clauses
    ]
    top = max((own for own, *_ in fits), default=0.0)
    if not total or top < ALIKE * total:
        return []
    likely = [
        (unit.cover(rest, said.weights), unit, other) for own, unit, other in fits if own >= top - SAME_CLAUSE * total
    ]
    most = max(more for more, *_ in likely)
    margin = SAME_CLAUSE * sum(said.weights[word] for word in rest)
    near = [(unit, other) for more, unit, other in likely if more >= most - margin]
    return [(unit, other) for unit, _ in near for other in verdicts(unit, part)] or near


def own_share(unit: Unit, words: Collection[str], weights: dict[str, float]) -> float:
    """Share of words that stand in a unit itself."""
    total = sum(weights[word] for word in words)
    return sum(weights[word] for word in words if word in unit.words) / total if total else 0.0


def verdicts(unit: Unit, part: Clause) -> list[Clause]:
    """The cells of a table row that answer yes or no to what a clause speaks of."""
    found = []
    for cell in unit.clauses:
        if cell.is_verdict and not part.words.isdisjoint(only_in(cell, unit)):
            found.append(cell)
    return found


def covers(part: Clause, other: Clause) -> bool:
    """Whether a clause repeats most of another one's words."""
    return len(part.words & other.words) >= 0.75 * len(other.words)


def yes_no_problem(said: _Statement, best: Unit) -> str | None:
    """Whether a leading "yes" or "no" goes with what follows and with the passage."""
    if not said.yes_no or not said.clauses or BURDEN.search(said.body):
        return None
    if said.yes_no == "yes" and all(part.denies for part in said.clauses):
        return 'the passages deny what "yes" confirms'
    affirms = not any(part.denies or part.says_free or part.says_only for part in (*said.clauses, *best.clauses))
    if said.yes_no == "no" and affirms and "no" not in best.around:
        return 'the passages confirm what "no" denies'
    return None


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
        text: str | None = sentence.text
        if sentence.problem is not None:
            text = quotation(sentence.text, question, evidence)
            if text is None or plain(text) in kept:
                continue
            has_quotation = has_quotation or plain(text) not in shown
        has_content = has_content or sentence.problem is not None or sentence.support is not None
        if text is not None:
            shown.setdefault(plain(text), text)
    if not has_content:
        return refusal, False
    return joined(shown.values()), has_quotation


def quotation(sentence: str, question: str, evidence: Evidence) -> str | None:
    """The sentence of the passages that shares most words with a sentence and the question; None if not enough."""
    said = statement(f"{sentence}\n{question}", evidence)
    for i in evidence.best(said.words, said.weights):
        unit = evidence.units[i]
        if unit.is_heading or unit.text.rstrip().endswith(("?", ":")):
            continue
        return MARKER.sub("", unit.text, count=1) if held(unit, said.words, said.weights) >= QUOTABLE else None
    return None


def joined(texts: Collection[str]) -> str:
    """Sentences as one text; list items and table rows begin a line."""
    found = ""
    for text in texts:
        is_line = MARKER.match(text) or ROW.match(text)
        found += ("\n" if is_line else " ") + text if found else text
    return found
