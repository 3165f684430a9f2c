"""An answer that another engine began goes on behind the tokens that were given out."""

import pytest
from recording import running
from tiny import ByteTokenizer, build, make_segment

from cache.decoding.constraints import Choice, Choices
from cache.decoding.sampling import Sampling, TextStream
from cache.engine.request import Request
from cache.prompt.plan import Plan, Span
from cache.serving.messages import Submit, decoded, encoded

MODULE = make_segment("a", "Returns take 30 days from delivery.")
QUESTION = tuple(b"How long?")
PLAN = Plan(
    spans=(
        Span(start=0, tokens=MODULE.tokens, segment=MODULE),
        Span(start=len(MODULE.tokens), tokens=QUESTION),
    )
)
CHOICES = Choices(choices=(Choice(tokens=(1, 2, 3, 9)), Choice(tokens=(1, 4, 5, 7))), stop=299, most=2)


@pytest.mark.parametrize(
    "sampling",
    [
        Sampling(max_tokens=20),
        Sampling(max_tokens=20, temperature=1.0, seed=5),
        Sampling(max_tokens=20, repetition_penalty=1.3),
        Sampling(max_tokens=CHOICES.longest, choices=CHOICES),
    ],
    ids=["greedy", "seeded", "penalty", "choices"],
)
def test_it_ends_as_if_one_engine_had_given_all_of_it(sampling: Sampling) -> None:
    with running(build()) as engine:
        whole = engine.submit(Request(plan=PLAN, sampling=sampling)).completion
    assert whole.tokens is not None
    assert len(whole.tokens) > 3
    for cut in (1, 3, len(whole.tokens) - 1, len(whole.tokens)):
        request = Request(plan=PLAN, sampling=sampling, begun=whole.tokens[:cut])
        sent = decoded(encoded(Submit.of(1, request, is_idle=False)), Submit).asked()
        with running(build()) as engine:
            generation = engine.submit(sent)
            text = "".join(generation)
            completion = generation.completion
        assert completion.tokens == whole.tokens
        assert completion.text == whole.text
        assert completion.finish_reason == whole.finish_reason
        assert TextStream(ByteTokenizer(), ()).update(whole.tokens[:cut]) + text == whole.text
        assert completion.usage.prompt_tokens == PLAN.num_tokens
        assert completion.usage.completion_tokens == whole.usage.completion_tokens


def test_it_goes_on_where_the_whole_answer_was_given_before() -> None:
    sampling = Sampling(max_tokens=20)
    with running(build()) as engine:
        whole = engine.submit(Request(plan=PLAN, sampling=sampling)).completion
        assert whole.tokens is not None
        again = engine.submit(Request(plan=PLAN, sampling=sampling, begun=whole.tokens[:10])).completion
    assert again.tokens == whole.tokens
    assert again.usage.cached_tokens > 0


def test_half_a_character_that_was_not_given_out_comes_whole() -> None:
    request = Request(plan=PLAN, sampling=Sampling(max_tokens=8), begun=("é".encode()[0],))
    with running(build()) as engine:
        generation = engine.submit(request)
        assert "".join(generation) == generation.completion.text
