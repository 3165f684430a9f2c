"""Neighbours at ingest: chosen, recorded, read while a passage is encoded, and taken back with the text they carry."""

import random
from pathlib import Path

import numpy as np
import pytest
from desks import finish, small_desk
from hashed_search import HashEmbedder
from sqlalchemy import event
from test_app_library import document, passage, store

from app.desk.doctor import encoded_passages as modules
from app.desk.service import Service
from app.domain.documents import StoredPassage, Vectors
from app.knowledge.prompts import passage_text
from cache.memory.keys import PUBLIC_TENANT
from cache.prompt.plan import Segment

PAGES = {
    "returns": "Returns take thirty days from delivery of the parcel.",
    "refunds": "Refunds for returns take five days from delivery of the goods to us.",
    "exchanges": "Returns may be exchanged within thirty days for goods of another size.",
    "gift-cards": "Gift cards cannot be refunded and last five years.",
    "stores": "The store in Galway has a repair bench and sells gift cards.",
    "shipping": "Standard delivery of a parcel costs 4.95 and takes three days.",
}


def write(folder: Path, pages: dict[str, str]) -> None:
    folder.mkdir(exist_ok=True)
    for name, text in pages.items():
        (folder / f"{name}.md").write_text(f"# {name.title()}\n\n{text}\n")


@pytest.fixture
def pages(tmp_path):
    write(tmp_path / "pages", PAGES)
    return tmp_path / "pages"


def stored(desk: Service) -> dict[str, StoredPassage]:
    found = desk.library.passages(desk.library.all_ids())
    return {Path(passage.document).stem: passage for passage in found}


def neighbours(desk: Service) -> dict[str, list[str]]:
    return {name: [Path(n.document).stem for n in passage.neighbours] for name, passage in stored(desk).items()}


def dependants(desk: Service, name: str) -> set[str]:
    return {page for page, near in neighbours(desk).items() if name in near}


def segments(desk: Service) -> dict[str, Segment]:
    return {name: desk.engine.segment(desk.prompts.module(p)) for name, p in stored(desk).items()}


def naive_left_context(desk: Service, name: str) -> bytes:
    """What stands between system text and passage: the neighbours' texts, the closest last."""
    near = stored(desk)[name].neighbours
    return "".join(passage_text(n.title, n.heading_path, n.text) for n in near[::-1]).encode()


def keys(desk: Service) -> dict[str, str]:
    return {name: passage.module_key or "" for name, passage in stored(desk).items()}


def check(desk: Service) -> None:
    """In every tier: the system text, each passage behind the neighbours recorded for it, and nothing else."""
    expected = segments(desk)
    for name, segment in expected.items():
        assert bytes(segment.left_context) == naive_left_context(desk, name)
    assert keys(desk) == {name: desk.engine.store.key(segment) for name, segment in expected.items()}
    system = desk.engine.store.key(desk.engine.segment(desk.prompts.system))
    assert desk.engine.call(lambda store: store.keys_of(PUBLIC_TENANT)) == {*keys(desk).values(), system}


def scores(desk: Service, name: str) -> dict[str, float]:
    embedder = HashEmbedder()

    def vector(passage: StoredPassage) -> Vectors:
        return embedder.embed_queries([" > ".join(passage.heading_path) + "\n" + passage.text])[0]

    there = stored(desk)
    own = vector(there[name])
    return {other: float(own @ vector(passage)) for other, passage in there.items() if other != name}


def are_nearest(desk: Service, name: str, near: list[str], count: int) -> bool:
    """Whether these are the closest, closest first, ties in any order."""
    close = scores(desk, name)
    best = sorted(close.values(), reverse=True)[:count]
    return len(set(near)) == len(near) == len(best) and np.allclose([close[n] for n in near], best, atol=1e-5)


def test_the_doctor_tells_how_many_there_are_and_are_wanted(tmp_path, pages):
    with small_desk(tmp_path / "desk", neighbours=2) as desk:
        assert "(set to" not in modules(desk.settings)
        desk.ingest([pages])
        settings = desk.settings
    assert modules(settings).endswith(", neighbours 2")
    assert "neighbours 2 (set to 1, from the next `warmdesk ingest`," in modules(
        settings.model_copy(update={"neighbours": 1})
    )


def test_the_closest_are_recorded_and_never_the_passage_itself(tmp_path, pages):
    with small_desk(tmp_path / "desk", neighbours=3) as desk:
        report = desk.ingest([pages])
        for name, near in neighbours(desk).items():
            assert name not in near
            assert are_nearest(desk, name, near, 3), name
        check(desk)
        again = desk.ingest([pages])
    assert (report.modules.encoded, report.changes.kept) == (6, 0)
    assert (again.modules.encoded, again.changes.kept) == (0, 6)


