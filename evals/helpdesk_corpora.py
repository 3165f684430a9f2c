"""Builds help desks for `warmdesk eval helpdesk` from collections of questions on documents that others published.

    python -m evals.helpdesk_corpora articles qa_en.jsonl.gz --to FOLDER
    python -m evals.helpdesk_corpora service dstc9_faq.jsonl.gz --to FOLDER
    python -m evals.helpdesk_corpora support plausible_docs.jsonl.gz ... faq_minus.jsonl.gz --to FOLDER
    python -m evals.helpdesk_corpora chinese qa_zh.jsonl.gz --to FOLDER
    python -m evals.helpdesk_corpora chinese-fitting qa_zh.jsonl.gz --to FOLDER

FOLDER gets `documents/` and `questions.jsonl`. Lines of the files: {src, doc_id, title, context, qas: [{question,
answers, history?, from?, answerability?}]}. The files are not part of this project; their licences hold for what is
built.

articles  encyclopedia articles (ClapNQ) and passages of IBM Cloud and government pages (MT-RAG, its conversations
          kept), in one desk. Unanswerable: questions marked so, and near misses: every fourth document with an
          answered question is left out of the folder.
service   restaurants, hotels and sights with what each of them offers (DSTC9, DSTC10). Only written turns (not those of
          speech recognition) that name their place, or follow a turn that does. Near misses: for every fourth place the
          entry that answers its first question is left out, if no other entry has more than half of the question's
          telling words.
support   help pages of several products in one desk; only questions that their authors wrote, none made from headings.
          Near misses: the section that answers is left out of the page, which stands in the folder only in that
          version.
chinese   encyclopedia articles in Simplified Chinese (CMRC 2018), with the questions of this project
          (`data/chinese-questions.jsonl`) in place of the file's own. Articles that no question is about are added
          until there are 150.
chinese-fitting  150 other articles of that file with its own questions, for `warmdesk calibrate-search`: no document is
          in both. Questions that begin with a pronoun are left out. These questions were written with the text in view
          and share more words with it than a customer's; so 78 of them are also asked in other words
          (`data/chinese-training.jsonl`, written without the text in view).

Texts that were cut into tokens are put together again (" ," becomes ",").

Facts, except where the questions are our own. The answers are whole sentences, so one fact is made of all of them:
any five running words of a sentence of the answer count, if they stand in the document and two of them are telling
words that the question does not have; of a shorter sentence, all of it. The first two sentences that have such words
are used. Of an entry about a place the whole sentence must be shown; where another place has the same sentence, it is
no fact. Where an answer was reworded so that no part of it stands in the document, the question counts for the right
page and not for facts. A page that holds half of the forms of a fact is a right page, too.
"""

import argparse
import gzip
import json
import re
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from app.domain.setting_values import SHIPPED_DATA
from evals.fact_matching import words
from retrieval.text.sentences import sentences
from retrieval.text.terms import COMMON, stem

RUN = 5
"""Running words of the answer that a fact holds."""
SHORTEST = 3
"""Words of a sentence that is a form; "Yes." alone is none."""
NEW_WORDS = 2
"""Telling words among them that the question does not have, at least."""
TOLD = 2
"""Telling words that a turn has beside the name of its place, at least: "I was just curious" has one."""
FIRST_SENTENCES = 2
LEFT_OUT = 4
"""Of the documents with answered questions, one in so many is left out."""
ANSWERABLE, UNANSWERABLE = 150, 60
"""Most questions of a desk."""
CHINESE_QUESTIONS = SHIPPED_DATA / "chinese-questions.jsonl"
CHINESE_TRAINING = SHIPPED_DATA / "chinese-training.jsonl"
CHINESE_PAGES = 150
"""Documents of the Chinese desk."""
FITTING_PAGES = 150
"""Documents of the desk that Chinese is fitted on."""
POINTS_BACK = re.compile("[他她它该此其这那]")
"""A Chinese question that begins so is not understood alone."""

Row = dict[str, Any]


