"""What an adapter is trained on: question-answer pairs about documents, or the desk's own passages without labels.

Answers are taught as the sentence of the document that holds them, so that the model learns to stay close to its words;
questions whose document is not among the passages, and those marked as unanswerable, are taught as the desk's refusal.
Prompts read exactly as the desk's (`app.knowledge.prompts`). A lesson depends on seed and step alone, so training can
go on after an interruption.
"""

from __future__ import annotations

import gzip
import hashlib
import json
import random
import re
import zlib
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from app.domain.errors import DeskError
from app.knowledge.prompts import PassageText, PromptBuilder, passage_text, question_text
from app.storage.library import Library
from cache.memory.keys import digest
from cache.prompt.model_tokenizer import ModelTokenizer
from cache.prompt.parts import Text
from cache.prompt.tokenizer import run_tokens
from cache.training.examples import Branch, Lesson
from retrieval.text.sentences import sentences

WORD = re.compile(r"\w+")
LONGEST_PASSAGE = 300
LONGEST_ANSWER = 80
OWN_SENTENCES = 10
"""Of a passage without labels: sentences that are asked for."""
LONGEST_BEGINNING = 24
"""Of a sentence that stands for an answer: tokens."""
GAP_SHARE, LONGEST_GAP = 0.2, 64
HELD_OUT_SHARE = 0.03
HELD_OUT_DOCUMENTS = 8
"""At least, if that is no more than a third of all."""


