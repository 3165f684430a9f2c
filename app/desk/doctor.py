"""`warmdesk doctor`: check that an installation has everything it needs, and name the fix if not. Changes nothing."""

import os
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from app.domain.errors import DeskError
from app.domain.setting_types import ModelServer
from app.domain.settings import SHIPPED_ADAPTER, Settings
from app.domain.words import one_line
from cache.memory.disk import free_space as look_at_disk

if TYPE_CHECKING:
    from app.desk.service import Service

NEEDED_BYTES = 2 << 30


@dataclass(frozen=True, slots=True)
class Check:
    """One finding. detail: the state, or the problem and its fix."""

    name: str
    ok: bool
    detail: str


def examine(settings: Settings) -> list[Check]:
    """Run all checks, in the order in which a new installation needs them. The finding is named after the check."""
    models = (language_model, adapter, embedding_model, statement_ranker, calibration, search_classifier)
    data = (database, data_folder, free_space, documents, encoded_passages)
    return [run(check, settings) for check in (python, torch, *models, *data, network)]


def run(check: Callable[[Settings], str], settings: Settings) -> Check:
    name = check.__name__.replace("_", " ")
    try:
        return Check(name, True, check(settings))
    except Exception as error:
        return Check(name, False, one_line(str(error)) or type(error).__name__)


def python(settings: Settings) -> str:
    return sys.version.split()[0]


def torch(settings: Settings) -> str:
    import torch

    from cache.model.loading import default_dtype, find_device

    device = find_device(settings.device)
    dtype = str(default_dtype(device)).removeprefix("torch.")
    return f"{torch.__version__}, device {device}, {dtype}, {torch.get_num_threads()} threads"


def language_model(settings: Settings) -> str:
    """Check the model without loading it, or ask its remote server. Report why its modules cannot be moved, if so."""
    if settings.model_server is not None:
        return _server(settings, settings.model_server)
    from cache.model.source import bundled_gguf, placement_problem

    if settings.model is None:
        path = bundled_gguf()
        return f"{path.name} ({path.stat().st_size >> 20} MB), bundled"
    path = Path(settings.model).expanduser()
    if path.is_dir() or (path.suffix == ".gguf" and path.is_file()):
        reason = placement_problem(path)
        return f"{path}: exact prefix reuse only, {reason}" if reason else str(path)
    if path.exists():
        return str(path)
    if settings.model.count("/") == 1 and not path.is_absolute():
        return f"{settings.model} from the model hub (needs the network on first use)"
    raise DeskError(f"model {settings.model!r} does not exist", code="model")


def _server(settings: Settings, server: ModelServer) -> str:
    from app.desk.parts import remote_engine

    engine = remote_engine(settings, server)
    try:
        said, key = engine.context_tokens, "with a key" if engine.has_key else "without a key"
        if engine.problem:
            raise DeskError(engine.problem, code="model")
    finally:
        engine.close()
    context = f"{said} tokens of context" if said else "it does not report its context length: set context_tokens"
    return f"{server.name} at {server.url}, {key}, {context}: exact prefix reuse by its server only"


def adapter(settings: Settings) -> str:
    folder = settings.adapter_folder
    if folder is None and settings.model is None and settings.adapter is None:
        raise DeskError(f"{SHIPPED_ADAPTER} is missing: install warmdesk again", code="adapter")
    if folder is not None and not folder.is_dir():
        raise DeskError(f"there is no folder {str(folder)!r}: set --adapter to a folder, or to none", code="adapter")
    return "none" if folder is None else str(folder)


def embedding_model(settings: Settings) -> str:
    from retrieval.search.minilm import bundled_folder

    return settings.embedder or f"{bundled_folder()}, bundled"


def calibration(settings: Settings) -> str:
    from app.desk.calibration import FILE, answer_mode_of, find_calibration, policy_of, setup_of

    if settings.model_server is not None:
        return "not needed: a remote model always uses the policy exact"
    found = find_calibration(settings)
    if found is not None:
        is_other = found.setup != setup_of(settings)
        return f"{found.line()}{'; measured without this rounding: run warmdesk calibrate' if is_other else ''}"
    if (settings.data_dir / FILE).is_file():
        raise DeskError("made for other settings: run `warmdesk calibrate`", code="calibration")
    used = f"policy {policy_of(settings, None)}, answer mode {answer_mode_of(settings, None)}"
    return f"none yet, {used}: run warmdesk calibrate"


def statement_ranker(settings: Settings) -> str:
    from app.desk.calibration import SHIPPED_RANKER, find_ranker
    from retrieval.ranking.encoder import CARD

    folder = find_ranker(settings)
    if not (folder / CARD).is_file():
        raise DeskError(f"{folder} is missing: install warmdesk again", code="ranker")
    return f"{folder}, bundled" if folder == SHIPPED_RANKER else str(folder)


