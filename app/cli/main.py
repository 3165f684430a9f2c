"""The command `warmdesk`. Every command prints text for people, or with --json exactly one JSON document on stdout.

An error is one line `error: ...` on stderr and a non-zero exit status; with --json also {"error": {code, message}} on
stdout. Logs and progress go to stderr. A new command is a function with `@commands.command()` in the file of its
subject; its work is in `app.desk.service` and `evals`.
"""

import atexit
import os
import sys
import warnings
from contextlib import suppress
from typing import NoReturn

import typer

from app.cli import answers, bench, documents, lookups, measure, operate, people, plan, pml
from app.cli.options import INTERRUPTED, explain, fail, known_error
from app.domain.errors import DeskError
from cache.engine.log_lines import write_log

app = typer.Typer(
    add_completion=False,
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    help="A customer-service desk whose language model has already encoded your documents.",
)
for subject in (documents, answers, lookups, operate, people, bench, measure, plan, pml):
    app.add_typer(subject.commands)


def run() -> NoReturn:
    """Entry point of the process. It ends without the interpreter's cleanup of models and libraries: everything is
    closed by then, and the cleanup takes 3 to 15 seconds, in which a stopped server would seem to hang.
    """
    try:
        main()
    except SystemExit as end:
        atexit._run_exitfuncs()
        with suppress(BrokenPipeError):  # the reader of the output has left
            sys.stdout.flush()
        os._exit(end.code if isinstance(end.code, int) else 0)


def main() -> NoReturn:
    os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
    os.environ.setdefault("GRADIO_ANALYTICS_ENABLED", "False")
    os.environ.setdefault("HF_HUB_DISABLE_TELEMETRY", "1")
    os.environ.setdefault("MPLBACKEND", "agg")  # otherwise Gradio searches for one at the first event, half a second
    os.environ.setdefault("TQDM_DISABLE", "1")  # bars of libraries; ours are from rich
    if not sys.stderr.isatty():  # in a log, bars of loading and downloading are noise
        os.environ.setdefault("HF_HUB_DISABLE_PROGRESS_BARS", "1")
    warnings.filterwarnings("ignore", category=FutureWarning, module="transformers")  # warnings of its own code
    write_log()
    try:
        status = app(standalone_mode=False)
    except typer.Abort:
        fail("interrupted", INTERRUPTED, status=130)
    except DeskError as error:
        fail(error.code, str(error))
    except OSError as error:
        fail("system", explain(error))
    except Exception as error:
        if usage := getattr(error, "format_message", None):  # typer's own class, which it does not export
            fail("usage", usage(), status=2)
        code, details = known_error(error)
        if code is None:
            raise
        fail(code, str(error), details=details)
    else:
        if status == 130:  # typer turns Ctrl-C into this status without a message
            fail("interrupted", INTERRUPTED, status=130)
        raise SystemExit(status if isinstance(status, int) else 0)