@dataclass(slots=True)
class HelpDesk:
    """Documents by file name, and questions as `evals.helpdesk_questions` reads them."""

    documents: dict[str, str] = field(default_factory=dict)
    questions: list[Row] = field(default_factory=list)
    most: int = ANSWERABLE  # questions with a page that are written
    _asked: set[tuple[str, ...]] = field(default_factory=set)

    def add(self, row: Row) -> str:
        """Add the document of a row; returns its file name."""
        name = file_name(row["doc_id"])
        headings = {qa["heading"] for qa in row["qas"] if qa.get("heading")} if row.get("headings") == "kept" else set()
        self.documents[name] = page_of(row["title"], untokenised(row["context"]), headings)
        return name

    def ask(self, qa: Row, row: Row | None = None, facts: Sequence[Sequence[str]] = ()) -> None:
        """Add a question, unless it was asked before. row: the document that answers it, None if none does."""
        history = history_of(qa)
        key = (qa["question"].strip().casefold(), *(history[-1] if history else ()))
        if key in self._asked:
            return
        self._asked.add(key)
        self.questions.append(
            {
                "id": f"q{len(self.questions) + 1:03}",
                "question": qa["question"].strip(),
                "articles": [] if row is None else [file_name(row["doc_id"])],
                "facts": [list(fact) for fact in facts],
                "answer": "" if row is None else qa["answers"][0],
                "history": history,
            }
        )

    def settle(self) -> None:
        """Name every page that answers: those with at least half of the forms of a fact."""
        pages = {name: f" {' '.join(words(text))} " for name, text in self.documents.items()}
        for question in self.questions:
            forms = [form for fact in question["facts"] for form in fact]
            held = {name: sum(f" {form} " in text for form in forms) for name, text in pages.items() if forms}
            holding = [name for name, count in held.items() if 2 * count >= len(forms)]
            question["articles"] = list(dict.fromkeys([*question["articles"], *holding]))

    def write(self, folder: Path) -> None:
        """Write the folder, and at most so many questions, spread evenly."""
        told = [question for question in self.questions if question["articles"]]
        untold = [question for question in self.questions if not question["articles"]]
        chosen = [*spread(told, self.most), *spread(untold, UNANSWERABLE)]
        (folder / "documents").mkdir(parents=True, exist_ok=True)
        for name, text in self.documents.items():
            (folder / "documents" / name).write_text(text, encoding="utf-8")
        lines = [json.dumps(question, ensure_ascii=False) for question in chosen]
        (folder / "questions.jsonl").write_text("\n".join(lines) + "\n", encoding="utf-8")
        print(
            f"{len(self.documents)} documents, {len(told)} answerable and {len(untold)} other questions, kept", end=" "
        )
        print(f"{len(chosen)}; {sum(bool(question.get('facts')) for question in chosen)} with facts")


def articles(files: Sequence[Path]) -> HelpDesk:
    """ClapNQ and MT-RAG."""
    desk = HelpDesk()
    rows = [row for row in read(files) if row["src"].startswith(("clapnq", "mtragun"))]
    parts = Counter(part for row in rows for part in row["doc_id"].split("|"))
    answered = [row for row in rows if row["context"] and any(state_of(qa) == "ANSWERABLE" for qa in row["qas"])]
    alone = [row for row in answered if all(parts[part] == 1 for part in row["doc_id"].split("|"))]
    left_out = {row["doc_id"] for row in alone[::LEFT_OUT]}
    kept = [row for row in rows if row["context"] and row["doc_id"] not in left_out]
    for row in kept:
        desk.add({**row, "title": row["title"] or first_line(row["context"])})
    for row in rows:
        for qa in row["qas"]:
            state = state_of(qa)
            if state == "UNANSWERABLE" or (state == "ANSWERABLE" and row["doc_id"] in left_out):
                desk.ask(qa)
            elif state == "ANSWERABLE":
                desk.ask(qa, row, facts_of(qa, row["context"]))
    desk.settle()
    return desk


