"""What the pages draw, without Gradio: escaping, numbers, citations, the reuse strip, the dashboard."""

import re
import sys
import time
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from fake_answers import HOSTILE, make_answer
from fake_desk import NOW, FakeDesk
from fake_overview import REASONS, make_overview
from page_check import check

from app.domain.answers import AnswerUsage, Citation, Mark, Overview, Turn, reuse_line
from app.domain.progress import DocumentsRead, PassagesRead
from app.domain.statistics import FirstTokenTimes, UsageSpan
from app.domain.words import REASONS as REASON_WORDS
from app.domain.words import ago, count, milliseconds, percent, size
from app.web.rendering import Source, answer_html, day, linked, render

PLAIN: dict[str, Any] = {"contacts": {}, "technical": False, "has_older": False}


def admin(name: str, overview: Overview) -> str:
    usage = UsageSpan(
        start=NOW,
        answers={"answered": overview.answers},
        tokens={name: getattr(overview, f"{name}_tokens") for name in ("computed", "session", "prefix", "module")},
        first=FirstTokenTimes(answers=1, p50_ms=131, p95_ms=842),
    )
    given = {"reading": overview.reading, "documents_read": overview.documents_read}
    return render(f"admin/{name}.html", language="en", overview=overview, usage=usage, now=NOW, **given)


def transcript(desk: FakeDesk, conversation_id: str, *, technical: bool = True) -> str:
    shown = PLAIN | {"turns": desk.turns(conversation_id), "contacts": desk.contacts(), "technical": technical}
    return render("chat/transcript.html", language="en", **shown)


def test_hostile_text_stays_text_everywhere(desk):
    answer = replace(make_answer("c", HOSTILE, "html"), policy=HOSTILE, notice=HOSTILE)
    desk.store(HOSTILE, answer)
    overview = make_overview(NOW)
    overview = replace(
        overview,
        model=HOSTILE,
        device=HOSTILE,
        tier_bytes={HOSTILE: 1},
        tier_capacity={HOSTILE: 2},
        prefixes=(replace(overview.prefixes[0], text=HOSTILE),),
        reasons=(replace(overview.reasons[0], reason=HOSTILE),),
        misses=(replace(overview.misses[0], document=HOSTILE, passage=HOSTILE, reason=HOSTILE, question=HOSTILE),),
    )
    summary = replace(desk.conversations()[0], id=HOSTILE, title=HOSTILE)
    listing: dict[str, object] = {"open_id": HOSTILE, "query": HOSTILE, "deleted": HOSTILE, "now": NOW}
    for page in (
        transcript(desk, "c"),
        render("chat/live.html", language="en", question=HOSTILE, text=HOSTILE),
        render("chat/error.html", language="en", question=HOSTILE, message=HOSTILE),
        render("chat/empty.html", language="en", examples=[HOSTILE], ready=False, greeting=HOSTILE),
        render("chat/conversations.html", language="en", summaries=[summary], **listing),
        admin("memory", overview),
        admin("misses", overview),
        admin("prefixes", overview),
    ):
        assert "<script>window.owned=1</script>" in check(page).lower()
        assert "\u202e" not in page


def test_half_an_answer_is_as_safe_as_a_whole_one():
    for length in range(0, len(HOSTILE), 7):
        check(render("chat/live.html", language="en", question="q", text=HOSTILE[:length]))


def test_answers_may_use_simple_markdown():
    page = answer_html("# Title\n**a** and *b*\n\n- one\n- two\n\n3. three\n4. four\n\nlast `x*y*z` 2*3*4")
    assert "<strong>Title</strong><br>" in page
    assert "<strong>a</strong> and <em>b</em>" in page
    assert '<ul><li dir="auto">one</li><li dir="auto">two</li></ul>' in page
    assert '<ol start="3"><li dir="auto">three</li>' in page
    assert "<code>x*y*z</code> 2*3*4" in page


def test_links_and_images_become_text():
    page = answer_html("![pixel](https://evil.example/p.png) [here](https://shop.example)")
    assert "pixel (https://evil.example/p.png) here (https://shop.example)" in check(page)
    assert "<a" not in page
    assert "<img" not in page


def lines_run(text: str) -> int:
    """How many lines of Python rendering a text runs, wherever they are."""
    count = 0

    def trace(*_: object) -> object:
        nonlocal count
        count += 1
        return trace

    sys.settrace(trace)
    try:
        answer_html(text)
    finally:
        sys.settrace(None)
    return count


