"""How a desk must be after whatever happened to it: whole, with all that was said, and with nothing left over.

Not covered: what happens (`chaos_faults`), whether what it answers is right.
"""

import json
import os
import shutil
import sqlite3
import time
from contextlib import closing
from pathlib import Path
from typing import Final

from sqlalchemy import select, text

from app.desk import doctor
from app.desk.service import Service
from app.domain.errors import DeskError
from app.knowledge.ingest import IngestReport
from app.storage.archive import check_database
from app.storage.backup import ENDING
from app.storage.begun import BEGUN_FILE
from app.storage.database import Database, open_database, sqlite_file
from app.storage.files import REPLACED
from app.storage.lock import lock_data_folder
from app.storage.tables import ConversationRow
from evals.chaos_work import Place, canaries, later_version, num_rows
from evals.tiny_desk import tiny_desk
from retrieval.documents.document import content_hash

PATIENCE_S: Final = 10.0
"""How long a server may take to notice that a desk was killed."""
BACK_S: Final = 10.0
"""How long a desk may take until it answers again."""
CHECKS = (
    *(doctor.database, doctor.data_folder, doctor.documents),
    *(doctor.calibration, doctor.search_classifier),
)


def examine(place: Place) -> list[str]:
    """Everything that is wrong once the pages are ingested again; nothing, if the desk is as new."""
    found, began = list[str](), time.monotonic()
    with lock_data_folder(place.desk, "chaos"), tiny_desk(place.desk, **place.settings) as desk:
        for aside in place.desk.glob(f"{REPLACED}*"):
            shutil.rmtree(aside)
        desk.prepare()
        if (back_s := time.monotonic() - began) > BACK_S:
            found.append(f"back only after {back_s:.1f} s")
        half = [one.path for one in desk.documents() if one.num_passages != len(desk.library.passages_of(one.path))]
        found += [f"half there: {path}" for path in half]
        report = ingested(desk, place.pages)
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
    files = {str(file): file for file in settings.uploads_folder.rglob("*") if file.is_file()}
    uploads = {path for path in stored if path.startswith(f"{settings.uploads_folder}{os.sep}")}
    found = [f"upload without file or document: {path}" for path in uploads ^ files.keys()]
    texts = {path: files[path].read_bytes() for path in uploads & files.keys()}
    if settings.faq_file.exists():
        texts[settings.faq_document] = settings.faq_file.read_bytes()
    written = [json.loads(line)["answer"] for line in texts.get(settings.faq_document, b"").splitlines()]
    if sorted(written) != sorted(pair.answer for pair in desk.quality.faq()):
        found.append("the FAQ's document is not as its pairs")
    found += ["the FAQ has no file"] * (not written and settings.faq_document in stored)
    found += [
        f"not as its document: {path}"
        for path, data in texts.items()
        if not stored.get(path, "").startswith(content_hash(data))
    ]
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
    """What a copy from before a migration lacks."""
    with closing(sqlite3.connect(file)) as copy:
        migration = check_database(copy)
        rows = {name: copy.execute(f"SELECT count(*) FROM {name}").fetchone()[0] for name in before}
    found = [] if rows == before else ["the copy lacks rows"]
    return found + ["the copy is not of before"] * (file.name.endswith(f"{ENDING}{migration}"))


def partial_files(folder: Path) -> list[str]:
    """Files that a process left that was killed."""
    names = [file.name for file in folder.rglob("*")]
    return [f"left over: {name}" for name in names if name.startswith(".") or name.endswith((".tmp", ".part"))]


def broken_rows(database: Database) -> list[str]:
    """What SQLite itself finds; PostgreSQL has no rows without their parents."""
    if database.is_shared:
        return []
    with database.read() as session:
        whole = [str(row[0]) for row in session.execute(text("PRAGMA integrity_check")) if row[0] != "ok"]
        return whole + [f"orphan row of {row[0]}" for row in session.execute(text("PRAGMA foreign_key_check"))]


def left_over(desk: Service) -> list[str]:
    """Passages and modules without each other."""
    ids, snapshot = set(desk.library.all_ids()), desk.search.retriever
    windows = {"vectors": snapshot.index.passage_ids, "keywords": snapshot.keywords.passage_ids}
    found = [f"{name} differ from passages" for name, there in windows.items() if set(there) != ids]
    found += [f"module without passage: {key}" for key in desk._warming.unused()]
    found += ["passage without module"] * len(desk.library.all_ids(only_unencoded=True))
    return found + ["passage without statements"] * len(desk.library.without_statements(desk.statements.name))
