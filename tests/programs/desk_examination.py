"""The work of the reliability programs, and the checks of a data folder after it.

Everything must be complete, with all answers, and nothing left over. Out of scope: the faults during the work
(`chaos`), and whether the answers are right.
"""

import random
import re
import shutil
import sqlite3
import time
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from datetime import datetime
from pathlib import Path
from typing import Any, Final
from unittest.mock import patch

from help_site import article, page
from local_site import LocalSite
from sqlalchemy import Column, Connection, MetaData, create_engine, insert, inspect, select, text
from tiny import build
from tiny_desk import small_settings, tiny_desk

from app.desk import doctor
from app.desk.calibration import FILE, SEARCH_FILE, Calibration, setup_of, write_calibration, write_classifier
from app.desk.service import Service
from app.domain.errors import DeskError
from app.domain.quality import FaqDraft
from app.knowledge.finder import CANDIDATES
from app.knowledge.ingest import IngestReport
from app.knowledge.uploads import out_of_step as uploads_out_of_step
from app.storage import migrate
from app.storage.archive import check_database
from app.storage.data_folder import BEGUN_FILE, lock_data_folder
from app.storage.database import Database, open_database, sqlite_file
from app.storage.files import REPLACED
from app.storage.migrate import ENDING
from app.storage.tables import ConversationRow
from app.support.faq import document_of
from app.websites.mirror import MOST_ABSENT
from cache.model.language_model import LanguageModel
from evals.answers.questions import LabelledQuestion
from evals.answers.search_calibration import LEAST, fit, judged_cases
from retrieval.documents import content_hash

PAGES, PARTS = 8, 4
CANARY: Final = "quokka"  # beginning of words that only one document has
ROWS: Final = 60  # rows of each table of an older database
CHANGED: Final = frozenset({"alembic_version", "sessions"})
"""Tables whose rows a migration changes, or a restore, which ends all sessions."""
LATER: Final = """import sqlalchemy as sa
from alembic import op

revision = "later"
down_revision = {latest!r}


def upgrade() -> None:
    op.create_index("ix_messages_later", "messages", ["created"])
    with op.batch_alter_table("conversations") as conversations:
        conversations.alter_column("title", nullable=True)
        conversations.add_column(sa.Column("later", sa.Text))
"""
"""A revision of a later version."""


class Place:
    """The paths of a desk. database_url: None for a file in its data folder. older_url: database of an earlier
    Warmdesk. load: its model. site: the website that it reads.
    """

    def __init__(
        self,
        folder: Path,
        database_url: str | None = None,
        older_url: str | None = None,
        load: Callable[[], LanguageModel] = build,
        site: LocalSite | None = None,
    ) -> None:
        self.folder, self.database_url, self.load, self.site = folder, database_url, load, site
        self.desk, self.older, self.revisions = folder / "desk", folder / "older", folder / "revisions"
        self.pages, self.asked, self.forgotten = folder / "pages", folder / "asked", folder / "forgotten"
        self.archive = folder / "backup.tar.gz"
        self.settings: dict[str, Any] = {} if database_url is None else {"database_url": database_url}
        if site is not None:
            self.settings |= {"private_hosts": (f"127.0.0.1:{site.port}",), "website_pause": 0.0}
        self.older_database = older_url or small_settings(self.older).database_url


def write_pages(folder: Path, rng: random.Random) -> None:
    folder.mkdir(exist_ok=True)
    for number in range(PAGES):
        if rng.random() < 0.5 or not (folder / f"page{number}.md").exists():
            parts = (f"## Part {part}\n\n{price(rng)}\n" for part in range(PARTS))
            (folder / f"page{number}.md").write_text(f"# Page {number}\n\n" + "\n".join(parts))


def write_site(site: LocalSite, rng: random.Random) -> None:
    """Change a website: its start page links to some of its pages, and each may have another text than before."""
    paths = [f"/p{number}" for number in range(PAGES) if rng.random() < 0.8]
    start = page("Help", "<p>Welcome to the help pages of this shop.</p>", paths)
    site.pages = {path: site.pages.get(path, article(rng.randrange(10**9))) for path in paths} | {"/": start}
    site.pages |= {path: article(rng.randrange(10**9)) for path in paths if rng.random() < 0.3}


def synchronise(desk: Service, site: LocalSite) -> list[str]:
    """Read the website into the desk. Returns what is wrong with the result."""
    source = (desk.synced.all() or [desk.synced.save(site.url("/"), "", 60, who="chaos")])[0]
    for _ in range(MOST_ABSENT):  # so that pages that are gone have no documents any more
        result = desk.synced.run(source.folder, who="chaos")
        if not result.is_ok:
            return [f"the website is not read: {result.problem}"]
    there = {one.path for one in desk.documents() if one.path.startswith(site.url())}
    pages = {site.url(path) for path in site.pages}
    return [f"{path} of the website is only in one of document and page" for path in sorted(pages ^ there)]