def test_an_answer_is_placed_out_of_modules_that_read_their_neighbours(tmp_path, pages):
    with small_desk(tmp_path / "desk", pages=pages, neighbours=3) as desk:
        answer = finish(desk, "How long do returns take?")
        exact = finish(desk, "How long do returns take?", reuse="off")
        assert exact.usage.prompt_tokens == answer.usage.prompt_tokens, "neighbours are no part of the prompt"
        tokens = {
            desk.engine.store.key(segment): len(segment.tokens)
            for segment in segments(desk).values()
            if segment.left_context
        }
    assert {module.source for module in answer.modules} == {"device"}
    used = [module for module in answer.modules if module.document]
    assert len(used) == 2
    assert all(tokens[module.id] == module.tokens for module in used)
    assert answer.usage.module == sum(module.tokens for module in answer.modules)
    assert answer.usage.computed == answer.usage.prompt_tokens - answer.usage.module


def test_a_changed_neighbour_encodes_its_dependants_again_and_no_others(tmp_path, pages):
    with small_desk(tmp_path / "desk", pages=pages, neighbours=2) as desk:
        old, touched = keys(desk), dependants(desk, "gift-cards")
        assert 0 < len(touched) < 5
        write(pages, {"gift-cards": "Vouchers cannot be turned into money."})
        report = desk.ingest([pages / "gift-cards.md"])
        new = keys(desk)
        assert {name for name in new if new[name] != old[name]} == touched | {"gift-cards"}
        for name in touched | {"gift-cards"}:
            assert are_nearest(desk, name, neighbours(desk)[name], 2)
        check(desk)
        answer = finish(desk, "Can gift cards be refunded?")
        assert {module.source for module in answer.modules} == {"device"}
    assert report.modules.encoded == 1 + len(touched)
    assert (report.modules.kept, report.replaced, report.changes.dropped) == (0, 1, 1)


def test_forgetting_leaves_nothing_that_was_computed_with_the_document_in_sight(tmp_path, pages):
    secret = PAGES["gift-cards"].encode()
    with small_desk(tmp_path / "desk", pages=pages, neighbours=2) as desk:
        finish(desk, "Can gift cards be refunded?")
        old, touched = keys(desk), dependants(desk, "gift-cards")
        assert touched
        carried = {
            name for name, segment in segments(desk).items() if secret in bytes(segment.left_context + segment.tokens)
        }
        assert carried == touched | {"gift-cards"}
        desk.forget("gift-cards.md")
        new = keys(desk)
        assert {name for name in new if new[name] != old[name]} == touched
        assert not any(secret in bytes(segment.left_context + segment.tokens) for segment in segments(desk).values())
        gone = {old[name] for name in carried}
        headers = [entry.header for entry in desk.engine.store.device.entries.values()]
        assert desk.engine.store.disk is not None
        headers += desk.engine.store.disk.headers()
        assert not gone & {header.key for header in headers}
        assert all({len(near) for near in neighbours(desk).values()} == {2} for _ in touched)
        check(desk)
        assert "gift-cards" not in {name for near in neighbours(desk).values() for name in near}
        assert {module.source for module in finish(desk, "Can gift cards be refunded?").modules} == {"device"}
    names = {path.stem.replace("-", ":", 1) for path in (tmp_path / "desk" / "modules").glob("*.safetensors")}
    assert not gone & names
    assert set(new.values()) <= names


def test_forgetting_takes_what_changes_left_behind(tmp_path, pages):
    """Modules of another system text are nobody's key any more; they hold the documents' texts all the same."""
    with small_desk(tmp_path / "desk", pages=pages, neighbours=1) as desk:
        left = set(keys(desk).values())
    with small_desk(tmp_path / "desk", pages=pages, neighbours=1, system_text="Say it in a few words.") as desk:
        assert left <= desk.engine.call(lambda store: store.keys_of(PUBLIC_TENANT))
        desk.forget("stores.md")
        check(desk)


def test_a_desk_that_was_not_read_ahead_is_not_read_to_forget(tmp_path, pages):
    """Was wrong once: forgetting one of thousands of documents waited until the model had read all others."""
    with small_desk(tmp_path / "desk", neighbours=1) as desk:
        desk.ingest([pages], warm=False)
        desk.forget("stores.md")
        assert not desk.engine.call(lambda store: store.keys_of(PUBLIC_TENANT))
        assert {len(near) for near in neighbours(desk).values()} == {1}


