"""Vectors of statements, packed and scored, and the encoder that makes them with the bundled network."""

import json
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import save_file

from retrieval.errors import RetrievalError
from retrieval.ranking.encoder import (
    CARD,
    LONGEST_QUESTION,
    SHORT,
    WEIGHTS,
    Mixture,
    PassageToRead,
    QuestionVectors,
    RankerTokens,
    StatementEncoder,
    StatementVectors,
    short_form,
)
from retrieval.ranking.training import RankerCard, RankerModel, question_tensors, save_ranker
from retrieval.search.embedding import SentenceEmbedder, Vectors, one_question
from retrieval.search.minilm import Compiled, FastEncoder, bundled_weights

NOISE = np.random.default_rng(3)
UNTRAINED = RankerCard(data=(), left_out=(), questions=0, steps=0, minutes=0.0, seed=0, loss=0.0)


def unit(*shape: int) -> Vectors:
    rows = NOISE.normal(size=shape).astype(np.float32)
    normal: Vectors = rows / np.linalg.norm(rows, axis=-1, keepdims=True)
    return normal


def made(*lengths: int) -> StatementVectors:
    return StatementVectors(
        whole=unit(len(lengths), 6).astype(np.float16),
        tokens=short_form(unit(sum(lengths), 4)),
        ends=np.cumsum(lengths, dtype=np.int32),
    )


@pytest.mark.parametrize("lengths", [(3, 1, 2), (4,), (0, 2, 0), (0,), ()])
def test_packed_vectors_are_unpacked_the_same(lengths):
    vectors = made(*lengths)
    again = StatementVectors.unpacked(vectors.packed())
    assert len(again) == len(vectors) == len(lengths)
    for name in ("whole", "tokens", "ends"):
        one, other = getattr(vectors, name), getattr(again, name)
        assert (one.dtype, one.shape) == (other.dtype, other.shape)
        assert np.array_equal(one, other)


@pytest.mark.parametrize("stored", [b"", made(2, 3).packed()[:7], made(2, 3).packed()[:-1], made(2).packed() + b"x"])
def test_damaged_bytes_are_refused(stored):
    with pytest.raises(ValueError, match="the vectors of a passage's statements"):
        StatementVectors.unpacked(stored)


def question_of(tokens: int) -> QuestionVectors:
    weights = np.abs(NOISE.normal(size=tokens)).astype(np.float32)
    return QuestionVectors(whole=unit(6), tokens=unit(tokens, 4), weights=weights / weights.sum(), bar=1.5)


def test_scores_are_those_of_a_plain_loop():
    mixture, question = Mixture(cosine=3.0, matches=5.0), question_of(7)
    passages = [made(3, 1, 2), made(), made(0, 4, 0), made(2)]
    logits = mixture.scores(question, passages)[0]
    row = 0
    for passage in passages:
        start = 0
        for whole, end in zip(passage.whole, passage.ends, strict=True):
            cosine = float(whole.astype(np.float32) @ question.whole)
            tokens = passage.tokens[start:end].astype(np.float32) / 127
            best = [max((float(one @ token) for one in tokens), default=-1.0) for token in question.tokens]
            matched = sum(weight * value for weight, value in zip(question.weights, best, strict=True))
            assert logits[row] == pytest.approx(3 * cosine + 5 * matched - 1.5, abs=1e-5)
            row, start = row + 1, end
    assert len(logits) == row == 7


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """A ranker that nobody trained: the bundled network with new heads."""
    path = tmp_path_factory.mktemp("ranker")
    torch.manual_seed(1)
    model = RankerModel()
    model.freeze(5)
    torch.nn.init.normal_(model.weigh.weight, std=0.05)
    save_ranker(model, path, UNTRAINED)
    return path


@pytest.fixture(scope="module")
def encoder(folder):
    return StatementEncoder(folder)


def passage(text: str, *statements: str, headings: tuple[str, ...] = ()) -> PassageToRead:
    spans = [(text.index(one), text.index(one) + len(one)) for one in statements]
    return PassageToRead(headings=headings, text=text, spans=spans)


def close(one: StatementVectors, other: StatementVectors) -> bool:
    return (
        one.ends.tolist() == other.ends.tolist()
        and bool(np.allclose(one.whole, other.whole, atol=4e-3))
        and int(np.abs(one.tokens.astype(int) - other.tokens).max(initial=0)) <= 2
    )


