"""A model's tokenizer: text to token ids, and back. Wraps a tokenizer of transformers.

Control tokens are recognised only in structural strings, those of the chat template. In the text of a document or a
user they are split into ordinary tokens. A model's files do not mark all of them as special: Qwen3's `<think>` and
`<tool_call>` are not. So whatever was added to a vocabulary and is written as markup counts, HTML tags too. Runs of
spaces and words that were added stay tokens.
"""

import re
from collections.abc import Sequence
from typing import Any

from cache.prompt.chat_template import PLAIN, ChatTemplate, Messages, derive_template
from cache.prompt.parts import Text

MARKUP = re.compile(r"[<>\[\]{}|｜].*\w|\w.*[<>\[\]{}|｜]")
"""How control tokens are written: a bracket or a bar, and a word."""


class ModelTokenizer:
    """A transformers tokenizer, reduced to what the engine needs, which marks its control tokens as special.

    Raises ValueError if its chat template cannot be used.
    """

    def __init__(self, tokenizer: Any) -> None:
        self._tokenizer = tokenizer
        added = tokenizer.added_tokens_decoder
        self._hidden = {*tokenizer.all_special_ids, *(number for number, token in added.items() if token.special)}
        control = {n: one.content for n, one in added.items() if one.special or MARKUP.search(one.content)}
        tokenizer.add_tokens([*control.values()], special_tokens=True)  # only such can be split
        self._control_ids = control.keys() - {tokenizer.unk_token_id}
        self._control = re.compile("|".join(map(re.escape, sorted(control.values(), key=len, reverse=True))) or r"(?!)")
        self.template: ChatTemplate = derive_template(self._render) if tokenizer.chat_template else PLAIN
        unknown: int | None = tokenizer.unk_token_id
        self.filler: int = self._ordinary("\n")[0] if unknown is None else unknown
        self.sink_prefix: tuple[int, ...] = self._sink_prefix()

    def encode(self, run: Sequence[Text]) -> list[int]:
        """Token ids of the joined text of a run, nothing added; control tokens come from structural pieces only."""
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
        """Text of token ids, special tokens left out."""
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
        half = (
            len(text) // 2
        )  # a vocabulary that has a control token as an ordinary one, too: no piece may be all of it
        return self._ordinary(text[:half]) + self._ordinary(text[half:]) if half else []

    def _sink_prefix(self) -> tuple[int, ...]:
        """The first line of the chat template's opening (the next may be today's date), else the BOS token."""
        line, newline, _ = self.template.open.partition("\n")
        if line:
            return tuple(self.encode([Text(text=line + newline, structural=True)]))
        bos: int | None = self._tokenizer.bos_token_id
        return () if bos is None else (bos,)

    def _render(self, messages: Messages, answering: bool) -> str:
        try:
            text: str = self._tokenizer.apply_chat_template(messages, tokenize=False, add_generation_prompt=answering)
        except Exception as error:  # for a role it refuses, a template raises an error of jinja
            raise ValueError(str(error)) from error
        return text
