"""`warmdesk adapt` and `warmdesk train-ranker`: collect training data, train an adapter or a ranker, and record it.

An adapter's examples come from files of questions and answers, or from the ingested passages. A file has a JSON object
per line and may be compressed: {"title": text, "context": text, "qas": [{"question": text, "answers": [text, ...]},
...]}. All texts have the same form and tokens as in prompts (`app.knowledge.prompts`). The answer is a sentence of the
passage, so that the model learns to stay close to its words. The right answer is the refusal if the example does not
contain the passage of a question, or if the question is marked as unanswerable. Some topics are kept for testing. An
example depends only on the seed and its number, so training can continue after an interruption.
"""

import hashlib
import json
import random
import re
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, TypeVar

import torch

from app.desk.calibration import find_ranker
from app.desk.service import Service
from app.domain.errors import DeskError
from app.domain.json_lines import read_json_lines
from app.domain.settings import Settings
from app.knowledge.prompts import PromptBuilder, passage_text, question_text
from app.storage.library import Library
from cache.memory.keys import digest
from cache.model.loading import find_device, keep_base, load_stock, merge_adapter
from cache.prompt.parts import Text
from cache.prompt.tokenizer import ModelTokenizer, run_tokens
from cache.training.examples import TokenIds, TrainingExample, TrainingQuery
from cache.training.trainer import AdapterTraining, Schedule, TrainingProgress
from retrieval.ranking.training import RankerCard, read_examples, train_ranker
from retrieval.text.sentences import sentences


def read_rows(files: Iterable[Path]) -> Iterator[dict[str, Any]]:
    for file in files:
        yield from read_json_lines(file, checked_row, "document", "bad-row").values()


def checked_row(row: Any) -> dict[str, Any]:
    if not isinstance(row, dict) or not {"title", "context", "qas"} <= row.keys():
        raise ValueError("title, context and qas are needed")
    if not isinstance(row["qas"], list) or not all(isinstance(qa, dict) and "question" in qa for qa in row["qas"]):
        raise ValueError("qas must be a list of objects with a question")
    if not all(isinstance(qa.get("answers"), list) for qa in row["qas"]):
        raise ValueError("answers must be a list of texts, empty if the document has none")
    return row


WORD = re.compile(r"\w+")
LONGEST_PASSAGE = 300
LONGEST_ANSWER = 80
MAX_SENTENCES = 10  # maximum number of sentences of an unlabelled passage that are used as answers
LONGEST_BEGINNING = 24  # maximum tokens of such an answer, from the beginning of the sentence

QuestionAnswer = tuple[TokenIds, TokenIds | None]
"""Tokens of a question, and tokens of its answer without the end token. The answer is None if the passage has none."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainingPassage:
    """A passage with its questions. source: its data set. topic: shared by similar passages. tokens: of its module."""

    source: str
    topic: str
    tokens: TokenIds
    questions: tuple[QuestionAnswer, ...]


class TrainingTokenizer:
    """Tokenises passages, questions and answers for one model and one system text.

    prefix: tokens of the system text. refusal: tokens of the refusal text, without the end token. end: the end token.
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
        """Return a row's document with its questions; None if it is too long or has no question to train on."""
        title, context, source = str(row["title"]), str(row["context"]).strip(), str(row.get("src", ""))
        path = tuple(str(heading) for heading in row.get("heading_path", ()))
        tokens = self._tokens(passage_text(title, path, context))
        questions = tuple(found for qa in row["qas"] if (found := self._labelled_question(context, qa)) is not None)
        if len(tokens) > LONGEST_PASSAGE or not questions:
            return None
        return TrainingPassage(source=source, topic=f"{source}/{title}", tokens=tokens, questions=questions)

    def own_passages(self, library: Library) -> Iterator[TrainingPassage]:
        """Yield the ingested passages with questions. A question is the three longest words of a sentence, and its
        answer is the start of that sentence. They are not labels, only texts to compare full and modular attention.
        """
        for document in library.documents():
            for passage in library.passages_of(document.path):
                answers = [s for s in sentences(passage.text) if len(WORD.findall(s)) >= 4][:MAX_SENTENCES]
                questions = tuple((self._question(key_words(s)), self._tokens(s)[:LONGEST_BEGINNING]) for s in answers)
                tokens = self._tokens(passage_text(passage.title, passage.heading_path, passage.text))
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
    words = list(dict.fromkeys(WORD.findall(sentence)))
    longest = sorted(words, key=len)[-3:]
    return " ".join(word for word in words if word in longest)


