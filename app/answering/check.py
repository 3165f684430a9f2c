"""The text of an answer as it may be shown: of a checked answer, only what the passages support.

A sentence is held back until it is complete. What the passages do not support is replaced by a quotation of them, or
left out; if nothing is left, the answer says that there is none. Not covered: what counts as support
(`app.grounding.check`).
"""

from collections.abc import Iterable, Iterator

from app.domain.policies import AnswerMode
from app.grounding.check import AnswerChecker
from app.grounding.claim import ALONE
from app.grounding.grounding import CheckedSentence, Grounding
from retrieval.text.sentences import complete, parted

ENOUGH_OF_REFUSAL = 40
"""Characters by which the refusal is recognised; what a model says after it is not shown in a checked answer."""


class CheckedText:
    """Iterate for the text to show; read the rest afterwards."""

    def __init__(
        self, pieces: Iterable[str], checker: AnswerChecker, *, refusal: str, nothing: str, answer_mode: AnswerMode
    ) -> None:
        """refusal: how the model says that it does not know. nothing: what is shown instead. answer_mode: what is
        `free` passes unchanged, and so does a `quote`, which consists of the passages' statements already.
        """
        self._pieces, self._checker, self._answer_mode = pieces, checker, answer_mode
        self._refusal, self._nothing = refusal, nothing
        self._said = self._given = self._gap = self._yes_no = ""
        self._shown: list[str] = []
        self._courtesies: list[tuple[str, str]] = []
        self._checked: list[CheckedSentence] = []
        self._has_quotation = answer_mode == "quote"

    def __iter__(self) -> Iterator[str]:
        if self._answer_mode != "checked":
            for piece in self._pieces:
                self._said += piece
                self._given += piece
                yield piece
            return
        rest = ""
        for piece in self._pieces:
            self._said += piece
            ended, rest = complete(rest + piece)
            for gap, sentence in ended:
                yield from self._pass(gap, sentence)
        for gap, sentence in parted(rest):
            yield from self._pass(gap, sentence)
        yield from self._check("")
        if not self._shown:
            self._has_quotation = False
            self._courtesies.clear()
            self._gap = ""
            yield from self._show(self._nothing)

    def _pass(self, gap: str, sentence: str) -> Iterator[str]:
        if "\n" in gap or not self._gap:  # the line break before a sentence that is left out remains
            self._gap = gap
        if self.is_refusal or self._refusal.startswith(self._said.strip()):
            if not self._shown:
                yield from self._show(self._nothing)
        elif ALONE.fullmatch(sentence) and not self._yes_no:
            self._yes_no = sentence + " "  # means something with the next sentence only
        else:
            yield from self._check(sentence)

    def _check(self, sentence: str) -> Iterator[str]:
        sentence, self._yes_no = self._yes_no + sentence, ""
        for one in self._checker.check(sentence).sentences:
            self._checked.append(one)
            if not self._shown and not one.problem and not one.support:
                self._courtesies.append((self._gap, one.shown))  # shown only together with an answer
                self._gap = ""
            elif one.shown and one.shown not in self._shown:
                self._has_quotation = self._has_quotation or one.problem is not None
                self._gap = self._gap or " "
                yield from self._show(one.shown)

    def _show(self, sentence: str) -> Iterator[str]:
        parts = [*self._courtesies, (self._gap, sentence)]
        self._courtesies, self._gap = [], ""
        for gap, text in parts:
            self._shown.append(text)
            given = (gap if self._given else gap.lstrip()) + text
            self._given += given
            yield given

    @property
    def is_refusal(self) -> bool:
        """Whether the model said that it does not know, or nothing it said could be shown."""
        says_so = self._said.strip().startswith(self._refusal[:ENOUGH_OF_REFUSAL])
        return says_so or self._shown == [self._nothing]

    @property
    def text(self) -> str:
        """What was shown."""
        return self._given.strip()

    @property
    def is_changed(self) -> bool:
        """Whether what was shown is not what the model said."""
        return self.text != self._said.strip()

    @property
    def is_quotation(self) -> bool:
        """Whether sentences of the passages replace words of the model."""
        return self._has_quotation and not self.is_refusal

    @property
    def score(self) -> float | None:
        """How well the passages support what the model said (`Grounding.score`); None where nothing was checked."""
        if self._answer_mode == "quote" and not self.is_refusal:
            return 1.0
        return round(Grounding(sentences=tuple(self._checked)).score, 4) if self._checked else None
