"""Passages to train on, as token ids with their questions: from rows of labelled questions, or from the desk's library.

All texts are worded and tokenised as in the desk's prompts (`app.knowledge.prompts`). The answer to train on is a
sentence of the passage, so that the model learns to stay close to the passage's words. Not covered: which passages and
questions make an example (`training_data`).
"""

import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from app.knowledge.prompts import PassageText, PromptBuilder, passage_text, question_text
from app.storage.library import Library
from cache.prompt.model_tokenizer import ModelTokenizer
from cache.prompt.parts import Text
from cache.prompt.tokenizer import run_tokens
from cache.training.examples import TokenIds
from retrieval.text.sentences import sentences

WORD = re.compile(r"\w+")
LONGEST_PASSAGE = 300
LONGEST_ANSWER = 80
MAX_SENTENCES = 10
"""Of a passage without labels: sentences that become an answer."""
LONGEST_BEGINNING = 24
"""Tokens of such a sentence that are the answer."""

QuestionAnswer = tuple[TokenIds, TokenIds | None]
"""Tokens of a question, and of its answer without the end token; None if the passage does not answer it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainingPassage:
    """source: its data set. topic: passages of one topic are hard to tell apart. tokens: as a module of a prompt."""

    source: str
    topic: str
    tokens: TokenIds
    questions: tuple[QuestionAnswer, ...]


class TrainingTokenizer:
    """Tokenises passages, questions and answers for one model and one system text.

    prefix: tokens of the system text. refusal: of the refusal, without the end token. end: the end token.
    """

    def __init__(self, prompts: PromptBuilder, tokenizer: ModelTokenizer, refusal: str) -> None:
        self._to_answer = Text(text=prompts.template.to_answer, structural=True)
        self._tokenizer = tokenizer
        system = prompts.prompt([])[0]
        assert not isinstance(system, Text)
        self.prefix = run_tokens(system.pieces, tokenizer)
        self.refusal = self._tokens(refusal)
        self.end = run_tokens([Text(text=prompts.template.to_next, structural=True)], tokenizer)[:1]

    def labelled_passage(self, row: dict[str, Any]) -> TrainingPassage | None:
        """A row's document with its questions; None if it is too long or has no question to train on."""
        title, context, source = str(row["title"]), str(row["context"]).strip(), str(row.get("src", ""))
        path = tuple(str(heading) for heading in row.get("heading_path", ()))
        tokens = self._tokens(passage_text(PassageText(name="", title=title, heading_path=path, text=context)))
        questions = tuple(found for qa in row["qas"] if (found := self._labelled_question(context, qa)) is not None)
        if len(tokens) > LONGEST_PASSAGE or not questions:
            return None
        return TrainingPassage(source=source, topic=f"{source}/{title}", tokens=tokens, questions=questions)

    def own_passages(self, library: Library) -> Iterator[TrainingPassage]:
        """The desk's passages. A question is a few words of a sentence, as people type them into a search; its answer
        is the beginning of that sentence. These are no labels, only texts along which two ways of reading are compared.
        """
        for document in library.documents():
            for stored in library.passages_of(document.path):
                passage = PassageText.of(stored)
                answers = [s for s in sentences(passage.text) if len(WORD.findall(s)) >= 4][:MAX_SENTENCES]
                questions = tuple((self._question(key_words(s)), self._tokens(s)[:LONGEST_BEGINNING]) for s in answers)
                tokens = self._tokens(passage_text(passage))
                if questions and len(tokens) <= 2 * LONGEST_PASSAGE:
                    yield TrainingPassage(source="", topic=document.path, tokens=tokens, questions=questions)

    def _labelled_question(self, context: str, qa: dict[str, Any]) -> QuestionAnswer | None:
        question = self._question(str(qa["question"]))
        if not qa["answers"]:
            return question, None
        answer = self._tokens(answer_sentence(context, str(qa["question"]), str(qa["answers"][0]).strip()) or "")
        return (question, answer) if 0 < len(answer) <= LONGEST_ANSWER else None

    def _question(self, question: str) -> TokenIds:
        return run_tokens([Text(text=question_text(question)), self._to_answer], self._tokenizer)

    def _tokens(self, text: str) -> TokenIds:
        return run_tokens([Text(text=text)], self._tokenizer)


def key_words(sentence: str) -> str:
    """The three longest words of a sentence, in their order."""
    words = list(dict.fromkeys(WORD.findall(sentence)))
    longest = sorted(words, key=len)[-3:]
    return " ".join(word for word in words if word in longest)


def answer_sentence(context: str, question: str, answer: str) -> str | None:
    """The answer to train on: of the sentences of a document that hold the answer, the one with most words of the
    question.

    If no sentence holds it, the answer itself, at most three sentences of it, if most of its words are in the document.
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
