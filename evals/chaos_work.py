"""What is done with a desk in `evals.chaos` while something happens to it.

Not covered: what happens (`chaos_faults`), and how the desk must be afterwards (`desk_examination`).
"""

import random
import re
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Any, Final
from unittest.mock import patch

from sqlalchemy import Column, Connection, MetaData, create_engine, insert, inspect, text

from app.desk.calibration import FILE, SEARCH_FILE, Calibration, setup_of, write_calibration, write_classifier
from app.desk.service import Service
from app.domain.quality import FaqDraft
from app.knowledge.finder import CANDIDATES
from app.storage import migrate
from app.storage.database import open_database
from evals.labelled_questions import LabelledQuestion
from evals.search_calibration import LEAST, fit, judged_cases
from evals.tiny_desk import small_settings

PAGES, PARTS = 8, 4
CANARY: Final = "quokka"
"""What words begin with that are in one document alone."""
ROWS: Final = 60
"""Of each table of an older database."""
CHANGED: Final = frozenset({"alembic_version"})
"""Tables whose rows a migration changes."""
LATER: Final = """import sqlalchemy as sa
from alembic import op

revision, down_revision = "later", {latest!r}


def upgrade() -> None:
    op.create_index("ix_messages_later", "messages", ["created"])
    with op.batch_alter_table("conversations") as conversations:
        conversations.alter_column("title", nullable=True)
        conversations.add_column(sa.Column("later", sa.Text))
"""
"""A revision that is yet to come."""


@dataclass(frozen=True, slots=True)
class Place:
    """Where the desk is. database_url: of its database; None: a file in its data folder. older_url: of one that an
    earlier Warmdesk left.
    """

    folder: Path
    database_url: str | None = None
    older_url: str | None = None

    @property
    def desk(self) -> Path:
        """The data folder."""
        return self.folder / "desk"

    @property
    def older(self) -> Path:
        """The data folder of an earlier Warmdesk."""
        return self.folder / "older"

    @property
    def revisions(self) -> Path:
        """The revisions of a later Warmdesk."""
        return self.folder / "revisions"

    @property
    def pages(self) -> Path:
        """The documents."""
        return self.folder / "pages"

    @property
    def asked(self) -> Path:
        """A file with the ids of all conversations that were answered."""
        return self.folder / "asked"

    @property
    def archive(self) -> Path:
        """A backup of the desk."""
        return self.folder / "backup.tar.gz"

    @property
    def forgotten(self) -> Path:
        """A file with a word of each document that was to be forgotten."""
        return self.folder / "forgotten"

    @property
    def settings(self) -> dict[str, Any]:
        """Of the desk, where they are not those of every tiny desk."""
        return {} if self.database_url is None else {"database_url": self.database_url}

    @property
    def older_database(self) -> str:
        """The URL of the older database."""
        return self.older_url or small_settings(self.older).database_url


def write_pages(folder: Path, rng: random.Random) -> None:
    """Some of the pages anew."""
    folder.mkdir(exist_ok=True)
    for number in range(PAGES):
        if rng.random() < 0.5 or not (folder / f"page{number}.md").exists():
            parts = (f"## Part {part}\n\n{price(rng)}\n" for part in range(PARTS))
            (folder / f"page{number}.md").write_text(f"# Page {number}\n\n" + "\n".join(parts))


def price(rng: random.Random) -> str:
    """A statement of a page."""
    return f"Item {rng.randrange(999)} costs {rng.randrange(99)}."


def ask(desk: Service, asked: Path) -> None:
    """Three questions; the conversations that were answered are added to the file."""
    for number in range(3):
        stream = desk.ask(f"What does item {number} cost?")
        for _ in stream:
            pass
        with asked.open("a") as file:
            file.write(f"{stream.answer.conversation_id}\n")


def upload(desk: Service, rng: random.Random) -> None:
    """A file, perhaps in place of one there is, with a word that is in no other."""
    text = f"# Delivery\n\nThe word of the day is {CANARY}{rng.randrange(10**12):012}.\n"
    desk.upload(f"upload{rng.randrange(3)}.md", text.encode(), collection=rng.choice(("", "shop")))


