"""Mail (.eml): subject, day and text, then the attached texts. Other attachments are named in a remark.

Names and addresses of people are left out, because customers are shown what documents say.
"""

from collections.abc import Callable, Mapping
from email import policy
from email.message import EmailMessage, MIMEPart
from email.parser import BytesParser
from pathlib import Path

from retrieval.documents import Block, Contents
from retrieval.errors import UnreadableDocument
from retrieval.loaders.decoding import parsing
from retrieval.loaders.tables import one_line

_SUFFIXES = {"text/plain": ".txt", "text/html": ".html", "text/markdown": ".md", "text/csv": ".csv"}
_MOST_ATTACHMENTS = 50


def load_mail(data: bytes, path: Path, loaders: Mapping[str, Callable[[bytes, Path], Contents]]) -> Contents:
    """loaders: by suffix. Raises UnreadableDocument for a file without the headers of a mail."""
    remarks: list[str] = []
    with parsing(path):
        message = BytesParser(_class=EmailMessage, policy=policy.default).parsebytes(data)
        if not {"from", "subject", "date"} & {name.lower() for name in message}:
            raise UnreadableDocument(path, "damaged, or not a .eml file")
        sent = getattr(message["date"], "datetime", None)
        blocks = [Block(kind="text", text=f"Date: {sent.date().isoformat()}")] if sent else []
        body = message.get_body(("plain", "html"))
        if body is not None:
            blocks += _blocks(body, loaders)
        for number, part in enumerate(message.iter_attachments()):
            name = one_line(part.get_filename() or "without a name")
            if number < _MOST_ATTACHMENTS and part.get_content_type() in _SUFFIXES:
                blocks += [Block(kind="heading", text=name, level=1), *_blocks(part, loaders)]
            else:
                remarks.append(f"attachment {name} skipped: save it as a file")
    return Contents(blocks=blocks, title=one_line(str(message["subject"] or "")), remarks=remarks[:_MOST_ATTACHMENTS])


def _blocks(part: MIMEPart, loaders: Mapping[str, Callable[[bytes, Path], Contents]]) -> list[Block]:
    suffix = _SUFFIXES.get(part.get_content_type(), ".txt")
    return list(loaders[suffix](part.get_content().encode(), Path(f"part{suffix}")).blocks)
