"""The Settings page: what is written to the file, refused, asked before, and not shown."""

import tomllib
from typing import Any

import pytest
from bs4 import BeautifulSoup, Tag
from desk_site import Site
from fastapi.testclient import TestClient

from app.domain.setting_types import lines_of, table_of, text_of
from app.domain.settings import SETTINGS_FILE, Settings, load_settings
from app.storage.files import SettingsFile
from app.web.settings_routes import COSTLY, EDITABLE, ORDER, setting_rows

PAGE = "/admin/settings"
CLOSED = {
    *("visitor_secret", "handoff_webhook_secret", "website_headers", "database_url"),  # secrets
    *("model", "session_headers", "cluster", "shared_modules", "handoff_webhook"),  # send data or keys elsewhere
    *(
        "adapter",
        "embedder",
        "reranker",
        "desk_logo",
        "lookups_file",
    ),  # name what is fetched, loaded or shown of the machine
    *("trusted_proxies", "widget_origins", "allow_private_addresses", "private_hosts"),  # who is trusted
    *("data_dir", "host", "port", "public_url", "device"),  # a mistake keeps the desk from starting, or admins out
}
"""What a stolen sign-in of an admin must not change."""


@pytest.fixture(scope="module")
def one_site(tmp_path_factory):
    folder = tmp_path_factory.mktemp("desk")
    (folder / SETTINGS_FILE).write_text("answer_tokens = 120\n")  # so it was when the desk was started
    site = Site(folder, answer_tokens=120)
    yield site
    site.close()


@pytest.fixture(scope="module")
def admin(one_site):
    return one_site.admin()


@pytest.fixture
def site(one_site):
    one_site.settings.settings_file.unlink(missing_ok=True)
    return one_site


def save(admin: TestClient, **values: str) -> Any:
    return admin.post(PAGE, data=values)


def parsed(html: str) -> BeautifulSoup:
    return BeautifulSoup(html, "html.parser")


def sent_by(form: Tag) -> dict[str, str]:
    """What a browser sends for a form that nobody changed."""
    chosen = {one["name"]: one.select_one("option[selected]")["value"] for one in form.select("select")}
    texts = {one["name"]: one.text.removeprefix("\n") for one in form.select("textarea")}
    return {one["name"]: one["value"] for one in form.select("input")} | chosen | texts


def loaded(site: Site) -> Settings:
    return load_settings({"data_dir": str(site.folder)}, {})


def test_a_table_and_a_list_as_people_write_them():
    table = {"": "https://a.example/?x={name}", "a=b": "https://b.example", 'say "x" \\ 退货': "https://c.example"}
    assert table_of(text_of(table)) == table
    text = '\n faq = https://a.example \r\n"x y"= "https://b.example"\n=\n'
    with pytest.raises(ValueError, match="does not have the form name = value"):
        table_of(text)
    assert table_of(text.replace("\n=\n", "")) == {"faq": "https://a.example", "x y": "https://b.example"}
    with pytest.raises(ValueError, match="twice"):
        table_of('a = 1\n"a" = 2')
    assert lines_of(" one \n\n two, too\n") == ("one", "two, too")
    assert lines_of("one, two\nthree", ",") == ("one", "two", "three")
    assert text_of(("one", "two")) == "one\ntwo"


def test_settings_are_written_with_comments_kept(site, admin):
    file = site.settings.settings_file
    file.write_text("# ours\nanswer_tokens = 120  # short\n")
    assert save(admin, temperature="0.5", answer_tokens="200", device_memory="512 MiB").status_code == 303
    text = file.read_text()
    assert text.startswith("# ours\nanswer_tokens = 200")
    assert "# short" in text
    assert "temperature = 0.5" in text
    page = admin.get(f"{PAGE}?did=settings").text
    assert "in use until the restart: 120" in page
    assert "These changes need a restart: answer_tokens, temperature, device_memory." in page
    assert save(admin, temperature="").status_code == 303
    assert "temperature" not in file.read_text()
    assert [path.name for path in file.parent.glob("*.tmp")] == []
    assert {entry[2] for entry in site.audited()} == {"temperature", "answer_tokens", "device_memory"}


