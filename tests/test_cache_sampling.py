"""Choosing tokens, and text that is given out once and never taken back."""

import math
from collections.abc import Sequence
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from tiny import ByteTokenizer
from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers
from transformers import PreTrainedTokenizerFast

from cache.decoding.choosing import choose_tokens
from cache.decoding.sampling import Sampler, Sampling, TextStream, loop_length
from cache.prompt.tokenizer import ModelTokenizer

LOGITS = torch.tensor([0.0, 4.0, 3.0, 2.0, 1.0])


def draws(sampling: Sampling, count: int = 400, logits: torch.Tensor = LOGITS) -> list[int]:
    sampler = Sampler(sampling)
    return [choose(sampler, logits) for _ in range(count)]


def choose(sampler: Sampler, logits: torch.Tensor = LOGITS, answer: Sequence[int] = ()) -> int:
    return choose_tokens(logits.unsqueeze(0), [sampler], [answer])[0]


def test_the_same_seed_gives_the_same_tokens_and_others_do_not():
    one, again, other = (draws(Sampling(temperature=1, seed=seed), 50) for seed in (7, 7, 8))
    assert one == again != other
    assert draws(Sampling(temperature=1), 50) != draws(Sampling(temperature=1), 50)
    assert draws(Sampling(top_k=3, top_p=0.5, min_p=0.1), 5) == [1] * 5


@pytest.mark.parametrize(
    ("options", "possible"),
    [
        ({}, {0, 1, 2, 3, 4}),
        ({"top_k": 2}, {1, 2}),
        ({"top_p": 1e-6}, {1}),
        ({"top_p": 0.5}, {1, 2}),  # at this temperature: .34, .26, .18, .13, .09
        ({"top_p": 0.7}, {1, 2, 3}),
        ({"top_k": 2, "top_p": 0.9}, {1, 2}),
    ],
)
def test_top_k_and_top_p_cut(options, possible):
    assert set(draws(Sampling(temperature=4, seed=0, **options))) == possible


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"max_tokens": 0}, "max_tokens is 0"),
        ({"temperature": -0.1}, "temperature is -0.1"),
        ({"top_k": -1}, "top_k is -1"),
        ({"top_p": 0.0}, "top_p is 0.0"),
        ({"top_p": 1.1}, "top_p is 1.1"),
        ({"top_p": math.nan}, "top_p is nan"),
        ({"min_p": 1.5}, "min_p is 1.5"),
        ({"presence_penalty": -2.1}, "presence_penalty is -2.1"),
        ({"logit_bias": ((1, 101.0),)}, "logit_bias is"),
        ({"stop": ("x", "")}, "empty stop string"),
    ],
)
def test_values_out_of_range_are_refused(options, message):
    with pytest.raises(ValueError, match=message):
        Sampling(**options)


@pytest.mark.parametrize(
    "options", [{"temperature": math.nan}, {"temperature": 1e-40}, {"seed": 1 << 64}, {"seed": -(1 << 64)}], ids=str
)
def test_whatever_is_accepted_can_be_sampled(options):
    """Was wrong once: these pass the validation and raise on the engine's thread, which ends everything."""
    try:
        sampling = Sampling(**{"temperature": 1.0, **options})
    except ValueError:
        return
    assert 0 <= choose(Sampler(sampling)) < 5


def pieces(stream: TextStream, parts: list[bytes]) -> list[str]:
    """Feed parts, byte by byte as tokens, one update per part; after every update what was given is final."""
    given: list[str] = []
    tokens: list[int] = []
    for i, part in enumerate(parts):
        tokens.extend(part)
        given.append(stream.update(tokens, final=i == len(parts) - 1))
        assert stream.text.startswith("".join(given)), "text was taken back"
        if stream.stopped:
            break
    assert "".join(given) == stream.text
    return given


def stream_of(*stop: str) -> TextStream:
    return TextStream(ByteTokenizer(), stop)


@pytest.mark.parametrize(
    ("stop", "parts", "given"),
    [
        ((), ["Hel", "lo", ""], ["Hel", "lo", ""]),
        ((), [b"5\xe2", b"\x82", b"\xac", b"!"], ["5", "", "€", "!"]),
        ((), [b"5", b"\xe2\x82"], ["5", "\ufffd"]),
        (("STOP",), ["go S", "T", "O", "P and on"], ["go ", "", "", ""]),
        (("STOP",), ["go ST", "ART", " S"], ["go ", "START", " S"]),
        (("worlds", "o w", "lo"), ["hello worlds"], ["hel"]),
        (("aab",), ["a", "a", "a", "b", "x"], ["", "", "a", ""]),
        (("b€",), [b"go b\xe2", b"\x82\xac"], ["go ", ""]),  # was wrong once: "go b" was given
    ],
)
def test_certain_text_is_given_at_once(stop, parts, given):
    assert pieces(stream_of(*stop), [part.encode() if isinstance(part, str) else part for part in parts]) == given