def change_faq(desk: Service, rng: random.Random) -> None:
    """Add a pair, or change or delete one."""
    pairs = desk.quality.faq()
    answer = f"The word of the day is {CANARY}{rng.randrange(10**12):012}."
    if pairs and rng.random() < 0.5:
        desk.quality.delete_faq(rng.choice(pairs).id)
    elif pairs and rng.random() < 0.5:
        pair = rng.choice(pairs)
        desk.quality.save_faq(FaqDraft(question=pair.question, answer=answer), "ann", pair.id)
    else:
        desk.quality.save_faq(FaqDraft(question=f"What is word {rng.randrange(10**6)}?", answer=answer), "ann")


def forget(desk: Service, forgotten: Path, rng: random.Random) -> None:
    """A document; its words that are in no other are added to the file."""
    if not desk.documents():
        upload(desk, rng)
    path = rng.choice(desk.documents()).path
    with forgotten.open("a") as file:
        file.writelines(f"{word}\n" for word in canaries(desk, path))
    desk.forget(path)


def canaries(desk: Service, path: str) -> set[str]:
    """The words of a document that are in no other."""
    return set(re.findall(rf"{CANARY}\d+", " ".join(one.text for one in desk.library.passages_of(path))))


def calibrate(desk: Service, pages: Path) -> None:
    """What `warmdesk calibrate-search` does; of `warmdesk calibrate` only the end, as measuring takes minutes."""
    desk.ingest([pages])
    statements = [line for page in sorted(pages.glob("*.md")) for line in page.read_text().splitlines()]
    questions = [
        LabelledQuestion(question=f"What {' '.join(line.split()[:3])}?", answers=(line,))
        for line in statements
        if line.startswith("Item")
    ]
    questions += [LabelledQuestion(question=f"quagga{number} zebra{number}") for number in range(LEAST)]
    cases = list(judged_cases(desk.finder, questions, "this desk", CANDIDATES, lambda _: None))
    found = fit(cases, desk.search.embedder.name, desk.statements.encoder.name)
    write_classifier(desk.settings.data_dir / SEARCH_FILE, found.classifier)
    write_calibration(desk.settings.data_dir / FILE, made_up(setup_of(desk.settings)))


def made_up(setup: str) -> Calibration:
    """The result of a calibration that did not take place."""
    return Calibration(
        setup=setup, model="tiny", measured="2026-01-01", questions=0, rows=(), policy="fast", answer_mode="quote"
    )


@contextmanager
def later_version(place: Place) -> Iterator[None]:
    """Let Warmdesk have one more revision, which the older database lacks."""
    with patch.object(migrate, "REVISIONS", place.revisions):
        yield


def open_older(place: Place) -> None:
    """Open the older database, which migrates it."""
    with later_version(place):
        open_database(place.older_database).close()


def make_older(place: Place) -> dict[str, int]:
    """Make a database of an earlier Warmdesk with rows in all its tables; returns the number of rows of each."""
    shutil.copytree(migrate.REVISIONS, place.revisions, dirs_exist_ok=True)
    (place.revisions / "later.py").write_text(LATER.format(latest=migrate.revisions()[-1].revision))
    place.older.mkdir()
    open_database(place.older_database).close()
    engine = create_engine(place.older_database)
    try:
        with engine.begin() as connection:
            meta = MetaData()
            meta.reflect(connection)
            for table in meta.sorted_tables:
                rows = [{one.name: value_of(one, number) for one in table.columns} for number in range(1, ROWS + 1)]
                if table.name not in CHANGED:
                    connection.execute(insert(table), rows)
            return num_rows(connection)
    finally:
        engine.dispose()


def value_of(column: Column[Any], number: int) -> object:
    """The same in every column of a row that may be a key, so that rows refer to one another."""
    if column.nullable and not column.primary_key:
        return None
    kind, length = column.type.python_type, getattr(column.type, "length", None)
    if kind is str:
        return f"{number:032x}"[-length:] if length else f"{number:032x}" + " word" * 40
    values = {datetime: datetime(2026, 1, 1), bytes: number.to_bytes(4, "big") * 256, dict: [], bool: False}
    return values.get(kind, number)


def num_rows(connection: Connection) -> dict[str, int]:
    """How many rows each table has that a migration leaves as they are."""
    names = sorted(set(inspect(connection).get_table_names()) - CHANGED)
    return {name: connection.scalar(text(f"SELECT count(*) FROM {name}")) or 0 for name in names}
