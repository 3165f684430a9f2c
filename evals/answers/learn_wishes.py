"""Learn to recognise messages that ask for a look-up (`app.lookups.recognising`), from made-up businesses.

    python -m evals.answers.learn_wishes [data/lookups/training]

Each folder has one author's files: BUSINESS.toml (look-ups) and BUSINESS.jsonl ({message, lookup, kind, language}), or
questions about documents of other organisations (.jsonl alone, {question, language}), which ask for no look-up. Each
author is left out once: the author's messages are scored with weights learned from the other authors. The weights of
signs and the thresholds are learned from these scores. Prints the results of the thresholds for each kind of message.
"""

import sys
import tomllib
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import cycle
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
from scipy.sparse import csr_matrix, hstack
from sklearn.linear_model import LogisticRegression

from app.domain.json_lines import read_json_lines
from app.lookups.definitions import LookUp
from app.lookups.recognising import LEARNED, Embed, Learned, Likeness, Numbers, likely, named_in, runs, signs

TRAINING = Path("data/lookups/training")
QUESTIONS = (Path("data/questions.jsonl"), Path("data/chinese-shop-questions.jsonl"))
LEAST = 3  # minimum number of texts that have a run of words
STRENGTH = 10.0  # inverse of the penalty for the weights of runs
FALSE_CERTAIN, FALSE_STARTS, FALSE_OFFERS = 0.002, 0.01, 0.16  # accepted shares of messages that ask for no look-up
DESKS = 3  # number of desks at which each question about documents is asked
ELSEWHERE_STARTS = 0.25  # accepted share of the cases that no look-up covers
Rows = list["Message"]
Scored = tuple["Message", float, Numbers, list[bool]]


@dataclass(frozen=True, slots=True)
class Message:
    """A message for training. lookup: name of the requested look-up. kind: "wish", "elsewhere" (a case that no look-up
    covers), "documents" (a question about documents of another organisation), or another kind without a wish.
    """

    author: str
    business: str
    text: str
    lookup: str | None
    kind: str
    language: str


def read(folder: Path) -> tuple[Rows, dict[str, list[LookUp]]]:
    rows, lookups = [], dict[str, list[LookUp]]()
    for file in sorted(folder.glob("*/*.toml")):
        author, business = file.parent.name, file.stem
        lookups[business] = [LookUp.model_validate(one) for one in tomllib.loads(file.read_text("utf-8"))["lookup"]]
        for row in read_json_lines(file.with_suffix(".jsonl"), dict, "message", "bad-messages").values():
            rows.append(Message(author, business, row["message"], row["lookup"], row["kind"], row["language"]))
    desks = cycle(sorted(lookups))
    for file in (file for file in sorted(folder.glob("*/*.jsonl")) if not file.with_suffix(".toml").exists()):
        for row in read_json_lines(file, dict, "question", "bad-questions").values():
            at = (file.parent.name, row["question"], row["language"])
            rows += [Message(at[0], next(desks), at[1], None, "documents", at[2]) for _ in range(DESKS)]
    return rows, lookups


def own_cases(rows: Rows, lookups: dict[str, list[LookUp]]) -> dict[str, tuple[str, bool]]:
    """Return texts with their author and whether they are about the customer's own case."""
    texts = {row.text: (row.author, row.kind in ("wish", "elsewhere")) for row in rows}
    authors = {row.business: row.author for row in rows if row.kind != "documents"}
    for business, some in lookups.items():
        for one in some:
            texts |= dict.fromkeys(one.examples, (authors[business], True))
            texts |= dict.fromkeys(one.not_examples, (authors[business], False))
    for file in QUESTIONS:
        found = read_json_lines(file, dict, "question", "bad-questions").values()
        texts |= {row["question"]: ("", False) for row in found}
    return texts


def learn_own_case(texts: Sequence[str], is_own: Sequence[bool], vectors: Numbers) -> Learned:
    """Fit logistic regressions on the runs of words that several texts have, with the embedding and without."""
    counts = Counter(run for text in texts for run in runs(text))
    places = {run: place for place, run in enumerate(run for run, n in counts.items() if n >= LEAST)}
    kept = {run: counts[run] for run in places}
    none = np.zeros(0)
    learned = Learned(len(texts), kept, {}, {}, none, none, none, none, none)
    entries = [
        (row, places[run], of)
        for row, text in enumerate(texts)
        for run, of in learned.weighed(text).items()
        if run in places
    ]
    at, column, values = zip(*entries, strict=True)
    matrix = csr_matrix((values, (at, column)), shape=(len(texts), len(places)))
    fits = [
        LogisticRegression(C=STRENGTH, max_iter=3000).fit(one, is_own)
        for one in (hstack([matrix, vectors]).tocsr(), matrix)
    ]
    (both, plain), n = [one.coef_[0] for one in fits], len(places)
    return Learned(
        messages=len(texts),
        counts=kept,
        own=dict(zip(places, both[:n], strict=True)),
        own_plain=dict(zip(places, plain, strict=True)),
        intercepts=np.array([one.intercept_[0] for one in fits]),
        meaning=both[n:],
        fit=none,
        decision=none,
        thresholds=none,
    )


