"""Text to token ids and back, and the strings of chat templates.

A run of text pieces is tokenised in one call, so its ids are the ids of the joined text. Control tokens are recognised
in structural pieces only: `<|im_end|>` in a document or a user's text becomes ordinary characters. Model files do not
mark all control tokens as special (Qwen3's `<think>` is not), so every added token that looks like markup is one.

The strings of a chat template are found by rendering conversations of marker texts and cutting at the markers. A model
without template uses plain headings, and has no roles in PML. Three well-known templates are available by name, so that
schemas can be checked without a model.
"""

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from itertools import groupby
from types import MappingProxyType
from typing import Any, Protocol

from cache.prompt.parts import RoleName, Text


@dataclass(frozen=True, slots=True)
class RoleStrings:
    """Structural strings around a turn. empty: text of a turn without content; None: open + close."""

    open: str
    close: str
    empty: str | None = None

    @property
    def alone(self) -> str:
        return self.open + self.close if self.empty is None else self.empty


Roles = Mapping[RoleName, RoleStrings]
NO_ROLES: Roles = MappingProxyType({})  # A model without a chat template: role elements are errors

NAMED: Mapping[str, Roles] = MappingProxyType(
    {
        "llama2": {
            "system": RoleStrings("<s> [INST] <<SYS>>\n", "<</SYS>>\n\n", "<s> [INST] "),
            "user": RoleStrings("", "[/INST]"),
            "assistant": RoleStrings("", "</s><s> [INST] "),
        },
        "chatml": {
            "system": RoleStrings("<|im_start|>system\n", "<|im_end|>\n", ""),
            "user": RoleStrings("<|im_start|>user\n", "<|im_end|>\n<|im_start|>assistant\n"),
            "assistant": RoleStrings("", "<|im_end|>\n"),
        },
        "falcon": {
            "system": RoleStrings("", "\n\n", ""),
            "user": RoleStrings("User: ", "\n\nAssistant:"),
            "assistant": RoleStrings(" ", "\n\n"),
        },
    }
)

Messages = list[dict[str, str]]
Render = Callable[[Messages, bool], str]
"""Renders messages as text. If the flag is True, the text ends with the start of an answer. May raise ValueError for an
unsupported role.
"""

SYSTEM, USER, ANSWER, NEXT = "wd-mark-system", "wd-mark-user", "wd-mark-answer", "wd-mark-next"


@dataclass(frozen=True, slots=True, kw_only=True)
class ChatTemplate:
    """Structural strings of a conversation, in this order: open, system text, to_user, question, to_answer, answer,
    to_next, question, and so on. roles: the same strings for PML's turns.
    """

    open: str
    to_user: str
    to_answer: str
    to_next: str
    roles: Roles = field(default_factory=lambda: NO_ROLES)


PLAIN = ChatTemplate(open="", to_user="\n\n", to_answer="\nAnswer:", to_next="\n\n")


def derive_template(render: Render) -> ChatTemplate:
    """Cut rendered conversations at their markers. Raises ValueError if a marker does not survive rendering."""
    contents = (("user", USER), ("assistant", ANSWER), ("user", NEXT))
    turns = [{"role": role, "content": content} for role, content in contents]
    head_alone, rest_alone = cut(render(turns, True), USER)
    try:
        head, rest = cut(render([{"role": "system", "content": SYSTEM}, *turns], True), SYSTEM)
        to_user, rest = cut(rest, USER)
        has_system = True
    except ValueError:  # no separate system turn: the system text becomes the start of the first user turn
        has_system = False
        head, to_user, rest = head_alone, "\n\n", rest_alone
    to_past_answer, rest = cut(rest, ANSWER)
    to_next, to_answer = cut(rest, NEXT)
    _, close = cut(render(turns[:2], False), ANSWER)
    answer_open = to_past_answer.removeprefix(to_answer) if to_past_answer.startswith(to_answer) else ""
    user_open = to_next.removeprefix(close) if to_next.startswith(close) else ""
    if has_system and not to_user.endswith(user_open):  # Llama 2: the opening belongs to the turn before
        user_open = ""
    roles: dict[RoleName, RoleStrings] = {
        "user": RoleStrings(user_open, to_answer),
        "assistant": RoleStrings(answer_open, to_next.removesuffix(user_open)),
    }
    if has_system:
        empty = head_alone.removesuffix(user_open)
        roles["system"] = RoleStrings(head, to_user.removesuffix(user_open), empty)
    return ChatTemplate(open=head, to_user=to_user, to_answer=to_answer, to_next=to_next, roles=roles)


def cut(text: str, marker: str) -> tuple[str, str]:
    """Return the text before and after a marker. Raises ValueError if the marker is not in it exactly once."""
    if text.count(marker) != 1:
        raise ValueError(f"the chat template changes message texts: it must contain {marker!r} once")
    before, after = text.split(marker)
    return before, after


class Tokenizer(Protocol):
    """A tokenizer for placing a prompt. filler: token for the unused rest of a parameter's slot during encoding.
    sink_prefix: tokens of a short constant text that is put before modules during encoding; may be empty.
    """

    filler: int
    sink_prefix: tuple[int, ...]

    def encode(self, run: Sequence[Text]) -> list[int]:
        """Return token ids of a run, without added special tokens. No piece of the run has known tokens."""


