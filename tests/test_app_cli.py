"""The command line with a tiny language model, in one process and with sockets blocked: the contract and the errors."""

import json
import os
import socket
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from desks import write_pages
from made_database import put_database

from app.desk.service import Service
from app.domain.settings import Settings
from app.storage.data_folder import lock_data_folder
from evals.answers.helpdesk import measure_helpdesk
from evals.answers.search_calibration import Calibration
from retrieval.answerability import load_classifier, rule_of_thumb
from retrieval.reading import FileReader

pytestmark = pytest.mark.bundled


class Ran(NamedTuple):
    status: int
    out: str
    err: str

    @property
    def document(self) -> Any:
        return json.loads(self.out)


Run = Callable[..., Ran]


@pytest.fixture
def desk(tmp_path, tiny_folder, monkeypatch):
    folder = tmp_path / "desk"
    folder.mkdir()
    (folder / "models").symlink_to(tiny_folder.parent)  # compiled once
    monkeypatch.setenv("WARMDESK_MODEL", str(tiny_folder))
    return folder


@pytest.fixture
def run(desk, monkeypatch, warmdesk):
    """Run `warmdesk ARGS --data-dir DESK`. Every attempt to reach an address fails the test."""

    def refuse(self: socket.socket, address: object) -> None:
        raise AssertionError(f"something wanted to connect to {address}")

    monkeypatch.setattr(socket.socket, "connect", refuse)
    monkeypatch.setattr(socket.socket, "connect_ex", refuse)

    return lambda *words: Ran(*warmdesk(*words, "--data-dir", desk))


def is_one_line(ran: Ran) -> bool:
    """Whether a command failed with one `error:` line and nothing like a stack trace."""
    lines = ran.err.strip().splitlines()
    return ran.status != 0 and len(lines) == 1 and lines[0].startswith("error: ")


def test_a_help_desk_is_measured_by_contract(run, tmp_path, monkeypatch):
    results = list[dict[str, Any]]()

    def measure(*given: Any, **options: Any) -> dict[str, Any]:
        results.append(measure_helpdesk(*given, **options))
        return results[-1]

    pages, file = write_pages(tmp_path / "pages"), tmp_path / "questions.jsonl"
    row = {"id": "a", "question": "Where is the repair bench?", "articles": ["stores.txt"], "facts": [["Galway"]]}
    file.write_text(json.dumps({**row, "answer": "In Galway."}))
    asked = ("eval", "helpdesk", "--documents", str(pages), "--data", str(file), "--arm", "search")
    monkeypatch.setattr("evals.answers.helpdesk.measure_helpdesk", measure)
    measured = run(*asked, "--json")
    found = json.loads(measured.out.splitlines()[-1])
    assert set(found) == {"rows", "summary"}
    assert found["rows"][0]["id"] == "a"
    assert all(set(figure) == {"value", "low", "high", "n"} for figure in found["summary"].values())
    assert "1/1 " in measured.err
    monkeypatch.setattr("evals.answers.helpdesk.measure_helpdesk", lambda *_, **__: results[0])
    assert run(*asked).out.startswith("| figure | value |")


def test_the_whole_line_by_contract_and_for_people(run, tmp_path, pages, monkeypatch):
    report = run("ingest", str(pages), "--json").document
    keys = (
        "documents passages unchanged replaced removed failed warnings changes modules passages_per_s timings_s seconds"
    )
    assert set(report) == set(keys.split())
    assert (report["documents"], report["failed"]) == (4, [])
    assert report["modules"] == {"encoded": 4, "kept": 0, "dropped": 0, "waiting": 0, "failed": []}

    first = run("ask", "Can I return a gift card?", "--json").document
    assert {"answer", "refused", "conversation_id", "message_id", "citations", "usage", "modules"} <= set(first)
    assert {"retrieve", "load", "prefill", "ttft", "total"} <= set(first["timings_ms"])
    assert first["answer"]
    assert first["citations"][0]["document"].endswith("gift-cards.md")
    assert set(first["citations"][0]) == {"document", "title", "passage", "quote", "score", "see_also", "url", "marks"}
    details = first["usage"]["prompt_tokens_details"]
    assert details["cached_tokens"] == details["session"] + details["prefix"] + details["module"]
    assert first["usage"]["prompt_tokens"] == details["cached_tokens"] + first["usage"]["computed_tokens"]
    assert {module["source"] for module in first["modules"]} == {"disk"}
    assert (first["policy"], first["exact"]) == ("fast", False)

    same = ("--conversation", first["conversation_id"])
    off = run("ask", "How long do they last?", *same, "--reuse", "off", "--json").document
    assert off["conversation_id"] == first["conversation_id"]
    assert off["exact"]
    assert off["usage"]["prompt_tokens_details"]["cached_tokens"] == 0

    shown = run("ask", "Can I return a gift card?").out
    assert "[1] Gift cards" in shown
    assert "prompt tokens reused from" in shown
    assert "prompt tokens reused" in run("stats").out
    assert "Gift cards" in run("documents").out
    (tmp_path / "broken.md").write_bytes(b"\x00\x01\x02" * 50)
    monkeypatch.setattr("app.knowledge.ingest.FileReader", FileReader)  # with a process of its own, as always
    assert "skipped" in run("ingest", str(tmp_path / "broken.md")).out

    stats = run("stats", "--json").document
    assert stats["answers"] == 3
    assert stats["tokens"]["prompt"] == stats["tokens"]["computed"] + stats["tokens"]["reused"]
    assert len(run("documents", "--json").document["documents"]) == 4
    checks = {check["name"]: check for check in run("doctor", "--json").document["checks"]}
    checks.pop("free space")  # of the machine that tests; see test_app_doctor
    assert [check for check in checks.values() if not check["ok"]] == []
    assert run("forget", "gift-cards.md", "--json").document["forgotten"].endswith("gift-cards.md")
    assert len(run("documents", "--json").document["documents"]) == 3