def test_the_default_of_memory_follows_the_device_however_that_is_given(site):
    """A device on the command line does not make it look as if memory was given there, too."""
    at_start, file = loaded(site), SettingsFile(site.settings.settings_file)
    on_gpu = load_settings({"data_dir": at_start.data_dir, "device": "cuda"}, {})
    row = next(row for row in setting_rows(on_gpu, at_start, file, {}) if row.key == "device_memory")
    assert (row.value, row.written, row.origin, row.form, row.is_open) == ("auto", None, "default", "line", True)


def test_each_group_has_one_form_and_only_changed_fields_are_written(site, admin):
    """A form sends all fields of its group. Another admin may have changed one of them in the meantime."""
    forms = [form for form in parsed(admin.get(PAGE).text).select("form.wd-settings") if form.select("[type=submit]")]
    shown = [{one["name"] for one in form.select("[name]:not([type=hidden])")} for form in forms]
    assert shown == [keys for group in ORDER if (keys := EDITABLE & group.model_fields.keys())]
    privacy, search = (
        next(form for form in forms if form.select(f"[name={key}]")) for key in ("keep_days", "passages")
    )
    for form in forms:
        assert save(admin, **sent_by(form)).status_code == 303
    assert not site.settings.settings_file.exists()
    assert save(admin, passages="7").status_code == 303
    assert save(admin, **sent_by(search) | {"passage_tokens": "400", "prefetch": "false"}).status_code == 303
    assert save(admin, **sent_by(privacy) | {"keep_days": "9"}).status_code == 303
    written = tomllib.loads(site.settings.settings_file.read_text())
    assert written == {"passages": 7, "prefetch": False, "keep_days": 9}


def test_what_is_rarely_changed_is_folded_unless_it_was_changed(site, admin):
    def folded() -> set[str]:
        return {one.h2.text for one in parsed(admin.get(PAGE).text).select("details:not([open])")}

    rare = {"Search", "Language model", "Memory and disk", "Several engines", "Server and data"}
    assert folded() == rare
    assert save(admin, passages="7").status_code == 303
    assert folded() == rare - {"Search"}
    assert '<details class="wd-panel" open><summary><h2>Search' in save(admin, passages="0").text


def test_one_wrong_field_keeps_all_fields_of_its_form_from_being_written(site, admin):
    response = save(admin, keep_days="9", passages="0", neighbours="3")
    assert response.status_code == 409
    assert not site.settings.settings_file.exists()
    fields = {one["name"]: one["value"] for one in parsed(response.text).select("input:not([type=hidden])[name]")}
    assert (fields["keep_days"], fields["passages"], fields["neighbours"]) == ("9", "0", "3"), "not typed again"


def test_lists_and_tables_are_written_by_line(site, admin):
    assert save(admin, page_urls='"" = https://a.example/{name}\r\nfaq = https://b.example/?q=1').status_code == 303
    assert save(admin, example_questions="Do you deliver, too?\n\nWhat is it?").status_code == 303
    settings = loaded(site)
    assert settings.page_urls == {"": "https://a.example/{name}", "faq": "https://b.example/?q=1"}
    assert settings.example_questions == ("Do you deliver, too?", "What is it?")
    page = admin.get(PAGE).text
    assert "&#34;faq&#34; = https://b.example/?q=1" in page
    assert "One per line." in page
    assert save(admin, example_questions="").status_code == 303
    assert loaded(site).example_questions == ()


def test_a_table_of_the_file_can_be_changed_and_keys_written_beside_it(site, admin):
    file = site.settings.settings_file
    file.write_text('[page_urls]\nfaq = "https://a.example"\n')
    assert save(admin, passages="4").status_code == 303
    assert save(admin, page_urls="returns = https://b.example").status_code == 303
    assert save(admin, threads="3").status_code == 303
    expected = {"passages": 4, "page_urls": {"returns": "https://b.example"}, "threads": 3}
    assert tomllib.loads(file.read_text()) == expected


