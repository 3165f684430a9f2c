"""A desk whose model runs elsewhere: settings, pages, commands. No network; the real server is in
`test_openai_backend_llama_cpp`.
"""

from dataclasses import asdict
from functools import partial

import httpx
import pytest
from desk_site import BASE
from desks import finish, small_desk, write_pages
from fake_server import FakeServer, stream, whole
from fastapi.testclient import TestClient
from forgetting import NOTHING
from quick_account import quick_account
from typer.testing import CliRunner

from app.api.wire import usage_reply
from app.cli.main import app as command_line
from app.cli.reports import print_forgotten
from app.desk.doctor import examine
from app.desk.parts import remote_engine
from app.domain.answers import reuse_line
from app.domain.errors import DeskError
from app.domain.setting_types import ModelServer, key_for, model_server
from app.domain.settings import Settings, load_settings
from app.pml import run_prompt
from app.storage.people import Accounts
from app.web.rendering import render
from app.web.server import create_app
from cache.decoding.sampling import Sampling
from cache.errors import ModelError
from cache.model.source import load_tokenizer
from cache.remote.remote_engine import RemoteEngine

MODEL = "openai:http://model.test#m"
KNOWN = stream(whole("Thirty days.", prompt_tokens=50, prompt_tokens_details={"cached_tokens": 40}))
UNKNOWN = stream(whole("Thirty days.", prompt_tokens=50))


@pytest.fixture
def server(monkeypatch):
    fake = FakeServer(KNOWN)
    monkeypatch.setattr("app.desk.parts.RemoteEngine", partial(RemoteEngine, transport=fake))
    monkeypatch.setenv("WARMDESK_OPENAI_API_KEY", "sk-secret")
    return fake


@pytest.fixture
def desk(tmp_path, server):
    with small_desk(tmp_path / "desk", pages=write_pages(tmp_path / "pages"), model=MODEL) as desk:
        yield desk


# --- settings ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("model", "url", "name"),
    [
        ("openai:http://127.0.0.1:8000#Qwen/Qwen3-4B", "http://127.0.0.1:8000/v1", "Qwen/Qwen3-4B"),
        ("openai:https://api.example.com/v1/#gpt", "https://api.example.com/v1", "gpt"),
        ("openai:http://[::1]:1/openai/v2#a#b", "http://[::1]:1/openai/v2", "a#b"),
    ],
)
def test_openai_backend_is_named_by_the_model_setting(model, url, name):
    found = model_server(model)
    assert found is not None
    assert (found.url, found.name) == (url, name)
    assert model_server("folder/model") is model_server(None) is None


@pytest.mark.parametrize(
    "model",
    [
        *("openai:", "openai:http://a", "openai:http://a#", "openai:a.b/v1#m", "openai:ftp://a#m", "openai:http://#m"),
        *("openai:http://user:pass@a/v1#m", "openai:http://a/v1?key=1#m", "openai:http://a:99999/v1#m"),
        *("openai:http://a/\n#m", "openai:http://a b/v1#m"),
    ],
)
def test_openai_backend_refuses_other_names(model):
    with pytest.raises(DeskError, match=r"^model is .* in the flag --model: it must be .*openai:URL#NAME"):
        load_settings({"model": model}, {})


def test_openai_backend_key_is_of_the_environment_only(tmp_path):
    environ = {"WARMDESK_OPENAI_API_KEY": "sk-secret", "WARMDESK_DATA_DIR": str(tmp_path), "OPENAI_API_KEY": "sk-other"}
    assert "sk-" not in repr(load_settings({}, environ))
    server = ModelServer("http://model.test/v1", "m")
    key_in = partial(key_for, server, is_of_file=False)
    assert key_in(environ) == "sk-secret"
    assert key_in({"WARMDESK_OPENAI_API_KEY": " ", "OPENAI_API_KEY": "sk-other\n"}) == "sk-other"
    assert key_in({}) is None
    with pytest.raises(DeskError, match=r"^OPENAI_API_KEY contains invalid characters") as raised:
        key_in({"OPENAI_API_KEY": "sk secret"})
    assert "secret" not in str(raised.value)
    (tmp_path / "warmdesk.toml").write_text("openai_api_key = 'sk-file'")
    with pytest.raises(DeskError, match="unknown setting 'openai_api_key'"):
        load_settings({}, environ)


