"""An answer that a server writes: its messages sent, its words delivered as they come, its numbers counted."""

import asyncio
import time
from collections.abc import Callable
from contextlib import aclosing

from cache.engine.request import Completion, FinishReason, Generation, ModuleUse, Request, Timings, Usage
from cache.errors import CacheError
from cache.prompt.plan import Plan
from cache.remote.body import headers_of
from cache.remote.chat_server import ChatServer
from cache.remote.failures import Refusal, silence, thinks_aloud
from cache.remote.reply import Reply
from cache.remote.spec import ServerSpec
from cache.remote.text_tokens import TextTokenizer, messages_of


class ServerAnswer(Generation):
    """A generation whose request runs as a task of an event loop. submitted: `time.perf_counter` at its begin."""

    def __init__(self, request: Request, stop: Callable[["ServerAnswer"], None]) -> None:
        """stop: called when nobody wants the rest."""
        super().__init__()
        self.request, self.plan, self.reply = request, request.plan, Reply()
        self.submitted = time.perf_counter()
        self.begun = self.first = 0.0
        self.silence = ""
        self.task: asyncio.Task[FinishReason] | None = None
        self._stop = stop

    def cancel(self) -> None:
        """Stop generating: the connection is closed, so that the server stops, too."""
        super().cancel()
        self._stop(self)

    async def run(self, server: ChatServer, spec: ServerSpec, tokenizer: TextTokenizer) -> FinishReason:
        """Have it written. While the server finds the prompt too long, passages are left out, those that stand first.
        Raises Refusal and CacheError.
        """
        self.begun = time.perf_counter()
        while True:
            body = server.bodies.of(self.request, messages_of(self.plan, tokenizer))
            try:
                async with aclosing(server.events(body, headers_of(self.request, spec))) as events:
                    async for event in events:
                        if piece := self.reply.take(event):
                            if self.reply.is_thought:
                                raise CacheError(thinks_aloud(spec))
                            self.first = self.first or time.perf_counter()
                            self.deliver(piece)
                break
            except Refusal as refusal:
                shorter = shortened(self.plan)
                if not refusal.is_too_long or self.reply.text or shorter is None:
                    raise
                self.plan = shorter
        self.silence = "" if self.reply.text.strip() else silence(spec, self.reply)
        return self.reply.finish_reason

    def completed(self, finish_reason: FinishReason) -> Completion:
        """What there is of it, as it ended."""
        now = time.perf_counter()
        begun, first = self.begun or now, self.first or now
        return Completion(
            text=self.reply.text,
            tokens=None,
            finish_reason=finish_reason,
            usage=self.reply.usage,
            modules=modules_of(self.plan),
            timings=Timings(
                queue=(begun - self.submitted) * 1e3,
                prefill=(first - begun) * 1e3,
                ttft=(first - self.submitted) * 1e3,
                total=(now - self.submitted) * 1e3,
            ),
            exact=True,
            silence=self.silence,
        )


def quoted(request: Request, tokenizer: TextTokenizer) -> Generation:
    """An answer of which every word is chosen already: the likeliest choices by what search says of them. The server is
    not asked: it shows no probabilities that could be added to them.
    """
    choices = request.sampling.choices
    assert choices is not None
    answer: list[int] = []
    while (weights := choices.allowed(answer)) and (token := max(weights, key=weights.__getitem__)) != choices.stop:
        answer.append(token)
    generation, text = Generation(), tokenizer.decode(answer)
    generation.deliver(text)
    generation.deliver(
        Completion(
            text=text,
            tokens=None,
            finish_reason="stop",
            usage=Usage(prompt_tokens=0),
            modules=modules_of(request.plan),
            timings=Timings(),
            exact=True,
        )
    )
    return generation


def modules_of(plan: Plan) -> tuple[ModuleUse, ...]:
    """The passages of a prompt, in its order: the next turn puts them at the same place. Their tokens are estimates."""
    return tuple(
        ModuleUse(
            key="",
            name=span.segment.name,
            tokens=len(span.tokens),
            position=span.start,
            source="elsewhere",
            miss_reason=None,
        )
        for span in plan.spans
        if span.segment is not None
    )


def shortened(plan: Plan) -> Plan | None:
    """A prompt without the first third of its passages; None if it has none. The first module is the system text."""
    passages = plan.segments()[1:]
    left_out = passages[: -(-len(passages) // 3)]
    return Plan(spans=tuple(span for span in plan.spans if span.segment not in left_out)) if left_out else None
