"""Turning tokens into text as they come: text is given out once and never taken back."""

from collections.abc import Sequence

from cache.prompt.tokenizer import ChatTokenizer


class TextStream:
    """Text of a growing list of tokens. Half a character, or what may become a stop string, is held back.

    An update decodes the last few tokens, not all: how a token is written depends on the text before it (spaces of
    SentencePiece, characters of several tokens), but only on the end of it.
    """

    def __init__(self, tokenizer: ChatTokenizer, stop: tuple[str, ...]) -> None:
        self.stopped = False
        self.text = ""
        self._tokenizer, self._stop = tokenizer, stop
        self._given = 0  # characters
        # tokens up to where the text was complete the last time but one, the last time, and the text then
        self._before, self._complete, self._complete_text = 0, 0, ""

    def update(self, tokens: Sequence[int], *, final: bool = False) -> str:
        """The text that is new and certain; `stopped` is set when a stop string ended it."""
        text = self._whole_text(tokens)
        found = [at for at in (text.find(stop, self._given) for stop in self._stop) if at >= 0]
        if found:
            self.stopped = True
            text = text[: min(found)]
        self.text = text
        certain = len(text) if final or self.stopped else len(text) - self._uncertain(text)
        piece = text[self._given : certain]
        self._given = max(self._given, certain)
        return piece

    def _whole_text(self, tokens: Sequence[int]) -> str:
        known = self._tokenizer.decode(tokens[self._before : self._complete])
        text = self._complete_text + self._tokenizer.decode(tokens[self._before :])[len(known) :]
        if len(text) > len(self._complete_text) and not text.endswith("\ufffd"):
            self._before, self._complete, self._complete_text = self._complete, len(tokens), text
        return text

    def _uncertain(self, text: str) -> int:
        known = text.rstrip("\ufffd")  # the rest of a character is still to come
        longest = max((len(stop) for stop in self._stop), default=0)
        endings = range(min(longest - 1, len(known)), 0, -1)
        stopping = next((n for n in endings if any(stop.startswith(known[-n:]) for stop in self._stop)), 0)
        return len(text) - len(known) + stopping