def search_classifier(settings: Settings) -> str:
    from app.desk.calibration import SEARCH_FILE, SHIPPED_RANKER, SHIPPED_SEARCH, find_ranker, read_classifier

    own = settings.data_dir / SEARCH_FILE
    if own.is_file():
        read_classifier(own)
        return str(own)
    if settings.embedder is not None or find_ranker(settings) != SHIPPED_RANKER:
        return "none for this embedder and ranker yet, the ranker alone decides: run warmdesk calibrate-search"
    if not SHIPPED_SEARCH.is_file():
        raise DeskError(f"{SHIPPED_SEARCH} is missing: install warmdesk again", code="calibration")
    return f"{SHIPPED_SEARCH}, bundled"


def database(settings: Settings) -> str:
    from app.storage.database import checked_version

    return checked_version(settings.database_url)


def data_folder(settings: Settings) -> str:
    from app.storage.files import old_copies

    folder, existing = settings.data_dir, _existing(settings)
    if not existing.is_dir():
        raise DeskError(f"{existing} is a file: use another --data-dir", code="data-folder")
    if not os.access(existing, os.W_OK | os.X_OK):
        raise DeskError(f"{existing} cannot be written: change its permissions or use another --data-dir", code="data")
    old = old_copies(folder)
    left = f"; after checking the restored data, delete {', '.join(old)}" if old else ""
    return f"{folder}{'' if folder.exists() else ' (not created yet)'}{left}"


def free_space(settings: Settings) -> str:
    space = look_at_disk(_existing(settings), settings.disk_floor_bytes)
    if space.is_short:
        raise DeskError(
            f"only {space.free >> 20} MB are free: encoded passages are deleted until {space.floor >> 20} MB are free "
            "(disk_floor), and answers take longer. Free some space",
            code="disk-full",
        )
    if space.free < NEEDED_BYTES:
        raise DeskError(f"{space.free >> 20} MB are free; Warmdesk needs {NEEDED_BYTES >> 20} MB", code="disk-full")
    return f"{space.free >> 30} GB free; encoded passages leave at least {space.floor >> 20} MB free"


def documents(settings: Settings) -> str:
    from app.knowledge.uploads import out_of_step

    with _opened(settings) as (service, why_not):
        if service is None:
            return why_not
        counts, hashes = service.library.counts(), {one.path: one.content_hash for one in service.documents()}
        if not service.begun.left("upload") and (wrong := out_of_step(settings.uploads_folder, hashes)):
            raise DeskError(
                f"{len(wrong)} uploads do not match their documents, for example {wrong[0]}: upload the file again, or "
                "run warmdesk forget for the document and delete the file",
                code="uploads",
            )
    return f"{counts.documents} documents, {counts.passages} passages"


def encoded_passages(settings: Settings) -> str:
    from app.knowledge.ingest import chosen_for

    with _opened(settings) as (service, why_not):
        if service is None:
            return why_not
        overview = service.overview()
        if service.is_elsewhere:
            return "none: the model is remote"
        neighbours, documents = chosen_for(service.library), service.library.counts().documents
    used, on_disk = overview.tier_bytes.get("disk", 0), sum(one.tier == "disk" for one in overview.modules)
    found = f"{on_disk} of {len(overview.modules)} on disk, {used >> 20} MB, neighbours {neighbours}"
    if not documents or neighbours == settings.neighbours:
        return found
    return f"{found} (set to {settings.neighbours}, from the next `warmdesk ingest`, if the model can move passages)"


@contextmanager
def _opened(settings: Settings) -> "Iterator[tuple[Service | None, str]]":
    """Open the desk for reading. If it is new or of an older version, yield None and the reason. Raises DeskError for a
    damaged desk.
    """
    from app.desk.service import Service

    try:
        service = Service(settings, upgrade=False)
    except DeskError as error:
        if error.code not in ("no-database", "database-older"):
            raise
        older = "unknown until the next start: the database is of an older version"
        yield None, "none yet: run warmdesk ingest FOLDER" if error.code == "no-database" else older
    else:
        with service:
            yield service, ""


def network(settings: Settings) -> str:
    server = settings.model_server
    names = (None if server else settings.model, settings.embedder)
    hub = [name for name in names if name and not Path(name).expanduser().exists()]
    uses = [f"{server.url} with every question"] if server else []
    uses += [f"{', '.join(hub)} on first use"] if hub else []
    return f"used for {' and '.join(uses)}" if uses else "not needed"


def _existing(settings: Settings) -> Path:
    return next(place for place in (settings.data_dir, *settings.data_dir.parents) if place.exists())
