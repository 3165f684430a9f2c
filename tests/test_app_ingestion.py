"""Documents coming in: what is counted, what goes and what stays, collections, room for modules, progress."""

import shutil
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import pytest
from desks import finish, small_desk, write_pages
from refusals import one_line
from test_app_neighbours import check, neighbours, stored, write

from app.desk.service import Service
from app.domain.answers import Answer
from app.domain.documents import UnreadFile
from app.domain.errors import DeskError
from app.knowledge.ingest import IngestReport


def sections(*texts: str) -> str:
    parts = [f"## {text.split()[0]}\n\n{' '.join([text] * (120 // len(text) + 1))}" for text in texts]
    return "# Page\n\n" + "\n\n".join(parts) + "\n"


def changes(report: IngestReport) -> tuple[int, int, int]:
    return report.changes.new, report.changes.kept, report.changes.dropped


def documents(report: IngestReport) -> tuple[int, int, int, int]:
    return report.documents, report.unchanged, report.replaced, report.removed


def names(desk: Service) -> list[str]:
    return sorted(Path(document.path).name for document in desk.documents())


def cited(answer: Answer) -> set[str]:
    return {Path(citation.document).name for citation in answer.citations}


# --- counts ------------------------------------------------------------------------------------------------


def test_every_document_and_passage_is_counted_once(tmp_path):
    pages = tmp_path / "pages"
    pages.mkdir()
    (pages / "one.md").write_text(sections("alpha is first", "beta is second", "gamma is third"))
    (pages / "two.md").write_text(sections("delta is alone"))
    with small_desk(tmp_path / "desk", neighbours=0) as desk:
        first = desk.ingest([pages])
        again = desk.ingest([pages])
        (pages / "one.md").write_text(sections("gamma is third", "alpha is first", "epsilon is new"))
        (pages / "three.md").write_text(sections("zeta comes", "eta comes"))
        changed = desk.ingest([pages])
        (pages / "one.md").write_text(sections("alpha is first"))
        shorter = desk.ingest([pages / "one.md"])
        assert desk.library.counts().passages == 4
    assert (documents(first), changes(first), first.passages) == ((2, 0, 0, 0), (4, 0, 0), 4)
    assert (documents(again), changes(again), again.passages) == ((2, 2, 0, 0), (0, 4, 0), 4)
    assert (documents(changed), changes(changed), changed.passages) == ((3, 1, 1, 0), (3, 3, 1), 6)
    assert (documents(shorter), changes(shorter), shorter.passages) == ((1, 0, 1, 0), (0, 1, 2), 1)
    modules = [
        (report.modules.encoded, report.modules.kept, report.modules.dropped) for report in (first, again, changed)
    ]
    assert modules == [(4, 0, 0), (0, 4, 0), (3, 3, 1)]
    assert (shorter.modules.encoded, shorter.modules.kept, shorter.modules.dropped) == (0, 1, 2)
    assert again.passages_per_second is None
    assert first.passages_per_second


def test_new_files_are_not_looked_for_one_by_one(tmp_path, pages, monkeypatch):
    """Was wrong once: the first of 400 files was read a second later, and the first of 10,000 files half a minute."""
    looked = list[str]()
    with small_desk(tmp_path / "desk", neighbours=0) as desk:
        find = desk.library.find
        monkeypatch.setattr(desk.library, "find", lambda path: (looked.append(path), find(path))[1])
        desk.ingest([pages], warm=False)
        assert sorted(looked) == [document.path for document in desk.documents()]


def test_passages_of_another_length_are_other_passages(tmp_path, pages):
    with small_desk(tmp_path / "desk") as desk:
        desk.ingest([pages])
    with small_desk(tmp_path / "desk", passage_tokens=40) as desk:
        report = desk.ingest([pages])
        assert all(p.num_tokens <= 40 for p in desk.library.passages(desk.library.all_ids()))
    assert documents(report) == (4, 0, 4, 0)


