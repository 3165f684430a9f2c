"""What an admin does with one encoded passage, with a real engine and the tiny model."""

from functools import partial

import pytest
from desks import finish, small_desk, write_pages
from safetensors import safe_open
from safetensors.torch import save_file

from app.desk.service import Service
from app.domain.errors import DeskError
from cache.memory.disk import checksum_of


@pytest.fixture
def service(tmp_path):
    with small_desk(tmp_path / "desk", pages=write_pages(tmp_path / "pages")) as service:
        service.prepare()
        yield service


def key_of(service: Service, page: str = "returns.md") -> str:
    return next(row.id for row in service.overview().modules if row.document.endswith(page))


def tier_of(service: Service, key: str) -> str | None:
    return service.engine.call(lambda store: store.tier(key))


def test_a_passage_that_is_on_disk_or_in_no_tier_is_made_ready_again(service):
    key = key_of(service)
    before = finish(service, "How long do returns take?").answer
    service.module_care.evict(key)
    assert tier_of(service, key) == "disk"
    service.module_care.warm(key)
    assert tier_of(service, key) == "device"
    assert finish(service, "How long do returns take?").answer == before
    service.engine.call(lambda store: store.remove(key))
    assert {row.id: row.tier for row in service.overview().modules}[key] == "none"
    service.module_care.warm(key)
    assert tier_of(service, key) == "device"


def test_what_is_kept_is_shown_and_kept_after_a_restart(service, tmp_path):
    key = key_of(service)
    service.module_care.keep(key, is_kept=True)
    assert [row.id for row in service.overview().modules if row.is_kept] == [key]
    assert service.engine.store.device.kept == {key}
    service.close()
    with small_desk(tmp_path / "desk") as again:
        assert again.engine.store.device.kept == {key}
        again.module_care.keep(key, is_kept=False)
        assert again.engine.store.device.kept == frozenset()


def test_verifying_computes_the_passage_anew_and_leaves_nothing_behind(service):
    key = key_of(service)
    modules = {row.id for row in service.overview().modules}
    for tier in ("device", "disk"):
        assert tier_of(service, key) == tier
        verified = service.module_care.verify(key)
        assert verified.largest_difference is not None
        assert verified.largest_difference < 1e-5
        service.module_care.evict(key)
    assert {row.id for row in service.overview().modules} == modules
    assert len(service.engine.call(lambda store: store.disk.headers() if store.disk else [])) == len(modules)


def test_numbers_that_the_model_does_not_compute_are_found(service):
    """A file whose checksum is right, but with numbers of something else."""
    key = key_of(service)
    service.module_care.evict(key)
    service.engine.store.flush()
    file = service.settings.modules_folder / (key.replace(":", "-") + ".safetensors")
    with safe_open(file, framework="pt") as opened:
        metadata, rows = opened.metadata(), opened.get_tensor("kv")
    rows[0, 0, 0] += rows.abs().max() * 0.01
    save_file({"kv": rows}, file, {**metadata, "checksum": checksum_of({"kv": rows})})
    verified = service.module_care.verify(key)
    assert verified.largest_difference == pytest.approx(0.01, rel=0.1)


def test_a_damaged_file_is_said(service):
    key = key_of(service)
    service.module_care.evict(key)
    service.engine.store.flush()
    file = service.settings.modules_folder / (key.replace(":", "-") + ".safetensors")
    file.write_bytes(file.read_bytes()[:-4] + bytes(4))
    verified = service.module_care.verify(key)
    assert verified.largest_difference is None
    assert "checksum" in verified.problem
    assert tier_of(service, key) is None


def test_an_unknown_passage_is_refused_and_reading_again_is_measured(service):
    care = service.module_care
    for act in (care.warm, care.evict, care.verify, partial(care.keep, is_kept=True)):
        with pytest.raises(DeskError, match="no longer exists"):
            act("b2:nothing")
    alone, behind = service.reading_cost(0), service.reading_cost(2)
    assert alone.modules == 4
    assert behind.seconds == pytest.approx(3 * alone.seconds)
    assert alone.seconds > 0
