"""A PostgreSQL server for one process: in a temporary folder, on a socket, without waiting for the disk.

The server refuses to be run by root; then it is run by the user `postgres` or `nobody`.
"""

import os
import pwd
import shutil
import signal
import subprocess
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from itertools import count
from pathlib import Path

import psycopg

from app.storage.database import open_database
from app.storage.migrate import revisions

FOLDERS = sorted(Path("/usr/lib/postgresql").glob("*/bin"), reverse=True)
TEMPLATE, EMPTY = "warm_template", "template0"
"""What databases are copies of: one with all tables, or one with none."""
GUARDED = "guarded"  # a user who needs a password, if a test makes it
_FAST = ("fsync=off", "full_page_writes=off", "shared_buffers=16MB", "wal_level=minimal")
_ALONE = ("listen_addresses=", "max_wal_senders=0", "autovacuum=off", "max_connections=60", "log_min_messages=fatal")

_EMPTY = """
DO $$ DECLARE one text; BEGIN
    ASSERT (SELECT version_num FROM alembic_version) = '{latest}';
    SET LOCAL session_replication_role = replica;
    FOR one IN SELECT tablename FROM pg_tables WHERE schemaname = 'public' AND tablename <> 'alembic_version' LOOP
        EXECUTE 'DELETE FROM ' || one;
    END LOOP;
    FOR one IN SELECT sequencename FROM pg_sequences WHERE schemaname = 'public' LOOP
        EXECUTE 'ALTER SEQUENCE ' || one || ' RESTART';
    END LOOP;
END $$
"""
"""Removes all rows, without regard to foreign keys, and lets numbers begin anew."""


def binaries() -> Path | None:
    """The folder with initdb and postgres, if they are installed."""
    on_path = shutil.which("initdb")
    found = [*FOLDERS, *([Path(on_path).parent] if on_path else [])]
    return next((folder for folder in found if (folder / "initdb").exists() and (folder / "postgres").exists()), None)


class PostgresServer:
    """A running server. Each database is a copy of one that has all tables."""

    def __init__(self, folder: Path, *, keeps_commits: bool) -> None:
        """folder: of the server, made by `running_server`, where the other is explained."""
        self.folder, self._numbers, self._unused = folder, count(1), list[str]()
        self._settings = (*_FAST, *_ALONE, f"synchronous_commit={'on' if keeps_commits else 'off'}")
        self._process: subprocess.Popen[bytes] | None = None

    def url(self, database: str) -> str:
        return f"postgresql+psycopg://warm@/{database}?host={self.folder}"

    def start(self) -> None:
        settings = [part for setting in self._settings for part in ("-c", setting)]
        where = ["-D", str(self.folder / "data"), "-k", str(self.folder)]
        self._process = subprocess.Popen(_command("postgres", *where, *settings), stderr=subprocess.DEVNULL)
        while True:
            try:
                self.execute("SELECT 1")
            except psycopg.Error:
                assert self._process.poll() is None, "the server ended"
                time.sleep(0.02)
            else:
                return

    def end_when_unused(self) -> None:
        """Let it take no connection any more, and end with the last one; `stop` ends it at once."""
        assert self._process is not None
        self._process.send_signal(signal.SIGTERM)
        with suppress(psycopg.OperationalError):
            while True:
                self.execute("SELECT 1")

    def stop(self, how: signal.Signals = signal.SIGINT) -> None:
        """End it at once, with all its connections. how: SIGQUIT is to the server like a crash."""
        assert self._process is not None
        self._process.send_signal(how)
        self._process.wait()

    def execute(self, statement: str, database: str = "postgres") -> None:
        """Run a statement outside of a transaction, as a user who may do everything."""
        with psycopg.connect(f"host={self.folder} user=warm dbname={database}", autocommit=True) as connection:
            connection.execute(statement.encode())

    def make_template(self) -> None:
        self.execute(f"CREATE DATABASE {TEMPLATE}")
        open_database(self.url(TEMPLATE)).close()
        self._empty = _EMPTY.format(latest=revisions()[-1].revision)

    @contextmanager
    def database(self, template: str = TEMPLATE, options: str = "") -> Iterator[str]:
        """The URL of an empty database, for the block: with all tables, or (EMPTY) without any. One with all tables
        is emptied afterwards and given out again: making one takes longer than most tests.
        """
        is_usual = (template, options) == (TEMPLATE, "")
        if is_usual and self._unused:
            name = self._unused.pop()
        else:
            name = f"desk_{next(self._numbers)}"
            self.execute(f"CREATE DATABASE {name} TEMPLATE {template} STRATEGY file_copy {options}")
        try:
            yield self.url(name)
        finally:
            if is_usual and self._is_emptied(name):
                self._unused.append(name)
            else:
                self.execute(f"DROP DATABASE {name} WITH (FORCE)")

    def _is_emptied(self, name: str) -> bool:
        """Whether a database is as at its beginning, after what a test wrote was removed."""
        ended = f"SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE datname = '{name}'"
        self.execute(f"{ended}; ALTER DATABASE {name} RESET ALL")
        try:
            self.execute(self._empty, name)
        except psycopg.Error:  # a test changed more than rows
            return False
        return True


@contextmanager
def running_server(*, keeps_commits: bool = False) -> Iterator[PostgresServer]:
    """A server for the block. Only where `binaries` finds some. keeps_commits: also those of the last moments before it
    crashes; it is slower then.
    """
    with tempfile.TemporaryDirectory(
        prefix="pg", ignore_cleanup_errors=True
    ) as folder:  # a socket's path must be short
        if (user := _user()) is not None:
            os.chown(folder, pwd.getpwnam(user).pw_uid, -1)
        _run(
            "initdb", "-D", f"{folder}/data", "-U", "warm", "--auth=trust", "--encoding=UTF8", "--locale=C", "--no-sync"
        )
        rules = Path(folder, "data", "pg_hba.conf")
        rules.write_text(f"local all {GUARDED} scram-sha-256\n" + rules.read_text())
        server = PostgresServer(Path(folder), keeps_commits=keeps_commits)
        server.start()
        try:
            server.make_template()
            yield server
        finally:
            server.stop()


def _user() -> str | None:
    if os.geteuid():
        return None
    names = {entry.pw_name for entry in pwd.getpwall()}
    return "postgres" if "postgres" in names else "nobody"


def _command(program: str, *arguments: str) -> list[str]:
    folder, user = binaries(), _user()
    assert folder is not None
    change = [] if user is None else ["setpriv", f"--reuid={user}", "--clear-groups", "--"]
    return [*change, str(folder / program), *arguments]


def _run(program: str, *arguments: str) -> None:
    subprocess.run(_command(program, *arguments), check=True, stdout=subprocess.DEVNULL)