def price(rng: random.Random) -> str:
    return f"Item {rng.randrange(999)} costs {rng.randrange(99)}."


def ask(desk: Service, asked: Path) -> None:
    for number in range(3):
        stream = desk.ask(f"What does item {number} cost?")
        for _ in stream:
            pass
        with asked.open("a") as file:
            file.write(f"{stream.answer.conversation_id}\n")


def upload(desk: Service, rng: random.Random) -> None:
    text = f"# Delivery\n\nThe word of the day is {CANARY}{rng.randrange(10**12):012}.\n"
    desk.upload(f"upload{rng.randrange(3)}.md", text.encode(), collection=rng.choice(("", "shop")))


def change_faq(desk: Service, rng: random.Random) -> None:
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
    if not desk.documents():
        upload(desk, rng)
    path = rng.choice(desk.documents()).path
    with forgotten.open("a") as file:
        file.writelines(f"{word}\n" for word in canaries(desk, path))
    desk.forget(path)


def canaries(desk: Service, path: str) -> set[str]:
    return set(re.findall(rf"{CANARY}\d+", " ".join(one.text for one in desk.library.passages_of(path))))


def calibrate(desk: Service, pages: Path) -> None:
    """Do what `warmdesk calibrate-search` does, and only the end of `warmdesk calibrate`, which takes minutes to
    measure.
    """
    desk.ingest([pages])
    statements = [line for page in sorted(pages.glob("*.md")) for line in page.read_text().splitlines()]
    questions = [
        LabelledQuestion(question=f"What {' '.join(line.split()[:3])}?", answers=(line,))
        for line in statements
        if line.startswith("Item")
    ]
    questions += [LabelledQuestion(question=f"quagga{number} zebra{number}") for number in range(LEAST)]
    cases = list(judged_cases(desk.finder, questions, "this desk", CANDIDATES, lambda _: None))
    classifier, _ = fit(cases, desk.search.embedder.name, desk.statements.encoder.name)
    write_classifier(desk.settings.data_dir / SEARCH_FILE, classifier)
    made_up = {"model": "tiny", "measured": "2026-01-01", "questions": 0, "rows": (), "policy": "fast"}
    found = Calibration(setup=setup_of(desk.settings), answer_mode="quote", **made_up)
    write_calibration(desk.settings.data_dir / FILE, found)


@contextmanager
def later_version(place: Place) -> Iterator[None]:
    with patch.object(migrate, "REVISIONS", place.revisions):
        yield


def open_older(place: Place) -> None:
    with later_version(place):
        open_database(place.older_database).close()


def make_older(place: Place) -> dict[str, int]:
    """Make a database of an earlier version with rows in all its tables. Returns the number of rows of each."""
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
    """Return a value that is the same in every key column of a row, so that rows refer to one another."""
    if column.nullable and not column.primary_key:
        return None
    kind, length = column.type.python_type, getattr(column.type, "length", None)
    if kind is str:
        return f"{number:032x}"[-length:] if length else f"{number:032x}" + " word" * 40
    values = {datetime: datetime(2026, 1, 1), bytes: number.to_bytes(4, "big") * 256, dict: [], bool: False}
    return values.get(kind, number)


def num_rows(connection: Connection) -> dict[str, int]:
    names = sorted(set(inspect(connection).get_table_names()) - CHANGED)
    return {name: connection.scalar(text(f"SELECT count(*) FROM {name}")) or 0 for name in names}


PATIENCE_S: Final = 10.0  # how long a server may take to notice that a desk was killed
BACK_S: Final = 10.0  # how long a desk may take until it answers again
CHECKS = (*(doctor.database, doctor.data_folder, doctor.documents), *(doctor.calibration, doctor.search_classifier))


