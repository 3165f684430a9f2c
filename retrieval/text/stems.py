"""One stem for each word of an index whose texts are in one language or several.

A word is stemmed by the rules of the language in which most texts with it are written, wherever it occurs, also in a
question. So a question finds the texts whatever its own language seems to be; that of a short question is often
unclear. Not covered: a word that means different things in two languages.
"""

from collections.abc import Mapping

from retrieval.text.terms import stem


class Stems:
    """The stems of the words of an index. Never changes once built; safe to use from any thread."""

    def __init__(self, language_of_word: Mapping[str, str], languages: tuple[str, ...]) -> None:
        """language_of_word: for every word of the index. languages: all of them, the most frequent one first."""
        self._languages = languages or ("en",)
        self._of = {word: stem(word, language) for word, language in language_of_word.items()}
        self._known = frozenset(self._of.values())

    def __call__(self, word: str) -> str:
        """What a folded word is counted as. One that the index does not have may be another form of one it has, in
        any of its languages.
        """
        found = self._of.get(word)
        if found is None:
            stems = [stem(word, language) for language in self._languages]
            found = next((one for one in stems if one in self._known), stems[0])
        return found
