"""Structural strings, cut out of the chat templates of several families; and text to tokens: what a document says never
becomes a control token, ordinary text stays what the model knows.
"""

from pathlib import Path
from typing import Any

import jinja2
import pytest
from tokenizers import AddedToken, Tokenizer, decoders, models, normalizers, pre_tokenizers
from transformers import AutoTokenizer, ByT5Tokenizer, PreTrainedTokenizerFast

from cache.prompt.parts import Text
from cache.prompt.tokenizer import (
    NAMED,
    NO_ROLES,
    PLAIN,
    ChatTemplate,
    Messages,
    ModelTokenizer,
    Render,
    RoleStrings,
    derive_template,
)

CHATML = (
    "{% for message in messages %}"
    "{{ '<|im_start|>' + message['role'] + '\n' + message['content'] + '<|im_end|>' + '\n' }}"
    "{% endfor %}{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"
)
LLAMA3 = (
    "{% for message in messages %}{% if loop.first %}<|begin_of_text|>{% endif %}"
    "{{ '<|start_header_id|>' + message['role'] + '<|end_header_id|>\n\n' }}"
    "{{ message['content'] | trim + '<|eot_id|>' }}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|start_header_id|>assistant<|end_header_id|>\n\n' }}{% endif %}"
)
MISTRAL = (
    "<s>{% for message in messages %}"
    "{% if message['role'] == 'system' %}{{ raise_exception('no system role') }}{% endif %}"
    "{% if message['role'] == 'user' %}{{ '[INST] ' + message['content'] + ' [/INST]' }}"
    "{% else %}{{ message['content'] + '</s>' }}{% endif %}{% endfor %}"
)
DEFAULT_SYSTEM = "{% if messages[0]['role'] != 'system' %}<|im_start|>system\nBe kind.<|im_end|>\n{% endif %}" + CHATML
DROPS_SYSTEM = "{% for message in messages if message['role'] != 'system' %}[{{ message['content'] }}]{% endfor %}"
DROPS_ANSWERS = "{% for message in messages if message['role'] != 'assistant' %}[{{ message['content'] }}]{% endfor %}"
REPEATS = "{% for message in messages %}{{ message['content'] }}{% endfor %}{{ messages[-1]['content'] }}"
SHOUTS = "{% for message in messages %}{{ message['content'] | upper }}{% endfor %}"


def renderer(source: str) -> Render:
    """As transformers renders: a refusal of the template is an error."""

    def refuse(message: str) -> None:
        raise ValueError(message)

    template = jinja2.Environment().from_string(source)
    return lambda messages, answering: template.render(
        messages=messages, add_generation_prompt=answering, raise_exception=refuse
    )


def conversation(t: ChatTemplate, system: str, question: str, answer: str, following: str) -> str:
    return t.open + system + t.to_user + question + t.to_answer + answer + t.to_next + following + t.to_answer


def rendered(source: str, system: str, question: str, answer: str, following: str) -> str:
    return renderer(source)(
        [
            {"role": "system", "content": system},
            {"role": "user", "content": question},
            {"role": "assistant", "content": answer},
            {"role": "user", "content": following},
        ],
        True,
    )


def test_chatml():
    assert derive_template(renderer(CHATML)) == ChatTemplate(
        open="<|im_start|>system\n",
        to_user="<|im_end|>\n<|im_start|>user\n",
        to_answer="<|im_end|>\n<|im_start|>assistant\n",
        to_next="<|im_end|>\n<|im_start|>user\n",
        roles=NAMED["chatml"],
    )


@pytest.mark.parametrize("source", [CHATML, LLAMA3, DEFAULT_SYSTEM])
def test_the_strings_rebuild_a_whole_conversation(source):
    said = ("You answer.", "Why?", "Because.", "And how?")
    assert conversation(derive_template(renderer(source)), *said) == rendered(source, *said)


def test_an_answer_opens_with_the_generation_prompt_not_with_how_history_is_written():
    source = CHATML.replace("assistant\n' }}{% endif %}", "assistant\n<think></think>' }}{% endif %}")
    template = derive_template(renderer(source))
    assert template.to_answer == "<|im_end|>\n<|im_start|>assistant\n<think></think>"