def test_the_same_text_elsewhere_keeps_its_module(tmp_path, pages):
    write(tmp_path / "copies", PAGES)
    with small_desk(tmp_path / "desk", pages=pages, neighbours=1) as desk:
        report = desk.ingest([tmp_path / "copies"])
        assert report.passages == 6
        desk.forget(str(tmp_path / "copies" / "stores.md"))
        check_all = desk.library.passages(desk.library.all_ids())
        assert len(check_all) == 11
        for one in check_all:
            assert one.module_key is not None
            assert desk.engine.call(lambda store, key=one.module_key: store.has(key))
            assert all(n.document != str(tmp_path / "copies" / "stores.md") for n in one.neighbours)


def test_another_setting_takes_effect_at_the_next_ingest_for_all(tmp_path, pages):
    """0 -> 3 -> 0, and the ingest need not name the documents."""
    seen: list[dict[str, str]] = []
    for count, paths in ((0, [pages]), (3, [pages / "stores.md"]), (0, [pages / "stores.md"])):
        with small_desk(tmp_path / "desk", neighbours=count) as desk:
            if seen:
                assert {module.source for module in finish(desk, "How long do returns take?").modules} == {"disk"}
                assert keys(desk) == seen[-1], "not before"
            report = desk.ingest(paths)
            assert report.modules.encoded == 6
            assert {len(near) for near in neighbours(desk).values()} == {count}
            check(desk)
            seen.append(keys(desk))
    assert seen[0] == seen[2]
    assert not set(seen[0].values()) & set(seen[1].values())


@pytest.mark.parametrize("stage", ["reading", "encoding"])
def test_an_interrupted_ingest_goes_on_where_it_stopped(tmp_path, pages, stage, monkeypatch):
    monkeypatch.setattr("app.knowledge.ingest.BATCH", 1)
    monkeypatch.setattr("app.knowledge.warm.AT_ONCE", 1)
    monkeypatch.setattr("app.knowledge.warm.JOBS_IN_FLIGHT", 1)

    def interrupt(now: str, done: int, total: int) -> None:
        if (now, done) == (stage, 2):
            raise KeyboardInterrupt

    with small_desk(tmp_path / "desk", pages=pages, neighbours=2) as desk:
        write(pages, {"gift-cards": "Vouchers cannot be turned into money.", "stores": "All stores sell vouchers."})
        with pytest.raises(KeyboardInterrupt):
            desk.ingest([pages], interrupt)
    with small_desk(tmp_path / "desk", neighbours=2) as desk:
        desk.ingest([pages / "shipping.md"] if stage == "encoding" else [pages])
        assert {len(near) for near in neighbours(desk).values()} == {2}
        check(desk)


def test_models_without_relocation_ingest_and_answer_all_the_same(tmp_path, pages):
    with small_desk(tmp_path / "desk", pages=pages, neighbours=3, family="gpt2") as desk:
        assert set(map(tuple, neighbours(desk).values())) == {()}
        assert finish(desk, "How long do returns take?").usage.prompt_tokens > 0
        desk.forget("stores.md")
        check(desk)


@pytest.mark.parametrize("placement", ["slotted", "shared"])
def test_the_setting_says_how_a_conversation_is_placed(tmp_path, pages, placement):
    with small_desk(tmp_path / "desk", placement=placement) as desk:
        desk.ingest([pages])
        answer = finish(desk, "How long do returns take?")
        again = finish(desk, "And refunds?", conversation_id=answer.conversation_id)
    system, first, second = answer.modules
    assert first.position == system.tokens
    assert second.position == system.tokens + (256 if placement == "slotted" else 0)
    assert again.usage.session > 0


def rules(desk: Service, before: dict[str, list[str]], changed: set[str], count: int, asked: int) -> None:
    """The rule, told naively: who keeps their neighbours, and who has the closest there are now."""
    for name, near in neighbours(desk).items():
        old = before.get(name, [])
        keeps = count == asked and old and name not in changed and not changed & set(old)
        if keeps:
            assert near == old, name
        else:
            assert are_nearest(desk, name, near, count), name


