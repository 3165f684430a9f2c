"""Find the meaning of a message while a look-up is open, and the reply. No clock, no database, no network.

Meanings are tried in this order: cancel, ask for a person, yes or no, the requested value, another value, a question
(answered from the documents, followed by a line that leads back to the look-up), else a misfit. Only words of the
customer become values.
"""

import re
import tomllib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cache
from pathlib import Path

from app.domain.answers import LookUpTurn
from app.lookups.definitions import LookUp, Value, in_language
from app.lookups.recognising import Wish
from app.lookups.values import fits, has_digits
from app.replies.replies import heard, without_accents
from retrieval.text.terms import CHINESE_JAPANESE, language_of

MASK = "•••"
_WORDS = Path(__file__).with_name("words.toml")
_WORD = re.compile(rf"[{CHINESE_JAPANESE}]+|[^\W_{CHINESE_JAPANESE}]+")
_WORDS_OF_A_VALUE = 3
_LONGEST_REPLY = 60  # characters of a yes, a no or a cancel


@cache
def _texts() -> Mapping[str, Mapping[str, Mapping[str, object]]]:
    return tomllib.loads(_WORDS.read_text("utf-8"))


def says(name: str, language: str, **values: str) -> str:
    text = str(_texts().get(language, _texts()["en"])["says"][name])
    return re.sub(r"\{(\w+)\}", lambda found: values[found[1]], text)


def means(message: str, kind: str) -> bool:
    """Return whether a whole message, except for filler words, means `kind` (yes, no or cancel), in any language."""
    if len(message) > _LONGEST_REPLY:
        return False
    words = _WORD.findall(re.sub("['’]", "", without_accents(message.casefold())))
    return bool(words) and any(_means(words, texts["hears"], kind) for texts in _texts().values())


def _means(words: Sequence[str], hears: Mapping[str, object], kind: str) -> bool:
    phrases, around = hears[kind], hears["around"]
    assert isinstance(phrases, list)
    assert isinstance(around, list)
    known = {without_accents(one) for one in phrases}
    left = list(words)
    while left and left[0] in around and " ".join(left) not in known:
        left.pop(0)
    while left and " ".join(left) not in known:
        tail = next((one for one in around if len(left[-1]) > len(one) and left[-1].endswith(one)), "")
        if left[-1] in around:
            left.pop()
        elif tail and not tail.isascii():
            left[-1] = left[-1].removesuffix(tail)
        else:
            return False
    return bool(left)


@dataclass(frozen=True, slots=True, kw_only=True)
class Open:
    """An open look-up, as it is stored with its conversation. state: offered, asking, confirming, or expired (then only
    its name and language are left). inferred: values that were not typed as the answer to our question. tries:
    consecutive misfits. offers: while offered, the known values of each look-up to choose from.
    """

    name: str
    state: str
    language: str
    values: dict[str, str] = field(default_factory=dict)
    inferred: Sequence[str] = ()
    asks: str = ""
    tries: int = 0
    offers: dict[str, dict[str, str]] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class Step:
    """The result of a message. open: the state to store; None: nothing is open any more. is_beside: the documents
    answer, and `turn.line` is shown below. calls: send the request with `open.values`. is_attempt: the message may be a
    value, so a private value in it is masked.
    """

    turn: LookUpTurn
    says: str = ""
    open: Open | None = None
    is_beside: bool = False
    calls: bool = False
    is_attempt: bool = False