def test_without_a_system_role_the_system_text_opens_the_first_question():
    template = derive_template(renderer(MISTRAL))
    assert (template.open, template.to_user) == ("<s>[INST] ", "\n\n")
    assert (template.to_answer, template.to_next) == (" [/INST]", "</s>[INST] ")
    assert template.roles == {"user": RoleStrings("[INST] ", " [/INST]"), "assistant": RoleStrings("", "</s>")}
    template = derive_template(renderer(DROPS_SYSTEM))
    assert (template.open, template.to_user) == ("[", "\n\n")


def test_a_system_text_that_moves_to_the_last_question_opens_the_first_one():
    source = (  # Mistral 7B v0.3
        "{% set system, rest = (none, messages) %}"
        "{% if messages[0]['role'] == 'system' %}{% set system, rest = (messages[0], messages[1:]) %}{% endif %}"
        "<s>{% for message in rest %}{% if message['role'] == 'user' %}"
        "{{ '[INST] ' + (system['content'] + '\n\n' if system and loop.last else '') }}"
        "{{ message['content'] + '[/INST]' }}"
        "{% else %}{{ ' ' + message['content'] + '</s>' }}{% endif %}{% endfor %}"
    )
    template = derive_template(renderer(source))
    assert (template.open, template.to_user) == ("<s>[INST] ", "\n\n")
    assert (template.to_answer, template.to_next) == ("[/INST]", "</s>[INST] ")
    assert template.roles == {"user": RoleStrings("[INST] ", "[/INST]"), "assistant": RoleStrings(" ", "</s>")}


@pytest.mark.parametrize("source", [DROPS_ANSWERS, REPEATS, SHOUTS, "nothing"])
def test_a_template_that_drops_repeats_or_rewrites_content_is_refused(source):
    with pytest.raises(ValueError, match="changes message texts"):
        derive_template(renderer(source))


class Stub:
    """A transformers tokenizer with nothing but a chat template."""

    added_tokens_decoder: dict[int, object] = {}  # noqa: RUF012
    all_special_ids = ()
    unk_token_id = 0
    bos_token_id = None

    def __init__(self, source: str | None) -> None:
        self.chat_template = source

    def add_tokens(self, tokens: list[str], *, special_tokens: bool) -> None:
        assert special_tokens
        assert not tokens

    def apply_chat_template(self, messages: Messages, *, tokenize: bool, add_generation_prompt: bool) -> str:
        assert not tokenize
        return renderer(str(self.chat_template))(messages, add_generation_prompt)

    def __call__(self, text: str, **_: object) -> dict[str, list[int]]:
        return {"input_ids": [len(text)]}


def test_a_tokenizer_brings_its_template_and_without_one_gets_plain_headings():
    assert ModelTokenizer(Stub(CHATML)).template == derive_template(renderer(CHATML))
    assert ModelTokenizer(Stub(None)).template == PLAIN
    assert PLAIN.roles == NO_ROLES


@pytest.mark.parametrize("source", ["{{ raise_exception('never') }}", "{{ 1 / 0 }}", "{{ missing.attribute }}", SHOUTS])
def test_a_template_that_cannot_be_used_is_one_clear_error(source):
    with pytest.raises(ValueError):
        ModelTokenizer(Stub(source))


LLAMA2 = (
    "{% if messages[0]['role'] == 'system' %}{% set rest = messages[1:] %}"
    "{% set head = '<<SYS>>\n' + messages[0]['content'] + '\n<</SYS>>\n\n' %}"
    "{% else %}{% set rest = messages %}{% set head = '' %}{% endif %}"
    "{% for message in rest %}{% if message['role'] == 'user' %}"
    "{{ '<s>[INST] ' + (head if loop.first else '') + message['content'] + ' [/INST]' }}"
    "{% else %}{{ ' ' + message['content'] + ' </s>' }}{% endif %}{% endfor %}"
)