def answer_sentence(context: str, question: str, answer: str) -> str | None:
    """Return the answer to train on: the document's sentence with the answer and most words of the question. If there
    is none, return at most three sentences of the answer, if 70 % of its words (at least four) are in the document.
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


Topic = list[TrainingPassage]
HELD_OUT_SHARE = 0.03
HELD_OUT_PASSAGES = 8  # minimum held-out passages, if that is at most a third of all


def split_topics(passages: Iterable[TrainingPassage]) -> tuple[list[Topic], list[Topic]]:
    """Split topics for training and tests. Test topics have a hash below HELD_OUT_SHARE; more are added in hash order
    until HELD_OUT_PASSAGES, but at most a third of all passages. Fewer than two test passages: no test topics.
    """
    topics: defaultdict[str, Topic] = defaultdict(list)
    for passage in passages:
        topics[passage.topic].append(passage)
    most = sum(map(len, topics.values())) / 3
    count = 0
    tested: set[str] = set()
    for topic in sorted(topics, key=topic_hash):
        if topic_hash(topic) >= HELD_OUT_SHARE and count >= HELD_OUT_PASSAGES:
            break
        if count + len(topics[topic]) <= most:
            tested.add(topic)
            count += len(topics[topic])
    if count < 2:  # an example needs several passages
        tested.clear()
    return [topics[t] for t in topics if t not in tested], [topics[t] for t in topics if t in tested]


def topic_hash(topic: str) -> float:
    """Return a number from 0 to below 1 that depends only on the topic."""
    return int.from_bytes(hashlib.blake2b(topic.encode(), digest_size=8).digest(), "big") / 2**64


def topic_weights(topics: Sequence[Topic]) -> list[float]:
    """Return sampling weights of topics. A source has the square root of its number of questions as weight, so that
    small sources matter. Within a source, the weight of a topic is proportional to its number of questions.
    """
    counts = [(topic[0].source, sum(len(passage.questions) for passage in topic)) for topic in topics]
    of_source: Counter[str] = Counter()
    for source, count in counts:
        of_source[source] += count
    return [count / of_source[source] ** 0.5 for source, count in counts]


T = TypeVar("T")
GAP_SHARE, LONGEST_GAP = 0.2, 64
"""Share of the examples with gaps between modules, and the limit of a gap in position ids."""


@dataclass(frozen=True, slots=True, kw_only=True)
class QueryMix:
    """The composition of an example. passages: possible numbers; small numbers train equally well. answered,
    misleading, absent: maximum number of queries that a passage answers, that one only seems to answer, and about
    absent passages. whole_answers: number of answered queries trained to the end of the answer; others train only the
    first token, which shows a refusal. elsewhere: share of the questions that are not about the last passage.
    """

    passages: tuple[int, ...]
    answered: int
    misleading: int
    absent: int
    whole_answers: int
    elsewhere: float


LABELLED = QueryMix(passages=(1, 1, 1, 2, 3, 5), answered=10, misleading=8, absent=2, whole_answers=3, elsewhere=0.2)
"""A model that sees few misleading questions learns the words of a refusal, but not when to refuse. Warmdesk places the
most relevant passage last, and search seldom chooses a wrong one (for 13 % of SQuAD's questions and 25 % of DSTC11's,
among five passages of one topic).
"""
OWN = QueryMix(passages=(2, 3, 3, 4), answered=8, misleading=0, absent=0, whole_answers=8, elsewhere=0.5)
"""Trains only modular attention. An example has two or more passages, because one alone equals full attention."""


class TrainingData:
    """Examples made of passages. If there are enough topics, some are kept for testing (see `split_topics`).

    neighbours: number of passages before each one while it is encoded.
    """

    def __init__(
        self,
        passages: Sequence[TrainingPassage],
        tokenizer: TrainingTokenizer,
        mix: QueryMix,
        *,
        neighbours: int,
        seed: int,
    ) -> None:
        self._tokenizer, self._mix, self._neighbours, self._seed = tokenizer, mix, neighbours, seed
        self._train, self._test = split_topics(passages)
        parts = (tokenizer.prefix, tokenizer.refusal, tokenizer.end, mix, neighbours, seed, tuple(passages))
        self.identity = digest(repr(parts))

    @property
    def held_out_documents(self) -> int:
        return sum(map(len, self._test))

    def example_at(self, number: int) -> TrainingExample:
        """Return the training example with this number. It is always the same."""
        return self._make(self._train, random.Random(f"{self._seed}/{number}"))

    def held_out(self, count: int) -> list[TrainingExample]:
        """Return examples of test topics; if there are none, more examples of the training topics."""
        return [self._make(self._test or self._train, random.Random(f"held out/{number}")) for number in range(count)]

    def _make(self, topics: Sequence[Topic], rng: random.Random) -> TrainingExample:
        topic = rng.choices(topics, weights=topic_weights(topics))[0]
        passages = choose_passages(topic, topics, rng.choice(self._mix.passages), rng)
        queries = self._queries(passages, topic, topics, rng)
        has_gaps = rng.random() < GAP_SHARE
        nearby = sample_up_to(self._neighbours + 1, list(dict.fromkeys([*topic, *passages])), rng)
        return TrainingExample(
            prefix=self._tokenizer.prefix,
            modules=tuple(passage.tokens for passage in passages),
            left_contexts=tuple(self._left_context(passage, nearby) for passage in passages),
            gaps=tuple(rng.randrange(LONGEST_GAP) if has_gaps else 0 for _ in passages),
            queries=tuple(queries),
        )

    def _queries(
        self, passages: Sequence[TrainingPassage], topic: Topic, topics: Sequence[Topic], rng: random.Random
    ) -> list[TrainingQuery]:
        mix, refusal = self._mix, self._tokenizer.refusal
        asked = ask_about(passages, mix.elsewhere, rng)
        others = [passage for passage in topic if passage not in passages]
        others = others or [passage for other in topics for passage in other if passage not in passages]
        refused = sample_up_to(mix.misleading, [question for question, answer in asked if answer is None], rng)
        refused += sample_up_to(mix.absent, [question for passage in others for question, _ in passage.questions], rng)
        answerable = [(question, answer) for question, answer in asked if answer is not None]
        answered = sample_up_to(mix.answered, answerable, rng)
        queries = [self._query(*pair, whole=number < mix.whole_answers) for number, pair in enumerate(answered)]
        queries += [self._query(q, refusal, whole=number == 0, refused=True) for number, q in enumerate(refused)]
        return queries

    def _query(self, question: TokenIds, answer: TokenIds, *, whole: bool, refused: bool = False) -> TrainingQuery:
        ended = (*answer, *self._tokenizer.end)
        return TrainingQuery(question=question, answer=ended if whole else ended[:1], refused=refused)

    def _left_context(self, passage: TrainingPassage, nearby: Sequence[TrainingPassage]) -> TokenIds:
        """Return the tokens of other passages, to put before this passage. At run time these are the most similar
        passages. Here all passages of an example share a few, so that their left context is computed once.
        """
        others = [other for other in nearby if other != passage][: self._neighbours]
        return tuple(token for other in others for token in other.tokens)


def choose_passages(topic: Topic, topics: Sequence[Topic], size: int, rng: random.Random) -> list[TrainingPassage]:
    """Choose passages, of one topic if it has enough. A passage with many questions is more likely to be the last."""
    chosen = sample_up_to(size, topic, rng)
    if len(chosen) < size:
        chosen += sample_up_to(size - len(chosen), [p for other in topics if other is not topic for p in other], rng)
    rng.shuffle(chosen)
    last = rng.choices(range(len(chosen)), weights=[len(passage.questions) for passage in chosen])[0]
    chosen.append(chosen.pop(last))
    return chosen


def ask_about(passages: Sequence[TrainingPassage], elsewhere: float, rng: random.Random) -> list[QuestionAnswer]:
    """Return all questions of the last passage, and some of other passages, about the share `elsewhere` of all."""
    last, others = passages[-1].questions, [pair for passage in passages[:-1] for pair in passage.questions]
    wanted = len(last) * elsewhere / (1 - elsewhere) + rng.random()
    return [*last, *sample_up_to(int(wanted), others, rng)]


def sample_up_to(most: int, items: Sequence[T], rng: random.Random) -> list[T]:
    """Return a random sample without repetition, or all items in random order if there are fewer."""
    return rng.sample(items, min(most, len(items)))


HELD_OUT_EXAMPLES = 8
TOLD, REPORTED = 5, 20  # steps between two progress lines, for an adapter and for a ranker
RECORD = "training.json"
STEPS = 1000
MINUTES = 30


def adapt(
    settings: Settings,
    files: Sequence[Path],
    folder: Path,
    *,
    steps: int | None,
    minutes: float | None,
    seed: int,
    report: Callable[[str], None],
) -> dict[str, Any]:
    """Train an adapter on top of the adapter in use, and write it to `folder`. It learns from files of questions or,
    without files, from the ingested passages. Returns the record that is written there. steps, minutes: training ends
    at the first limit (see `schedule_of`). Raises DeskError if there is nothing to train on or the folder contains the
    adapter in use, ModelError if the model cannot be adapted or the folder contains another training.
    """
    below = settings.adapter_folder
    if below is not None and folder.resolve() in (below.resolve(), *below.resolve().parents):
        raise DeskError(
            f"{folder} holds the adapter in use: to train a second adapter on top of it, set another --output; "
            "to continue its training, set --adapter to its base adapter, or none",
            code="adapter-in-use",
        )
    if settings.threads is not None:
        torch.set_num_threads(settings.threads)
    hf, hf_tokenizer, fingerprint = load_stock(
        settings.model, device=find_device(settings.device), converted=settings.models_folder
    )
    model_tokenizer = ModelTokenizer(hf_tokenizer)
    adapted = ""
    if below is not None:
        hf, adapted = merge_adapter(hf, below)
    prompts = PromptBuilder(model_tokenizer.template, settings.system_text)
    tokenizer = TrainingTokenizer(prompts, model_tokenizer, settings.refusal_text)
    passages, left_out = gather(tokenizer, files, settings)
    mix = LABELLED if files else OWN
    data = TrainingData(passages, tokenizer, mix, neighbours=settings.neighbours, seed=seed)
    training = AdapterTraining(
        hf,
        data.example_at,
        data.held_out(HELD_OUT_EXAMPLES),
        schedule_of(labelled=bool(files), steps=steps, minutes=minutes, seed=seed),
        folder,
        subject=digest(fingerprint, adapted, data.identity),
    )

    def progress(now: TrainingProgress) -> None:
        if now.step % TOLD == 0:
            loss = f"loss {now.loss:.3f}, held out {now.held_out:.3f}"
            report(f"step {now.step}, {now.done:.0%}, {loss}, {now.tokens_per_s:.0f} tokens/s")

    keep_base(folder, below)
    training.run(progress)
    state = training.state
    record = {
        "adapter": folder.name,
        "model": fingerprint,
        "on_top_of": None if below is None else below.name,
        "documents": len(passages),
        "left_out": left_out,
        "held_out_documents": data.held_out_documents,
        "files": [file.name for file in files],
        "steps": state.step,
        "minutes": round(state.seconds / 60, 1),
        "questions": state.questions,
        "tokens": state.tokens,
        "loss": round(state.loss, 4),
        "held_out": round(state.best, 4),
        "held_out_moved": None if state.moved is None else round(state.moved, 4),
        "held_out_before": None if state.before is None else round(state.before, 4),
        "schedule": asdict(training.schedule) | {"lessons": training.schedule.batch_size},  # lessons: the older name
    }
    (folder / RECORD).write_text(json.dumps(record, indent=2) + "\n", encoding="utf-8")
    return record


def schedule_of(*, labelled: bool, steps: int | None, minutes: float | None, seed: int) -> Schedule:
    """Return the training schedule. Training on answers needs many small steps. Imitating full attention has many good
    solutions, and large steps find one in half an hour.
    """
    unlimited = steps is None and minutes is None
    if labelled:
        return Schedule(steps=STEPS if unlimited else steps, minutes=minutes, objective="answers", seed=seed)
    return Schedule(
        steps=steps,
        minutes=MINUTES if unlimited else minutes,
        objective="distil",
        learning_rate=1.5e-3,
        warmup=10,
        evaluate_every=30,
        seed=seed,
    )


def gather(
    tokenizer: TrainingTokenizer, files: Sequence[Path], settings: Settings
) -> tuple[list[TrainingPassage], int]:
    """Return the passages to train on, and the number of skipped documents. Raises DeskError if none is left."""
    if files:
        read = [tokenizer.labelled_passage(row) for row in read_rows(files)]
        found = [passage for passage in read if passage is not None]
        if not found:
            raise DeskError(
                f"none of the {len(read)} documents can be used for training: each may have at most {LONGEST_PASSAGE} "
                "tokens, and needs a question whose answer it contains or whose list of answers is empty",
                code="no-material",
            )
        return found, len(read) - len(found)
    if not settings.data_dir.is_dir():
        raise DeskError("there is no Warmdesk data: ingest documents first, or set --data", code="no-data")
    with Service(settings, upgrade=False) as service:
        found = list(tokenizer.own_passages(service.library))
    if not found:
        raise DeskError("there is nothing to train on: ingest documents first, or set --data", code="no-material")
    return found, 0


def make_ranker(
    settings: Settings,
    data: Sequence[Path],
    folder: Path,
    *,
    minutes: float,
    go_on: bool,
    left_out: frozenset[str],
    local: frozenset[str],
    seed: int,
    report: Callable[[str], None],
) -> dict[str, Any]:
    """Train and write a ranker; return its card. go_on: continue the current one. Raises DeskError for bad data."""
    try:
        documents = read_examples(data, left_out, local, seed)
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise DeskError(f"the questions cannot be read: {error}", code="bad-questions") from error
    questions = sum(len(passage.questions) for passages in documents for passage in passages)
    if not any(one.right for passages in documents for passage in passages for one in passage.questions):
        raise DeskError("no context contains the answer to its question", code="too-few-questions")
    report(f"{len(documents):,} documents, {questions:,} questions")
    card = RankerCard(
        data=tuple(sorted(file.name for file in data)),
        left_out=tuple(sorted(left_out)),
        questions=questions,
        seed=seed,
    )

    def progress(step: int, done: float, loss: float) -> None:
        if step % REPORTED == 0:
            report(f"step {step}, {done:.0%} of the time, loss {loss:.3f}")

    start = find_ranker(settings) if go_on else None
    return asdict(train_ranker(documents, folder, card, minutes=minutes, start=start, report=progress))