class Dialogue:
    """The rules of a dialogue about some look-ups."""

    def __init__(
        self, lookups: Mapping[str, LookUp], wish: Callable[[str], Wish | None], is_answered: Callable[[str], bool]
    ) -> None:
        """is_answered: returns whether the documents answer a message with high confidence."""
        self._lookups, self._wish, self._is_answered = lookups, wish, is_answered

    def hear(self, message: str, now_open: Open | None, *, is_signed_in: bool) -> Step | None:
        """Return the next step, or None if the message does not concern a look-up."""
        lookup = None if now_open is None else self._lookups.get(now_open.name)
        names = {"", *(value.name for value in lookup.values)} if lookup is not None else set()
        if now_open is None or lookup is None or not {now_open.asks, *now_open.values} <= names:  # the file has changed
            return self._idle(message, is_signed_in)
        if now_open.state == "offered":
            return self._chosen(message, now_open, is_signed_in) or self._idle(message, is_signed_in)
        if now_open.state == "expired":
            return self._idle(message, is_signed_in) or self._expired(lookup, now_open, message)
        return self._answered(lookup, now_open, message)

    def _chosen(self, message: str, now: Open, is_signed_in: bool) -> Step | None:
        """Return the first step of an offered look-up, if the message names it or accepts the only one."""
        offered = [self._lookups[name] for name in now.offers if name in self._lookups]
        named = [one for one in offered if message.casefold() in {title.casefold() for title in one.title.values()}]
        found = {one.name: now.offers[one.name] | _only(_found(one, message)) for one in offered}
        is_short = len(message.split()) <= _WORDS_OF_A_VALUE
        if not named and (means(message, "yes") or (is_short and found != now.offers)):
            if len(offered) > 1:
                return replace(self._choosing(offered, replace(now, offers=found)), is_attempt=True)
            named = offered
        if not named:
            return None
        lookup = named[0]
        own = {name: value for name, value in found[lookup.name].items() if lookup.has(name)}
        begun = Open(name=lookup.name, state="asking", language=now.language, values=own, inferred=tuple(own))
        return self._next(lookup, begun) if self._may(lookup, is_signed_in) else _sign_in(begun)

    def _choosing(self, offered: Sequence[LookUp], now: Open) -> Step:
        turn = LookUpTurn(name=now.name, state="offered", choices=_titles(offered, now.language))
        return Step(turn=turn, says=says("which_lookup", now.language), open=now)

    def _expired(self, lookup: LookUp, now: Open, message: str) -> Step:
        """Tell the customer once that the look-up has expired, and offer it again."""
        text = says("expired", now.language, title=in_language(lookup.title, now.language))
        turn = LookUpTurn(name=now.name, state="expired", choices=_titles([lookup], now.language))
        again = Open(name=lookup.name, state="offered", language=now.language, offers={lookup.name: {}})
        is_reply = any(means(message, kind) for kind in ("yes", "no", "cancel"))
        if is_reply or any(fits(value, message) for value in lookup.values):
            return Step(turn=turn, says=text, open=again, is_attempt=True)
        return Step(turn=replace(turn, line=text), open=again, is_beside=True)

    def _idle(self, message: str, is_signed_in: bool) -> Step | None:
        wish = self._wish(message)
        if wish is None or (not wish.is_sure and self._is_answered(message)):
            return None
        lookup, language = wish.lookup, language_of(message)
        offered = (lookup, *wish.or_else)
        offers = {one.name: _only(_found(one, message)) for one in offered}
        starts = wish.is_certain or (wish.is_sure and not self._is_answered(message))
        if not starts or len(offered) > 1:
            step = self._choosing(offered, Open(name=lookup.name, state="offered", language=language, offers=offers))
            if starts:
                return replace(step, is_attempt=True)
            line = says("offer", language, title=" / ".join(step.turn.choices))
            return replace(step, turn=replace(step.turn, line=line), is_beside=True)
        found, values = _found(lookup, message), offers[lookup.name]
        begun = Open(name=lookup.name, state="asking", language=language, values=values, inferred=tuple(values))
        if not self._may(lookup, is_signed_in):
            return _sign_in(begun)
        several = next((name for name, some in found.items() if len(some) > 1), None)
        if several is not None:
            return replace(_which(replace(begun, asks=several), found[several]), is_attempt=True)
        return replace(self._next(lookup, begun), is_attempt=True)

    def _may(self, lookup: LookUp, is_signed_in: bool) -> bool:
        return is_signed_in or lookup.identity != "signed_in"

    def _next(self, lookup: LookUp, now: Open) -> Step:
        """Ask for the next value, or for confirmation, or call."""
        missing = next((value for value in lookup.values if value.name not in now.values), None)
        if missing is not None:
            now = replace(now, state="asking", asks=missing.name, tries=0)
            return _asking(now, in_language(missing.ask, now.language), _choices_of(missing, now.language))
        if lookup.confirm == "always" or (lookup.confirm == "inferred" and now.inferred):
            return self._confirming(lookup, now)
        turn = LookUpTurn(name=lookup.name, state="calling")
        return Step(turn=turn, open=replace(now, state="calling"), calls=True)

    def _confirming(self, lookup: LookUp, now: Open) -> Step:
        now = replace(now, state="confirming", asks="", tries=0)
        text = says("confirm", now.language, values=shown_values(lookup, now.values, now.language))
        return Step(turn=_turn(now, _yes_no(now.language)), says=text, open=now)

    def _answered(self, lookup: LookUp, now: Open, message: str) -> Step:
        if means(message, "cancel"):
            turn = LookUpTurn(name=now.name, state="cancelled")
            return Step(turn=turn, says=says("cancelled", now.language))
        small_talk = heard(message, now.language)
        if small_talk is not None and small_talk.kind == "human":
            return Step(turn=LookUpTurn(name=now.name, state="cancelled"), is_beside=True)
        if now.state == "confirming" and means(message, "yes"):
            return Step(turn=LookUpTurn(name=now.name, state="calling"), open=replace(now, state="calling"), calls=True)
        found = {value.name: fits(value, message) for value in lookup.values}
        if not self._is_question_with(lookup, now, message, found):
            if now.asks and len(found[now.asks]) > 1:
                return replace(_which(now, found[now.asks]), is_attempt=True)
            if filled := _filled(lookup, now, found):
                return replace(self._next(lookup, filled), is_attempt=True)
        if now.state == "confirming" and means(message, "no"):
            wrong = now.inferred[0] if now.inferred else lookup.values[0].name if lookup.values else ""
            if not wrong:
                return Step(turn=LookUpTurn(name=now.name, state="cancelled"), says=says("cancelled", now.language))
            left = {name: value for name, value in now.values.items() if name != wrong}
            return self._next(lookup, replace(now, values=left, inferred=_without(now.inferred, wrong)))
        other = self._wish(message)
        title = in_language(lookup.title, now.language)
        if other is not None and other.is_sure:
            if other.lookup.name == now.name:
                return self._again(lookup, now)
            text = says("other", now.language, title=title, ask=self._ask(lookup, now))
            return Step(turn=_turn(now, (says("cancel", now.language),)), says=text, open=now)
        is_attempt = has_digits(message) and len(message.split()) <= _WORDS_OF_A_VALUE
        is_small_talk = small_talk is not None and small_talk.kind not in ("vague", "reply")
        if _looks_like_question(message) or (not is_attempt and (is_small_talk or self._is_answered(message))):
            return Step(turn=self._back(lookup, now), open=now, is_beside=True)
        return self._misfit(lookup, now)

    def _is_question_with(self, lookup: LookUp, now: Open, message: str, found: Mapping[str, list[str]]) -> bool:
        """Return whether a question contains fitting words only by accident: a pattern may fit ordinary words."""
        some = [one for values in found.values() for one in values]
        loose = bool(some) and not any(has_digits(one) or "@" in one for one in some)
        is_choice = all(lookup.value(name).kind == "choice" for name, values in found.items() if values)
        return (
            loose
            and (not is_choice or _looks_like_question(message))
            and (_looks_like_question(message) or self._is_answered(message))
        )

    def _again(self, lookup: LookUp, now: Open) -> Step:
        if now.state == "confirming":
            return self._confirming(lookup, now)
        value = lookup.value(now.asks)
        return _asking(now, in_language(value.ask, now.language), _choices_of(value, now.language))

    def _ask(self, lookup: LookUp, now: Open) -> str:
        if now.state == "confirming":
            return says("confirm", now.language, values=shown_values(lookup, now.values, now.language))
        return in_language(lookup.value(now.asks).ask, now.language)

    def _back(self, lookup: LookUp, now: Open) -> LookUpTurn:
        """Return the line that leads back to the look-up, with its buttons."""
        title = in_language(lookup.title, now.language)
        if now.state == "confirming":
            values = shown_values(lookup, now.values, now.language)
            line = says("back_confirm", now.language, title=title, values=values)
            return replace(_turn(now, _yes_no(now.language)), line=line)
        line = says("back", now.language, title=title, ask=self._ask(lookup, now))
        return replace(_turn(now, _choices_of(lookup.value(now.asks), now.language)), line=line)

    def _misfit(self, lookup: LookUp, now: Open) -> Step:
        now = replace(now, tries=now.tries + 1)
        if now.tries >= lookup.limits.tries_per_value:
            choices = (says("person", now.language), says("cancel", now.language))
            text = says("give_up", now.language)
            return Step(turn=_turn(now, choices), says=text, open=replace(now, tries=0), is_attempt=True)
        if now.state == "confirming":
            return replace(self._confirming(lookup, now), open=now)
        value = lookup.value(now.asks)
        kind = "misfit" if value.example else "misfit_plain"
        text = says(kind, now.language, example=value.example)
        return replace(_asking(now, text, _choices_of(value, now.language)), is_attempt=True)


