"""Tokenizer of a model: literal text in, token ids out, and back. Wraps whatever transformers loaded.

Special tokens are recognised only in structural strings (the chat template's), so text from documents and users
that spells a marker is split into ordinary tokens.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from cache.chat_template import PLAIN, ChatTemplate, Messages, derive_template


class ModelTokenizer:
    """A transformers tokenizer, reduced to what the engine needs.

    Raises ValueError if its chat template cannot be used.
    """

    def __init__(self, tokenizer: Any) -> None:
        self._tokenizer = tokenizer
        self.template = self._derive()

    def encode(self, text: str, *, structural: bool = False) -> list[int]:
        """Token ids of `text`, nothing added."""
        encoded = self._tokenizer(text, add_special_tokens=False, split_special_tokens=not structural, verbose=False)
        ids: list[int] = encoded["input_ids"]
        return ids

    def decode(self, tokens: Sequence[int]) -> str:
        """Text of token ids, special tokens left out."""
        text: str = self._tokenizer.decode(list(tokens), skip_special_tokens=True, clean_up_tokenization_spaces=False)
        return text

    def _derive(self) -> ChatTemplate:
        if not self._tokenizer.chat_template:
            return PLAIN
        return derive_template(self._render)

    def _render(self, messages: Messages) -> str:
        try:
            text: str = self._tokenizer.apply_chat_template(messages, tokenize=False, add_generation_prompt=True)
        except Exception as error:  # templates raise jinja errors of their own for roles they refuse
            raise ValueError(str(error)) from error
        return text