def test_any_history_of_ingesting_and_forgetting(tmp_path):
    rng = random.Random(1)
    words = ["return", "refund", "parcel", "card", "gift", "store", "days", "money", "voucher", "size", "repair"]
    folder = tmp_path / "pages"
    asked = 0
    for _ in range(4):
        count = rng.choice([0, 1, 2, 3, asked])
        with small_desk(tmp_path / "desk", neighbours=count) as desk:
            for _ in range(3):
                before, old = neighbours(desk), keys(desk)
                if before and rng.random() < 0.4:
                    name = rng.choice(sorted(before))
                    (folder / f"{name}.md").unlink()
                    desk.forget(f"{name}.md")
                    rules(desk, before, {name}, asked, asked)
                else:
                    changed = {f"page{i}" for i in rng.sample(range(9), rng.randint(1, 3))}
                    write(folder, {name: f"{name} {' '.join(rng.choices(words, k=6))}" for name in changed})
                    everything = rng.random() < 0.5
                    report = desk.ingest([folder] if everything else [folder / f"{name}.md" for name in changed])
                    rules(desk, before, changed, count, asked)
                    asked = count
                    new = keys(desk)
                    assert report.modules.encoded == len({key for name, key in new.items() if key != old.get(name)})
                check(desk)


# --- library and search ------------------------------------------------------------------------------------


def test_a_document_with_another_title_is_another_neighbour(library):
    """A passage without headings is read under its document's title, which its content hash does not cover."""
    store(library, document("/a"), [passage("a")])
    store(library, document("/b"), [passage("b")])
    library.set_neighbours({1: [2], 2: [1]})
    library.set_module_keys({1: "key-a", 2: "key-b"})
    again = store(library, document("/b", "b2:2"), [passage("b", embedded=False)])
    assert (again.kept, again.removed_module_keys) == ((2,), ())
    renamed = store(
        library, type(document())(path="/b", title="Other", content_hash="b2:3"), [passage("b", embedded=False)]
    )
    assert (renamed.kept, renamed.removed_module_keys) == ((2,), ("key-a",))
    one, two = library.passages([1, 2])
    assert (one.module_key, one.neighbours) == (None, ())
    assert (two.module_key, [n.id for n in two.neighbours]) == ("key-b", [1])


def test_numbers_that_are_gone_are_ignored(library):
    store(library, document("/a"), [passage("a"), passage("b")])
    library.set_module_keys({1: "key-a"})
    assert library.set_neighbours({1: [77, 2], 78: [1]}) == ("key-a",)
    (one,) = library.passages([1])
    assert [n.id for n in one.neighbours] == [2]
    assert one.neighbours[0].neighbours == ()
    assert library.set_neighbours({1: [2]}) == ()


def test_a_module_that_another_passage_has_is_not_given_up(library):
    store(library, document("/a"), [passage("a"), passage("b"), passage("c")])
    library.set_module_keys({1: "same", 2: "same", 3: "c"})
    assert library.set_neighbours({1: [3]}) == ()
    assert library.set_neighbours({2: [3]}) == ("same",)
    removed = store(library, document("/a", "b2:2"), [passage(name, embedded=False) for name in "ab"])
    assert removed.removed_module_keys == ("c",)
    assert [(p.module_key, p.neighbours) for p in library.passages([1, 2])] == [(None, ()), (None, ())]


def test_neighbours_are_read_with_few_queries(library):
    count = 20
    store(library, document("/a"), [passage(f"p{number}") for number in range(count)])
    library.set_neighbours({i + 1: [j + 1 for j in range(count) if j != i] for i in range(count)})
    statements: list[str] = []
    event.listen(
        library._database.engine, "before_cursor_execute", lambda *given: statements.append(given[2])
    )  # connection, cursor, statement, ...
    found = library.passages(range(1, count + 1))
    assert all(len(one.neighbours) == count - 1 for one in found)
    assert len([statement for statement in statements if statement.startswith("SELECT")]) == 3


def test_the_whole_passage_asks_and_the_best_stretch_answers(tmp_path):
    """Long passages have several vectors: none is found twice, and none finds itself."""
    long = " ".join([*["Parcels and parcels of parcels."] * 30, *["Cards for cards."] * 10])
    write(tmp_path / "pages", {"long": long, "parcels": "Parcels of parcels.", "cards": "Cards for cards."})
    with small_desk(
        tmp_path / "desk", pages=tmp_path / "pages", passage_tokens=4000, neighbours=2, device_memory=64 << 20
    ) as desk:
        ids, _ = desk.library.vectors(256, desk.library.all_ids())
        assert len(ids) > len(set(ids.tolist())) == 3
        assert neighbours(desk) == {
            "long": ["parcels", "cards"],
            "parcels": ["long", "cards"],
            "cards": ["long", "parcels"],
        }
        assert desk.search.nearest([99], 2) == {}
