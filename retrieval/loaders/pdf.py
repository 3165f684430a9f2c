"""PDF files with a text layer.

Pages without one, mostly scans, need OCR, which is not done here. They are counted and named, never dropped silently.
"""

from pathlib import Path

from retrieval.documents.document import Contents
from retrieval.errors import UnreadableDocument
from retrieval.pdf.blocks import pdf_blocks
from retrieval.pdf.pages import pdf_pages

_NAMED_PAGES = 20


def load_pdf(data: bytes, path: Path) -> Contents:
    """Read a PDF. Raises UnreadableDocument for a damaged, encrypted or scanned one, and for too many pages."""
    if b"%PDF-" not in data[:1024]:
        raise UnreadableDocument(path, "damaged, or not a .pdf file")
    pages = list(pdf_pages(data, path))
    scanned = [page.number for page in pages if page.has_drawing and not page.items and not page.is_damaged]
    damaged = [page.number for page in pages if page.is_damaged]
    if not any(page.items for page in pages):
        if damaged or not pages:
            raise UnreadableDocument(path, "damaged .pdf file: no page can be read")
        if scanned:
            count = "1 scanned page" if len(scanned) == 1 else f"{len(scanned)} scanned pages"
            raise UnreadableDocument(path, f"no text layer: {count}; run OCR over it first (for example ocrmypdf)")
    blocks = pdf_blocks(pages)
    remarks = []
    if scanned:
        remarks.append(f"{_numbers(scanned)} left out: no text layer; run OCR over it first (for example ocrmypdf)")
    if damaged:
        remarks.append(f"{_numbers(damaged)} left out: damaged")
    return Contents(blocks=blocks, remarks=remarks)


def _numbers(pages: list[int]) -> str:
    named = ", ".join(map(str, pages[:_NAMED_PAGES])) + (", …" if len(pages) > _NAMED_PAGES else "")
    return f"page {named}" if len(pages) == 1 else f"{len(pages)} pages ({named})"
