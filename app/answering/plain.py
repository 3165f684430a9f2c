"""Answers from the language model alone, without documents, decision and checks.

The model's chat template makes the prompt, which only grows at its end. So every earlier turn is an exact prefix of the
next prompt. Only its owner can reuse it. Texts of all roles are literal: only the template's own strings are structure.
Nothing is stored.
"""

import threading
from collections.abc import Callable, Iterator, Sequence
from dataclasses import fields
from itertools import groupby

from app.answering.answering import engine_failed
from app.answering.record import timings_of, usage_of
from app.domain.answers import PlainAnswer, PlainOptions, Said, TextLogprob
from app.domain.errors import DeskError
from app.domain.statistics import Served
from cache.decoding.sampling import Sampling, TokenLogprob
from cache.engine.request import Generation, Request
from cache.errors import CacheError, PromptError
from cache.prompt.parts import Text
from cache.prompt.tokenizer import ChatTemplate
from cache.serving.interface import EngineInterface

MOST_TOKENS = 512
"""Default maximum tokens of an answer. Memory is reserved for all of them."""
LEAST_TEMPERATURE = 0.01  # below it the engine takes the most likely token, which is nearly the same


class PlainStream:
    """An answer of the model: iterate for its text, then read `answer`."""

    def __init__(
        self, generation: Generation, decode: Callable[[Sequence[int]], str], report: Callable[[Served], None]
    ) -> None:
        self._generation, self._decode, self._report = generation, decode, report
        self._answer: PlainAnswer | None = None
        self.is_finished = threading.Event()

    def __iter__(self) -> Iterator[str]:
        try:
            yield from self._generation
        except CacheError as error:
            raise engine_failed(error) from error
        finally:
            self.is_finished.set()
        completion = self._generation.completion
        self._answer = PlainAnswer(
            text=completion.text,
            finish_reason="length" if completion.finish_reason in ("length", "timeout") else "stop",
            usage=usage_of(completion),
            timings=timings_of(completion, 0.0, completion.timings.total),
            logprobs=tuple(self._told(one) for one in completion.logprobs),
        )
        usage, timings = self._answer.usage, self._answer.timings
        self._report(Served(outcome="plain", usage=usage, timings=timings, queue_ms=completion.timings.queue))

    def _told(self, one: TokenLogprob) -> TextLogprob:
        top = tuple(TextLogprob(self._decode([token]), logprob) for token, logprob in one.top)
        return TextLogprob(self._decode([one.token]), one.logprob, top)

    @property
    def answer(self) -> PlainAnswer:
        if self._answer is None:
            raise DeskError("the answer was stopped before it was complete", code="no-answer")
        return self._answer

    def cancel(self) -> None:
        self._generation.cancel()

    def finish(self) -> None:
        """Do nothing, because such an answer is not recorded."""


def complete(
    engine: EngineInterface,
    messages: Sequence[Said],
    options: PlainOptions,
    owner: str,
    report: Callable[[Served], None],
) -> PlainStream:
    """Start an answer. report: gets its statistics. Raises DeskError if the conversation is invalid or too long."""
    parts = conversation(messages, engine.tokenizer.template)
    positions = engine.info.max_positions
    try:
        plan = engine.arrange(parts)
    except PromptError as error:
        raise DeskError(str(error), code="prompt-too-long") from error
    if plan.next_position >= positions:
        raise DeskError(f"the messages fill the context of {positions} tokens: shorten them", code="prompt-too-long")
    if strange := [token for token, _ in options.logit_bias if not 0 <= token < engine.info.vocabulary]:
        known = f"the model has {engine.info.vocabulary}"
        raise DeskError(f"logit_bias: there is no token {strange[0]}, {known}", code="bad-logit-bias")
    if options.logprobs is not None and engine.info.is_elsewhere:
        raise DeskError("logprobs is not available: the language model is remote", code="bad-logprobs")
    temperature = options.temperature or 0.0
    given = {field.name: getattr(options, field.name) for field in fields(options)}
    given["max_tokens"] = options.max_tokens or MOST_TOKENS
    given["temperature"] = temperature if temperature >= LEAST_TEMPERATURE else 0.0
    sampling = Sampling(**given)
    request = Request(plan=plan, sampling=sampling, reuse="prefix", tenant=owner)
    return PlainStream(engine.submit(request), engine.tokenizer.decode, report)


def conversation(messages: Sequence[Said], template: ChatTemplate) -> list[Text]:
    """Render messages with the template, up to the start of the answer. System messages come first; adjacent messages
    of one role are joined. Raises DeskError if the first or the last message is not the user's.
    """
    system = "\n\n".join(one.text for one in messages if one.role == "system")
    spoken = [one for one in messages if one.role != "system"]
    turns = ["\n\n".join(one.text for one in same) for _, same in groupby(spoken, lambda one: one.role)]
    if not spoken or spoken[0].role != "user" or spoken[-1].role != "user":
        raise DeskError("the first and the last message must be the user's", code="bad-messages")
    parts = opening(template, system)
    for number, text in enumerate(turns):
        is_answer = number % 2
        parts += [Text(text=text), Text(text=template.to_next if is_answer else template.to_answer, structural=True)]
    return parts


def opening(template: ChatTemplate, system: str) -> list[Text]:
    """Return the text before the user's first message. Default system text: the template's own."""
    if system:
        return [
            Text(text=template.open, structural=True),
            Text(text=system),
            Text(text=template.to_user, structural=True),
        ]
    roles = template.roles
    alone = roles["system"].alone + roles["user"].open if "system" in roles else template.open
    return [Text(text=alone, structural=True)]
