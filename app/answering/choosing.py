"""Choose the statements of the documents to show: together they answer the question, in few words.

The first is the most likely statement. Each further one must cover words of the question that the shown ones cover less
(greedy cover, Nemhauser et al. 1978), and be about as likely. So a near copy adds nothing, nor does a second answer to
the same part of the question. A statement next to a shown one is joined with it into one block of its passage. It gets
a bonus, because a fact is often in the sentence next to the best one. Out of scope: the probability of statements, and
the words that they cover (`retrieval.answerability`).
"""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from itertools import islice
from operator import attrgetter

from app.knowledge.finder import RankedStatement
from retrieval.statements.grouping import needs_before, num_words
from retrieval.text.sentences import UNSPACED

CONSIDERED = 40  # statements, the most likely ones
PER_LOGIT = 0.05  # cost of one log-odds below the best statement, in shares of the covered question
PER_WORD = 0.0005
BESIDE = 0.2  # bonus for a statement of a block that is shown already
BLOCKS = 2
CITABLE = 5  # statements that the model may put in its own words
WORDS, TOGETHER = 110, 60  # maximum words of an answer and of a block, apart from the first statement

_ENDS_ABOVE = (": ", "：", "? ", "？")


def chosen(ranked: Sequence[RankedStatement], texts: Mapping[int, str]) -> list[RankedStatement]:
    """Return the blocks to show, best first, each as one statement. ranked: most likely first. texts: the allowed
    passages by number.
    """
    left = [one for one in ranked if one.passage in texts][:CONSIDERED]
    if not left:
        return []
    best = left.pop(0)
    blocks, told, room = [[best]], best.told, WORDS - num_words(best.text)
    while True:
        options = [
            (value - PER_LOGIT * (best.logit - one.logit) - PER_WORD * length, one, block)
            for one in left
            if (length := num_words(one.text)) <= room and not any(_overlap(one, block) for block in blocks)
            for block in [next((block for block in blocks if _is_beside(one, block, texts)), [])]
            if block or len(blocks) < BLOCKS
            for value in [_added(told, one.told) + (BESIDE if block else 0.0)]
        ]
        value, one, block = max(options, key=lambda option: option[0], default=(0.0, best, []))
        if value <= 0:
            return sorted((joined(block) for block in blocks), key=lambda one: -one.logit)
        if block:
            block.append(one)
        else:
            blocks.append([one])
        left.remove(one)
        told = tuple(map(max, told, one.told))
        room -= num_words(one.text)


def to_cite(ranked: Sequence[RankedStatement], texts: Mapping[int, str]) -> list[RankedStatement]:
    """Return the chosen blocks, and the most likely of the other statements. Arguments: see `chosen`."""
    blocks = chosen(ranked, texts)
    others = (one for one in ranked if one.passage in texts and not any(_overlap(one, [block]) for block in blocks))
    return [*blocks, *islice(others, CITABLE - len(blocks))]


def _added(told: Sequence[float], more: Sequence[float]) -> float:
    return sum(max(0.0, there - here) for here, there in zip(told, more, strict=True))


def _overlap(one: RankedStatement, block: Sequence[RankedStatement]) -> bool:
    return any(one.passage == other.passage and one.start < other.end and other.start < one.end for other in block)


def _is_beside(one: RankedStatement, block: Sequence[RankedStatement], texts: Mapping[int, str]) -> bool:
    """Return whether a statement is directly before or after a block in its passage, without text between them. Also,
    the block must have room for the statement, or be unclear without the statement before it.
    """
    if one.passage != block[0].passage:
        return False
    start, end = min(other.start for other in block), max(other.end for other in block)
    is_before, text = one.end <= start, texts[one.passage]
    if any(map(str.isalnum, text[one.end : start] if is_before else text[end : one.start])):
        return False
    fits = sum(num_words(other.text) for other in (one, *block)) <= TOGETHER
    return fits or (is_before and needs_before(min(block, key=attrgetter("start")).text))


def joined(block: Sequence[RankedStatement]) -> RankedStatement:
    best, parts = max(block, key=lambda one: one.logit), sorted(block, key=attrgetter("start"))
    texts = [one.text for one in parts]
    are_sentences = all(one.kind == "sentence" for one in parts) and not any("\n" in text for text in texts)
    if not are_sentences:  # show the line above a list only once
        heads = (texts[0].partition(mark)[0] + mark for mark in _ENDS_ABOVE)
        above = next((head for head in heads if all(text.startswith(head) for text in texts)), "")
        texts = [texts[0], *(text[len(above) :] for text in texts[1:])]
    space = "\n" if not are_sentences else "" if UNSPACED.search(best.text[-2:]) else " "
    return replace(best, text=space.join(texts), start=parts[0].start, end=max(one.end for one in parts))