def test_a_file_named_twice_is_taken_in_once(tmp_path, pages):
    (tmp_path / "link.md").symlink_to(pages / "returns.md")
    with small_desk(tmp_path / "desk") as desk:
        report = desk.ingest([pages / "returns.md", pages, pages / ".." / "pages", tmp_path / "link.md"])
        assert names(desk) == ["gift-cards.md", "returns.md", "shipping.html", "stores.txt"]
    assert documents(report) == (4, 0, 0, 0)


def test_a_link_that_took_the_place_of_a_file_is_gone(tmp_path, pages):
    (tmp_path / "private.md").write_text("# Private\n\nNobody reads this sentence.\n")
    with small_desk(tmp_path / "desk", pages=pages) as desk:
        (pages / "returns.md").unlink()
        (pages / "returns.md").symlink_to(tmp_path / "private.md")
        report = desk.ingest([pages], sync=True)
        assert names(desk) == ["gift-cards.md", "shipping.html", "stores.txt"]
    assert report.removed == 1


# --- files that cannot be read -----------------------------------------------------------------------------


def test_a_file_that_cannot_be_read_any_more_keeps_its_former_content(tmp_path, pages):
    with small_desk(tmp_path / "desk", pages=pages) as desk:
        before = desk.library.passages_of(str(pages / "gift-cards.md"))
        (pages / "gift-cards.md").write_bytes(bytes(range(256)) * 8)
        report = desk.ingest([pages], sync=True)
        assert desk.library.passages_of(str(pages / "gift-cards.md")) == before
        assert "cannot be returned" in finish(desk, "Can gift cards be returned?").citations[0].quote
    assert documents(report) == (3, 3, 0, 0)
    assert [Path(failed.path).name for failed in report.failed] == ["gift-cards.md"]
    assert report.modules.dropped == 0


def test_a_part_that_is_left_out_is_a_warning_each_time(tmp_path):
    file = tmp_path / "faq.csv"
    file.write_text("question,answer\nHow long do cards last?,Five years.\nIs there parking?,\n")
    warning = UnreadFile(path=str(file), reason="row 3 skipped: no question or no answer")
    with small_desk(tmp_path / "desk") as desk:
        for unchanged in (0, 1):
            report = desk.ingest([file])
            assert (report.warnings, report.failed, report.unchanged) == ([warning], [], unchanged)


def test_a_name_that_would_move_the_cursor_is_printed_harmlessly(tmp_path):
    file = tmp_path / "a\x1b[2J\nb.md"
    file.write_text("")
    with small_desk(tmp_path / "desk") as desk:
        (failed,) = desk.ingest([file]).failed
    assert failed.reason == "empty file"
    assert not any(character in failed.path for character in "\x1b\n")


# --- sync --------------------------------------------------------------------------------------------------


def test_sync_removes_documents_whose_files_are_gone(tmp_path, pages):
    with small_desk(tmp_path / "desk", pages=pages, neighbours=0) as desk:
        key = desk.library.passages_of(str(pages / "gift-cards.md"))[0].module_key
        assert key is not None
        (pages / "gift-cards.md").unlink()
        kept = desk.ingest([pages])
        assert (kept.removed, "gift-cards.md" in names(desk)) == (0, True)
        report = desk.ingest([pages], sync=True)
        assert names(desk) == ["returns.md", "shipping.html", "stores.txt"]
        assert desk.engine.store.tier(key) is None
        assert "gift-cards.md" not in cited(finish(desk, "Can gift cards be returned?"))
    assert (documents(report), report.changes.dropped, report.modules.dropped) == ((3, 3, 0, 1), 1, 1)
    with small_desk(tmp_path / "desk", neighbours=0) as desk:
        assert "gift-cards.md" not in cited(finish(desk, "Can gift cards be returned?"))


def test_sync_is_of_the_folders_that_were_named(tmp_path, pages):
    """What is elsewhere stays, also in a folder whose name only begins alike."""
    others = [write_pages(tmp_path / "pages-2"), write_pages(tmp_path / "other")]
    with small_desk(tmp_path / "desk") as desk:
        desk.ingest([pages, *others])
        for folder in (pages, *others):
            (folder / "stores.txt").unlink()
        shutil.rmtree(others[1])
        assert desk.ingest([pages], sync=True).removed == 1
        assert len(desk.documents()) == 11
        assert desk.ingest([pages / "returns.md"], sync=True).removed == 0, "a file is no folder"
        assert desk.ingest([tmp_path], sync=True).removed == 5, "the folder above has everything"