def shown_values(lookup: LookUp, values: Mapping[str, str], language: str) -> str:
    """Return the values as a text for people, with private values masked."""
    named = []
    for value in lookup.values:
        if value.name in values:
            own = values[value.name]
            words = in_language(value.choices[own], language) if own in value.choices else own
            named.append(MASK if value.private else words)
    return ", ".join(named)


def masked(lookup: LookUp, message: str, *, is_attempt: bool, asks: str) -> str:
    """Return a message as it is stored: without private values. asks: the requested value; a message that may be a
    mistyped private one is masked as a whole.
    """
    private = [value for value in lookup.values if value.private]
    if not any(fits(value, message) for value in private):
        return MASK if is_attempt and any(value.name == asks for value in private) else message
    kept = re.sub(r"\S+", lambda word: MASK if any(fits(value, word[0]) for value in private) else word[0], message)
    return MASK if any(fits(value, kept) for value in private) else kept


def _found(lookup: LookUp, message: str) -> dict[str, list[str]]:
    """Return the fitting values of a first message. Choices are skipped, because their words are ordinary words."""
    return {value.name: fits(value, message) for value in lookup.values if value.kind != "choice"}


def _only(found: Mapping[str, Sequence[str]]) -> dict[str, str]:
    return {name: some[0] for name, some in found.items() if len(some) == 1}


