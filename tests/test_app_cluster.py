"""A served desk with engines under Ray Serve on this machine."""

import os
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest
from desks import write_pages
from waiting import PATIENCE_S, wait_until

from cache.cluster.deployment import PREFIX

pytest.importorskip("ray")

SERVE = """
import sys
from pathlib import Path
from desks import finish, small_desk
from app.storage.lock import lock_data_folder
from app.web.serve import serve

folder = Path(sys.argv[1])
settings = {"port": 0, "model": sys.argv[3], "threads": 1, "cluster": "local"}
with lock_data_folder(folder, "warmdesk serve"), small_desk(folder, **settings) as service:
    def ask(progress):  # while the server runs: Ray begins when the signals are its already
        service.ingest([Path(sys.argv[2])])
        finish(service, "Can I return a gift card?")

    serve(service, first=ask)
"""


@pytest.fixture
def short_folder() -> Iterator[Path]:
    """Names of sockets may not be long."""
    folder = Path(tempfile.mkdtemp(dir="/tmp"))
    yield folder
    shutil.rmtree(folder)


def test_a_desk_that_is_stopped_leaves_nothing_of_ray(tmp_path: Path, tiny_folder: Path, short_folder: Path) -> None:
    folder = tmp_path / "desk"
    folder.mkdir()
    (folder / "models").symlink_to(tiny_folder.parent)
    server = subprocess.Popen(
        [sys.executable, "-c", SERVE, str(folder), str(write_pages(tmp_path / "pages")), str(tiny_folder)],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        cwd=Path(__file__).parent,
        env={**os.environ, "TMPDIR": str(short_folder)},
    )
    limit = threading.Timer(2 * PATIENCE_S, server.kill)  # else a server that hangs is waited for without end
    limit.start()
    try:
        assert server.stdout is not None
        assert server.stderr is not None
        assert server.stdout.readline().startswith("chat"), server.stderr.read()
        begun = psutil.Process(server.pid).children(recursive=True)
        assert {"gcs_server", "raylet"} <= {one.name() for one in begun}
        assert [*short_folder.glob(f"{PREFIX}*")]
        server.send_signal(signal.SIGTERM)
        assert server.wait() == 0
        assert "Traceback" not in server.stderr.read()
        wait_until(lambda: not any(one.is_running() for one in begun))
        assert not [*short_folder.glob(f"{PREFIX}*")]
    finally:
        limit.cancel()
        server.kill()
        server.communicate()
