"""Thoughts that a model writes before its answer, between <think> and </think>: no reader gets them.

Only what stands at the very beginning is a thought; later these are words like any others. Not covered: thoughts that a
server sends apart (`reasoning_content`), which never were part of the text.
"""

OPEN, CLOSE = "<think>", "</think>"


class Thoughts:
    """Leaves thoughts out of a text that comes in pieces. has_any: whether there were some."""

    def __init__(self) -> None:
        self.has_any = False
        self._is_over = False  # from here on all is text
        self._held = ""

    def without(self, piece: str) -> str:
        """What of the text is to be read so far, and was not given before."""
        if self._is_over:
            return piece
        self._held += piece
        if not self.has_any:
            begun = self._held.lstrip()
            if OPEN.startswith(begun):
                return ""
            if not begun.startswith(OPEN):
                return self._rest(self._held)
            self.has_any = True
        _, close, behind = self._held.partition(CLOSE)
        behind = behind.lstrip()
        return self._rest(behind) if close and behind else ""

    def end(self) -> str:
        """What was held back, and began no thought, when there is no more."""
        return "" if self.has_any else self._rest(self._held)

    def _rest(self, text: str) -> str:
        self._is_over, self._held = True, ""
        return text