def service(files: Sequence[Path]) -> HelpDesk:
    """DSTC9 and DSTC10."""
    desk = HelpDesk()
    asked = [(row, [qa for qa in row["qas"] if is_asked(row, qa)]) for row in read(files)]
    asked = [(row, qas) for row, qas in asked if qas]
    said = Counter(line for row, _ in asked for line in set(row["context"].splitlines()))
    for number, (row, qas) in enumerate(asked):
        lines = row["context"].splitlines()
        out = qas[0]["answers"] if number % LEFT_OUT == 0 else []
        left = [line for line in lines if line not in out]
        if out and any(is_said(qa["question"], row["title"], left) for qa in qas if qa["answers"] == out):
            out, left = [], lines
        desk.add({**row, "context": "\n".join(left)})
        for qa in qas:
            if qa["answers"] == out:
                desk.ask(qa)
            else:
                is_unique = all(said[line] == 1 for line in qa["answers"])
                desk.ask(qa, row, [qa["answers"]] if is_unique else [])
    desk.settle()
    return desk


def support(files: Sequence[Path]) -> HelpDesk:
    """Help pages of products: the last file has the pages with a section taken out."""
    desk = HelpDesk()
    *whole, less = files
    shorter = {row["doc_id"].removesuffix("-minus"): row for row in read([less])}
    for row in read(whole):
        version = shorter.get(row["doc_id"], row)
        written = {qa["question"]: qa for qa in row["qas"] if qa.get("from") is None and qa["answers"]}
        removed = {qa["question"] for qa in version["qas"] if not qa["answers"]}
        row["context"] = version["context"]
        desk.add(row)
        for question, qa in written.items():
            if question in removed:
                desk.ask(qa)
            elif qa["answers"][0] in row["context"]:
                desk.ask(qa, row, facts_of(qa, row["context"]))
    desk.settle()
    return desk


def chinese(files: Sequence[Path]) -> HelpDesk:
    """CMRC 2018 with our own questions. Raises ValueError if the file lacks a document that they are about."""
    desk = HelpDesk(questions=[json.loads(line) for line in CHINESE_QUESTIONS.read_text(encoding="utf-8").splitlines()])
    asked = {name for question in desk.questions for name in (*question["articles"], *question.get("about", ()))}
    rows = list(read(files))
    others = [row for row in rows if file_name(row["doc_id"]) not in asked]
    for row in rows:
        if file_name(row["doc_id"]) in asked:
            desk.add(row)
    if missing := sorted(asked - desk.documents.keys()):
        raise ValueError(f"documents that the questions are about are missing: {', '.join(missing)}")
    for row in spread(others, CHINESE_PAGES - len(asked)):
        desk.add(row)
    return desk


def chinese_fitting(files: Sequence[Path]) -> HelpDesk:
    """The articles of CMRC 2018 that are not in the desk of `chinese`."""
    measured = chinese(files).documents
    desk = HelpDesk()
    others = [row for row in read(files) if file_name(row["doc_id"]) not in measured]
    for row in spread(others, FITTING_PAGES):
        name = desk.add(row)
        desk.questions += [
            {"question": qa["question"], "answers": qa["answers"], "articles": [name]}
            for qa in row["qas"]
            if not POINTS_BACK.match(qa["question"])
        ]
    lines = CHINESE_TRAINING.read_text(encoding="utf-8").splitlines()
    desk.questions += [row for row in map(json.loads, lines) if desk.documents.keys() >= set(row["articles"])]
    desk.most = len(desk.questions)
    return desk


def facts_of(qa: Row, context: str) -> list[list[str]]:
    """One fact with all its forms, or none."""
    document = f" {' '.join(words(untokenised(context)))} "
    asked = telling(qa["question"])
    forms: dict[str, None] = {}
    for answer in qa["answers"]:
        used = 0
        for sentence in sentences(untokenised(answer)):
            said = words(sentence)
            length = min(RUN, len(said))
            runs = [said[at : at + length] for at in range(len(said) - length + 1)] if length >= SHORTEST else []
            held = [text for run in runs if f" {(text := ' '.join(run))} " in document]
            found = [text for text in held if len(telling(text) - asked) >= NEW_WORDS or length < RUN]
            forms.update(dict.fromkeys(found))
            used += bool(found)
            if used == FIRST_SENTENCES:
                break
    return [list(forms)] if forms else []


def is_asked(row: Row, qa: Row) -> bool:
    """Whether a turn was written by a person, is answered by its place's entries, and names the place."""
    is_written = qa.get("from") is None and re.search(r"[A-Z?]", qa["question"])
    is_answered = qa["answers"] and all(answer in row["context"] for answer in qa["answers"])
    return bool(is_written and is_answered) and is_named(row["title"], qa)


