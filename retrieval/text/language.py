"""Which language a text is written in, as a two-letter code of ISO 639-1: "en", "de", "zh".

Chinese, Japanese and Korean are told by their characters, other languages by py3langid (naive Bayes over n-grams of
bytes; Lui and Baldwin 2012), limited to `LANGUAGES`. A few letters say little, so a text counts as the default unless
it is clearly something else. Loading the model at the first use takes about a second; after that a question takes 0.1
ms. Not covered: greetings of one word in Latin letters ("hola"), several languages in one text.
"""

import re
from functools import cache

from py3langid.langid import MODEL_FILE, LanguageIdentifier

LANGUAGES = """
    ar bg cs da de el en es et fa fi fr he hi hr hu id it ja ko lt lv nl no pl pt ro ru sk sl sv th tr uk vi zh
    """.split()  # noqa: SIM905  # a list of words reads better so
"""Languages that are told apart. Rare ones that resemble a common one are left out: "minimum" is not Latin here."""
_SURE, _TIMES = 0.3, 2.0
"""A text counts as another language than the default if that has at least this probability and so many times the
default's. With these limits none of 256 English questions (sample questions and login.gov's) counts as another one.
"""
_ENOUGH = 400
"""Characters of a text that are looked at; each takes about half a microsecond."""
_KANA, _HANGUL, _HAN = (re.compile(f"[{c}]") for c in ("\u3040-\u30ff", "\uac00-\ud7af", "\u3400-\u9fff\uf900-\ufaff"))
_LETTER = re.compile(r"[^\W\d_]")
_LETTERS_PER_CHARACTER = 4  # so many letters say as much as one Chinese, Japanese or Korean character
_FEW_KANA = 0.1  # of the characters of a Japanese text; a Chinese one may quote a few


def language_of(text: str, default: str = "en") -> str:
    """The language of a text, or the default if that is not clear. Characters that Chinese and Japanese share count as
    the default if it is one of the two, otherwise as Chinese.
    """
    text = text[:_ENOUGH]
    kana, hangul, han = (len(script.findall(text)) for script in (_KANA, _HANGUL, _HAN))
    others = len(_LETTER.findall(text)) - kana - hangul - han
    if _LETTERS_PER_CHARACTER * (kana + hangul + han) > others:
        if hangul > kana + han:
            return "ko"
        if kana > _FEW_KANA * (kana + han):
            return "ja"
        return default if default in ("ja", "zh") else "zh"
    ranked = dict(_identifier().rank(text)) if others else {}
    likely, probability = next(iter(ranked.items()), (default, 1.0))
    return likely if probability >= max(_SURE, _TIMES * ranked.get(default, 0.0)) else default


@cache
def _identifier() -> LanguageIdentifier:
    identifier = LanguageIdentifier.from_model_file(MODEL_FILE, norm_probs=True)
    identifier.set_languages(LANGUAGES)
    return identifier