FALLS = "Damage from falls. Damage from water."
COVERED, NOT_COVERED = (
    passage(FALLS, "Damage from falls.", headings=(head,)) for head in ("What is covered", "Not covered")
)


def test_what_is_read_has_length_one_and_its_tokens(encoder):
    (vectors,) = encoder.read([passage(FALLS, "Damage from falls.", "Damage from water.")])
    assert vectors.ends.tolist() == [4, 8]  # the stop is one
    assert (vectors.whole.dtype, vectors.tokens.dtype) == (np.float16, np.int8)
    assert (vectors.whole.shape, vectors.tokens.shape) == ((2, 384), (8, SHORT))
    assert np.linalg.norm(vectors.whole.astype(np.float32), axis=1) == pytest.approx([1, 1], abs=2e-3)
    assert np.linalg.norm(vectors.tokens / 127.0, axis=1) == pytest.approx(np.ones(8), abs=0.03)
    question = encoder.question("Are falls covered?")
    assert np.linalg.norm(question.whole) == pytest.approx(1, abs=1e-4)
    assert question.weights.sum() == pytest.approx(1, abs=1e-4)
    assert question.tokens.shape == (len(question.weights), SHORT)
    assert question.bar == pytest.approx(6.0, abs=0.01)


def test_a_statement_is_read_below_its_headings_and_beside_its_neighbours(encoder):
    below, other = encoder.read([COVERED, NOT_COVERED])
    assert below.ends.tolist() == other.ends.tolist()
    assert float(below.whole[0].astype(np.float32) @ other.whole[0].astype(np.float32)) < 0.99
    alone = encoder.read([passage("Damage from falls.", "Damage from falls.", headings=("What is covered",))])[0]
    assert not close(below, alone)


def test_what_is_read_does_not_depend_on_the_batch(encoder):
    long = "Lamps are sold in stores. " * 12
    many = [COVERED, passage(long, "Lamps are sold in stores."), passage("None here."), *[NOT_COVERED] * 9, COVERED]
    together = encoder.read(many)
    assert [len(one) for one in together] == [1, 1, 0, *[1] * 9, 1]
    for one, found in zip(many[:4], together, strict=False):
        assert close(encoder.read([one])[0], found)
    assert close(together[0], together[-1])
    assert encoder.read([]) == []


def test_compiled_code_reads_the_same(encoder, folder, tmp_path):
    fast = StatementEncoder(folder, Compiled(tmp_path, 2))
    assert isinstance(fast._encoder, FastEncoder)
    long = "Lamps are sold in stores. " * 12
    many = [COVERED, passage(long, "Lamps are sold in stores."), passage("None here."), NOT_COVERED]
    assert all(close(one, other) for one, other in zip(fast.read(many), encoder.read(many), strict=True))
    for text in ("Are falls covered?", "", "Falls [SEP] and tears, of lamps? " * 9):
        one, other = (reader.question(text) for reader in (fast, encoder))
        number = len(one.weights)  # the other ones are padding
        assert np.allclose(one.whole, other.whole, atol=2e-3)
        assert np.allclose(one.tokens, other.tokens[:number], atol=5e-3)
        if text:  # else all are special
            assert np.allclose(one.weights, other.weights[:number], atol=2e-3)
        assert one.bar == pytest.approx(other.bar, abs=0.02)


def test_a_question_reads_new_passages_at_its_own_priority_without_waiting(folder, tmp_path, monkeypatch):
    fast, asked = StatementEncoder(folder, Compiled(tmp_path, 2)), list[bool]()
    states = FastEncoder.states

    def noting(network: FastEncoder, texts: Sequence[Sequence[int]], *, of_question: bool) -> list[Vectors]:
        asked.append(of_question)
        return states(network, texts, of_question=of_question)

    monkeypatch.setattr(FastEncoder, "states", noting)
    [before] = fast.read([COVERED])
    with one_question():
        [found] = fast.read([COVERED])
    assert asked == [False, True]
    assert close(before, found)


def test_what_is_cut_off_has_zeros_and_the_lowest_matches(encoder):
    text = f"It is first. {'word ' * 600}It is last."
    vectors, after = encoder.read([passage(text, "It is first.", "It is last."), COVERED])
    assert vectors.ends.tolist() == [4, 4]
    assert not vectors.whole[1].any()
    assert vectors.whole[0].any()
    assert close(after, encoder.read([COVERED])[0]), "the next passage has its own tokens"
    question = encoder.question("What is last?")
    logits = encoder.mixture.scores(question, [vectors])[0]
    assert logits[1] == pytest.approx(-encoder.mixture.matches * question.weights.sum() - question.bar, abs=1e-4)
    assert logits[1] < logits[0]
    again = StatementVectors.unpacked(vectors.packed())
    assert np.array_equal(encoder.mixture.scores(question, [again])[0], logits)
    nothing = encoder.read([PassageToRead(headings=(), text="  ", spans=[(0, 2)])])[0]
    assert (nothing.ends.tolist(), nothing.whole.any()) == ([0], False)