def left_out(rows: Rows, lookups: dict[str, list[LookUp]], embed: Embed) -> Iterator[Scored]:
    """Yield messages, each with its score of "own case", its similarity to each look-up, and whether it names each."""
    texts = own_cases(rows, lookups)
    for author in sorted({row.author for row in rows}):
        others = {text: is_own for text, (by, is_own) in texts.items() if by != author}
        learned = learn_own_case([*others], [*others.values()], np.asarray(embed([*others]), np.float64))
        businesses = {row.business for row in rows if row.author == author}
        alike = {name: Likeness(lookups[name], embed, learned) for name in businesses}
        for row in (row for row in rows if row.author == author):
            named, read = named_in(row.text, lookups[row.business])
            vector, of_read = np.asarray(embed([row.text, read]), np.float64)
            own = learned.own_case(learned.weighed(row.text), vector)
            yield row, own, alike[row.business](learned.weighed(read), of_read), named


def learn_which(wishes: Sequence[Scored], lookups: dict[str, list[LookUp]]) -> Numbers:
    """Learn weights that find the look-up of a wish, `[2]`, from signs minus their mean over a business's look-ups."""
    apart, is_it = [], []
    for row, _, likeness, _ in wishes:
        apart.append(likeness[:, :2] - likeness[:, :2].mean(0))
        is_it += [one.name == row.lookup for one in lookups[row.business]]
    return np.asarray(LogisticRegression(C=10.0).fit(np.concatenate(apart), is_it).coef_[0])


def learn(folder: Path, embed: Embed) -> dict[str, Any]:
    """Learn all weights and thresholds. Returns the arrays of the file `LEARNED`."""
    rows, lookups = read(folder)
    scored = list(left_out(rows, lookups, embed))
    places = [[one.name for one in lookups[row.business]].index(row.lookup) if row.lookup else -1 for row, *_ in scored]
    kinds, languages = (np.array([getattr(row, name) for row, *_ in scored]) for name in ("kind", "language"))
    is_wish, is_elsewhere = kinds == "wish", kinds == "elsewhere"
    is_named = np.array([any(named) for *_, named in scored])
    fit, decision, thresholds = np.zeros((3, 2)), np.zeros((3, 2, 7)), np.zeros((3, 3))
    for way, some in enumerate((languages == "en", languages == "zh", languages != "")):
        fit[way] = learn_which([one for one, is_of in zip(scored, some & is_wish, strict=True) if is_of], lookups)
        shares, best = zip(*(signs(likeness, named, fit[way]) for _, _, likeness, named in scored), strict=True)
        is_right = np.array([int(one.argmax()) == place for one, place in zip(shares, places, strict=True)])
        own = np.array([one if way < 2 else 0.0 for _, one, _, _ in scored])
        found = np.column_stack([own, np.array(best)])
        start = LogisticRegression(max_iter=3000).fit(found[some], (is_right & is_wish)[some])
        offer = LogisticRegression(max_iter=3000).fit(found[some & ~is_elsewhere], is_wish[some & ~is_elsewhere])
        decision[way] = [[*one.coef_[0], one.intercept_[0]] for one in (start, offer)]
        starts, offers = start.decision_function(found), offer.decision_function(found)
        no_wish = some & ~is_wish & ~is_elsewhere
        certain, sure = (np.quantile(starts[no_wish], 1 - share) for share in (FALSE_CERTAIN, FALSE_STARTS))
        sure = max(sure, np.quantile(starts[some & is_elsewhere], 1 - ELSEWHERE_STARTS))
        near = no_wish & (kinds != "documents")
        thresholds[way] = max(certain, sure), sure, np.quantile(offers[near], 1 - FALSE_OFFERS)
        heard = [likely(one, is_sure=bool(score >= sure)) for one, score in zip(shares, starts, strict=True)]
        begun = (starts >= sure) & np.array([len(one) == 1 for one in heard])
        shown = (starts >= sure) | (offers >= thresholds[way, 2]) | is_named
        has_right = np.array([place in one for place, one in zip(places, heard, strict=True)])
        for kind in sorted(set(kinds)):
            of = some & (kinds == kind)
            right = begun & is_right, shown & has_right
            shares_of = [f"{one[of].mean():.1%}" for one in (begun, right[0], shown, right[1])]
            print(f"way {way}, {kind}, {of.sum()}: started, right; started or offered, right: {' '.join(shares_of)}")
    texts = {text: is_own for text, (_, is_own) in own_cases(rows, lookups).items()}
    whole = learn_own_case([*texts], [*texts.values()], np.asarray(embed([*texts]), np.float64))
    return {
        "runs": np.frombuffer("\n".join(whole.counts).encode(), np.uint8),
        "messages": np.array(whole.messages),
        "counts": np.array([*whole.counts.values()], np.uint16),
        "own": np.array([*whole.own.values()], np.float16),
        "own_plain": np.array([*whole.own_plain.values()], np.float16),
        "intercepts": whole.intercepts,
        "meaning": whole.meaning.astype(np.float32),
        "fit": fit,
        "decision": decision,
        "thresholds": thresholds,
    }


if __name__ == "__main__":
    from retrieval.search.embedding import SentenceEmbedder

    known = dict[str, npt.NDArray[np.float32]]()

    def embed(texts: Sequence[str]) -> npt.NDArray[np.float32]:
        if new := [text for text in dict.fromkeys(texts) if text not in known]:
            known.update(zip(new, SentenceEmbedderOnce.embed_documents(new), strict=True))
        return np.stack([known[text] for text in texts])

    SentenceEmbedderOnce = SentenceEmbedder()
    arrays = learn(Path(sys.argv[1]) if len(sys.argv) > 1 else TRAINING, embed)
    np.savez_compressed(LEARNED, **arrays)
    print(f"{LEARNED}: {LEARNED.stat().st_size} bytes, {len(arrays['counts'])} runs of words")
