"""Files that were uploaded: kept in the data folder, because a document is known by its path."""

from pathlib import Path

from app.domain.errors import DeskError
from app.storage.files import PARTIAL, replace_file
from retrieval.errors import UnreadableDocument
from retrieval.loaders.load import MAX_BYTES
from retrieval.reading.reader import FileReader
from retrieval.text.characters import readable

LONGEST_NAME = 150


def keep_upload(folder: Path, name: str, data: bytes) -> Path:
    """Write an uploaded file completely or not at all, in place of one of the same name. Raises DeskError for a bad
    name, too much data, or a file that cannot be read as a document; then nothing is kept.
    """
    file = folder / safe_name(name)
    if len(data) > MAX_BYTES:
        raise DeskError(f"{file.name} is larger than {MAX_BYTES // 2**20} MB", code="upload-too-large")
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    try:
        with FileReader() as reader:
            replace_file(file, data, check=reader.load)
    except UnreadableDocument as error:
        raise DeskError(f"{file.name}: {error.reason}", code="unreadable") from None
    return file


def remove_partial_uploads(folder: Path) -> None:
    """Remove partial files of a process that was killed. Only for the one process that holds the data folder."""
    for file in folder.glob(f"{PARTIAL}*"):
        file.unlink(missing_ok=True)


def safe_name(name: str) -> str:
    """The last part of a path without invisible characters. Raises DeskError if it is empty, too long or begins with
    a dot.
    """
    plain = " ".join(readable(name.replace("\\", "/").rpartition("/")[2]).split())
    if not plain or plain.startswith(".") or len(plain.encode()) > LONGEST_NAME:
        raise DeskError(f"{plain[:40]!r} cannot be the name of a document: give the file another one", code="bad-name")
    return plain