def test_a_path_that_no_database_takes_is_named_and_the_others_are_in(tmp_path, pages, database_url):
    deep = pages.joinpath(*["退款" * 40] * 11)  # of Chinese characters with three bytes each
    deep.mkdir(parents=True)
    (deep / "far.md").write_text("# Far\n\nFar away.\n")
    with small_desk(tmp_path / "desk", database_url=database_url) as desk:
        report = desk.ingest([pages], sync=True)
        assert len(desk.documents()) == 4
    [failed] = report.failed
    assert failed.path.endswith("far.md")
    assert "the limit is 2,500: move it" in failed.reason


def test_sync_keeps_documents_of_a_folder_that_may_not_be_entered(tmp_path, pages, monkeypatch):
    """Simulated: permission bits do not stop root."""
    locked = write_pages(pages / "locked")
    real = Path.stat

    def stat(self: Path, **options: Any) -> Any:
        if locked in self.parents:
            raise PermissionError(13, "Permission denied", str(self))
        return real(self, **options)

    with small_desk(tmp_path / "desk", pages=pages) as desk:
        monkeypatch.setattr(Path, "stat", stat)
        report = desk.ingest([pages], sync=True)
        assert len(desk.documents()) == 8
    assert (report.removed, report.unchanged) == (0, 4)


def test_sync_keeps_everything_when_nothing_in_the_folder_can_be_read(tmp_path, pages):
    """A missing folder, and the empty one on which a drive is mounted otherwise, also with a file that is no document
    in it. Another folder is synchronised as ever.
    """
    other = write_pages(tmp_path / "other")
    with small_desk(tmp_path / "desk") as desk:
        desk.ingest([pages, other])
        pages.rename(tmp_path / "away")
        missing = desk.ingest([pages], sync=True)
        pages.mkdir()
        (other / "stores.txt").unlink()
        empty = desk.ingest([pages, other], sync=True)
        (pages / "not-mounted.bin").write_bytes(b"\0\1\2" * 99)
        marked = desk.ingest([pages], sync=True)
        assert len(desk.documents()) == 7
    reports = (missing, empty, marked)
    assert [(report.documents, report.removed) for report in reports] == [(0, 0), (3, 1), (0, 0)]
    assert all(report.failed[-1].path == str(pages) for report in reports)
    assert ["its 4 documents stay" in report.failed[-1].reason for report in reports] == [False, True, True]


def test_a_drive_that_is_unmounted_in_the_middle_removes_nothing(tmp_path, pages):
    with small_desk(tmp_path / "desk", pages=pages) as desk:

        def unmount(stage: str, done: int, total: int) -> None:
            if (stage, done) == ("reading", 1):
                pages.rename(tmp_path / "away")
                pages.mkdir()

        for page in pages.iterdir():
            page.write_text(f"{page.read_text()}\nAnd more.\n")
        report = desk.ingest([pages], unmount, sync=True)
        assert len(desk.documents()) == 4
    assert (report.documents, report.removed, len(report.failed)) == (1, 0, 3)


# --- collections -------------------------------------------------------------------------------------------


@pytest.fixture
def two(tmp_path):
    for folder, years in (("shop", "five"), ("club", "nine")):
        write(
            tmp_path / folder,
            {
                f"{folder}-cards": f"Gift cards of the {folder} last {years} years and can be given away.",
                f"{folder}-returns": f"Returns to the {folder} take thirty days from delivery of the parcel.",
                f"{folder}-parcels": f"Delivery of a parcel of the {folder} takes three days.",
            },
        )
    return tmp_path / "shop", tmp_path / "club"


