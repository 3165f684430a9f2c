"""What servers with OpenAI's API do with an answer: think before it or in it, say nothing, leave out its end. No
network.
"""

from typing import Any

import pytest
from fake_server import DONE, FakeServer, event, stream, whole, words
from hypothesis import given
from hypothesis import strategies as st
from remote_engines import engine_for, request, said

from cache.decoding.sampling import Sampling
from cache.engine.request import Limits
from cache.errors import CacheError, ServerFailed
from cache.remote.reply import Thoughts


def pieces_of(text: str, cuts: list[int]) -> list[str]:
    ends = sorted({min(cut, len(text)) for cut in cuts} | {len(text)})
    return [text[begin:end] for begin, end in zip([0, *ends], ends, strict=False)]


def thought(text: str, name: str = "reasoning_content") -> str:
    return event(choices=[{"index": 0, "delta": {name: text}, "finish_reason": None}])


# --- thoughts ------------------------------------------------------------------------------------------------


@given(
    st.sampled_from(
        [
            ("<think>thirty <b>or</b> sixty?</think>\n\nThirty days.", "Thirty days.", True),
            ("\n<think>\n\n</think>\n\nThirty days.", "Thirty days.", True),
            ("<think>thirty or", "", True),
            ("<think>a</think>b <think>c</think>", "b <think>c</think>", True),
            ("<thinking> is a tag.", "<thinking> is a tag.", False),
            (" Thirty <think> days.", " Thirty <think> days.", False),
            ("<", "<", False),
            (" \n", " \n", False),
            ("", "", False),
        ]
    ),
    st.lists(st.integers(0, 50), max_size=8),
)
def test_openai_backend_leaves_out_thoughts_however_they_are_cut(case, cuts):
    text, expected, has_any = case
    thoughts = Thoughts()
    found = "".join(thoughts.without(piece) for piece in pieces_of(text, cuts)) + thoughts.end()
    assert (found, thoughts.has_any) == (expected, has_any)


def test_openai_backend_gives_no_thoughts_to_readers():
    reply = stream(
        [thought("thirty?"), words("<thi"), words("nk>or sixty</think>"), words("\n\nThirty"), words(".", "stop")]
    )
    with engine_for(FakeServer(reply)) as engine:
        generation = engine.submit(request(engine, "How long?"))
        assert list(generation) == ["Thirty", "."]
        assert generation.completion.text == "Thirty."


def test_openai_backend_refuses_thoughts_that_seem_to_be_the_answer():
    """Some templates write <think> into the prompt: then only its end comes."""
    reply = stream([words("Hm, thirty."), words("</thi"), words("nk>Thirty."), words("", "stop"), DONE])
    with engine_for(FakeServer(reply)) as engine, pytest.raises(CacheError, match="thoughts as its answer: turn"):
        said(engine)


# --- nothing -------------------------------------------------------------------------------------------------

NOTHING = [
    ([words("", "stop"), DONE], "returned an empty answer: ask again"),
    ([words(" \n", "length"), DONE], "returned an empty answer: ask again"),
    ([DONE], "returned an empty answer: ask again"),
    ([words("", "content_filter"), DONE], "returned no text: its server's content filter"),
    ([thought("hm"), words("", "length")], "thought until the answer had its full length: turn its thinking off, or"),
    ([thought("hm", "reasoning"), words("", "stop")], "thought but returned no answer: ask again, or turn"),
    ([words("<think>thirty or"), words("", "length")], "thought until the answer had its full length: turn"),
]


@pytest.mark.parametrize(("pieces", "line"), NOTHING)
def test_openai_backend_says_why_nothing_was_said(pieces, line):
    with engine_for(FakeServer(stream(pieces))) as engine:
        completion = engine.submit(request(engine, "How long?")).completion
        assert completion.silence.startswith(f"the model m at http://model.test/v1 {line}")
        assert engine.is_running, "the server is there"
    assert not completion.text.strip()


def test_openai_backend_is_not_silent_where_there_are_words():
    with engine_for(FakeServer(stream([words("Thirty", "length"), DONE]))) as engine:
        completion = engine.submit(request(engine, "How long?", sampling=Sampling(max_tokens=1))).completion
    assert (completion.text, completion.finish_reason, completion.silence) == ("Thirty", "length", "")


def test_openai_backend_says_that_a_model_thought_too_long():
    server = FakeServer(lambda: stream([thought("hm")], "wait"))
    line = r"thought for 0\.1 s and did not answer: turn its thinking off, or raise answer_seconds$"
    with engine_for(server, limits=Limits(seconds=0.1)) as engine, pytest.raises(CacheError, match=line):
        said(engine)


# --- the end of a stream -------------------------------------------------------------------------------------

ENDED = [words("Thirty days."), words("", "stop")]


@pytest.mark.parametrize("then", ["end", "break", "wait"])
def test_openai_backend_takes_an_answer_whose_last_word_was_said(then, monkeypatch):
    monkeypatch.setattr("cache.remote.chat_server.LOOK_S", 0.05)
    with engine_for(FakeServer(stream(ENDED, then))) as engine:
        completion = engine.submit(request(engine, "How long?")).completion
    assert (completion.text, completion.usage.prompt_tokens) == ("Thirty days.", 0)


@pytest.mark.parametrize(
    ("pieces", "line"),
    [
        (["data: {not JSON\n\n"], "invalid chat events: correct its URL"),
        (["data: [1, 2]\n\n"], "invalid chat events: correct its URL"),
        ([words("Thirty"), "data: {not JSON\n\n"], "invalid chat events: ask again"),
        ([words("Thirty"), 'data: "days"\n\n'], "invalid chat events: ask again"),
    ],
)
def test_openai_backend_says_what_to_do_about_what_is_no_event(pieces, line):
    server = FakeServer(stream(pieces))
    with engine_for(server) as engine, pytest.raises(ServerFailed, match=line):
        said(engine)
    assert len(server.chats) == 1


def test_openai_backend_ignores_what_it_does_not_know():
    odd: list[dict[str, Any]] = [
        {},
        {"choices": None},
        {"choices": ["x"]},
        {"choices": [{"delta": None}]},
        {"usage": 3},
    ]
    pieces = [*(event(**one) for one in odd), event(choices=[{"delta": {"content": 7}}]), *whole("Thirty days.")]
    with engine_for(FakeServer(stream(pieces))) as engine:
        assert said(engine) == "Thirty days."
