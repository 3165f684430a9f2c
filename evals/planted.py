"""How many planted errors the checks of answers find, and how many true claims they flag.

    python -m evals.planted FOLDER ... [--each 40]

Claims are sentences of the documents in a folder, worded anew by rule; each has a twin with one error. Both are held
against the passages that a question would have found: that of the claim, its neighbours, and two of other documents.
Use documents that no check was written with in view.
"""

import argparse
import random
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from app.grounding.grounding import AnswerChecker
from evals.intervals import Figure, share
from evals.planted_errors import CODE, KINDS, MONTHS, NAME, WEEKDAYS, Surroundings, of_page
from evals.rewording import reworded
from retrieval.documents.document import Passage, split, with_headings
from retrieval.errors import UnreadableDocument
from retrieval.loaders.load import SUPPORTED, load
from retrieval.text.sentences import sentences

SEED = 20
EACH = 40
"""Claims of each kind of error."""
TOKENS = 200


@dataclass(frozen=True, slots=True, kw_only=True)
class PlantedClaim:
    """A claim and its twin with an error. passages: each below its headings, the claim's own first."""

    kind: str
    is_verbatim: bool
    claim: str
    wrong: str
    passages: tuple[str, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class SourceSentence:
    """A sentence with the one behind it in its line. document, passage: where it stands."""

    text: str
    behind: str
    document: int
    passage: int


class PlantedDocuments:
    """The passages of a folder of documents, and its sentences."""

    def __init__(self, folder: Path) -> None:
        self.documents = [found for path in sorted(folder.rglob("*")) if (found := passages_of(path))]
        self.sentences = list(self._sentences())
        names = {name for one in self.sentences for name in (*NAME.findall(one.text), *CODE.findall(one.text))}
        self.names = tuple(sorted(names - {*MONTHS, *WEEKDAYS}))

    def passages(self, source: SourceSentence) -> tuple[str, ...]:
        """What a question about a sentence would have found."""
        own, at, count = self.documents[source.document], source.passage, len(self.documents)
        others = (self.documents[(source.document + by) % count] for by in (1, -1))
        found = [own[at], *own[at + 1 : at + 2], *own[max(0, at - 1) : at], *(one[0] for one in others if one)]
        return tuple(with_headings(passage.heading_path, passage.text) for passage in found)

    def surroundings(self, source: SourceSentence) -> Surroundings:
        """What errors in a sentence are made of."""
        other = self.documents[(source.document + 1) % len(self.documents)]
        headings = [path[-1] if (path := p.heading_path) else "" for p in (self._own(source), *other[:1])]
        return Surroundings(heading=headings[0], other_heading=headings[-1], names=self.names)

    def _own(self, source: SourceSentence) -> Passage:
        return self.documents[source.document][source.passage]

    def _sentences(self) -> Iterator[SourceSentence]:
        for i, passages in enumerate(self.documents):
            for j, passage in enumerate(passages):
                for line in passage.text.split("\n"):
                    parts = [line] if re.match(r"[^;:]+: [^;]+; [^;:]+: ", line) else sentences(line)
                    for text, behind in zip(parts, [*parts[1:], ""], strict=False):
                        if 5 <= len(text.split()) <= 45 and text[-1] == "." and text[0].isupper():
                            yield SourceSentence(text=text, behind=behind, document=i, passage=j)


def passages_of(path: Path) -> tuple[Passage, ...]:
    """The passages of a file; none if it is no document or has no text."""
    try:
        return split(load(path), lambda text: len(text.split()), TOKENS) if path.suffix in SUPPORTED else ()
    except UnreadableDocument:
        return ()


def planted(documents: PlantedDocuments, each: int = EACH, seed: int = SEED) -> Iterator[PlantedClaim]:
    """So many claims of each kind of error, fewer where the documents give no more; every fourth one is verbatim."""
    choose = random.Random(seed)
    for kind, plant in KINDS.items():
        pool = [*documents.sentences]
        choose.shuffle(pool)
        made = 0
        for source in pool:
            if made == each:
                break
            where = documents.surroundings(source)
            is_verbatim = made % 4 == 0
            claim = source.text if is_verbatim else reworded(source.text, source.behind, choose)
            wrong = plant(claim, where, choose) if claim else None
            if kind == "other page" and claim:
                claim = of_page(claim, where.heading)
            if not claim or not wrong or wrong == claim or where.heading == where.other_heading:
                continue
            made += 1
            given = documents.passages(source)
            yield PlantedClaim(kind=kind, is_verbatim=is_verbatim, claim=claim, wrong=wrong, passages=given)


def is_flagged(claim: str, passages: Sequence[str]) -> bool:
    """Whether the checks find something wrong with a claim, as they would in an answer."""
    return not AnswerChecker("", passages).check(claim).is_supported


def measure_planted(cases: Sequence[PlantedClaim]) -> dict[str, dict[str, Figure]]:
    """For each kind of error, and for all: the share of the errors found, and of the true claims flagged. Claims that
    stand in the passages word for word say nothing of the latter and are left out.
    """
    found = [(case, is_flagged(case.wrong, case.passages)) for case in cases]
    flagged = [(case, is_flagged(case.claim, case.passages)) for case in cases if not case.is_verbatim]
    return {
        kind: {
            "found": share([flag for case, flag in found if kind in (case.kind, "all")]),
            "wrongly flagged": share([flag for case, flag in flagged if kind in (case.kind, "all")]),
        }
        for kind in (*KINDS, "all")
    }


def row(kind: str, figures: dict[str, Figure]) -> str:
    """A line of the table: shares in percent with their intervals, and of how many."""
    return " | ".join((f"{kind:12}", *(f"{in_percent(figure):>22}" for figure in figures.values())))


def in_percent(figure: Figure) -> str:
    """A share as "72 [67, 77] of 270"."""
    if figure.value is None or figure.low is None or figure.high is None:
        return "-"
    return f"{100 * figure.value:.0f} [{100 * figure.low:.0f}, {100 * figure.high:.0f}] of {figure.n}"


def main() -> None:
    """The command."""
    parser = argparse.ArgumentParser(description="How many planted errors the checks of answers find")
    parser.add_argument("folders", nargs="+", type=Path, metavar="FOLDER", help="documents")
    parser.add_argument("--each", type=int, default=EACH, help="claims of each kind of error and folder")
    options = parser.parse_args()
    cases = [case for folder in options.folders for case in planted(PlantedDocuments(folder), options.each)]
    for kind, figures in measure_planted(cases).items():
        print(row(kind, figures))


if __name__ == "__main__":
    main()