def test_what_was_taken_out_of_the_file_can_be_set_again(site, admin):
    assert save(admin, answer_tokens="").status_code == 303
    assert "in use until the restart: 120" in admin.get(PAGE).text
    assert save(admin, answer_tokens="120").status_code == 303


def test_every_setting_is_either_changed_here_or_closed():
    """A new one is closed until somebody decides."""
    assert Settings.model_fields.keys() - EDITABLE == CLOSED
    assert Settings.model_fields.keys() >= EDITABLE


@pytest.mark.parametrize(
    ("key", "value", "words"),
    [
        ("temperature", "hot", "it must be a number from 0 to 5"),
        ("passages", "0", "it must be a whole number"),
        ("desk_colour", "red", "it must be a colour"),
        ("page_urls", "faq https://a.example", "it must be a table of addresses"),
        ("page_urls", "faq = javascript:alert(1)", "it must be a table of addresses"),
    ],
)
def test_a_wrong_value_is_said_and_not_written(site, admin, key, value, words):
    response = save(admin, **{key: value})
    assert response.status_code == 409
    assert words in response.text
    assert not site.settings.settings_file.exists()


def test_what_is_closed_is_changed_by_nobody(site, admin):
    for key in CLOSED | {"nothing"}:
        for value in ("", "x" * 40) if key == "visitor_secret" else ("x" * 40,):
            response = save(admin, **{key: value})
            assert (response.status_code, "on the command line" in response.text) == (409, True), key
    assert not site.settings.settings_file.exists()


def test_what_was_refused_stands_in_its_field_to_be_mended(site, admin):
    wrong = "faq = https://a.example\n<b> = b"
    page = parsed(save(admin, page_urls=wrong).text)
    [field] = page.select("[autofocus]")
    assert (field["aria-labelledby"], field.text.strip()) == ("name-page_urls", wrong)
    assert field["aria-invalid"] == "true"
    assert "it must be a table" in field.find_next_sibling("p").text, "also in view, next to the field"
    page = parsed(save(admin, passages="0").text)
    assert [(one["name"], one["value"]) for one in page.select("[autofocus]")] == [("passages", "0")]


def test_what_invalidates_passages_says_how_many_before_it_is_saved(site, admin):
    asked = save(admin, neighbours="2", passages="3")
    assert asked.status_code == 200
    assert "encodes 412 passages again, which takes about 3 min" in asked.text
    assert "when the documents are added again" in asked.text
    assert not site.settings.settings_file.exists()
    confirmation = sent_by(parsed(asked.text).select_one("[role=alertdialog] form"))
    assert save(admin, **confirmation).status_code == 303
    assert (loaded(site).neighbours, loaded(site).passages) == (2, 3)


def test_what_is_in_use_already_is_saved_unasked(site, admin):
    assert save(admin, **dict.fromkeys(COSTLY, "")).status_code == 303


def test_secrets_are_never_shown(tmp_path, monkeypatch):
    site = Site(tmp_path / "desk", visitor_secret="s" * 40, temperature=0.5)
    monkeypatch.setenv("WARMDESK_ANSWER_MODE", "auto")
    page = site.admin().get(PAGE).text
    site.close()
    rows = setting_rows(site.settings, loaded(site), SettingsFile(site.settings.settings_file), {})
    assert "s" * 40 not in page + repr(rows)
    assert "sqlite" not in page
    assert page.count("It is set.") == 1
    assert 'type="password"' not in page
    assert "environment variable" in page
    for key in ("answer_mode", "temperature"):  # a variable and a flag win over the file
        assert f'name="{key}"' not in page
    assert "default: 0.0" in page


def test_a_link_to_the_settings_stays(tmp_path):
    target, link = tmp_path / "etc.toml", tmp_path / "warmdesk.toml"
    target.write_text("# of the administrator\n")
    link.symlink_to(target)
    SettingsFile(link).change({"port": "8000"})
    assert link.is_symlink()
    assert target.read_text() == "# of the administrator\nport = 8000\n"
