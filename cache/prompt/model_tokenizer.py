"""A model's tokenizer: text to token ids, and back. Wraps a tokenizer of transformers.

Special tokens are recognised only in structural strings, those of the chat template. A special token in the text of a
document or a user is split into ordinary tokens.
"""

import re
from collections.abc import Sequence
from typing import Any

from cache.prompt.chat_template import PLAIN, ChatTemplate, Messages, derive_template
from cache.prompt.parts import Text


class ModelTokenizer:
    """A transformers tokenizer, reduced to what the engine needs.

    Raises ValueError if its chat template cannot be used.
    """

    def __init__(self, tokenizer: Any) -> None:
        self._tokenizer = tokenizer
        special = [token.content for token in tokenizer.added_tokens_decoder.values() if token.special]
        self._special = re.compile("|".join(map(re.escape, sorted(special, key=len, reverse=True))) or r"(?!)")
        self.template: ChatTemplate = derive_template(self._render) if tokenizer.chat_template else PLAIN
        unknown: int | None = tokenizer.unk_token_id
        self.filler: int = self._ordinary("\n")[0] if unknown is None else unknown
        self.sink_prefix: tuple[int, ...] = self._sink_prefix()

    def encode(self, run: Sequence[Text]) -> list[int]:
        """Token ids of the joined text of a run, nothing added; special tokens come from structural pieces only."""
        ids: list[int] = []
        section = ""
        for piece in run:
            at = 0
            for marker in self._special.finditer(piece.text) if piece.structural else ():
                ids += self._ordinary(section + piece.text[at : marker.start()])
                ids.append(self._tokenizer.convert_tokens_to_ids(marker.group()))
                section, at = "", marker.end()
            section += piece.text[at:]
        return ids + self._ordinary(section)

    def decode(self, tokens: Sequence[int]) -> str:
        """Text of token ids, special tokens left out."""
        text: str = self._tokenizer.decode(list(tokens), skip_special_tokens=True, clean_up_tokenization_spaces=False)
        return text

    def _ordinary(self, text: str) -> list[int]:
        if not text:
            return []
        encoded = self._tokenizer(text, add_special_tokens=False, split_special_tokens=True, verbose=False)
        return list(encoded["input_ids"])

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