def test_tokens_of_the_opening_and_the_padding_count_for_nothing(encoder):
    ids, mask, special = question_tensors(encoder.tokens, ["Short?", "A longer question about lamps and shoes?"])
    assert ids.shape == mask.shape == special.shape
    assert ids.shape[1] % 8 == 0
    assert (~special).sum(1).tolist() == [2, 8]
    weights = encoder.question("Short?").weights
    assert weights[special[0][: len(weights)].numpy()].sum() == pytest.approx(0, abs=1e-6)


def test_of_a_long_question_the_end_is_read(encoder):
    end = "how long do gift cards last when they were bought in a store?"
    ids, _, special = question_tensors(encoder.tokens, ["Hello there, " * 60 + end])
    assert int((~special).sum()) == LONGEST_QUESTION - 2
    short = question_tensors(encoder.tokens, [end])[0][0]
    told = [token for token in short.tolist() if token][1:-1]
    assert ids[0].tolist()[LONGEST_QUESTION - 1 - len(told) : LONGEST_QUESTION - 1] == told


def test_spans_count_characters_below_the_headings():
    tokens = RankerTokens()
    one = passage("Ärger mit Lampen? Ask us.", "Ask us.", headings=("Help", "Lamps"))
    ids, spans = tokens.passages([one, passage("Ask us.", "Ask us.")], 64)
    rows = [ids[row][first:end] for row, first, end in spans]
    assert rows[0] == rows[1]
    assert spans[1] == (1, spans[1][1], spans[1][1] + 3)


def test_a_folder_without_a_ranker_or_with_another_is_a_clear_error(folder, tmp_path):
    with pytest.raises(RetrievalError, match=r"^ranker .*none: cannot be read"):
        StatementEncoder(tmp_path / "none")
    (tmp_path / CARD).write_text(json.dumps({"name": "x"}))
    (tmp_path / WEIGHTS).write_bytes(b"no weights")
    with pytest.raises(RetrievalError, match="cannot be read"):
        StatementEncoder(tmp_path)
    for own, name in (("head.weight",) * 2, ("bar.weight",) * 2, ("bar.bias", "shorten.weight")):
        save_file({own: torch.zeros(1)}, tmp_path / WEIGHTS)  # unknown, of another size, and without the others
        with pytest.raises(RetrievalError, match=rf"made for another model \({name}\)"):
            StatementEncoder(tmp_path)
    (tmp_path / CARD).write_text("{}")
    with pytest.raises(RetrievalError, match="cannot be read"):
        StatementEncoder(tmp_path)


SHIPPED = Path(__file__).parent.parent / "data" / "ranker"


def test_the_shipped_ranker_shares_the_words_of_the_embedder(tmp_path):
    """Was wrong once: the network was in memory twice."""
    embedder = SentenceEmbedder(compiled=Compiled(tmp_path, 1))
    ranker = StatementEncoder(SHIPPED, Compiled(tmp_path, 1))
    assert isinstance(ranker._encoder, FastEncoder)
    assert embedder._fast is not None
    assert ranker._encoder._network.words == embedder._fast._network.words
    mapped = sum(weight.nbytes for weight in bundled_weights().values())
    others = sum(kept.nbytes for kept in ranker._encoder._kept if kept.ctypes.data != ranker._encoder._network.words)
    assert others < mapped / 3, "layers of 16 bits, and none of 32"


def test_the_shipped_ranker_finds_the_statement_that_answers():
    shipped = StatementEncoder(SHIPPED)
    said = ("Gift cards last five years.", "You can use them in our stores.", "We ship from Monday to Friday.")
    vectors = shipped.read([passage(" ".join(said), *said, headings=("Gift cards",))])
    for question, best in (
        ("When do gift cards expire?", 0),
        ("Where can I use one?", 1),
        ("zebra quagga giraffe", None),
    ):
        logits = shipped.mixture.scores(shipped.question(question), vectors)[0]
        if best is None:
            assert logits.max() < 0, "none is an answer"
        else:
            assert logits.argmax() == best
