"""A desk with a document to be forgotten, and what there is of it. For the tests of forgetting."""

from pathlib import Path

from desks import write_pages

from app.desk.service import Service
from app.knowledge.forget import Footprint
from cache.memory.keys import PUBLIC_TENANT

SECRET = "xylophone marmalade zeppelin"
NOTHING = Footprint(passages=0, vectors=0, keywords=0, quotes=0, modules=0)


def write_secret(folder: Path) -> Path:
    write_pages(folder)
    (folder / "secret.md").write_text(f"# Plans\n\nThe word of the day is {SECRET}, and no other.\n")
    return folder


def files_with(folder: Path, *phrases: str) -> set[str]:
    """The files of a folder that hold one of the phrases, in any of the ways text is stored."""
    wanted = [phrase.encode(code) for phrase in phrases for code in ("utf-8", "utf-16-le")]
    files = [path for path in folder.rglob("*") if path.is_file()]
    return {path.name for path in files if any(phrase in path.read_bytes() for phrase in wanted)}


def modules(desk: Service) -> frozenset[str]:
    return desk.engine.call(lambda store: store.keys_of(PUBLIC_TENANT))


def kept(desk: Service) -> frozenset[str]:
    """The modules there may be: of passages as they are, and of the system text."""
    return desk.library.module_keys() | {desk.engine.store.key(desk.engine.segment(desk.prompts.system))}
