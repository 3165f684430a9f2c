"""The audit log: what agents, programs and commands change is written down, once, with who did it."""

import re
from contextlib import closing
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from desks import small_desk
from sqlalchemy import update

from app.access.identity import Keys
from app.cli.options import recorded
from app.domain.callers import COMMAND_LINE
from app.domain.settings import Settings
from app.storage.database import Database, open_database
from app.storage.people import KEPT, Audit
from app.storage.tables import AuditRow
from app.web.accounts import ACTIONS


def entries(database: Database) -> list[tuple[str, str, str]]:
    return [(one.who, one.action, one.subject) for one in reversed(Audit(database).latest())]


@pytest.fixture
def site(site):
    site.forget()
    return site


def test_entries_are_read_in_pages_and_go_after_a_year(database_url):
    with closing(open_database(database_url)) as database:
        audit = Audit(database)
        for number in range(5):
            audit.record("ann", "sign-in", str(number))
        page = audit.latest(2)
        older = audit.latest(10, before=page[-1].id)
        assert [one.subject for one in (*page, *older)] == ["4", "3", "2", "1", "0"]
        with database.write() as session:
            old = update(AuditRow).where(AuditRow.subject < "2")
            session.execute(old.values(created=datetime.now(UTC) - KEPT - timedelta(seconds=1)))
        audit.record("bob", "document-add", "退款\0\ud83d.md")
        assert [one[2] for one in entries(database)] == ["2", "3", "4", "退款\\x00\\ud83d.md"]


def test_a_program_is_named_as_no_account_can_be(site):
    key = Keys(site.database).create("admin", ["documents"])
    program = site.client()
    program.headers["authorization"] = f"Bearer {key}"
    added = program.post("/v1/documents", files={"file": ("a.md", b"# A")}, data={"collection": "shop"})
    assert added.status_code == 201
    listed = program.get("/v1/documents").json()["data"]
    removed = next(one["id"] for one in listed if one["id"] == added.json()["id"])
    path = next(one.path for one in site.desk.documents() if str(one.id) == removed)
    assert program.delete(f"/v1/documents/{removed}").status_code == 200
    assert site.audited() == [("API: admin", "document-add", "shop/a.md"), ("API: admin", "document-forget", path)]


def test_what_failed_is_not_written_down(site):
    admin = site.admin()
    admin.post("/admin/documents/upload?name=unreadable.md", content=b"x")
    admin.post("/admin/documents/forget", json={"document": "none.md"})
    admin.post("/admin/faq", json={"question": "crash", "answer": "Yes."})
    assert site.audited() == []


def test_commands_that_change_documents(tmp_path, pages):
    with small_desk(tmp_path / "desk") as desk:
        recorded(desk).ingest([pages, *(pages / name for name in ("returns.md", "stores.txt", "returns.md"))])
        forgotten = recorded(desk).forget("returns.md")
        recorded(desk).erase("v-ann")
        written = entries(desk.database)
    named = f"{pages}, {pages / 'returns.md'}, {pages / 'stores.txt'} +1"
    assert written == [
        (COMMAND_LINE, "document-ingest", named),
        (COMMAND_LINE, "document-forget", forgotten.document),
        (COMMAND_LINE, "visitor-erase", ""),
    ]


def test_commands_that_change_accounts_and_keys(tmp_path, warmdesk):
    def run(*words: str) -> str:
        return warmdesk(*words, "--data-dir", tmp_path)[1]

    secrets = [run("reset-password").split()[-1], run("accounts", "add", "ann", "--role", "agent").split()[-1]]
    run("accounts", "remove", "ann")
    secrets.append(run("keys", "create", "shop", "--scope", "chat,documents").split()[0])
    for command in (("keys", "revoke", "shop"), ("keys", "revoke", "shop"), ("accounts", "list"), ("keys", "list")):
        run(*command)
    with closing(open_database(Settings(data_dir=tmp_path).database_url)) as database:
        written = entries(database)
    assert written == [
        (COMMAND_LINE, "account-password", "admin"),
        (COMMAND_LINE, "account-add", "ann (agent)"),
        (COMMAND_LINE, "account-remove", "ann"),
        (COMMAND_LINE, "key-create", "shop (chat, documents)"),
        (COMMAND_LINE, "key-revoke", "shop"),
    ]
    assert not any(secret in repr(written) for secret in secrets)


def test_every_action_has_its_words():
    """The names of actions stand in the code as strings."""
    app = Path(__file__).parent.parent / "app"
    source = "\n".join(file.read_text(encoding="utf-8") for file in app.rglob("*.py") if file.name != "audit_page.py")
    calls = re.findall(r"record\([^\n]*", source)
    used = {name for call in calls for name in re.findall(r'"([a-z]+(?:-[a-z]+)*)"', call)}
    assert used <= set(ACTIONS), used - set(ACTIONS)
    assert {name for name in ACTIONS if not name.startswith(("module-", "handoff-"))} <= used
