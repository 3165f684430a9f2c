"""Texts that are made to cost much: what is done with a customer's text takes time that grows with its length and not
faster, and nothing is done with one that is too long.
"""

import os
import subprocess
import sys

MUCH = 100_000
"""Characters: seconds where time grows with the length, minutes where it grows with its square."""
UNITS = (
    "a",
    "a.",
    "1",
    "12 34 ",
    "#",
    "@",
    "-@a.de",
    " ",
    "order ",
    "a1-",
    "a0",
    "\u5462",
    "4111111111111111 ",
    "0171 ",
)
READ_ALL = f"""
from retrieval.text.codes import codes
from retrieval.text.terms import telling_words
from app.domain.setting_types import table_of
from app.knowledge.prompts import question_text
from app.privacy.redaction import redact

for unit in {UNITS!r}:
    text = "b" + unit * ({MUCH} // len(unit)) + "b"
    for read in (redact, telling_words, codes, question_text):
        print(read.__name__, repr(unit), flush=True)
        read(text)
    print("table_of", repr(unit), flush=True)
    table_of(text + "=1")
"""


def test_time_does_not_grow_faster_than_a_text() -> None:
    # no clock: what grows with the square of the length would take minutes, and is ended
    done = subprocess.Popen(
        [sys.executable, "-c", READ_ALL],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env={**os.environ, "PYTHONPATH": os.getcwd()},
    )
    try:
        said, errors = done.communicate(timeout=100)
    except subprocess.TimeoutExpired:
        done.kill()
        said, _ = done.communicate()
        raise AssertionError(f"this does not end: {said.splitlines()[-1]}") from None
    assert done.returncode == 0, errors[-2000:]