Pair = tuple[tuple[int, ...], tuple[int, ...] | None]
"""Tokens of a question, and of its answer without the end, None for what its document does not answer."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Material:
    """A document as tokens. source: the data set. topic: its documents are hard to tell apart."""

    source: str
    topic: str
    module: tuple[int, ...]
    pairs: tuple[Pair, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Mixture:
    """What a lesson is made of. passages: numbers of them to draw from; fewer than at run time cost less and teach the
    same. answered, misleading, absent: branches, at most: questions that are answered, that the passages only seem to
    answer, and that are about other passages; many behind few passages cost little. spoken: of the branches that are
    answered, those taught to the end; of the others the first token is, with which the model has chosen to answer.
    elsewhere: share of the questions that are not about the last passage.
    """

    passages: tuple[int, ...]
    answered: int
    misleading: int
    absent: int
    spoken: int
    elsewhere: float


LABELLED = Mixture(passages=(1, 1, 1, 2, 3, 5), answered=10, misleading=8, absent=2, spoken=3, elsewhere=0.2)
"""A model that sees few misleading questions learns how a refusal is worded and not when it is due. The desk places
the most relevant passage last, and search is seldom wrong about it (in 13 % of SQuAD's questions and 25 % of DSTC11's,
among five passages of one topic).
"""
OWN = Mixture(passages=(2, 3, 3, 4), answered=8, misleading=0, absent=0, spoken=8, elsewhere=0.5)
"""Reading one by one is all that is taught, and a passage alone is read as with full attention."""


class School:
    """Turns documents into material and material into lessons, for one model and one system text. neighbours: how many
    passages each one is read behind.
    """

    def __init__(
        self, prompts: PromptBuilder, tokenizer: ModelTokenizer, refusal: str, *, neighbours: int, seed: int
    ) -> None:
        self._prompts, self._tokenizer, self._neighbours, self._seed = prompts, tokenizer, neighbours, seed
        self._refusal = self._tokens(refusal)
        self._end = run_tokens([Text(text=prompts.template.to_next, structural=True)], tokenizer)[:1]
        system = prompts.prompt([])[0]
        assert not isinstance(system, Text)
        self._prefix = run_tokens(system.pieces, tokenizer)

    def material(self, row: dict[str, Any]) -> Material | None:
        """A document with its questions; None if it is too long or nothing of it can be taught."""
        title, context = str(row["title"]), str(row["context"]).strip()
        path = tuple(str(heading) for heading in row.get("heading_path", ()))
        module = self._tokens(passage_text(PassageText(name="", title=title, heading_path=path, text=context)))
        pairs = [pair for qa in row["qas"] if (pair := self._pair(context, qa)) is not None]
        if len(module) > LONGEST_PASSAGE or not pairs:
            return None
        source = str(row.get("src", ""))
        return Material(source=source, topic=f"{source}/{title}", module=module, pairs=tuple(pairs))

    def own_material(self, library: Library) -> Iterator[Material]:
        """The desk's passages. What is asked are words of a sentence, as people type them into a search, and what is
        said is how that sentence begins: no labels, but texts along which two ways of reading are compared.
        """
        for document in library.documents():
            for passage in library.passages_of(document.path):
                text = PassageText.of(passage)
                said = [s for s in sentences(text.text) if len(WORD.findall(s)) >= 4][:OWN_SENTENCES]
                pairs = tuple((self._question(key_words(s)), self._tokens(s)[:LONGEST_BEGINNING]) for s in said)
                module = self._tokens(passage_text(text))
                if pairs and len(module) <= 2 * LONGEST_PASSAGE:
                    yield Material(source="", topic=document.path, module=module, pairs=pairs)

    def lessons(self, material: Sequence[Material], mixture: Mixture = LABELLED) -> Lessons:
        """Lessons over material, some of it held out."""
        return Lessons(
            material=tuple(material),
            mixture=mixture,
            prefix=self._prefix,
            refusal=self._refusal,
            end=self._end,
            neighbours=self._neighbours,
            seed=self._seed,
        )

    def _pair(self, context: str, qa: dict[str, Any]) -> Pair | None:
        question = self._question(str(qa["question"]))
        if not qa["answers"]:
            return question, None
        taught = taught_answer(context, str(qa["question"]), str(qa["answers"][0]).strip())
        answer = self._tokens(taught) if taught else ()
        return (question, answer) if 0 < len(answer) <= LONGEST_ANSWER else None

    def _question(self, question: str) -> tuple[int, ...]:
        pieces = [Text(text=question_text(question)), Text(text=self._prompts.template.to_answer, structural=True)]
        return run_tokens(pieces, self._tokenizer)

    def _tokens(self, text: str) -> tuple[int, ...]:
        return run_tokens([Text(text=text)], self._tokenizer)


class Lessons:
    """Lessons by number. Some topics are held out of training, if there are enough (see `part`)."""

    def __init__(
        self,
        *,
        material: tuple[Material, ...],
        mixture: Mixture,
        prefix: tuple[int, ...],
        refusal: tuple[int, ...],
        end: tuple[int, ...],
        neighbours: int,
        seed: int,
    ) -> None:
        self._prefix, self._refusal, self._end = prefix, refusal, end
        self._mixture, self._neighbours, self._seed = mixture, neighbours, seed
        self._train, self._test = part(by_topic(material))
        self.identity = digest(repr((prefix, refusal, end, mixture, neighbours, seed, material)))

    @property
    def held_out_documents(self) -> int:
        """How many documents training never sees."""
        return sum(map(len, self._test))

    def lesson_at(self, number: int) -> Lesson:
        """A lesson of the training, the same one for the same number."""
        return self._make(self._train, random.Random(f"{self._seed}/{number}"))

    def held_out(self, count: int) -> list[Lesson]:
        """Lessons about topics that training never sees; where there are none, others than are trained on, about what
        is.
        """
        return [self._make(self._test or self._train, random.Random(f"held out/{number}")) for number in range(count)]

    def _make(self, topics: Sequence[Sequence[Material]], rng: random.Random) -> Lesson:
        mixture = self._mixture
        topic = rng.choices(topics, weights=weights(topics))[0]
        size = rng.choice(mixture.passages)
        chosen = rng.sample(list(topic), min(size, len(topic)))
        if len(chosen) < size:  # a small topic is filled up with strangers
            strangers = [one for ones in topics if ones is not topic for one in ones]
            chosen += rng.sample(strangers, min(size - len(chosen), len(strangers)))
        rng.shuffle(chosen)
        last = rng.choices(range(len(chosen)), weights=[len(one.pairs) for one in chosen])[0]
        chosen.append(chosen.pop(last))
        pairs = asked_about(chosen, mixture.elsewhere, rng)
        answered = [(question, answer) for question, answer in pairs if answer is not None]
        misleading = [question for question, answer in pairs if answer is None]
        others = [one for one in topic if one not in chosen]
        others = others or [one for ones in topics for one in ones if one not in chosen]
        absent = [question for one in others for question, _ in one.pairs]
        refused = rng.sample(misleading, min(mixture.misleading, len(misleading)))
        refused += rng.sample(absent, min(mixture.absent, len(absent)))
        branches = [
            self._branch(question, answer, whole=number < mixture.spoken)
            for number, (question, answer) in enumerate(rng.sample(answered, min(mixture.answered, len(answered))))
        ]
        branches += [
            self._branch(question, self._refusal, whole=number == 0, refused=True)
            for number, question in enumerate(refused)
        ]
        with_gaps = rng.random() < GAP_SHARE
        near = list(dict.fromkeys([*topic, *chosen]))
        beside = rng.sample(near, min(self._neighbours + 1, len(near)))
        return Lesson(
            prefix=self._prefix,
            modules=tuple(one.module for one in chosen),
            left_contexts=tuple(self._left_context(one, beside) for one in chosen),
            gaps=tuple(rng.randrange(LONGEST_GAP) if with_gaps else 0 for _ in chosen),
            branches=tuple(branches),
        )

    def _left_context(self, one: Material, beside: Sequence[Material]) -> tuple[int, ...]:
        """Passages to read another one behind, of a few that are near: at run time it would be those most like it, but
        a left context that several passages share is read once.
        """
        others = [other for other in beside if other != one][: self._neighbours]
        return tuple(token for other in others for token in other.module)

    def _branch(
        self, question: tuple[int, ...], answer: tuple[int, ...], *, whole: bool, refused: bool = False
    ) -> Branch:
        said = (*answer, *self._end)
        return Branch(question=question, answer=said if whole else said[:1], refused=refused)


def key_words(sentence: str) -> str:
    """The three longest words of a sentence, in their order."""
    words = list(dict.fromkeys(WORD.findall(sentence)))
    longest = sorted(words, key=len)[-3:]
    return " ".join(word for word in words if word in longest)


def asked_about(passages: Sequence[Material], elsewhere: float, rng: random.Random) -> list[Pair]:
    """Questions about passages, in the order in which they stand: all about the last one, and a share about others."""
    last, before = passages[-1].pairs, [pair for one in passages[:-1] for pair in one.pairs]
    wanted = len(last) * elsewhere / (1 - elsewhere) + rng.random()
    return [*last, *rng.sample(before, min(int(wanted), len(before)))]


def by_topic(material: Iterable[Material]) -> dict[str, list[Material]]:
    """Documents by topic, in their order."""
    topics: defaultdict[str, list[Material]] = defaultdict(list)
    for one in material:
        topics[one.topic].append(one)
    return dict(topics)


def weights(topics: Sequence[Sequence[Material]]) -> list[float]:
    """How often each topic is taught: a source by the root of its questions, so that small ones are heard, and a topic
    of it by its questions.
    """
    questions = [sum(len(one.pairs) for one in ones) for ones in topics]
    of_source: defaultdict[str, int] = defaultdict(int)
    for ones, count in zip(topics, questions, strict=True):
        of_source[ones[0].source] += count
    return [count / of_source[ones[0].source] ** 0.5 for ones, count in zip(topics, questions, strict=True)]


def part(topics: Mapping[str, list[Material]]) -> tuple[list[list[Material]], list[list[Material]]]:
    """Topics to train on and topics to test on: those that `rank` before HELD_OUT_SHARE, or more, until there are
    HELD_OUT_DOCUMENTS, but no more than a third of all. None to test on if two documents are more than that.
    """
    most = sum(map(len, topics.values())) / 3
    tested: dict[str, int] = {}
    for topic in sorted(topics, key=rank):
        count = sum(tested.values())
        if rank(topic) >= HELD_OUT_SHARE and count >= HELD_OUT_DOCUMENTS:
            break
        if count + len(topics[topic]) <= most:
            tested[topic] = len(topics[topic])
    if sum(tested.values()) < 2:  # of one nothing can be learned about reading several
        tested.clear()
    return (
        [ones for topic, ones in topics.items() if topic not in tested],
        [ones for topic, ones in topics.items() if topic in tested],
    )


def rank(topic: str) -> float:
    """From 0 to below 1, the same in every run, whatever else there is."""
    return int.from_bytes(hashlib.blake2b(topic.encode(), digest_size=8).digest(), "big") / 2**64


def taught_answer(context: str, question: str, answer: str) -> str | None:
    """What is taught as the answer: the sentence of the document that holds it and has most words of the question.

    An answer that is no part of a sentence stands for itself, three sentences at most, if it keeps to the document's
    words.
    """
    asked = set(WORD.findall(question.lower()))
    holding = [s for s in sentences(context) if answer.lower() in s.lower()]
    if holding:
        return max(holding, key=lambda s: len(asked & set(WORD.findall(s.lower()))))
    words = WORD.findall(answer.lower())
    known = set(WORD.findall(context.lower()))
    if len(words) < 4 or sum(word in known for word in words) < 0.7 * len(words):
        return None
    return " ".join(sentences(answer)[:3])


def read_rows(files: Iterable[Path]) -> Iterator[dict[str, Any]]:
    """JSON lines, also compressed: {title, context, qas: [{question, answers: [text]}]}. Raises DeskError."""
    for file in files:
        try:
            with (
                gzip.open(file, "rt", encoding="utf-8")
                if file.suffix == ".gz"
                else file.open(encoding="utf-8") as lines
            ):
                for number, line in enumerate(lines, start=1):
                    if not line.strip():
                        continue
                    row = json.loads(line)
                    if wrong := what_is_wrong(row):
                        raise DeskError(f"{file}, line {number}: {wrong}", code="bad-row")
                    yield row
        except (OSError, EOFError, zlib.error, ValueError) as error:
            raise DeskError(f"{file} cannot be read: {error}", code="bad-file") from error


def what_is_wrong(row: Any) -> str:
    """Why a line of JSON is no document with questions; empty if it is one."""
    if not isinstance(row, dict) or not {"title", "context", "qas"} <= row.keys():
        return "title, context and qas are needed"
    if not isinstance(row["qas"], list) or not all(isinstance(qa, dict) and "question" in qa for qa in row["qas"]):
        return "qas is a list of objects with a question"
    if not all(isinstance(qa.get("answers"), list) for qa in row["qas"]):
        return "answers of a question are a list of texts, empty where the document has none"
    return ""