def test_asked_within_a_collection_only_its_documents_are_cited(tmp_path, two):
    shop, club = two
    question = "How long do gift cards last?"
    with small_desk(tmp_path / "desk", passages=4) as desk:
        desk.ingest([shop], collection="shop")
        desk.ingest([club], collection="club")
        assert {document.collection for document in desk.documents()} == {"shop", "club"}
        of_all, *within = (finish(desk, question, collections=names) for names in ([], ["shop"], ["club"]))
        of_shop, of_club = within
        assert finish(desk, question, collections=["shop", "club"]).citations == of_all.citations
        options = {"conversation_id": of_shop.conversation_id, "collections": ["club"]}
        assert all(name.startswith("club-") for name in cited(finish(desk, "And the parcel?", **options)))
    assert all(name.startswith("shop-") for name in cited(of_shop))
    assert "shop-cards.md" in cited(of_shop)
    assert all(name.startswith("club-") for name in cited(of_club))
    assert {"shop-cards.md", "club-cards.md"} <= cited(of_all)


def test_an_unknown_collection_is_a_clear_error_and_leaves_no_conversation(tmp_path, two):
    with small_desk(tmp_path / "desk") as desk:
        desk.ingest([two[0]], collection="shop")
        for collections in (["club"], ["shop", "club"]):
            with one_line("collection-unknown", "there is no collection 'club'"):
                desk.ask("How long?", collections=collections)
        assert desk.conversations() == []


def test_a_document_that_moves_has_neighbours_where_it_is_now(tmp_path, two):
    with small_desk(tmp_path / "desk", neighbours=2, passages=4) as desk:
        desk.ingest([two[0]], collection="shop")
        desk.ingest([two[1]], collection="club")
        report = desk.ingest([two[0] / "shop-cards.md"], collection="club")
        near = neighbours(desk)
        check(desk)
        assert {other.split("-")[0] for other in near["shop-cards"]} == {"club"}
        for name in ("shop-returns", "shop-parcels"):
            assert "shop-cards" not in near[name], "who stays has none of another collection"
        assert None not in {passage.module_key for passage in stored(desk).values()}
        assert "shop-cards.md" in cited(finish(desk, "How long do gift cards last?", collections=["club"]))
        assert "shop-cards.md" not in cited(finish(desk, "How long do gift cards last?", collections=["shop"]))
    assert (documents(report), changes(report)) == ((1, 0, 1, 0), (0, 1, 0))


# --- modules -----------------------------------------------------------------------------------------------


def test_without_warming_passages_are_found_and_encoded_by_the_first_question(tmp_path, pages):
    question = "Can gift cards be returned?"
    with small_desk(tmp_path / "desk") as desk:
        cold = desk.ingest([pages], warm=False)
        assert {passage.module_key for passage in stored(desk).values()} == {None}
        first, second = finish(desk, question), finish(desk, question)
        warm = desk.ingest([pages / "returns.md"])
        assert None not in {passage.module_key for passage in stored(desk).values()}
    assert (cold.changes.new, cold.modules.encoded, cold.modules.waiting, cold.timings_s.encoding) == (4, 0, 0, 0.0)
    assert {module.source for module in first.modules if module.document} == {"computed"}
    assert {module.source for module in second.modules if module.document} == {"device"}
    assert "gift-cards.md" in cited(first)
    assert warm.modules.encoded + warm.modules.kept == 4, "what waits elsewhere is encoded, too"


def many(folder: Path, count: int) -> Path:
    write(folder, {f"page{i}": " ".join([f"Subject{i} is explained here."] * 6) for i in range(count)})
    return folder


def test_passages_wait_where_the_tiers_have_no_room(tmp_path):
    pages = many(tmp_path / "pages", 20)
    with small_desk(tmp_path / "desk", device_memory=1 << 19, disk=0) as desk:
        report = desk.ingest([pages])
        assert 0 < report.modules.waiting < 20
        assert report.modules.encoded + report.modules.waiting == report.passages == 20
        resident = desk.engine.call(lambda store: [r.header.num_tokens for r in store.device.entries.values()])
        assert sum(resident) <= desk.engine.store.device.allocator.capacity
        for number in (0, 19):
            answer = finish(desk, f"What is subject{number}?")
            assert f"page{number}.md" in cited(answer)
    with small_desk(tmp_path / "other", device_memory=1 << 19, disk=64 << 20) as desk:
        report = desk.ingest([pages])
        assert (report.modules.encoded, report.modules.waiting) == (20, 0)
        assert all(desk.engine.store.tier(p.module_key or "") for p in stored(desk).values())


