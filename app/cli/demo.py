"""`warmdesk demo`: the sample documents and five questions, with both times to the first token side by side.

Each answer is stopped after its first words; the chat shows whole answers.
"""

import statistics
from pathlib import Path, PurePath

from rich.console import Console
from rich.table import Table

from app.cli.options import recorded
from app.cli.reports import print_ingest, progress_bar
from app.desk.output import ingest_json
from app.desk.service import Service
from app.domain.answers import Answer
from app.domain.errors import DeskError
from app.domain.progress import Progress, both
from app.domain.setting_types import sample_of
from cache.remote.remote_engine import ELSEWHERE


def run_demo(service: Service, documents: Path) -> None:
    check_folder(documents)
    with progress_bar() as progress:
        print_ingest(ingest_json(recorded(service).ingest([documents], progress)))
    service.prepare()
    compare(service, documents)


def serve_demo(service: Service, documents: Path) -> None:
    """Index, serve, and print the table when all passages are encoded. Raises as `run_demo`, and as `serve`."""
    from app.web.serve import serve  # Gradio takes seconds

    check_folder(documents)

    def index(shown: Progress) -> None:
        with progress_bar() as progress:
            report = recorded(service).ingest([documents], both(progress, shown), warm=False)
        print_ingest(ingest_json(report))

    serve(service, progress_bar, first=index, when_read=lambda: compare(service, documents))


def check_folder(documents: Path) -> None:
    if not documents.is_dir():
        raise DeskError(f"there is no folder {str(documents)!r}", code="no-such-file")


def compare(service: Service, documents: Path) -> None:
    """Ask with reuse off and on, and print the table. Skipped for a remote model, which has its own reuse."""
    if service.is_elsewhere:
        print(f"{ELSEWHERE}: with and without reuse cannot be compared")
        return
    sample = sample_of(documents)
    begin(service, sample.warm_up, "on")  # the first request of a process is slower; this one is about another subject
    rows = [(question, begin(service, question, "off"), begin(service, question, "on")) for question in sample.compared]
    print_table(service, rows)


def begin(service: Service, question: str, reuse: str) -> Answer:
    """Ask in a temporary conversation, and stop the answer after its first words."""
    stream = service.ask(question, reuse=reuse)
    for _ in stream:
        stream.cancel()
    service.delete_conversation(stream.answer.conversation_id)
    return stream.answer


def print_table(service: Service, rows: list[tuple[str, Answer, Answer]]) -> None:
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