class ChatTokenizer(Tokenizer, Protocol):
    """A tokenizer for conversations. template: the strings between messages."""

    template: ChatTemplate

    def decode(self, tokens: Sequence[int]) -> str:
        """Return the text of token ids, without special tokens."""


class WordTokenizer:
    """A tokenizer with one id per word, for checking schemas without a model. Control tokens have no ids."""

    filler = 0
    sink_prefix: tuple[int, ...] = ()

    def __init__(self) -> None:
        self._ids: dict[str, int] = {}

    def encode(self, run: Sequence[Text]) -> list[int]:
        """Return ids in order of first appearance, from 1; 0 is the filler."""
        words = "".join(piece.text for piece in run).split()
        return [self._ids.setdefault(word, len(self._ids) + 1) for word in words]


class CachingTokenizer:
    """A tokenizer that caches the ids of recent runs of text, because each turn of a conversation repeats its passages.
    Thread-safe. runs: number of cached runs. longest: maximum characters of a cached run.
    """

    def __init__(self, tokenizer: Tokenizer, runs: int, longest: int) -> None:
        self.filler, self.sink_prefix = tokenizer.filler, tokenizer.sink_prefix
        self._tokenizer, self._longest = tokenizer, longest
        self._encode = lru_cache(maxsize=runs)(lambda run: tuple(tokenizer.encode(run)))

    def encode(self, run: Sequence[Text]) -> list[int]:
        if sum(len(piece.text) for piece in run) > self._longest:
            return self._tokenizer.encode(run)
        return list(self._encode(tuple(run)))

    def clear(self) -> None:
        self._encode.cache_clear()


def run_tokens(run: Sequence[Text], tokenizer: Tokenizer) -> tuple[int, ...]:
    """Return token ids of a run. Pieces keep known tokens; texts between such pieces are tokenised separately."""
    tokens: list[int] = []
    for is_text, pieces in groupby(run, key=lambda piece: piece.tokens is None):
        group = list(pieces)
        tokens += tokenizer.encode(group) if is_text else (token for piece in group for token in piece.tokens or ())
    return tuple(tokens)


MARKUP = re.compile(r"[<>\[\]{}|｜].*\w|\w.*[<>\[\]{}|｜]")
"""Pattern of control tokens: a bracket or a bar, and a word character."""


class ModelTokenizer:
    """The engine's interface to a transformers tokenizer, in which it marks control tokens as special. Raises
    ValueError if the chat template cannot be used.
    """

    def __init__(self, tokenizer: Any) -> None:
        self._tokenizer = tokenizer
        added = tokenizer.added_tokens_decoder
        self._hidden = {*tokenizer.all_special_ids, *(number for number, token in added.items() if token.special)}
        control = {n: one.content for n, one in added.items() if one.special or MARKUP.search(one.content)}
        tokenizer.add_tokens([*control.values()], special_tokens=True)  # only special tokens can be split
        self._control_ids = control.keys() - {tokenizer.unk_token_id}
        self._control = re.compile("|".join(map(re.escape, sorted(control.values(), key=len, reverse=True))) or r"(?!)")
        self.template: ChatTemplate = derive_template(self._render) if tokenizer.chat_template else PLAIN
        unknown: int | None = tokenizer.unk_token_id
        self.filler: int = self._ordinary("\n")[0] if unknown is None else unknown
        self.sink_prefix: tuple[int, ...] = self._sink_prefix()

    def encode(self, run: Sequence[Text]) -> list[int]:
        """Return token ids of the joined text of a run, without added special tokens. Control tokens are recognised
        in structural pieces only.
        """
        ids: list[int] = []
        section = ""
        for piece in run:
            at = 0
            for marker in self._control.finditer(piece.text) if piece.structural else ():
                ids += self._ordinary(section + piece.text[at : marker.start()])
                ids.append(self._tokenizer.convert_tokens_to_ids(marker.group()))
                section, at = "", marker.end()
            section += piece.text[at:]
        return ids + self._ordinary(section)

    def decode(self, tokens: Sequence[int]) -> str:
        shown = [token for token in tokens if token not in self._hidden]
        text: str = self._tokenizer.decode(shown, clean_up_tokenization_spaces=False)
        return text

    def _ordinary(self, text: str) -> list[int]:
        if not text:
            return []
        encoded = self._tokenizer(text, add_special_tokens=False, split_special_tokens=True, verbose=False)
        ids: list[int] = list(encoded["input_ids"])
        if self._control_ids.isdisjoint(ids):
            return ids
        half = len(text) // 2  # the text gave a control token: tokenise its halves separately
        return self._ordinary(text[:half]) + self._ordinary(text[half:]) if half else []

    def _sink_prefix(self) -> tuple[int, ...]:
        """Return the first line of the chat template's start (the next may have today's date), else the BOS token."""
        line, newline, _ = self.template.open.partition("\n")
        if line:
            return tuple(self.encode([Text(text=line + newline, structural=True)]))
        bos: int | None = self._tokenizer.bos_token_id
        return () if bos is None else (bos,)

    def _render(self, messages: Messages, answering: bool) -> str:
        try:
            text: str = self._tokenizer.apply_chat_template(messages, tokenize=False, add_generation_prompt=answering)
        except Exception as error:  # a template raises an error of jinja for a role that it does not support
            raise ValueError(str(error)) from error
        return text
