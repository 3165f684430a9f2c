"""A desk whose engine has a process of its own answers and forgets. `test_app_served`: when that process dies."""

import pytest
from desks import finish, small_desk
from engine_processes import fork_engines
from forgetting import NOTHING, SECRET, files_with, write_secret

from app.desk.service import Service
from app.domain.settings import Settings
from cache.serving.local_engine import LocalEngine


@pytest.fixture(scope="module")
def desk(tiny_folder, tmp_path_factory):
    folder = tmp_path_factory.mktemp("desk")
    (folder / "models").symlink_to(tiny_folder.parent)  # compiled once
    pages = write_secret(folder / "pages")
    with pytest.MonkeyPatch.context() as patched:
        fork_engines(patched)
        with small_desk(folder, pages=pages, model=str(tiny_folder), answer_tokens=400, threads=1) as desk:
            yield desk


def test_it_answers_and_reuses_what_it_has_read_and_an_admin_looks_after_it(desk):
    answer = finish(desk, "How long do returns take?")
    assert answer.answer
    assert answer.usage.module > 0
    assert desk.missing() == ()
    overview = desk.overview()
    assert {row.tier for row in overview.modules} == {"device"}
    assert overview.tier_bytes.keys() == {"device", "disk"}
    key = overview.modules[0].id
    desk.module_care.keep(key, is_kept=True)
    desk.module_care.evict(key)
    desk.module_care.warm(key)
    assert desk.module_care.verify(key).largest_difference == pytest.approx(0, abs=0.05), "bfloat16, where it is fast"
    assert desk.reading_cost(0).seconds > 0


def test_a_document_is_forgotten_there_too(desk):
    finish(desk, "What is the word of the day?")
    assert desk.forget("secret.md").left == NOTHING
    assert files_with(desk.settings.data_dir, SECRET) == {"secret.md"}, "the page itself"
    used = desk.library.module_keys() | {desk.engine.key(desk.engine.segment(desk.prompts.system))}
    assert desk.engine.modules("public") | desk.engine.modules_of_prefixes() <= used


def test_only_a_served_desk_has_one_and_only_if_it_is_set(tmp_path, tiny_folder):
    settings = Settings(data_dir=tmp_path, model=str(tiny_folder), device_memory=1 << 22)
    assert settings.engine_process
    for given, may in ((settings, False), (settings.model_copy(update={"engine_process": False}), True)):
        with Service(given, may_start_process=may) as service:
            assert isinstance(service.engine, LocalEngine)