def is_said(question: str, title: str, lines: Sequence[str]) -> bool:
    """Whether another line may answer a question: it has more than half of the telling words beside the title."""
    asked = telling(question) - telling(title)
    return any(2 * len(asked & telling(line)) > len(asked) for line in lines)


def telling(text: str) -> set[str]:
    """Stems of the words of a text that are not in every text."""
    return {stem(word) for word in words(text)} - COMMON


def state_of(qa: Row) -> str:
    """ANSWERABLE, UNANSWERABLE, or another word for what is neither."""
    marked: str = (qa.get("answerability") or ["ANSWERABLE" if qa["answers"] else "UNANSWERABLE"])[0]
    return marked


def is_named(title: str, qa: Row) -> bool:
    """Whether a question or the turn before it names a place, and it asks something about it."""
    conversation = " ".join([*(text for pair in history_of(qa)[-1:] for text in pair), qa["question"]])
    is_there = f" {' '.join(words(title))} " in f" {' '.join(words(conversation))} "
    return is_there and len(telling(qa["question"]) - telling(title)) >= TOLD


def history_of(qa: Row) -> list[list[str]]:
    """Pairs of question and answer from turns [speaker, text]; turns of one speaker in a row are joined."""
    pairs: list[list[str]] = []
    for speaker, text in qa.get("history") or []:
        if speaker.lower().startswith("u"):
            if pairs and not pairs[-1][1]:
                pairs[-1][0] += " " + text
            else:
                pairs.append([text, ""])
        elif pairs:
            pairs[-1][1] = f"{pairs[-1][1]} {text}".strip()
    return [pair for pair in pairs if pair[1]]


def page_of(title: str, context: str, headings: set[str]) -> str:
    """A Markdown page; lines of the context are paragraphs, list items, or headings where that is known."""
    lines = context.splitlines()
    if lines and lines[0].strip() == title:
        del lines[0]
    page = f"# {title}\n" if title else ""
    for line in filter(None, map(str.strip, lines)):
        is_item = re.match(r"(?:[-*•]|\d+[.)]) |\|", line)
        page += ("\n" if is_item else "\n\n") + (f"## {line}" if line in headings else line)
    return page.strip() + "\n"


def untokenised(text: str) -> str:
    """Text with the spaces that a tokenizer put before punctuation taken out again."""
    text = re.sub(r"`` ?| ?''", '"', text)
    text = re.sub(r" ([,.;:?!)\]])(?=\s|$)", r"\1", text)
    text = re.sub(r"([(\[]) ", r"\1", text)
    return re.sub(r" (n't|'(?:s|re|ve|ll|d|m))\b", r"\1", re.sub(r"(?<=\w) - (?=\w)", "-", text))


def first_line(context: str) -> str:
    """A title for a text that has none."""
    return next((line.strip(" *#")[:80] for line in context.splitlines() if line.strip(" *#")), "")


def file_name(doc_id: str) -> str:
    """A file name for a document."""
    return re.sub(r"[^A-Za-z0-9]+", "-", doc_id).strip("-")[:80] + ".md"


def spread(items: Sequence[Row], most: int) -> list[Row]:
    """At most so many items, evenly taken."""
    count = min(most, len(items))
    return [items[at * len(items) // count] for at in range(count)]


def read(files: Sequence[Path]) -> Iterator[Row]:
    """The rows of gzipped JSON lines."""
    for file in files:
        with gzip.open(file, "rt", encoding="utf-8") as lines:
            yield from map(json.loads, lines)


BUILDERS = {
    "articles": articles,
    "service": service,
    "support": support,
    "chinese": chinese,
    "chinese-fitting": chinese_fitting,
}


def main() -> None:
    """The command."""
    parser = argparse.ArgumentParser(description="Build a help desk to be measured; see the top of this file.")
    parser.add_argument("desk", choices=BUILDERS)
    parser.add_argument("files", type=Path, nargs="+")
    parser.add_argument("--to", type=Path, required=True, help="folder to write")
    arguments = parser.parse_args()
    BUILDERS[arguments.desk](arguments.files).write(arguments.to)


if __name__ == "__main__":
    main()