def _titles(lookups: Sequence[LookUp], language: str) -> tuple[str, ...]:
    return tuple(in_language(one.title, language) for one in lookups)


def _filled(lookup: LookUp, now: Open, found: Mapping[str, list[str]]) -> Open | None:
    """Return the look-up with a message's values: the requested value first, others only from unused texts."""
    values, inferred = dict(now.values), now.inferred
    is_changed, used = False, set[str]()
    order = sorted(lookup.values, key=lambda value: value.name != now.asks)
    for value in order:
        some = [one for one in found[value.name] if one not in used]
        if len(some) != 1 or (value.name in values and value.name != now.asks and now.state != "confirming"):
            continue
        used.add(some[0])
        if values.get(value.name) == some[0] and value.name != now.asks:
            continue
        values[value.name], is_changed = some[0], True
        inferred = _without(inferred, value.name)
        if value.name != now.asks:
            inferred = (*inferred, value.name)
    return replace(now, values=values, inferred=inferred) if is_changed else None


def _without(names: Sequence[str], name: str) -> tuple[str, ...]:
    return tuple(one for one in names if one != name)


def _looks_like_question(message: str) -> bool:
    return message.rstrip(" .!。！").endswith(("?", "？", "吗", "呢"))


def _turn(now: Open, choices: tuple[str, ...] = ()) -> LookUpTurn:
    return LookUpTurn(name=now.name, state=now.state, asks=now.asks or None, choices=choices)


def _asking(now: Open, text: str, choices: tuple[str, ...] = ()) -> Step:
    now = replace(now, state="asking")
    return Step(turn=_turn(now, choices), says=text, open=now)


def _which(now: Open, candidates: Sequence[str]) -> Step:
    return _asking(now, says("which", now.language), tuple(candidates[:5]))


def _sign_in(now: Open) -> Step:
    return Step(turn=LookUpTurn(name=now.name, state="failed"), says=says("sign_in", now.language))


def _yes_no(language: str) -> tuple[str, ...]:
    return tuple(says(name, language) for name in ("yes", "no", "cancel"))


def _choices_of(value: Value, language: str) -> tuple[str, ...]:
    return tuple(in_language(texts, language) for texts in value.choices.values())
