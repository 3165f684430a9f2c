"""How the process of a command ends, and what it has not loaded until then."""

import subprocess
import sys

import pytest

from app.storage.database import open_database

COMMAND = """
import atexit, sys
import app.cli.main

class Model:
    def __del__(self):
        print("taken apart", flush=True)

model = Model()
atexit.register(lambda: print("at exit", *sorted({"torch", "transformers", "gradio", "scipy"} & sys.modules.keys())))
sys.argv[0] = "warmdesk"
app.cli.main.run()
"""


@pytest.mark.parametrize(("arguments", "status"), [(["--help"], 0), (["documents", "--no-such"], 2)])
def test_it_ends_without_taking_everything_apart(arguments, status):
    ran = subprocess.run([sys.executable, "-c", COMMAND, *arguments], capture_output=True, text=True, timeout=60)
    assert ran.returncode == status
    assert ran.stdout.endswith("at exit\n"), "without a library that takes seconds to import"
    assert "taken apart" not in ran.stdout


LISTS = """
import sys
from app.cli.main import main

folder = sys.argv[1]
for command in ("accounts list", "keys list", "documents --json", "sync list", "stats", f"backup {folder}.tar.gz"):
    sys.argv = ["warmdesk", *command.split(), "--data-dir", folder]
    try:
        main()
    except SystemExit as ended:
        assert not ended.code, command
heavy = {"torch", "transformers", "sentence_transformers", "faiss", "gradio", "scipy", "sklearn", "safetensors", "peft"}
print("loaded", *sorted(heavy & sys.modules.keys()))
"""


def test_a_list_loads_no_library_of_models(tmp_path):
    ran = subprocess.run(
        [sys.executable, "-c", LISTS, str(tmp_path / "desk")], capture_output=True, text=True, timeout=60
    )
    assert (ran.returncode, ran.stdout.splitlines()[-1:]) == (0, ["loaded"]), ran.stdout + ran.stderr


def test_documents_are_listed_without_what_only_others_need(tmp_path):
    """Was wrong once: bars of progress, PostgreSQL and a library of settings took a third of a second."""
    open_database(f"sqlite:///{tmp_path}/warmdesk.sqlite3").close()
    program = """
import atexit, sys
from app.cli.main import run
unused = {"rich", "pydantic_settings", "sqlalchemy.dialects.postgresql", "alembic", "numpy", "torch"}
atexit.register(lambda: print("loaded", *sorted(unused & sys.modules.keys())))
run()
"""
    command = [sys.executable, "-c", program, "documents", "--json", "--data-dir", str(tmp_path)]
    ran = subprocess.run(command, capture_output=True, text=True, timeout=60)
    assert (ran.returncode, ran.stdout.splitlines()) == (0, ['{"documents": []}', "loaded"]), ran.stdout + ran.stderr


def test_a_reader_that_leaves_is_no_error():
    command = subprocess.Popen(
        [sys.executable, "-c", COMMAND, "--help"], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )
    assert command.stdout is not None
    assert command.stderr is not None
    command.stdout.close()
    said = command.stderr.read()
    command.stderr.close()
    command.wait(60)
    assert "Traceback" not in said