def test_a_passage_that_cannot_be_encoded_is_named_and_the_others_are_read(tmp_path, monkeypatch):
    """Was wrong once: it ended the run, and no passage behind it was ever read."""
    pages = many(tmp_path / "pages", 9)
    with small_desk(tmp_path / "desk", neighbours=0) as desk:
        forward = desk.engine.model.forward

        def fragile(chunks: Any, *others: Any) -> Any:
            if b"Subject4" in bytes(token for chunk in chunks for token in chunk.tokens if token < 256):
                raise RuntimeError("[enforce fail] can't allocate memory")
            return forward(chunks, *others)

        monkeypatch.setattr(desk.engine.model, "forward", fragile)
        modules = desk.ingest([pages]).modules
        assert (modules.encoded, modules.kept) == (8, 0)
        ((passage, reason),) = ((one.passage, one.reason) for one in modules.failed)
        assert passage.endswith("page4.md#0")
        assert reason == f"module {passage!r} could not be computed: ask again (the log has the cause)"
        monkeypatch.undo()
        again = desk.ingest([pages]).modules
        assert (again.encoded, again.failed) == (1, [])


# --- one run at a time -------------------------------------------------------------------------------------


def test_one_run_at_a_time_except_for_encoding(tmp_path, pages):
    codes, encoding = list[str](), list[int]()
    with small_desk(tmp_path / "desk", pages=pages / "returns.md") as desk:

        def another(stage: str, done: int, total: int) -> None:
            if stage == "encoding":  # which keeps nobody from changing documents
                desk.ingest([pages / "returns.md"], warm=False)
                encoding.append(done)
                return
            for attempt in (lambda: desk.ingest([pages]), lambda: desk.forget("returns.md")):
                with pytest.raises(DeskError) as caught:
                    attempt()
                codes.append(caught.value.code)

        report = desk.ingest([pages], another)
        assert report.documents == 4
        assert set(codes) == {"ingestion-running"}
        assert encoding
        assert desk.ingest([pages]).unchanged == 4, "the lock is free again"
        assert desk.forget("returns.md").removed.passages == 1


def test_a_run_whose_lock_is_lost_changes_nothing_more(tmp_path, pages, monkeypatch):
    held = iter([True])
    with small_desk(tmp_path / "desk") as desk:
        monkeypatch.setattr(desk.library, "alone", lambda: nullcontext(lambda: next(held, False)))
        with one_line("database-lost", "run the command again"):
            desk.ingest([pages])
        assert desk.documents() == []


# --- what it is for ----------------------------------------------------------------------------------------


def test_progress_names_every_stage_and_ends_with_all_of_it(tmp_path, pages, monkeypatch):
    for name, number in (("search.EMBEDDED_AT_ONCE", 2), ("ingest.READ_AT_ONCE", 2), ("warm.AT_ONCE", 1)):
        monkeypatch.setattr(f"app.knowledge.{name}", number)
    seen: list[tuple[str, int, int]] = []
    with small_desk(tmp_path / "desk") as desk:
        desk.ingest([pages], lambda *event: seen.append(event))
    by_stage = {stage: [(done, total) for name, done, total in seen if name == stage] for stage, _, _ in seen}
    assert list(by_stage) == ["reading", "embedding", "encoding"]
    assert by_stage["reading"] == [(0, 4), (1, 4), (2, 4), (3, 4), (4, 4)]
    assert by_stage["embedding"] == [(2, 4), (4, 4), (4, 4), (4, 4)], "twice more while statements are read"
    assert by_stage["encoding"] == sorted(by_stage["encoding"])
    assert by_stage["encoding"][-1] == (4, 4)
