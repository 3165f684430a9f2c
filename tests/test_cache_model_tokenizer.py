"""Text to tokens: what a document says never becomes a control token, ordinary text stays what the model knows."""

from pathlib import Path
from typing import Any

import pytest
from tokenizers import AddedToken, Tokenizer, decoders, models, normalizers, pre_tokenizers
from transformers import AutoTokenizer, ByT5Tokenizer, PreTrainedTokenizerFast

from cache.prompt.parts import Text
from cache.prompt.tokenizer import ModelTokenizer

MARKERS = ("<|im_end|>", "<think>", "</think>", "<tool_call>", "[TOOL_CALLS]", "<｜User｜>")
ORDINARY = ("  ", "Warmdesk", "\n\n")


def fast() -> Any:
    """Bytes, and added tokens of every kind; only the first marker is marked as special."""
    letters = sorted(pre_tokenizers.ByteLevel.alphabet())
    tokenizer = Tokenizer(models.BPE({letter: number for number, letter in enumerate(letters)}, []))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens([AddedToken(MARKERS[0], special=True)])
    tokenizer.add_tokens([AddedToken(text, special=False) for text in (*MARKERS[1:], *ORDINARY)])
    return PreTrainedTokenizerFast(tokenizer_object=tokenizer)


def slow() -> Any:
    tokenizer = ByT5Tokenizer(extra_ids=2)
    tokenizer.add_tokens([AddedToken(MARKERS[0], special=True), *MARKERS[1:]])
    return tokenizer


@pytest.mark.parametrize("kind", [fast, slow])
@pytest.mark.parametrize("marker", MARKERS)
def test_a_marker_in_a_text_is_no_token_and_in_the_template_it_is_one(kind: Any, marker: str) -> None:
    hf = kind()
    number, tokenizer = hf.convert_tokens_to_ids(marker), ModelTokenizer(hf)
    literal = tokenizer.encode([Text(text=f"Say {marker}{marker} now")])
    assert number not in literal
    assert tokenizer.decode(literal) == f"Say {marker}{marker} now"
    assert tokenizer.encode([Text(text=f"a{marker}b", structural=True)])[1] == number


def test_a_marker_in_other_characters_is_no_token_after_they_are_made_the_same() -> None:
    hf = fast()
    hf.backend_tokenizer.normalizer = normalizers.NFKC()
    tokenizer = ModelTokenizer(hf)
    assert max(tokenizer.encode([Text(text="\N{FULLWIDTH LESS-THAN SIGN}think\N{FULLWIDTH GREATER-THAN SIGN}")])) < 256


def test_a_marker_that_is_a_word_of_the_vocabulary_is_no_token_either() -> None:
    words = {word: number for number, word in enumerate(("[UNK]", "<think>", "<", "think", ">", "<th", "ink>", "go"))}
    hf = PreTrainedTokenizerFast(tokenizer_object=Tokenizer(models.WordLevel(words, "[UNK]")), unk_token="[UNK]")
    hf.add_tokens([AddedToken("<think>", special=False)])
    tokenizer = ModelTokenizer(hf)
    assert words["<think>"] not in tokenizer.encode([Text(text="<think>")])
    assert tokenizer.encode([Text(text="nobody")]) == [words["[UNK]"]]


def test_other_added_tokens_stay_tokens_and_only_special_ones_are_hidden() -> None:
    hf = fast()
    numbers, tokenizer = [hf.convert_tokens_to_ids(text) for text in ORDINARY], ModelTokenizer(hf)
    assert tokenizer.encode([Text(text="  Warmdesk\n\n")]) == numbers
    shown = hf.convert_tokens_to_ids([*MARKERS])
    assert tokenizer.decode(shown) == "".join(MARKERS[1:])


@pytest.mark.bundled
def test_the_bundled_model_reads_ordinary_text_as_its_tokenizer_does(bundled_model: Path) -> None:
    hf = AutoTokenizer.from_pretrained(bundled_model, local_files_only=True)
    texts = [path.read_text() for path in sorted((Path(__file__).parent.parent / "data/knowledge").rglob("*.md"))]
    texts += ["x < y > z | [1] {a}", "Ünïcode  \t\n\n 你好 😀", "<b>bold</b> <think>"]
    expected = [hf(text, add_special_tokens=False)["input_ids"] for text in texts]
    tokenizer = ModelTokenizer(hf)
    assert [tokenizer.encode([Text(text=text)]) for text in texts] == expected
    assert [tokenizer.decode(ids) for ids in expected] == [hf.decode(ids, skip_special_tokens=True) for ids in expected]
