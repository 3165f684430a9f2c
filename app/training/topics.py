"""Passages by topic: which topics are held out of training, and how often each of the others is drawn."""

import hashlib
from collections import Counter, defaultdict
from collections.abc import Iterable, Sequence

from app.training.passages import TrainingPassage

Topic = list[TrainingPassage]
HELD_OUT_SHARE = 0.03
HELD_OUT_PASSAGES = 8
"""At least, if that is no more than a third of all."""


def split_topics(passages: Iterable[TrainingPassage]) -> tuple[list[Topic], list[Topic]]:
    """Topics to train on, and topics to test on.

    Topics whose hash is below HELD_OUT_SHARE are tested on, and more in the order of their hash until there are
    HELD_OUT_PASSAGES, but no more than a third of all passages. If that leaves fewer than two, there are none.
    """
    topics: defaultdict[str, Topic] = defaultdict(list)
    for passage in passages:
        topics[passage.topic].append(passage)
    most = sum(map(len, topics.values())) / 3
    count = 0
    tested: set[str] = set()
    for topic in sorted(topics, key=topic_hash):
        if topic_hash(topic) >= HELD_OUT_SHARE and count >= HELD_OUT_PASSAGES:
            break
        if count + len(topics[topic]) <= most:
            tested.add(topic)
            count += len(topics[topic])
    if count < 2:  # an example needs several passages
        tested.clear()
    return [topics[t] for t in topics if t not in tested], [topics[t] for t in topics if t in tested]


def topic_hash(topic: str) -> float:
    """From 0 to below 1, the same in every run, whatever other topics there are."""
    return int.from_bytes(hashlib.blake2b(topic.encode(), digest_size=8).digest(), "big") / 2**64


def topic_weights(topics: Sequence[Topic]) -> list[float]:
    """How often each topic is drawn: a source in proportion to the root of its number of questions, so that small
    sources are not lost, and a topic within its source in proportion to its questions.
    """
    counts = [(topic[0].source, sum(len(passage.questions) for passage in topic)) for topic in topics]
    of_source: Counter[str] = Counter()
    for source, count in counts:
        of_source[source] += count
    return [count / of_source[source] ** 0.5 for source, count in counts]
