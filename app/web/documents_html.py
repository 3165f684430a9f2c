"""The admin's page of documents: what there is, a form to add files, a button to forget one. Its behaviour is in
documents.js, its look in style.css, admin.css and documents.css.
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime

from app.domain.documents import StoredDocument
from app.domain.formatting import ago, count
from app.web.markup import escape
from retrieval.loaders.load import FORMATS, SUPPORTED


def documents_html(documents: Sequence[StoredDocument]) -> str:
    """The whole page."""
    now = datetime.now(UTC)
    rows = "".join(_row(document, now) for document in documents)
    table = (
        '<table id="documents"><thead><tr><th>Title</th><th>Passages</th><th>Collection</th><th>Taken in</th><th></th>'
        f"</tr></thead><tbody>{rows}</tbody></table>"
        if documents
        else '<p class="wd-quiet" id="empty">No documents yet. Add the first ones above.</p>'
    )
    kinds, formats = ",".join(SUPPORTED), ", ".join(form.name for form in FORMATS)
    return f"""<!doctype html>
<html lang="en"><head><meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<title>Documents · Warmdesk</title>
<link rel="stylesheet" href="/desk.css"><link rel="stylesheet" href="/admin.css">
<link rel="stylesheet" href="/documents.css">
<link rel="icon" href="/favicon.ico">
<script src="/documents.js" defer></script></head>
<body class="wd-documents"><header class="wd-admin-head"><div class="wd-brand"><span class="wd-logo" aria-hidden="true">
</span><h1>Warmdesk <span>documents</span></h1></div><ul class="wd-facts"><li>{count(len(documents), "document")}</li>
<li>{count(sum(document.num_passages for document in documents), "passage")}</li></ul>
<nav><a href="/admin/">Dashboard</a><a href="/">Open chat</a></nav></header>
<main><section class="wd-panel"><h2>Add documents</h2>
<form id="upload"><label for="files">Files ({formats}; 20 MB each)</label>
<input id="files" type="file" multiple required accept="{escape(kinds)}">
<label for="collection">Collection (optional)</label>
<input id="collection" type="text" maxlength="80" placeholder="none">
<button type="submit">Add</button></form>
<ul id="progress" aria-live="polite"></ul></section>
<section class="wd-panel"><h2>Documents</h2>{table}</section></main></body></html>"""


def _row(document: StoredDocument, now: datetime) -> str:
    path = escape(document.path)
    return (
        f'<tr><td><b>{escape(document.title)}</b><small title="{path}">{path}</small></td>'
        f"<td>{document.num_passages}</td><td>{escape(document.collection)}</td><td>{ago(document.loaded_at, now)}</td>"
        f'<td><button type="button" class="wd-forget" data-document="{path}" '
        f'aria-label="Forget {escape(document.title)}">Forget</button></td></tr>'
    )
