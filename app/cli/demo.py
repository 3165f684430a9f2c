"""`warmdesk demo`: the sample documents and five questions, with both times to the first token side by side.

Each answer is stopped after its first words; the chat shows whole answers.
"""

import statistics
from pathlib import Path, PurePath
from typing import TYPE_CHECKING

from app.cli.options import open_service, recorded
from app.cli.served import serve_desk
from app.domain.answers import Answer
from app.domain.errors import DeskError
from app.domain.setting_types import sample_in, sample_of
from app.domain.settings import Settings

if TYPE_CHECKING:
    from app.desk.service import Service


def run_demo(settings: Settings, documents: Path) -> None:
    check_folder(documents)
    with open_service(settings, "warmdesk demo") as service:
        ingest(service, documents)
        service.prepare()
        compare(service, documents)


def serve_demo(settings: Settings, documents: Path) -> None:
    """Serve, index, and print the table when all passages are encoded. Raises as `run_demo` and `serve_desk`."""
    check_folder(documents)
    serve_desk(
        settings,
        first=lambda service: fill(service, documents),
        when_read=lambda service: compare(service, documents),
    )


def fill(service: "Service", documents: Path) -> None:
    if (sample := sample_in(documents)) is not None:
        service.offered = sample.examples
    ingest(service, *(documents / page for page in service.offered.values()), documents, warm=False)


def ingest(service: "Service", *paths: Path, warm: bool = True) -> None:
    from app.cli.reports import print_ingest, progress_bar
    from app.desk.output import ingest_json

    with progress_bar() as progress:
        print_ingest(ingest_json(recorded(service).ingest(paths, progress, warm=warm)))


def check_folder(documents: Path) -> None:
    if not documents.is_dir():
        raise DeskError(f"there is no folder {str(documents)!r}", code="no-such-file")


def compare(service: "Service", documents: Path) -> None:
    """Ask with reuse off and on, and print the table. Skipped for a remote model, which has its own reuse."""
    from cache.remote.remote_engine import ELSEWHERE

    if service.is_elsewhere:
        print(f"{ELSEWHERE}: with and without reuse cannot be compared")
        return
    sample = sample_of(documents)
    begin(service, sample.warm_up, "on")  # the first request of a process is slower; this one is about another subject
    rows = [(question, begin(service, question, "off"), begin(service, question, "on")) for question in sample.compared]
    print_table(service, rows)


def begin(service: "Service", question: str, reuse: str) -> Answer:
    """Ask in a temporary conversation, and stop the answer after its first words."""
    stream = service.ask(question, reuse=reuse)
    for _ in stream:
        stream.cancel()
    service.delete_conversation(stream.answer.conversation_id)
    return stream.answer


def print_table(service: "Service", rows: list[tuple[str, Answer, Answer]]) -> None:
    from rich.console import Console
    from rich.table import Table

    table = Table("question", "answered from", title="Time to the first token, search included")
    for column in ("prompt tokens", "computed", "reuse off", "reuse on", "faster"):
        table.add_column(column, justify="right")
    ratios = []
    for question, off, on in rows:
        ratios.append(off.timings.ttft / on.timings.ttft)
        table.add_row(
            question,
            PurePath(on.citations[0].document).name if on.citations else "refused",
            f"{on.usage.prompt_tokens:,}",
            f"{on.usage.computed:,}",
            f"{off.timings.ttft:,.0f} ms",
            f"{on.timings.ttft:,.0f} ms",
            f"{ratios[-1]:.1f}x",
        )
    Console(width=120).print(table)
    print(f"{service.engine.info.name} on {service.settings.device}; median {statistics.median(ratios):.1f}x")
