"""Serving a desk: what is done in which order, so that the server answers at once and is ready soon.

The data folder is locked, the engine's process is started, the server listens. Only then the desk is imported, on
another thread, and loaded while the engine loads the model.
"""

import gc
from collections.abc import Callable
from contextlib import closing, nullcontext
from typing import TYPE_CHECKING

from app.domain.settings import Settings

if TYPE_CHECKING:
    from app.desk.service import Service
    from app.web.serve import Start


def serve_desk(
    settings: Settings,
    *,
    first: Callable[["Service"], None] = lambda service: None,
    when_read: Callable[["Service"], None] = lambda service: None,
) -> None:
    """first, when_read: see `app.cli.opening`. Raises as `app.web.serve.serve`, and DeskError if the data folder is in
    use.
    """
    from app.desk.disk_room import make_room
    from app.storage.lock import lock_data_folder
    from app.web.serve import serve
    from cache.serving.child_process import ChildProcess

    def open_desk(start: "Start") -> None:
        gc.disable()  # until the pages are open: imports make objects that stay
        from app.cli.opening import open_desk
        from app.cli.reports import progress_bar
        from app.desk.service import Service

        desk = Service(settings, may_start_process=True, process=process)
        open_desk(start, desk, progress_bar, first=first, when_read=when_read)

    with (
        lock_data_folder(settings.data_dir, "warmdesk serve", lambda: make_room(settings)),
        closing(ChildProcess()) if settings.has_child else nullcontext() as process,
    ):
        serve(settings, open_desk)
