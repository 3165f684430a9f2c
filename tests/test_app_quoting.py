"""How the statements of an answer are offered to the model, and that their tokens give back their texts."""

from collections.abc import Sequence
from itertools import permutations

import pytest
from tiny import ByteTokenizer
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
from transformers import AutoTokenizer, PreTrainedTokenizerFast

from app.answering.record import WEIGHT, choices_of, tokens_behind
from app.knowledge.finder import RankedStatement
from cache.decoding.constraints import Choices
from cache.prompt.parts import Text
from cache.prompt.tokenizer import ModelTokenizer

REFUSAL = "I could not find an answer to this."
STOP = 299
ROOM = 10_000
STATEMENTS = [
    "You can return most articles within 30 days.",
    'We print 2 labels for "heavy" parcels (over 20 kg).',
    "the receipt",
    "Article: shoes; Days: 14",
    "Call us at once!",
    "Shipping costs 4.95 euros.",
]


def ranked(*sentences: tuple[str, float]) -> list[RankedStatement]:
    return [RankedStatement(text=text, logit=logit, passage=1, start=0, end=9) for text, logit in sentences]


def offered(*sentences: tuple[str, float]) -> dict[str, float]:
    choices = choices_of(ranked(*sentences), REFUSAL, ByteTokenizer(), STOP, ROOM)
    return {bytes(choice.tokens).decode(): choice.prior for choice in choices.choices}


def test_statements_are_offered_once_as_sentences_with_what_search_judged_and_the_refusal_only_alone():
    assert list(offered()) == [REFUSAL]
    found = offered(("Article: shoes; Days: 14", 1.5), ("Call us!", -0.5), ("请联系我们。", -2.0), ("Call us", -3.0))
    assert found == {
        "Article: shoes; Days: 14.": WEIGHT * 1.5,
        "Call us!": WEIGHT * -0.5,
        "请联系我们。": WEIGHT * -2.0,
        "Call us.": WEIGHT * -3.0,
    }
    assert offered(("the receipt", 1.0), ("the receipt.", 0.5)) == {"the receipt.": WEIGHT * 1.0}


def test_an_answer_may_have_every_statement_that_is_shown_once_as_far_as_they_surely_fit():
    shown = (("First.", 1.0), ("Second.", 0.5), ("Third.", 0.3), ("Second", 0.2))
    choices = choices_of(ranked(*shown), REFUSAL, ByteTokenizer(), STOP, ROOM)
    assert choices.most == 3
    first, second, third = ByteTokenizer().encode([Text(text="First.")]), *map(behind, ("Second.", "Third."))
    assert likeliest(choices, first) == second[0]
    assert likeliest(choices, [*first, *second]) == third[0], "the last is near enough, too"
    assert set(choices.allowed([*first, *second, *third])) == {STOP}
    found = ranked(*(("word " * 20 + f"{number}.", 0.0) for number in range(9)))
    fitting = [choices_of(found, REFUSAL, ByteTokenizer(), STOP, room).most for room in (10, 150, 250, 400, ROOM)]
    assert fitting == [1, 1, 2, 3, 9]


def behind(text: str) -> list[int]:
    return list(tokens_behind(text, ByteTokenizer()))


def likeliest(choices: Choices, said: list[int]) -> int:
    allowed = choices.allowed(said)
    return max(allowed, key=lambda token: allowed[token])


# --- tokens ---------------------------------------------------------------------------------------------


TEXTS = [
    *STATEMENTS,
    "5 days is the limit.",
    '"Heavy" means over 20 kg.',
    "(See below.)",
    "Écrivez-nous.",
    "三十天内可以退货。",
]


def check_seams(tokenizer: ModelTokenizer) -> None:
    """One sentence, and any two, decode to themselves; two have the very ids of the joined text."""
    for text in TEXTS:
        assert tokenizer.decode(tokenizer.encode([Text(text=text)])) == text
    for first, second in permutations(TEXTS, 2):
        ids = [*tokenizer.encode([Text(text=first)]), *tokens_behind(second, tokenizer)]
        joined = f"{first}\n\n{second}"
        assert tokenizer.decode(ids) == joined
        assert ids == tokenizer.encode([Text(text=joined)])


@pytest.fixture(scope="module")
def bundled(bundled_model):
    return ModelTokenizer(AutoTokenizer.from_pretrained(bundled_model, local_files_only=True))


@pytest.mark.bundled
def test_seams_of_the_bundled_tokenizer(bundled):
    check_seams(bundled)


@pytest.mark.bundled
def test_answers_of_the_bundled_tokenizer_are_the_sentences(bundled):
    """Whole answers, the first token of each step taken, along every first sentence."""
    found = choices_of(ranked(*((text, 0.0) for text in STATEMENTS)), REFUSAL, bundled, 2, ROOM)
    texts = {text if text[-1] in ".!" else f"{text}." for text in STATEMENTS}
    answers = {"\n\n".join(said) for count in range(1, len(texts) + 1) for said in permutations(texts, count)}
    for choice in found.choices:
        answer = list(choice.tokens)
        assert bundled.decode(answer + second_of(found, answer)) in answers


def second_of(choices: Choices, answer: list[int]) -> list[int]:
    """Tokens that go on with an answer for as long as it can go on."""
    more: list[int] = []
    while tokens := [token for token in choices.allowed(answer + more) if token != choices.stop]:
        more.append(tokens[0])
    return more


def test_a_tokenizer_that_joins_stops_and_line_breaks_keeps_both():
    """As Qwen's and Llama 3's do: ".\\n\\n" is one token there."""

    class Joining(ByteTokenizer):
        def encode(self, run: Sequence[Text]) -> list[int]:
            ids = super().encode(run)
            return [*[300][: ids[:3] == [*b".\n\n"]], *(ids[3:] if ids[:3] == [*b".\n\n"] else ids)]

    assert bytes(tokens_behind("Next.", Joining())) == b"\n\nNext."


def test_seams_of_a_tokenizer_that_puts_spaces_by_itself():
    """As SentencePiece does."""
    tokenizer = Tokenizer(models.Unigram())
    tokenizer.pre_tokenizer, tokenizer.decoder = pre_tokenizers.Metaspace(), decoders.Metaspace()
    trainer = trainers.UnigramTrainer(vocab_size=140, special_tokens=["<unk>", "</s>"], unk_token="<unk>")
    tokenizer.train_from_iterator([*TEXTS, "\n\n"] * 5, trainer)
    fast = PreTrainedTokenizerFast(tokenizer_object=tokenizer, eos_token="</s>", unk_token="<unk>")
    check_seams(ModelTokenizer(fast))