def test_what_search_judges_by_is_fitted_and_trained_by_contract(run, desk, tmp_path, monkeypatch):
    file, asked = tmp_path / "questions.jsonl", list[tuple[Any, ...]]()
    fitted = replace(rule_of_thumb("small", "first"), threshold=0.2, certain=0.5)
    shares = {"auc": 0.9, "answered": 0.7, "answered_right": 0.8, "answered_wrongly": 0.1}
    shares |= {f"written_{name}": share for name, share in shares.items()}
    counts = {"answerable": 30, "unanswerable": 60, **shares}

    def calibrate(settings: Settings, data: list[Path], documents: list[Path], **_: Any) -> Calibration:
        asked.append((settings.data_dir, data, documents))
        return fitted, counts

    def train(settings: Settings, data: list[Path], folder: Path, **options: Any) -> dict[str, Any]:
        asked.append((data, folder, options["left_out"], options["local"], options["go_on"], options["minutes"]))
        return {"name": "ranker-1", "steps": 7, "minutes": 1.5, "loss": 0.25}

    monkeypatch.setattr("evals.answers.search_calibration.calibrate", calibrate)
    monkeypatch.setattr("app.training.make_ranker", train)
    document = run("calibrate-search", "--data", str(file), "--documents", "a", "--json").document
    assert asked.pop() == (desk, [file], [Path("a")])
    assert load_classifier(desk / "search.json") == fitted
    assert document == {"file": str(desk / "search.json"), "threshold": 0.2, "certain": 0.5, **counts}
    shown = run("calibrate-search", "--data", str(file), "--write", str(tmp_path / "s")).out
    assert "70% of the answerable ones confidently, 80% of these correctly, and 10% of the others" in shown
    assert load_classifier(tmp_path / "s") == fitted
    card = run("train-ranker", "--data", str(file), "--leave-out", "a,b", "--local", "c", "--go-on", "--json").document
    assert card["name"] == "ranker-1"
    assert asked.pop() == ([file], desk / "ranker", {"a", "b"}, {"c"}, True, 60.0)


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (("calibrate-search", "--data", "/no/questions.jsonl"), "questions.jsonl: No such file"),
        (("train-ranker", "--data", "/no/questions.jsonl"), "cannot be read"),
        (("ingest", "/does/not/exist"), "no such file"),
        (("ask", ""), "empty"),
        (("ask", "hi", "--model", "/no/such/model"), "model"),
        (("ask", "hi", "--model", "owner/never-downloaded"), "model"),
        (("ask", "hi", "--device", "cuda:7"), "device"),
        (("ask", "hi", "--conversation", "nope"), "conversation"),
        (("ask", "hi", "--device-memory", "lots"), "device_memory is 'lots' in the flag --device-memory"),
        (("forget", "nothing.md"), "nothing.md"),
        (("dance",), "dance"),
    ],
)
def test_a_mistake_is_one_line(run, monkeypatch, arguments, says):
    ran = run(*arguments)
    assert is_one_line(ran), ran.err
    assert says in ran.err


def test_reading_commands_need_a_desk(run, desk):
    for command in ("documents", "stats"):
        ran = run(command)
        assert is_one_line(ran)
        assert "ingest documents first" in ran.err
        assert [file.name for file in desk.iterdir()] == ["models"], "nothing is made"
    (desk / "models").unlink()
    desk.rename(desk.with_name("moved"))
    ran = run("stats", "--json")
    assert is_one_line(ran)
    assert "ingest documents first" in ran.document["error"]["message"]


def test_ctrl_c_is_one_line(run, monkeypatch, tmp_path):
    """Was silent once: the command line framework swallows KeyboardInterrupt and only sets the status."""

    def interrupt(self: Service, *arguments: object, **options: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(Service, "ingest", interrupt)
    ran = run("ingest", str(write_pages(tmp_path / "pages")), "--json")
    assert is_one_line(ran)
    assert ran.status == 130
    assert ran.document["error"]["code"] == "interrupted"


def test_accounts_are_made_listed_and_removed(run):
    assert run("reset-password", "--json").document["name"] == "admin"
    made = run("accounts", "add", "ann", "--json").document
    assert (made["name"], made["role"]) == ("ann", "agent")
    listed = run("accounts", "list", "--json")
    assert {"ann": "agent"}.items() <= {one["name"]: one["role"] for one in listed.document}.items()
    assert made["password"] not in listed.out
    assert run("reset-password", "ann", "--json").document["password"] != made["password"]
    assert run("accounts", "remove", "ann", "--json").document == {"removed": "ann"}
    assert "ann" not in [one["name"] for one in run("accounts", "list", "--json").document]
    assert is_one_line(run("accounts", "remove", "ann"))


def test_a_taken_port_is_one_line(run):
    with socket.socket() as other:
        other.bind(("127.0.0.1", 0))
        other.listen()
        ran = run("serve", "--port", str(other.getsockname()[1]))
    assert is_one_line(ran)
    assert "--port" in ran.err


def test_a_folder_that_is_in_use_is_one_line(run, desk):
    put_database(Settings(data_dir=desk).database_url)
    with lock_data_folder(desk, "warmdesk serve"):
        ran = run("ask", "hi")
        assert is_one_line(ran)
        assert f"process {os.getpid()} (warmdesk serve" in ran.err
        assert run("documents").status == 0  # reading is allowed beside it