def examine(place: Place) -> list[str]:
    found, began = list[str](), time.monotonic()
    with lock_data_folder(place.desk, "chaos"), tiny_desk(place.desk, place.load, **place.settings) as desk:
        for aside in place.desk.glob(f"{REPLACED}*"):
            shutil.rmtree(aside)
        desk.prepare()
        if (back_s := time.monotonic() - began) > BACK_S:
            found.append(f"back only after {back_s:.1f} s")
        half = [one.path for one in desk.documents() if one.num_passages != len(desk.library.passages_of(one.path))]
        found += [f"half there: {path}" for path in half]
        report = ingested(desk, place.pages)
        if place.site is not None and desk.synced.all():
            found += synchronise(desk, place.site)
            report = ingested(desk, place.pages)  # encodes the website's passages too
        found += [f"not ingested: {one.reason}" for one in report.failed]
        desk.finish_begun()  # where another desk was taken to be still there
        found += broken_rows(desk.database)
        found += left_over(desk)
        found += out_of_step(desk)
        present = {word for one in desk.documents() for word in canaries(desk, one.path)}
        known = set(desk.database.values(select(ConversationRow.id)))
        answered = place.asked.read_text().split() if place.asked.exists() else []
        found += [f"conversation lost: {id_}" for id_ in answered if id_ not in known]
        settings = desk.settings
    found += [f"doctor: {one.detail}" for one in (doctor.run(check, settings) for check in CHECKS) if not one.ok]
    forgotten = set(place.forgotten.read_text().split()) if place.forgotten.exists() else set[str]()
    files = {file: file.read_bytes() for file in place.desk.rglob("*") if file.is_file()}
    for word in forgotten - present:  # it is there where nothing had begun yet
        found += [f"{word} is in {file.name}" for file, data in files.items() if word.encode() in data]
    return found + partial_files(place.desk)


def out_of_step(desk: Service) -> list[str]:
    """Uploads and the FAQ that are not as their documents are, and what is still noted as begun."""
    settings, stored = desk.settings, {one.path: one.content_hash for one in desk.documents()}
    found = [f"not as its document: {path}" for path in uploads_out_of_step(settings.uploads_folder, stored)]
    data = settings.faq_file.read_bytes() if settings.faq_file.exists() else b""
    pairs = sorted(desk.quality.faq(), key=lambda pair: pair.id)
    if data != (document_of(pairs) if pairs else b""):
        found.append("the FAQ's document is not as its pairs")
    if data and not stored.get(settings.faq_document, "").startswith(content_hash(data)):
        found.append("the FAQ is not as its document")
    found += ["the FAQ has no file"] * (not data and settings.faq_document in stored)
    return found + ["something is begun"] * (settings.data_dir / BEGUN_FILE).exists()


def ingested(desk: Service, pages: Path) -> IngestReport:
    """Ingest the pages, as soon as the server has noticed that whoever did so before is gone."""
    deadline = time.monotonic() + PATIENCE_S
    while True:
        try:
            return desk.ingest([pages])
        except DeskError as error:
            if error.code != "ingestion-running" or time.monotonic() > deadline:
                raise
            time.sleep(0.1)


def examine_older(place: Place, before: dict[str, int]) -> list[str]:
    """Everything that is wrong with the older database once it is brought up to date. before: rows of its tables."""
    with later_version(place), closing(open_database(place.older_database)) as database:
        found = broken_rows(database)
        with database.read() as session:
            after = num_rows(session.connection())
    changed = {name: (rows, after.get(name)) for name, rows in before.items() if after.get(name) != rows}
    found += [f"{name} had {rows} rows and has {now}" for name, (rows, now) in changed.items()]
    if file := sqlite_file(place.older_database):
        copies = list(place.older.glob(f"{file.name}{ENDING}*"))
        found += [wrong for copy in copies for wrong in broken_copy(copy, before)]
        found += [f"{len(copies)} copies from before the migration"] * (len(copies) != 1)
    return found + partial_files(place.older)


def broken_copy(file: Path, before: dict[str, int]) -> list[str]:
    with closing(sqlite3.connect(file)) as copy:
        migration = check_database(copy, file)
        rows = {name: copy.execute(f"SELECT count(*) FROM {name}").fetchone()[0] for name in before}
    found = [] if rows == before else ["the copy lacks rows"]
    return found + ["the copy is not of before"] * (file.name.endswith(f"{ENDING}{migration}"))


def partial_files(folder: Path) -> list[str]:
    names = [file.name for file in folder.rglob("*")]
    return [f"left over: {name}" for name in names if name.startswith(".") or name.endswith((".tmp", ".part"))]


def broken_rows(database: Database) -> list[str]:
    """Return what SQLite itself finds. PostgreSQL has no rows without their parents."""
    if database.is_shared:
        return []
    with database.read() as session:
        whole = [str(row[0]) for row in session.execute(text("PRAGMA integrity_check")) if row[0] != "ok"]
        return whole + [f"orphan row of {row[0]}" for row in session.execute(text("PRAGMA foreign_key_check"))]


def left_over(desk: Service) -> list[str]:
    ids, snapshot = set(desk.library.all_ids()), desk.search.snapshot
    windows = {"vectors": snapshot.index.passage_ids, "keywords": snapshot.keywords.passage_ids}
    found = [f"{name} differ from passages" for name, there in windows.items() if set(there) != ids]
    found += [f"module without passage: {key}" for key in desk._warming.unused()]
    found += ["passage without module"] * len(desk.library.all_ids(only_unencoded=True))
    return found + ["passage without statements"] * len(desk.library.without_statements(desk.statements.name))