texts = st.text(alphabet="abé€😀", max_size=12)


@st.composite
def streams(draw: st.DrawFn) -> tuple[list[bytes], tuple[str, ...]]:
    data = draw(texts).encode()
    cuts = sorted(draw(st.sets(st.integers(0, len(data)), max_size=8)))
    parts = [data[a:b] for a, b in zip([0, *cuts], [*cuts, len(data)], strict=True)]
    stop = draw(st.lists(st.text(alphabet=draw(st.sampled_from(["ab", "aé€"])), min_size=1, max_size=3), max_size=2))
    return parts, tuple(stop)


def check_stream(parts: list[bytes], stop: tuple[str, ...]) -> None:
    """The text is what a reader would cut who looks at the whole after every part."""
    stream = stream_of(*stop)
    pieces(stream, parts)
    data, expected = b"", ""
    for part in parts:
        data += part
        expected = data.decode(errors="replace")
        found = [at for at in map(expected.find, stop) if at >= 0]
        if found:
            expected = expected[: min(found)]
            break
    assert stream.text == expected
    assert not any(text in stream.text for text in stop)


@settings(max_examples=100, deadline=None)
@given(streams())
def test_text_is_never_taken_back(case):
    check_stream(*case)


def tokenizer_of(kind: str) -> ModelTokenizer:
    """Of bytes as GPT-2 has them, or of words with bytes for the rest as Llama 2 has them."""
    if kind == "byte level":
        characters = sorted(pre_tokenizers.ByteLevel.alphabet())
        model = models.BPE({c: at for at, c in enumerate([*characters, "Ġb", "an"])}, [("Ġ", "b"), ("a", "n")])
        decoder: Any = decoders.ByteLevel()
    else:
        words = ["▁", "▁a", "▁ban", "an", "."]
        model = models.BPE({c: at for at, c in enumerate([*(f"<0x{b:02X}>" for b in range(256)), *words])}, [])
        steps = [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse(), decoders.Strip(" ", 1, 0)]
        decoder = decoders.Sequence(steps)
    tokenizer = Tokenizer(model)
    tokenizer.decoder = decoder
    tokenizer.add_special_tokens([AddedToken("<end>", special=True)])
    return ModelTokenizer(PreTrainedTokenizerFast(tokenizer_object=tokenizer, unk_token="<end>"))


TOKENIZERS = {kind: tokenizer_of(kind) for kind in ("byte level", "sentencepiece")}
any_tokens = st.lists(st.integers(0, 258), max_size=16)
whole_characters = st.lists(
    st.one_of(
        st.sampled_from(["é", "€", "😀"]).map(lambda text: [*text.encode()]), st.integers(256, 261).map(lambda t: [t])
    ),
    max_size=8,
).map(lambda parts: [token for part in parts for token in part])
"""Where a character is broken, this kind takes back the bytes before it."""


@pytest.mark.parametrize(("kind", "cases"), [("byte level", any_tokens), ("sentencepiece", whole_characters)])
@settings(max_examples=100, deadline=None)
@given(data=st.data(), twice=st.booleans())
def test_text_by_the_token_is_the_text_of_all(kind, cases, data, twice):
    """Half characters, spaces at the beginning of words, special tokens, and updates without a new token."""
    tokenizer, tokens = TOKENIZERS[kind], data.draw(cases)
    stream = TextStream(tokenizer, ())
    given = ""
    for count in range(len(tokens) + 1):
        for _ in range(1 + twice):
            given += stream.update(tokens[:count], final=count == len(tokens))
    assert given == stream.text == tokenizer.decode(tokens)


def test_a_long_answer_is_not_decoded_again_for_every_token(monkeypatch):
    tokenizer, most = ByteTokenizer(), 0
    decode = tokenizer.decode

    def counting(tokens: Sequence[int]) -> str:
        nonlocal most
        most = max(most, len(tokens))
        return decode(tokens)

    monkeypatch.setattr(tokenizer, "decode", counting)
    stream = TextStream(tokenizer, ("never",))
    text = "5 € for this. ".encode() * 20
    assert "".join(stream.update(text[:count], final=count == len(text)) for count in range(len(text) + 1))
    assert stream.text == text.decode()
    assert most <= 4


@pytest.mark.parametrize("length", [11, 12, 80, 81])
def test_a_loop_is_found_by_its_length(length):
    loop = [*range(length)]
    assert loop_length([500, *loop * 3]) == (length if 12 <= length <= 80 else 0)
    assert loop_length([500, *loop * 2]) == loop_length([*loop, 501, *loop * 2]) == 0