@pytest.mark.parametrize("piece", ["*", "[", "**a", "![a](", "`"])
def test_work_on_a_long_line_grows_with_its_length(piece):
    answer_html(piece)  # what is made once
    assert lines_run(piece * 2000) < 6 * lines_run(piece * 500)


def test_numbers_in_words():
    assert count(1234) == "1,234"
    assert [percent(1, 0), percent(1, 1000), percent(999, 1000), percent(1, 2)] == ["–", "<1%", ">99%", "50%"]
    assert [milliseconds(x) for x in (None, 0, 3.44, 118.2, 999.6, 12_345)] == [
        "–", "0 ms", "3.4 ms", "118 ms", "1.00 s", "12.3 s",
    ]  # fmt: skip
    assert [size(x) for x in (512, 18 << 10, 4_404_019, 1 << 30)] == ["512 B", "18 KiB", "4.2 MiB", "1.00 GiB"]
    moments = [None, *(NOW - timedelta(seconds=s) for s in (5, 200, 7300, 90_000, 500_000, 9e6))]
    assert [ago(moment, NOW) for moment in moments] == [
        "never", "just now", "3 min ago", "2 h ago", "yesterday", "5 days ago", "28 Nov 2025",
    ]  # fmt: skip
    assert ago(NOW.replace(tzinfo=None), NOW) == "just now"


def test_reuse_line_says_what_was_reused_and_from_where():
    answer = make_answer("c", "m", "returns")
    assert reuse_line(answer) == "1,201 of 1,451 prompt tokens reused from 3 documents · first token 118 ms"
    usage = AnswerUsage(prompt_tokens=1451, completion_tokens=1, computed=51, session=1400, prefix=0, module=0)
    assert "1,400 of 1,451 prompt tokens reused from this conversation" in reuse_line(
        replace(answer, usage=usage, modules=())
    )
    usage = AnswerUsage(prompt_tokens=90, completion_tokens=1, computed=90, session=0, prefix=0, module=0)
    assert reuse_line(replace(answer, usage=usage, modules=())).startswith("All 90 prompt tokens computed now")


def test_reuse_details_have_a_row_for_each_module_and_the_stages():
    answer = make_answer("c", "m", "returns")
    text = check(render("chat/reuse.html", language="en", answer=answer))
    for module in answer.modules:
        assert module.document in text
    for words in ("Model memory", "Main memory", "Disk", "Computed now", REASON_WORDS["document changed"], "1.90 s"):
        assert words in text
    assert "Approximate" in text
    assert "Exact" in check(render("chat/reuse.html", language="en", answer=replace(answer, exact=True)))


def test_each_outcome_looks_different(desk):
    refusal = replace(make_answer("c", "m", "weather"), citations=make_answer("c", "m", "returns").citations)
    desk.store("weather", refusal)
    assert "wd-citation" not in transcript(desk, "c"), "even if it carries some"
    for word, badge, sources in (
        ("returns", "", "2 sources"),
        ("perhaps", "Not certain", "See also"),
        ("weather", "Not found", ""),
        ("hello", "", ""),
    ):
        desk.store(word, make_answer(word, "m", word))
        page = transcript(desk, word)
        assert ("wd-outcome" in page, "wd-citation" in page) == (bool(badge), bool(sources))
        assert badge in page
        assert sources in page


def test_contacts_are_links_only_where_the_desk_speaks_itself(desk):
    desk.store("weather", make_answer("a", "m1", "weather"))
    page = transcript(desk, "a")
    for address in ("mailto:care@larkmoor.example", "tel:+35315550100"):
        assert f'<a href="{address}"' in page
    assert 'href="https://larkmoor.example/contact?from=chat&amp;lang=en"' in page
    quoting = replace(make_answer("b", "m2", "returns"), answer="Write to care@larkmoor.example.")
    desk.store("returns", quoting)
    assert 'href="mailto:' not in transcript(desk, "b")
    text = '"><script>&'
    html = linked(answer_html(f"Call {text}"), {text: f"https://x/{text}"})
    assert ("<script" in html, html.count("<a ")) == (False, 1)


