"""Settings: sources and their order, errors that name key, value and source, derived paths."""

import re
from collections.abc import Callable
from pathlib import Path

import pytest

from app.domain.errors import DeskError
from app.domain.setting_types import choices_of, parse_size
from app.domain.settings import Settings, load_settings

WriteFile = Callable[[str], Path]


@pytest.fixture
def environ(tmp_path):
    return {"WARMDESK_DATA_DIR": str(tmp_path), "PATH": "/bin"}


@pytest.fixture
def write_file(tmp_path):
    def write(text: str) -> Path:
        path = tmp_path / "warmdesk.toml"
        path.write_text(text, encoding="utf-8")
        return path

    return write


def test_defaults(environ, tmp_path):
    settings = load_settings({}, environ)
    assert settings == Settings(data_dir=tmp_path)
    assert (settings.device_memory, settings.disk, settings.port) == ("auto", 4 * 1024**3, 7860)
    assert not list(tmp_path.iterdir()), "loading settings writes nothing"


def test_later_sources_win(environ, write_file):
    write_file("port = 1\npassages = 2\nthreads = 3\ndevice = 'cuda'")
    environ |= {"WARMDESK_PASSAGES": "5", "WARMDESK_THREADS": "6"}
    settings = load_settings({"threads": 7, "device": None}, environ)
    assert (settings.port, settings.passages, settings.threads, settings.device) == (1, 5, 7, "cuda")


def test_flag_for_the_folder_decides_which_file_is_read(environ, tmp_path):
    other = tmp_path / "other"
    other.mkdir()
    (other / "warmdesk.toml").write_text("port = 9")
    settings = load_settings({"data_dir": str(other)}, environ)
    assert (settings.data_dir, settings.port) == (other, 9)


