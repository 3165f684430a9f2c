"""`pytest --processes N` runs files of tests side by side, each in one of N processes.

They are forked when all tests are collected, because importing and collecting them takes half a minute: once, and not
once for each process. Each takes the next file, in the order of their names. First come all those of the browser, for
one process: to start one takes as long as several tests of it.
"""

import atexit
import gc
import multiprocessing
import os
import sys
from collections.abc import Iterator
from contextlib import suppress
from importlib import import_module
from itertools import chain, groupby, pairwise
from multiprocessing.connection import Connection, wait
from typing import Any

import pytest
from forked import IMPORTED, serve_forks

LATER = ("matplotlib.pyplot", "sentence_transformers", "transformers.models.llama.modeling_llama")
"""What libraries import in the middle of tests, Gradio the first of them."""
FORK = multiprocessing.get_context("fork")
Files = list[list[pytest.Item]]


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--processes", type=int, default=1, help="run files of tests side by side in N processes")
    gc.disable()  # until all is imported: nothing of that is garbage


def pytest_collection_finish() -> None:
    gc.enable()


@pytest.hookimpl(trylast=True)
def pytest_unconfigure(config: pytest.Config) -> None:
    """End without taking apart what was imported, which takes ten seconds."""
    if config.getoption("processes") > 1 and (ended := config.pluginmanager.getplugin("session")):
        atexit._run_exitfuncs()
        sys.stdout.flush()
        os._exit(ended.exitstatus)


def pytest_runtestloop(session: pytest.Session) -> object:
    number = session.config.getoption("processes")
    if number < 2 or session.testsfailed or session.config.option.collectonly:
        return None  # pytest's own loop
    items = sorted(session.items, key=is_for_any_process)
    files = [list(some) for _, some in groupby(items, lambda item: is_for_any_process(item) and item.path)]
    for name in (*IMPORTED, *LATER):
        import_module(name)
    session.config._tmp_path_factory.getbasetemp()  # one folder of all processes
    gc.freeze()  # what is never looked at is never copied
    session.config.pluginmanager.getplugin("terminalreporter").showfspath = False  # of several files at once
    processes = dict[Connection, Any]()
    for worker in range(min(number, len(files))):
        ours, theirs = FORK.Pipe()
        processes[ours] = FORK.Process(
            target=run_files, args=(f"process{worker}", session, files, theirs, [*processes, ours])
        )
        processes[ours].start()
        theirs.close()
    try:
        hand_out(session, files, processes)
    finally:
        for connection in processes:  # for which a process would wait
            connection.close()
    if session.shouldfail:
        raise session.Failed(session.shouldfail)
    return True


def is_for_any_process(item: pytest.Item) -> bool:
    return item.get_closest_marker("browser") is None


def hand_out(session: pytest.Session, files: Files, processes: dict[Connection, Any]) -> None:
    """Give each process the numbers of its files, and report what it sends."""
    hook, numbers, left = session.config.hook, iter(range(len(files))), len(session.items)
    while processes:
        for connection in wait(list(processes)):
            try:
                sent = connection.recv()
            except EOFError:
                process = processes.pop(connection)
                process.join()
                if process.exitcode:
                    pytest.exit(f"a process of tests has ended with the status {process.exitcode}", 1)
                continue
            if sent is None:
                connection.send(None if session.shouldfail else next(numbers, None))
            else:
                report = hook.pytest_report_from_serializable(config=session.config, data=sent)
                hook.pytest_runtest_logreport(report=report)
                left -= report.when == "teardown"
    if left and not session.shouldfail:
        pytest.exit(f"{left} tests were not run", 1)


def run_files(
    name: str, session: pytest.Session, files: Files, connection: Connection, others: list[Connection]
) -> None:
    """In a process of its own: ask for the next file until there is none, and send reports of its tests. others: the
    ends of the process that reports, which are to close with it.
    """
    for other in others:
        other.close()
    config = session.config
    serve_forks()
    plugins, temporary = config.pluginmanager, config._tmp_path_factory
    capturing = plugins.getplugin("capturemanager")
    capturing.stop_global_capturing()  # into files that all processes would share
    capturing.start_global_capturing()
    capturing.suspend_global_capture()
    plugins.unregister(name="terminalreporter")
    plugins.register(Reporting(config, connection))
    temporary._basetemp = temporary.getbasetemp() / name
    temporary._basetemp.mkdir()
    os.environ["TESTS_PROCESS"] = name

    def items() -> Iterator[pytest.Item]:
        while connection.send(None) or (number := connection.recv()) is not None:
            yield from files[number]

    with suppress(KeyboardInterrupt, EOFError, OSError):
        for item, following in pairwise(chain(items(), [None])):
            config.hook.pytest_runtest_protocol(item=item, nextitem=following)


class Reporting:
    def __init__(self, config: pytest.Config, connection: Connection) -> None:
        self._config, self._connection = config, connection

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        hook = self._config.hook
        self._connection.send(hook.pytest_report_to_serializable(config=self._config, report=report))