@pytest.mark.parametrize(
    ("url", "is_of_file", "is_sent"),
    [
        ("", False, True),
        ("", True, False),
        ("http://model.test", True, True),
        ("HTTP://Model.Test:80/v2", True, True),
        *((other, of_file, False) for of_file in (True, False) for other in ("https://model.test", "http://a.test")),
        *((wrong, False, False) for wrong in ("model.test", "http://model.test@a.test", "http://model.test:x", "-")),
    ],
)
def test_openai_backend_key_goes_to_one_server(url, is_of_file, is_sent):
    """A restored settings file cannot send it elsewhere."""
    environ = {"OPENAI_API_KEY": "sk-other", "WARMDESK_OPENAI_URL": url}
    assert load_settings({}, environ).model is None, "it is no setting"
    server = ModelServer("http://model.test/v1", "m")
    if is_sent:
        assert key_for(server, environ, is_of_file=is_of_file) == "sk-other"
        return
    with pytest.raises(DeskError, match=r"set WARMDESK_OPENAI_URL=http://model\.test/v1;") as raised:
        key_for(server, environ, is_of_file=is_of_file)
    assert "sk-other" not in str(raised.value)


def test_openai_backend_key_is_not_sent_where_the_file_says(tmp_path, server):
    (tmp_path / "warmdesk.toml").write_text(f'model = "{MODEL}"\n')
    with pytest.raises(DeskError, match=r"^WARMDESK_OPENAI_API_KEY is sent only to a server"):
        remote_engine(load_settings({"data_dir": str(tmp_path)}, {}), ModelServer("http://model.test/v1", "m"))
    assert not server.requests


# --- answers -------------------------------------------------------------------------------------------------


def test_openai_backend_answers_with_what_the_server_reused(desk, server):
    answer = finish(desk, "How long do returns take?")
    assert answer.answer == "Thirty days."
    assert (answer.policy, answer.exact, answer.usage.prefix, answer.usage.computed) == ("exact", True, 40, 10)
    assert "40 of 50 prompt tokens reused by the model's server, an exact prefix" in reuse_line(answer)
    assert {module.source for module in answer.modules} == {"elsewhere"}
    assert [one.document.rpartition("/")[2] for one in answer.citations][:1] == ["returns.md"]
    server.replies = [UNKNOWN]
    again = finish(desk, "And with a receipt?", conversation_id=answer.conversation_id)
    assert "50 prompt tokens; the model's server does not report how many it reused" in reuse_line(again)
    assert usage_reply(again.usage)["prompt_tokens_details"]["cached_tokens"] is None
    assert "Computed or reused: the server does not report it" in render("chat/reuse.html", language="en", answer=again)
    chats = [request for request in server.requests if request.url.path.endswith("/chat/completions")]
    assert {chat.headers["authorization"] for chat in chats} == {"Bearer sk-secret"}
    assert len({chat.headers["x-session-id"] for chat in chats}) == 1, "of one conversation"
    first, second = (chat["messages"] for chat in server.chats)
    assert second[: len(first)] == first
    totals = desk.overview()
    assert (totals.prefix_tokens, totals.computed_tokens) == (40, 10), "what is not known is not counted"


def test_openai_backend_opens_while_the_server_is_away(tmp_path, server):
    server.models, server.replies = httpx.ConnectError("refused"), [httpx.Response(401)]
    with small_desk(tmp_path / "desk", model=MODEL) as desk:
        desk.prepare()
        desk.read_ahead()
        desk.measure_savings()
        assert desk.missing() == ("engine",)
        assert desk.passages_read() is None


