"""An answer that another engine began goes on behind the tokens that were given out. See also
`test_cache_cluster_losses`.
"""

import pytest
from recording import running
from tiny import build, make_segment

from cache.decoding.sampling import Sampling
from cache.engine.request import Request
from cache.prompt.plan import Plan, Span

MODULE = make_segment("a", "Returns take 30 days from delivery.")
QUESTION = tuple(b"How long?")
PLAN = Plan(
    spans=(Span(start=0, tokens=MODULE.tokens, segment=MODULE), Span(start=len(MODULE.tokens), tokens=QUESTION))
)


def test_it_goes_on_where_the_whole_answer_was_given_before():
    sampling = Sampling(max_tokens=20)
    with running(build()) as engine:
        whole = engine.submit(Request(plan=PLAN, sampling=sampling)).completion
        assert whole.tokens is not None
        again = engine.submit(Request(plan=PLAN, sampling=sampling, begun=whole.tokens[:10])).completion
    assert again.tokens == whole.tokens
    assert again.usage.cached_tokens > 0
    assert again.usage.prompt_tokens == PLAN.num_tokens
    assert again.usage.completion_tokens == whole.usage.completion_tokens


@pytest.mark.parametrize("begun", [1, 4, 9])
def test_what_is_drawn_behind_given_tokens_stays_the_same(begun):
    sampling = Sampling(max_tokens=20, temperature=1.0, seed=1, given=tuple(b"Yes, in"))
    with running(build()) as engine:
        whole = engine.submit(Request(plan=PLAN, sampling=sampling)).completion.tokens
        assert whole is not None
        again = engine.submit(Request(plan=PLAN, sampling=sampling, begun=whole[:begun])).completion
    assert again.tokens == whole


def test_half_a_character_that_was_not_given_out_comes_whole():
    request = Request(plan=PLAN, sampling=Sampling(max_tokens=8), begun=("é".encode()[0],))
    with running(build()) as engine:
        generation = engine.submit(request)
        assert "".join(generation) == generation.completion.text