def test_folder_is_made_absolute(monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    assert load_settings({"data_dir": "here"}, {}).data_dir == tmp_path / "here"
    assert load_settings({"data_dir": Path("~/desk")}, {}).data_dir == tmp_path / "home" / "desk"


def test_empty_variable_is_unset_and_a_byte_order_mark_is_read_over(environ, write_file):
    write_file("\ufeffmodel = 'mine'")
    assert load_settings({}, environ | {"WARMDESK_MODEL": " "}).model == "mine"


@pytest.mark.parametrize(
    ("line", "shown"),
    [
        ("port = 'abc'", "port is 'abc'"),
        ("port = '80'", "port is '80'"),  # a file has types, text is not a number there
        ("port = 70000", "port is 70000"),
        ("temperature = nan", "temperature is nan"),
        ("device_memory = '1 gib of it'", "device_memory is '1 gib of it'"),
        ("device_memory = 10", "device_memory is 10"),
        ("model = ''", "model is ''"),
        ("model = {name = 'a'}", "model is {'name': 'a'}"),
        ("example_questions = [1]", "example_questions is 1"),
        ("example_questions = ['']", "example_questions is"),
    ],
)
def test_wrong_value_in_the_file(environ, write_file, line, shown):
    path = write_file(line)
    with pytest.raises(DeskError, match="it must be") as caught:
        load_settings({}, environ)
    assert shown in str(caught.value)
    assert str(path) in str(caught.value)
    assert "\n" not in str(caught.value)
    assert caught.value.code == "settings"


def test_a_wrong_value_of_any_setting_is_one_line_with_what_it_can_be():
    for key, field in Settings.model_fields.items():
        with pytest.raises(
            DeskError, match=f"^{key} is .* in the flag --{key.replace('_', '-')}: it must be"
        ) as caught:
            load_settings({key: object()}, {})
        needs = str(caught.value).rpartition("it must be ")[2]
        assert all(re.search(rf"\b{choice}\b", needs) for choice in choices_of(field)), key
    assert choices_of(Settings.model_fields["policy"]) == ("auto", "fast", "balanced", "exact")


def test_wrong_value_in_the_environment_and_in_a_flag(environ):
    with pytest.raises(DeskError, match="port is 'abc' in the environment variable WARMDESK_PORT: it must be a whole"):
        load_settings({}, environ | {"WARMDESK_PORT": "abc"})
    with pytest.raises(DeskError, match="threads is '2x' in the environment variable WARMDESK_THREADS"):
        load_settings({}, environ | {"WARMDESK_THREADS": "2x"})
    with pytest.raises(DeskError, match="answer_tokens is 0 in the flag --answer-tokens: it must be"):
        load_settings({"answer_tokens": 0}, environ)
    with pytest.raises(DeskError, match="data_dir is '' in the flag --data-dir"):
        load_settings({"data_dir": ""}, environ)


def test_unknown_key_is_named_with_its_source_and_the_nearest_one(environ, write_file):
    with pytest.raises(DeskError, match=r"unknown setting 'prot' in the environment variable WARMDESK_PROT.*'port'"):
        load_settings({}, environ | {"WARMDESK_PROT": "1"})
    with pytest.raises(DeskError, match="did you mean 'host_memory' or 'device_memory'"):
        load_settings({"memory": "1 GiB"}, environ)
    path = write_file("[server]\nport = 1")
    with pytest.raises(DeskError, match=f"unknown setting 'server' in {path}: known are desk_name, desk_colour"):
        load_settings({}, environ)


def test_unreadable_files(environ, write_file):
    path = write_file("data_dir = '/elsewhere'")
    with pytest.raises(DeskError, match="data_dir cannot be set in"):
        load_settings({}, environ)
    path = write_file("port = = 1")
    with pytest.raises(DeskError, match=r"is not valid TOML: .*line 1"):
        load_settings({}, environ)
    path.write_bytes(b"model = '\xff'")
    with pytest.raises(DeskError, match="is not UTF-8"):
        load_settings({}, environ)
    path.unlink()
    path.mkdir()
    with pytest.raises(DeskError, match="cannot read the settings file"):
        load_settings({}, environ)


def test_long_values_are_shortened_in_messages(environ):
    with pytest.raises(DeskError) as caught:
        load_settings({}, environ | {"WARMDESK_PORT": "9" * 10_000})
    assert len(str(caught.value)) < 250


@pytest.mark.parametrize(
    ("text", "num_bytes"),
    [("512 MiB", 512 * 1024**2), ("4 GB", 4 * 10**9), ("1.5gib", 3 * 1024**3 // 2), ("1048576", 1048576), (" 7 b ", 7)],
)
def test_sizes(text, num_bytes):
    assert parse_size(text) == num_bytes


@pytest.mark.parametrize("text", ["", "GiB", "1 G", "-1 MB", "1e3", "1,5 GB", "٣ MB", "inf"])
def test_not_sizes(text):
    with pytest.raises(ValueError, match="is not a size"):
        parse_size(text)


def test_database_url_can_be_given_and_its_password_is_not_shown(environ):
    url = "postgresql://desk:pass%77ord@db/desk"
    settings = load_settings({}, environ | {"WARMDESK_DATABASE_URL": url})
    assert settings.database_url == url
    assert "pass%77ord" not in repr(settings)
    with pytest.raises(DeskError, match="database_url is not usable") as caught:
        load_settings({"database_url": [url]}, environ)
    assert "pass%77ord" not in str(caught.value)


def test_memory_may_be_what_there_is_room_for_and_is_on_a_gpu(environ, write_file):
    assert load_settings({"device": "cuda:1"}, environ).device_memory == "auto"
    assert load_settings({"device": "cuda", "device_memory": "20 GiB"}, environ).device_memory == 20 << 30
    assert load_settings({"device_memory": "auto"}, environ).device_memory == "auto"
    assert load_settings({}, environ | {"WARMDESK_DEVICE_MEMORY": "auto"}).device_memory == "auto"
    write_file("device_memory = 'auto'")
    assert load_settings({}, environ).device_memory == "auto"
    with pytest.raises(
        DeskError, match=r"device_memory is 'all of it' in .* or a number of bytes, .* or more, or auto"
    ):
        load_settings({"device_memory": "all of it"}, environ)


def test_lists_and_tables_of_the_file_and_of_the_environment(environ, write_file):
    write_file('example_questions = ["Is it, really?", "What?"]\n[page_urls]\n"" = "https://a.example/{name}"')
    settings = load_settings({}, environ)
    assert settings.example_questions == ("Is it, really?", "What?")
    assert settings.page_urls == {"": "https://a.example/{name}"}
    lines = {"WARMDESK_EXAMPLE_QUESTIONS": "One, or?\nTwo?", "WARMDESK_PAGE_URLS": '"" = https://b.example'}
    settings = load_settings({}, environ | lines)
    assert settings.example_questions == ("One, or?", "Two?")
    assert settings.page_urls == {"": "https://b.example"}
    as_in_file = {"WARMDESK_PRIVATE_HOSTS": '["10.0.0.7:8080", "[::1]:80"]'}
    assert load_settings({}, environ | as_in_file).private_hosts == ("10.0.0.7:8080", "[::1]:80")
    for wrong in ("[" * 99_999 + "A", "[1]"):
        with pytest.raises(DeskError, match="private_hosts"):
            load_settings({}, environ | {"WARMDESK_PRIVATE_HOSTS": wrong})
