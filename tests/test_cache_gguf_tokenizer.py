"""Tokenizers of GGUF files against those that transformers builds from the same files."""

from pathlib import Path
from typing import Any

import gguf
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers.pre_tokenizers import ByteLevel
from transformers import TokenizersBackend

from cache.errors import ModelError
from cache.model.gguf_file import GGUFFile
from cache.model.gguf_tokenizer import byte_level_tokenizer
from cache.model.source import bundled_gguf, load_tokenizer
from cache.prompt.parts import Text
from cache.prompt.tokenizer import ModelTokenizer

CONTROL, OF_USERS, ORDINARY = 3, 4, 1
ADDED = {
    "<|endoftext|>": CONTROL,
    "<|im_start|>": CONTROL,
    "<|im_end|>": CONTROL,
    "<think>": OF_USERS,
    "Warmdesk": OF_USERS,
    "  two spaces": OF_USERS,  # mislabelled: not in the alphabet of a byte-level vocabulary
    "<｜bar｜>": CONTROL,
    "[pad]": ORDINARY,
}
MERGES = [
    "Ġ Ġ",
    "ĠĠ ĠĠ",
    "h e",
    "Ġ t",
    "Ġt he",
    "1 2",
    "12 3",
    "123 4",
    "i m",
    "< |",
    "Ċ Ċ",
    "' s",
    "e s",
    "å ĥ",
    "Ã ©",
]
CHATML = (
    "{% for m in messages %}{% if loop.first and m.role != 'system' %}{{ '<|im_start|>system\nHelp<|im_end|>\n' }}"
    "{% endif %}{{'<|im_start|>' + m['role'] + '\n' + m.content + '<|im_end|>' + '\n'}}{% endfor %}\n"
    "{% if add_generation_prompt %}\n    {{- '<|im_start|>assistant\n' }}{% endif %}"
)
VARIABLES = (
    "{{ bos_token }}{%- set ns = namespace(last='', self=1) %}"
    "{%- set names = dict(user='U', assistant='A', system='S') -%}"
    "{%- for m in messages %}{% set ns.last = m.role %}{{ names[ns.last] }}: {{ m.content }}{{ eos_token }}\n"
    "{% if tools is not none %}{% break %}{% endif %}{% endfor -%}{% if add_generation_prompt %}A: {% endif %}"
)
REFUSING = (
    "{% for m in messages %}{% if m.role == 'system' %}{{ raise_exception('no system: ' + m.role|tojson) }}{% endif %}"
    "[{{ m.role }}]{{ m.content|trim }}[/{{ m.role }}]{% endfor %}{{ '[assistant]' if add_generation_prompt }}"
)


def write(folder: Path, pre: str | None, template: str | None, **changed: Any) -> Path:
    """A file with a tokenizer of bytes, some merges and added tokens, and no tensors."""
    vocabulary = [*sorted(ByteLevel.alphabet()), *(merge.replace(" ", "") for merge in MERGES), *ADDED]
    kinds = [ORDINARY] * (256 + len(MERGES)) + [*ADDED.values()]
    writer = gguf.GGUFWriter(folder / "tiny.gguf", "qwen2")
    writer.add_tokenizer_model(changed.get("model", "gpt2"))
    if pre is not None:
        writer.add_tokenizer_pre(pre)
    writer.add_token_list(vocabulary)
    writer.add_token_types(kinds)
    writer.add_token_merges(changed.get("merges", MERGES))
    writer.add_bos_token_id(vocabulary.index("<|endoftext|>"))
    writer.add_eos_token_id(vocabulary.index("<|im_end|>"))
    writer.add_pad_token_id(vocabulary.index(changed.get("pad", "[pad]")))
    if template is not None:
        writer.add_chat_template(template)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return folder / "tiny.gguf"


def of_transformers(file: Path) -> ModelTokenizer:
    return ModelTokenizer(TokenizersBackend.from_pretrained(file.parent, gguf_file=file.name, local_files_only=True))


@pytest.fixture(scope="module", params=["bundled", None, "smollm", "llama-bpe", "dbrx", "qwen2"])
def both(request, tmp_path_factory):
    """Our tokenizer of a file, and transformers' of the same file."""
    pre = request.param
    file = bundled_gguf() if pre == "bundled" else write(tmp_path_factory.mktemp("gguf"), pre, CHATML)
    return ModelTokenizer(byte_level_tokenizer(GGUFFile(file).metadata)), of_transformers(file)


PIECES = st.sampled_from(
    [*ADDED, *("  ", "\n\n", "\r\n", "\t", "'S", "'re", "1234567", "١٢٣", "é", "e\u0301", "你好", "😀", "\0")]
)
HOSTILE = st.lists(PIECES | st.text(max_size=9), max_size=12).map("".join)


@settings(max_examples=40, deadline=None)
@given(data=st.data())
def test_tokens_are_those_of_transformers(both, data):
    own, theirs = both
    run = [Text(text=data.draw(HOSTILE)), Text(text=data.draw(HOSTILE), structural=data.draw(st.booleans()))]
    tokens = own.encode(run)
    assert tokens == theirs.encode(run)
    tokens += data.draw(st.lists(st.integers(0, 255 + len(MERGES) + len(ADDED)), max_size=9))
    assert own.decode(tokens) == theirs.decode(tokens)


@pytest.mark.parametrize("template", [None, CHATML, VARIABLES, REFUSING])
def test_strings_between_messages_are_those_of_transformers(template, tmp_path):
    file = write(tmp_path, "qwen2", template)
    own, theirs = ModelTokenizer(byte_level_tokenizer(GGUFFile(file).metadata)), of_transformers(file)
    assert (own.template, own.sink_prefix, own.filler) == (theirs.template, theirs.sink_prefix, theirs.filler)


@pytest.mark.parametrize(
    "template",
    [
        "{{ messages.__class__.__mro__ }}",
        "{% set ns = namespace(a=1) %}{% set ns.__class__ = 2 %}",
        "{{ namespace(__call__=1) }}",
        "{{ messages.clear() }}",
    ],
)
def test_a_template_cannot_leave_its_sandbox(template, tmp_path):
    file = write(tmp_path, "qwen2", "{% for m in messages %}{{ m.content }}{% endfor %}" + template)
    with pytest.raises(ModelError, match=r"tiny\.gguf"):
        load_tokenizer(str(file), converted=tmp_path)


@pytest.mark.parametrize(
    "changed",
    [{"model": "llama"}, {"pre": "tekken"}, {"pad": "<｜bar｜>"}, {"template": "{% generation %}{% endgeneration %}"}],
)
def test_what_is_not_covered_is_left_to_transformers(changed, tmp_path):
    file = write(tmp_path, **{"pre": "qwen2", "template": CHATML, **changed})
    assert byte_level_tokenizer(GGUFFile(file).metadata) is None


def test_a_damaged_tokenizer_is_one_line(tmp_path):
    with pytest.raises(
        ModelError, match=r"^model file '.*tiny\.gguf' cannot be loaded: its tokenizer is damaged \(.+\)$"
    ):
        load_tokenizer(str(write(tmp_path, "qwen2", None, merges=["no such"])), converted=tmp_path)