# --- pages and commands --------------------------------------------------------------------------------------


def test_openai_backend_pages_say_in_one_line_that_the_model_runs_elsewhere(desk):
    finish(desk, "How long do returns take?")
    line = "The language model is remote: its server manages its own memory."
    overview = desk.overview()
    assert (overview.model, overview.device, overview.is_elsewhere) == ("m", "http://model.test/v1", True)
    assert desk.memory_plan().answers == desk.reading_cost(1).modules == 0
    assert desk.load().capacity == {}
    assert line in render("admin/memory.html", language="en", overview=overview)
    assert "encoded during a question" not in render("admin/misses.html", language="en", overview=overview).lower()
    assert {state.tier for state in desk.passages(desk.documents()[0].path, 0, 9)} == {"elsewhere"}
    desk.prefetch("How long do returns take", owner="a")
    with pytest.raises(DeskError, match=r"^the language model is remote"):
        desk.module_care.warm("key")
    with TestClient(create_app(desk, desk.database, desk.settings), base_url=BASE) as client:
        password = quick_account(Accounts(desk.database), "admin", "admin")
        client.post("/admin/login", data={"password": password})
        for page in ("/admin/modules", "/admin/modules/memory"):
            assert line in client.get(page).text
        assert client.get("/readyz").status_code == 200
        settings = client.get("/admin/settings").text
        assert "openai:http://model.test#m" in settings
        assert "sk-secret" not in settings


def test_openai_backend_forgets_what_is_here(desk, capsys):
    finish(desk, "How long do returns take?")
    forgotten = desk.forget("returns.md")
    assert forgotten.left == NOTHING
    print_forgotten(asdict(forgotten), desk.settings.model_server)
    assert "the model's server http://model.test/v1 may still have its text" in capsys.readouterr().out


def test_openai_backend_forgets_files_of_an_engine_that_ran_here_before(tmp_path, server):
    with small_desk(tmp_path / "desk") as here:
        here.ingest([write_pages(tmp_path / "pages")])
    with small_desk(tmp_path / "desk", model=MODEL) as desk:
        [path] = [document.path for document in desk.documents() if "returns" in document.path]
        [passage] = desk.library.passages_of(path)
        files = len(list(desk.settings.modules_folder.iterdir()))
        assert passage.module_key in desk.engine.modules("public")
        desk.forget(path)
        assert passage.module_key not in desk.engine.modules("public")
        assert len(list(desk.settings.modules_folder.iterdir())) < files


def test_openai_backend_doctor_asks_the_server(tmp_path, server):
    settings = Settings(data_dir=tmp_path / "none", model=MODEL)
    checks = {check.name: check for check in examine(settings)}
    assert checks["language model"].detail.startswith("m at http://model.test/v1, with a key, 900 tokens of context")
    assert checks["network"].detail == "used for http://model.test/v1 with every question"
    server.models = httpx.Response(403)
    checks = {check.name: check for check in examine(settings)}
    assert not checks["language model"].ok
    assert "refused the key" in checks["language model"].detail


def test_openai_backend_has_no_place_where_the_model_itself_is_needed(desk, tmp_path, monkeypatch):
    schema, prompt = tmp_path / "s.xml", tmp_path / "p.xml"
    schema.write_text('<schema name="s"><module name="a">A</module></schema>')
    prompt.write_text('<prompt schema="s"><a/>Q</prompt>')
    with pytest.raises(DeskError, match=r"is remote.*set --model"):
        run_prompt(desk.engine, schema, prompt, Sampling(), "on")
    with pytest.raises(ModelError, match=r"is remote"):
        load_tokenizer(MODEL, converted=tmp_path)
    monkeypatch.setenv("WARMDESK_DATA_DIR", str(tmp_path / "other"))
    ran = CliRunner().invoke(command_line, ["pml", "check", str(schema), "--model", MODEL])
    assert isinstance(ran.exception, ModelError)
