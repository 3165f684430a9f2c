"""Which sentences are offered as answers, what is expected of each, and that their tokens give back their texts."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import permutations

import numpy as np
import pytest
from tiny import ByteTokenizer
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
from transformers import AutoTokenizer, PreTrainedTokenizerFast

from app.prompting import PassageText
from app.quoting import MOST_SENTENCES, choices_of, statements, tokens_behind
from cache.constraints import Choices
from cache.model import bundled_gguf
from cache.pml import Text
from cache.tokenizer import ModelTokenizer
from retrieval.embedding import HashEmbedder, Vectors
from retrieval.sentences import sentences

REFUSAL = "I could not find an answer to this."
STOP = 299
RETURNS = """Returning things

You can return most articles within 30 days. Do you need a label?
We print 2 labels for "heavy" parcels (over 20 kg).

What you need:
- the receipt
- your customer number (see the invoice)
1. Open the app

Article: shoes; Days: 14
Is it broken? Call us at once!
4711!
"""
SHIPPING = "Shipping costs 4.95 euros. Abroad it costs 14.95 euros. You can return most articles within 30 days."


def passage(text: str) -> PassageText:
    return PassageText(name="p", title="Help", heading_path=("Help",), text=text)


def offered(question: str, *passages: tuple[str, float], embed: bool = False) -> dict[str, float]:
    """Texts of the choices with their priors; checks that they are those of the set."""
    choices = choices_of(
        question,
        [(passage(text), score) for text, score in passages],
        REFUSAL,
        ByteTokenizer(),
        STOP,
        HashEmbedder().embed_documents if embed else None,
    )
    return {bytes(choice.tokens).decode(): choice.prior for choice in choices.choices}


def best(priors: dict[str, float]) -> str:
    return max(priors, key=lambda text: priors[text])


def test_statements_are_offered_and_neither_questions_nor_headings() -> None:
    assert list(statements(RETURNS)) == [
        "You can return most articles within 30 days.",
        'We print 2 labels for "heavy" parcels (over 20 kg).',
        "the receipt",
        "your customer number (see the invoice)",
        "Open the app",
        "Article: shoes; Days: 14",
        "Call us at once!",
    ]


def test_chinese_statements() -> None:
    assert list(statements("退货\n可以退货吗？三十天内可以退货。请联系我们！")) == [
        "三十天内可以退货。",
        "请联系我们！",
    ]


def test_the_nearest_sentence_has_the_highest_prior() -> None:
    priors = offered("What does it cost abroad?", (SHIPPING, 0.6), (RETURNS, 0.3))
    assert best(priors) == "Abroad it costs 14.95 euros."
    assert REFUSAL in priors


def test_a_rare_word_outweighs_a_common_one() -> None:
    text = " ".join(f"The box number {n} costs much." for n in ("one", "two", "three")) + " Kayaks are stored outside."
    assert best(offered("Where are the kayaks of the box?", (text, 0.5))) == "Kayaks are stored outside."


def test_the_better_passage_has_the_higher_prior() -> None:
    for boots, shoes in ((0.2, 0.7), (0.7, 0.2)):
        priors = offered("What does it cost?", ("Boots cost ten.", boots), ("Shoes cost ten.", shoes))
        assert (priors["Shoes cost ten."] > priors["Boots cost ten."]) == (shoes > boots)


def test_a_sentence_of_two_passages_is_offered_once_with_the_better_score() -> None:
    same = "You can return most articles within 30 days."
    once = offered("How do I return articles?", (SHIPPING, 0.7))
    for order in (((SHIPPING, 0.7), (same, 0.2)), ((same, 0.2), (SHIPPING, 0.7))):
        assert offered("How do I return articles?", *order) == pytest.approx(once)


@pytest.mark.parametrize("embed", [False, True])
def test_the_refusal_wins_where_no_sentence_is_near(embed: bool) -> None:
    assert best(offered("Who won the cup in chess?", (SHIPPING, 0.05), (RETURNS, 0.02), embed=embed)) == REFUSAL
    assert best(offered("How many days to return articles?", (RETURNS, 0.6), embed=embed)) != REFUSAL


@pytest.mark.parametrize("text", ["", "Returning things\n\nWhat do you need?"])
def test_without_a_statement_only_the_refusal_is_offered(text: str) -> None:
    assert list(offered("How?", (text, 0.9))) == [REFUSAL]
    assert list(offered("How?", (text, 0.9), embed=True)) == [REFUSAL]


def test_the_refusal_stands_alone_also_if_a_passage_says_it() -> None:
    passages = [(passage(f"{REFUSAL} Call us."), 0.9)]
    choices = choices_of("Where could I find an answer to this?", passages, REFUSAL, ByteTokenizer(), STOP)
    alone, sentence = choices.choices
    assert [bytes(choice.tokens).decode() for choice in (alone, sentence)] == [REFUSAL, "Call us."]
    assert (alone.alone, sentence.alone) == (True, False)
    assert alone.prior < sentence.prior, "its prior is the threshold's, not that of a near sentence"


def test_the_embedder_is_shown_the_question_first_and_counts() -> None:
    shown: list[str] = []

    def embed(texts: Sequence[str]) -> Vectors:
        """Says that the last sentence in alphabetical order means what the question means."""
        shown.extend(texts)
        return np.array(
            [[1.0, 0.0] if text in (texts[0], max(texts[1:])) else [0.0, 1.0] for text in texts], np.float32
        )

    question = "Where?"
    choices = choices_of(
        question, [(passage("Ants live here. Zebras go."), 0.5)], REFUSAL, ByteTokenizer(), STOP, embed
    )
    assert shown[0] == question
    assert set(shown[1:]) == {"Ants live here.", "Zebras go."}
    assert bytes(max(choices.choices, key=lambda choice: choice.prior).tokens) == b"Zebras go."


def test_so_many_sentences_and_no_more_nearest_first() -> None:
    text = " ".join(f"Article {number} costs {number} euros." for number in range(MOST_SENTENCES + 20))
    priors = offered("What does article 77 cost?", (text, 0.5))
    assert len(priors) == MOST_SENTENCES + 1
    assert "Article 77 costs 77 euros." in priors


# --- tokens ---------------------------------------------------------------------------------------------


TEXTS = [
    *statements(RETURNS),
    *statements(SHIPPING),
    "5 days is the limit.",
    '"Heavy" means over 20 kg.',
    "(See below.)",
    "Écrivez-nous.",
]


def check_seams(tokenizer: ModelTokenizer, texts: Sequence[str], between: str = " ") -> None:
    """One sentence, and any two, decode to themselves; two have the very ids of the joined text."""
    for text in texts:
        assert tokenizer.decode(tokenizer.encode([Text(text=text)])) == text
    for first, second in permutations(texts, 2):
        ids = [*tokenizer.encode([Text(text=first)]), *tokens_behind(second, tokenizer)]
        joined = first + between + second
        assert tokenizer.decode(ids) == joined
        assert ids == tokenizer.encode([Text(text=joined)])


@pytest.fixture(scope="module")
def bundled() -> ModelTokenizer:
    path = bundled_gguf()
    return ModelTokenizer(AutoTokenizer.from_pretrained(path.parent, gguf_file=path.name, local_files_only=True))


@pytest.mark.bundled
def test_seams_of_the_bundled_tokenizer(bundled: ModelTokenizer) -> None:
    check_seams(bundled, TEXTS)


@pytest.mark.bundled
def test_seams_between_chinese_sentences_have_no_space(bundled: ModelTokenizer) -> None:
    check_seams(bundled, sentences("三十天内可以退货。请联系我们！"), between="")


@pytest.mark.bundled
def test_answers_of_the_bundled_tokenizer_are_the_sentences(bundled: ModelTokenizer) -> None:
    """Whole answers, the first token of each step taken, along every first sentence."""
    found = choices_of("How many days?", [(passage(RETURNS), 0.5), (passage(SHIPPING), 0.5)], REFUSAL, bundled, 2)
    texts = {text if text[-1] in ".!" else f"{text}." for text in (*statements(RETURNS), *statements(SHIPPING))}
    answers = {REFUSAL, *(" ".join(said) for count in (1, 2, 3) for said in permutations(texts, count))}
    for choice in found.choices:
        answer = list(choice.tokens)
        if not choice.alone:
            answer += second_of(found, answer)
        assert bundled.decode(answer) in answers


def second_of(choices: Choices, answer: list[int]) -> list[int]:
    """Tokens that go on with an answer for as long as it can go on."""
    more: list[int] = []
    while tokens := [token for token in choices.allowed(answer + more) if token != choices.stop]:
        more.append(tokens[0])
    return more


def test_seams_of_a_tokenizer_that_puts_spaces_by_itself() -> None:
    """As SentencePiece does."""
    tokenizer = Tokenizer(models.Unigram())
    tokenizer.pre_tokenizer, tokenizer.decoder = pre_tokenizers.Metaspace(), decoders.Metaspace()
    trainer = trainers.UnigramTrainer(vocab_size=120, special_tokens=["<unk>", "</s>"], unk_token="<unk>")
    tokenizer.train_from_iterator(TEXTS * 5, trainer)
    fast = PreTrainedTokenizerFast(tokenizer_object=tokenizer, eos_token="</s>", unk_token="<unk>")
    check_seams(ModelTokenizer(fast), TEXTS)