def test_dashboard_numbers():
    overview = make_overview(NOW)
    text = check(admin("tiles", overview))
    for shown in ("78%", "186,495 of 238,670", "131 ms", "842 ms", "180"):
        assert shown in text
    assert "of 1.00 GiB" in check(admin("memory", overview))
    for reason in REASONS:
        assert REASON_WORDS[reason] in check(admin("misses", overview))
    assert "40 passages, 9,000 tokens" in check(admin("misses", overview))
    assert "user <b>Help page</b>: Returns 0" in check(admin("prefixes", overview))
    assert "None since the start" in check(admin("prefixes", replace(overview, prefixes=())))


def test_statements_carry_the_numbers_of_their_sources_which_mark_what_was_said(desk):
    desk.store("Can I return it?", make_answer("c", "m", "Can I return it?"))
    page = transcript(desk, "c", technical=False)
    text = check(page)
    for citation in make_answer("c", "m", "Can I return it?").citations:
        assert citation.title in text
        assert citation.section in text
        assert citation.passage not in text
        assert citation.quote in text
    numbers = re.findall(r'data-act="source" data-source="(\d)" aria-label="Source \1">', page)
    assert numbers == ["1", "1", "2"]
    assert re.findall(r"<mark>(.{20})", page)[0] == "You have 30 days fro"
    assert 'href="https://help.example/returns"' in page
    assert 'href="/sources/m/1"' in page, "a page without an address: its file"


def test_customers_see_no_paths_scores_tokens_or_module_ids(desk):
    desk.store("Can I return it?", make_answer("c", "m", "Can I return it?"))
    page = transcript(desk, "c", technical=False)
    for hidden in ("returns-policy.md", "0.78", "tokens", "m1", "Approximate", "balanced"):
        assert hidden not in page
    assert "returns-policy.md" in transcript(desk, "c")


def test_marks_that_overlap_or_lie_outside_are_drawn_once():
    citation = Citation(
        document="d", title="t", passage="p", quote="ab<cd>ef", score=1.0, marks=(Mark(0, 1, 4), Mark(1, 2, 99))
    )
    assert Source(1, citation).quote == "a<mark>b&lt;cd&gt;ef</mark>"
    removed = replace(citation, quote="(removed)"[:3])
    assert Source(1, removed).quote == "(<mark>re</mark>"


@pytest.mark.parametrize(
    ("reading", "line"),
    [
        (PassagesRead(read=214, total=214, is_reading=False), ""),
        (PassagesRead(read=1120, total=2140, is_reading=True), "1,120 of 2,140 passages are encoded."),
    ],
)
def test_how_far_the_model_has_read_is_said_until_it_has_read_all(reading, line):
    overview = replace(make_overview(NOW), reading=reading)
    head = " ".join(check(admin("reading", overview)).split())
    assert line in head
    assert ("are encoded" in head) == bool(line)


def test_the_dashboard_says_how_many_documents_are_read():
    overview = replace(make_overview(NOW), documents_read=DocumentsRead(read=12, total=1480, is_most=False))
    assert "Documents are being read: 12 of 1,480." in check(admin("reading", overview))


def test_a_question_without_an_answer_says_so():
    lost = Turn(message_id="m", role="user", text="Where?", created=NOW, unanswered="lost")
    turns = [lost, replace(lost, unanswered="failed"), replace(lost, unanswered=None)]
    shown = " ".join(check(render("chat/transcript.html", language="en", turns=turns, **PLAIN)).split())
    assert shown.count("Ask again") == 2
    assert "the server was stopped. Ask again." in shown


def test_the_file_of_the_desks_own_faq_is_not_given_out(desk):
    answer = make_answer("c", "m", "Can I return it?")
    own = replace(answer.citations[1], document="/data/faq/FAQ.jsonl")
    desk.store("Can I return it?", replace(answer, citations=(own,)))
    assert "/sources/" not in transcript(desk, "c", technical=False)


def test_conversations_are_grouped_by_days_of_the_servers_time_zone(monkeypatch):
    monkeypatch.setenv("TZ", "Asia/Shanghai")
    time.tzset()
    try:
        now = datetime(2026, 11, 26, 18, 0, tzinfo=UTC)  # 02:00 of the next day there
        found = [day(now - timedelta(hours=hours), now) for hours in (1, 3, 26, 27, 200)]
        assert found == ["Today", "Yesterday", "Yesterday", "This week", "Earlier"]
    finally:
        monkeypatch.undo()
        time.tzset()
