"""Byte-level tokenizers of GGUF files, with the part of transformers' interface that `ModelTokenizer` uses.

Tokens and rendered conversations are the same as from transformers, but importing transformers and building its
tokenizer takes 1.5 s. Out of scope: other tokenizers and other ways to split text. Transformers builds these.
"""

import json
from collections.abc import Mapping, Sequence
from datetime import datetime
from functools import partial
from typing import Any

from jinja2 import TemplateError
from jinja2.ext import loopcontrols
from jinja2.sandbox import ImmutableSandboxedEnvironment
from jinja2.utils import Namespace
from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, pre_tokenizers

_LLAMA3 = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}"
    r"| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)
_SPLITS: dict[str | None, str] = {
    **dict.fromkeys((None, "default", "gpt-2", "smollm"), ""),
    **dict.fromkeys(("llama3", "llama-v3", "llama-bpe", "dbrx"), _LLAMA3),
    "qwen2": _LLAMA3.replace("{1,3}", ""),
}
"""Regular expressions that split text before tokens are merged, by the name in a file. "": split as GPT-2 does."""
_CONTROL, _OF_USERS = 3, 4  # types of added tokens
_NAMED = {"bos_token": "bos", "eos_token": "eos", "unk_token": "unknown", "pad_token": "padding"}
_ALPHABET = frozenset(pre_tokenizers.ByteLevel.alphabet())
_BYTEWISE = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)


def byte_level_tokenizer(metadata: Mapping[str, Any]) -> "ByteLevelTokenizer | None":
    """Build a tokenizer from a file's metadata; None if only transformers can. Raises ValueError for damage."""
    values = {key.removeprefix("tokenizer."): value for key, value in metadata.items()}
    if values.get("ggml.model") != "gpt2" or values.get("ggml.pre") not in _SPLITS or "ggml.merges" not in values:
        return None
    try:
        found = ByteLevelTokenizer(values)
    except Exception as error:  # the library has no error class of its own
        raise ValueError(f"its tokenizer is damaged ({error})") from error
    is_usual = _ALPHABET.issuperset("".join(found.named.values()))
    return found if is_usual and "endgeneration" not in (found.chat_template or "") else None


class ByteLevelTokenizer:
    """A byte-level BPE tokenizer. values: a file's metadata, keys without `tokenizer.`. named: special tokens by their
    names in templates. Thread-safe.
    """

    def __init__(self, values: Mapping[str, Any]) -> None:
        tokens: list[str] = values["ggml.tokens"]
        spelled = [one if _ALPHABET.issuperset(one) else _BYTEWISE.pre_tokenize_str(one)[0][0] for one in tokens]
        merges = [tuple(merge.split(" ")) for merge in values["ggml.merges"]]
        self._read = Tokenizer(models.BPE({token: number for number, token in enumerate(spelled)}, merges))
        self._read.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
        if split := _SPLITS[values.get("ggml.pre")]:
            self._read.pre_tokenizer = pre_tokenizers.Sequence(
                [pre_tokenizers.Split(Regex(split), "isolated"), _BYTEWISE]
            )
        self._read.decoder = decoders.ByteLevel()
        ids = {name: values.get(f"ggml.{of}_token_id") for name, of in _NAMED.items()}
        self.named = {name: tokens[number] for name, number in ids.items() if number is not None}
        added = list(zip(tokens, spelled, values.get("ggml.token_type", ()), strict=False))
        usual = [(token, kind) for token, spelling, kind in added if token == spelling]  # others have a wrong type
        self.add_tokens([token for token, kind in usual if kind == _CONTROL], special_tokens=True)
        own = [token for token, kind in usual if kind == _OF_USERS]
        self._read.add_tokens([AddedToken(token, normalized=False, special=False) for token in own])
        new = [token for token in self.named.values() if token not in own]
        self.add_tokens(new, special_tokens=True)
        self._read.encode_special_tokens = True  # special tokens in a text are split like other text
        self.chat_template: str | None = values.get("chat_template")
        self.unk_token_id, self.bos_token_id = ids["unk_token"], ids["bos_token"]

    @property
    def added_tokens_decoder(self) -> dict[int, AddedToken]:
        return self._read.get_added_tokens_decoder()

    @property
    def all_special_ids(self) -> list[int | None]:
        return [self.convert_tokens_to_ids(token) for token in self.named.values()]

    def add_tokens(self, tokens: Sequence[str], *, special_tokens: bool) -> None:
        self._read.add_special_tokens([AddedToken(one, normalized=False, special=special_tokens) for one in tokens])

    def convert_tokens_to_ids(self, token: str) -> int | None:
        return self._read.token_to_id(token)

    def __call__(self, text: str, **_: object) -> dict[str, list[int]]:
        return {"input_ids": self._read.encode(text, add_special_tokens=False).ids}

    def decode(self, tokens: Sequence[int], **_: object) -> str:
        return self._read.decode(tokens, skip_special_tokens=False)

    def apply_chat_template(self, messages: list[dict[str, str]], *, add_generation_prompt: bool, **_: object) -> str:
        """Render a conversation. Raises TemplateError, and any error that the template's code causes."""
        sandbox = ImmutableSandboxedEnvironment(trim_blocks=True, lstrip_blocks=True, extensions=[loopcontrols])
        sandbox.filters["tojson"] = partial(json.dumps, ensure_ascii=False)
        sandbox.globals |= {"namespace": _Variables, "dict": lambda *pairs, **named: dict(*pairs, **named)}
        sandbox.globals |= {"raise_exception": _refuse, "strftime_now": lambda form: datetime.now().strftime(form)}
        given = {"messages": messages, "tools": None, "documents": None, "add_generation_prompt": add_generation_prompt}
        return sandbox.from_string(self.chat_template or "").render(self.named | given)


def _refuse(message: str) -> None:
    raise TemplateError(message)


class _Variables(Namespace):
    """Variables of a template. Templates are not trusted: names that begin with an underscore are refused."""

    def __init__(*given: Any, **named: Any) -> None:  # a variable may be named `self`
        Namespace.__init__(given[0])
        for name, value in dict(*given[1:], **named).items():
            given[0][name] = value

    def __setitem__(self, name: str, value: Any) -> None:
        if name.startswith("_"):
            raise TemplateError(f"{name!r} is not allowed as the name of a variable")
        super().__setitem__(name, value)
