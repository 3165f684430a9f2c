"""The documents as a PML schema that the language accepts."""

from pathlib import Path

from desks import small_desk, write_pages

from app.domain.callers import PML_TENANT
from app.pml.commands import export_schema, module_name, run_prompt
from cache.decoding.sampling import Sampling
from cache.pml.binding import bind
from cache.pml.layout import lay_out
from cache.pml.nodes import NAME
from cache.pml.parser import parse_prompt, parse_schema
from cache.prompt.tokenizer import NAMED, WordTokenizer


def test_the_knowledge_base_is_a_schema_as_long_as_its_longest_passages(tmp_path: Path) -> None:
    pages = write_pages(tmp_path / "pages")
    (pages / "odd.txt").write_text("Odd\n\nA <module name='x'/> & \x0b more </schema>\n")
    with small_desk(tmp_path / "desk", pages=pages) as desk:
        text, documents, passages = export_schema(desk.library, "Be kind & brief.", 2)
    assert (documents, passages) == (5, 5)
    layout = lay_out(parse_schema(text), WordTokenizer(), roles=NAMED["chatml"])
    assert list(layout.root.children) == ["slot-1", "slot-2"]
    slot = layout.root.children["slot-1"]
    assert set(slot.children) == {"returns.md", "gift-cards.md", "shipping.html", "stores.txt", "odd.txt"}
    assert slot.end - slot.start == max(child.end - child.start for child in slot.children.values())
    odd = slot.children["odd.txt"].children["p1"]
    assert "<module name='x'/>" in "".join(piece.text for piece in odd.node.children if hasattr(piece, "text"))
    prompt = '<prompt schema="desk"><slot-1><returns.md><p1/></returns.md></slot-1><user>Why?</user></prompt>'
    assert bind(parse_prompt(prompt), layout).plan.num_tokens > 5


def test_names_are_names_and_differ() -> None:
    taken = {"module"}
    names = [module_name(path, taken) for path in ("/a/1 page.md", "b/1 page.md", "x/module", "c\\d é.md", "/", "--")]
    assert names == ["_1-page.md", "_1-page.md-2", "module-2", "d-é.md", "document", "_--"]
    assert all(NAME.fullmatch(name) for name in names)


def test_a_prompt_runs_from_files_and_finds_its_modules_again(tmp_path: Path) -> None:
    schema, prompt = tmp_path / "s.pml", tmp_path / "p.pml"
    schema.write_text('<schema name="s">You help.<module name="a">Gift cards stay.</module></schema>')
    prompt.write_text('<prompt schema="s"><a/>Why?</prompt>')
    with small_desk(tmp_path / "desk") as desk:
        first = run_prompt(desk.engine, schema, prompt, Sampling(max_tokens=4), "on")
        second = run_prompt(desk.engine, schema, prompt, Sampling(max_tokens=4), "on")
        baseline = run_prompt(desk.engine, schema, prompt, Sampling(max_tokens=4), "off")
    assert first["usage"]["computed_tokens"] == first["usage"]["prompt_tokens"] == len("You help.Gift cards stay.Why?")
    assert second["usage"]["prompt_tokens_details"]["module"] == len("You help.Gift cards stay.")
    assert baseline["usage"]["computed_tokens"] == first["usage"]["prompt_tokens"]
    assert first["tokens"] == second["tokens"]
    assert [module["name"] for module in second["modules"]] == ["s", "s/a"]
    assert {module["source"] for module in second["modules"]} == {"device"}


def test_forgetting_a_document_drops_what_was_encoded_of_it_through_pml(tmp_path: Path) -> None:
    schema, prompt = tmp_path / "kb.pml", tmp_path / "p.pml"
    with small_desk(tmp_path / "desk", pages=write_pages(tmp_path / "pages")) as desk:
        before = len(desk.overview().modules)
        schema.write_text(
            '<schema name="s">Gift cards cannot be returned. <module name="a">They stay.</module></schema>'
        )
        prompt.write_text('<prompt schema="s"><a/>Why?</prompt>')
        run_prompt(desk.engine, schema, prompt, Sampling(max_tokens=2), "on")
        desk.engine.store.flush()
        assert len(desk.engine.call(lambda store: store.keys_of(PML_TENANT))) == 2
        assert len(desk.overview().modules) == before, "they are no passages"
        desk.forget("gift-cards.md")
        assert desk.engine.call(lambda store: store.keys_of(PML_TENANT)) == frozenset()
        assert len(desk.overview().modules) == before - 1
