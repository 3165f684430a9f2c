"""`warmdesk pml export`: the documents as one PML schema.

    <schema name="desk"><system>system text</system>
      <module name="slot-1"><union>
        <module name="returns.md"><union><module name="p1">...</module> ...</union></module> ...
      </union></module> ...
    </schema>

A slot is a union over the documents and a document one over its passages, so that the schema is as long as the longest
passages a prompt can hold, not as all documents. The desk itself places passages one after another
(`app.knowledge.prompts`); the schema is the same knowledge with fixed places, for prompts written by hand.
"""

import re
from itertools import chain, count

from app.knowledge.prompts import PassageText, passage_text
from app.storage.library import Library
from cache.pml.nodes import Module, Role, Schema, Union
from cache.pml.rules import NOT_XML, RESERVED
from cache.pml.writer import write_schema
from cache.prompt.parts import Text

NAME = "desk"


def export_schema(library: Library, system_text: str, slots: int) -> tuple[str, int, int]:
    """The schema as XML, a line per element, and the numbers of documents and passages in it."""
    documents: list[Module] = []
    taken = set(RESERVED)
    passages = 0
    for document in library.documents():
        members = tuple(
            Module(name=f"p{number}", children=(literal(passage_text(PassageText.of(passage))),))
            for number, passage in enumerate(library.passages_of(document.path), start=1)
        )
        passages += len(members)
        documents.append(Module(name=module_name(document.path, taken), children=(Union(members=members),)))
    choice = Union(members=tuple(documents))
    schema = Schema(
        name=NAME,
        children=(
            Role(role="system", children=(literal(system_text),)),
            *(Module(name=f"slot-{number}", children=(choice,)) for number in range(1, slots + 1)),
        ),
    )
    return write_schema(schema) + "\n", len(documents), passages


def module_name(path: str, taken: set[str]) -> str:
    """A document's file name as a name of the language, made different from those in `taken`, which it joins."""
    name = re.sub(r"[^\w.-]+", "-", re.split(r"[/\\]", path)[-1]) or "document"
    if not re.match(r"[^\W\d]", name):
        name = f"_{name}"
    names = chain([name], (f"{name}-{number}" for number in count(2)))
    unique = next(name for name in names if name not in taken)
    taken.add(unique)
    return unique


def literal(text: str) -> Text:
    """Text without the control characters that XML cannot say."""
    return Text(text=NOT_XML.sub(" ", text))