def test_where_the_first_question_has_no_opening_of_its_own_the_turn_before_carries_it():
    roles = derive_template(renderer(LLAMA2)).roles
    assert roles["system"] == RoleStrings("<s>[INST] <<SYS>>\n", "\n<</SYS>>\n\n", "<s>[INST] ")
    assert roles["user"] == RoleStrings("", " [/INST]")
    assert roles["assistant"].close == " </s><s>[INST] "


@pytest.mark.parametrize("source", [CHATML, LLAMA3, LLAMA2, DEFAULT_SYSTEM])
@pytest.mark.parametrize("system", ["You answer.", None])
def test_turns_one_after_another_are_what_the_template_renders(source, system):
    roles = derive_template(renderer(source)).roles
    opening = roles["system"].alone if system is None else roles["system"].open + system + roles["system"].close
    user, assistant = roles["user"], roles["assistant"]
    text = opening + user.open + "Why?" + user.close
    text += assistant.open + "Because." + assistant.close + user.open + "How?" + user.close
    messages = [
        *([] if system is None else [{"role": "system", "content": system}]),
        {"role": "user", "content": "Why?"},
        {"role": "assistant", "content": "Because."},
        {"role": "user", "content": "How?"},
    ]
    assert text == renderer(source)(messages, True)


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
def test_a_marker_in_a_text_is_no_token_and_in_the_template_it_is_one(kind, marker):
    hf = kind()
    number, tokenizer = hf.convert_tokens_to_ids(marker), ModelTokenizer(hf)
    literal = tokenizer.encode([Text(text=f"Say {marker}{marker} now")])
    assert number not in literal
    assert tokenizer.decode(literal) == f"Say {marker}{marker} now"
    assert tokenizer.encode([Text(text=f"a{marker}b", structural=True)])[1] == number


def test_a_marker_in_other_characters_is_no_token_after_they_are_made_the_same():
    hf = fast()
    hf.backend_tokenizer.normalizer = normalizers.NFKC()
    tokenizer = ModelTokenizer(hf)
    assert max(tokenizer.encode([Text(text="\N{FULLWIDTH LESS-THAN SIGN}think\N{FULLWIDTH GREATER-THAN SIGN}")])) < 256


def test_a_marker_that_is_a_word_of_the_vocabulary_is_no_token_either():
    words = {word: number for number, word in enumerate(("[UNK]", "<think>", "<", "think", ">", "<th", "ink>", "go"))}
    hf = PreTrainedTokenizerFast(tokenizer_object=Tokenizer(models.WordLevel(words, "[UNK]")), unk_token="[UNK]")
    hf.add_tokens([AddedToken("<think>", special=False)])
    tokenizer = ModelTokenizer(hf)
    assert words["<think>"] not in tokenizer.encode([Text(text="<think>")])
    assert tokenizer.encode([Text(text="nobody")]) == [words["[UNK]"]]


def test_other_added_tokens_stay_tokens_and_only_special_ones_are_hidden():
    hf = fast()
    numbers, tokenizer = [hf.convert_tokens_to_ids(text) for text in ORDINARY], ModelTokenizer(hf)
    assert tokenizer.encode([Text(text="  Warmdesk\n\n")]) == numbers
    shown = hf.convert_tokens_to_ids([*MARKERS])
    assert tokenizer.decode(shown) == "".join(MARKERS[1:])


@pytest.mark.bundled
def test_the_bundled_model_reads_ordinary_text_as_its_tokenizer_does(bundled_model):
    hf = AutoTokenizer.from_pretrained(bundled_model, local_files_only=True)
    texts = [path.read_text() for path in sorted((Path(__file__).parent.parent / "data/knowledge").rglob("*.md"))]
    texts += ["x < y > z | [1] {a}", "Ünïcode  \t\n\n 你好 😀", "<b>bold</b> <think>"]
    expected = [hf(text, add_special_tokens=False)["input_ids"] for text in texts]
    tokenizer = ModelTokenizer(hf)
    assert [tokenizer.encode([Text(text=text)]) for text in texts] == expected
    assert [tokenizer.decode(ids) for ids in expected] == [hf.decode(ids, skip_special_tokens=True) for ids in expected]
