"""The language: reading and writing schemas, what they may contain, text and whitespace, chat turns, files.

Sections 2 and 6 of the specification beyond the cases of `pml_cases.json`; prompts are in `test_cache_pml_prompts`.
"""

import os
import tracemalloc
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from pml_cases import Facts, case_of, facts_of

from cache.errors import PMLError
from cache.pml.binding import Registry
from cache.pml.layout import lay_out
from cache.pml.nodes import MAX_SLOT, File, Module, Parameter, Role, Schema, Union, check_schema
from cache.pml.parser import parse_prompt, parse_schema, tidy, write_schema
from cache.prompt.parts import Text
from cache.prompt.tokenizer import NAMED, Roles, WordTokenizer, run_tokens


def schema_of(body: str, attributes: str = "") -> str:
    return f'<schema name="s"{attributes}>{body}</schema>'


def refused(schema: str, **options: Any) -> PMLError:
    outcome = facts_of(case_of(schema, **options))
    assert isinstance(outcome, PMLError), outcome
    assert outcome.where == "schema"
    return outcome


def facts(schema: str, **options: Any) -> Facts:
    outcome = facts_of(case_of(schema, **options))
    assert not isinstance(outcome, PMLError), outcome
    return outcome


def texts(node: Schema | Module | Role) -> list[str]:
    return [child.text for child in node.children if isinstance(child, Text)]


def module_in(schema: Schema) -> Module:
    return next(child for child in schema.children if isinstance(child, Module))


class Runs:
    """A tokenizer that keeps the runs it was asked about: one id per character."""

    filler = 0

    def __init__(self, sink_prefix: tuple[int, ...] = ()) -> None:
        self.sink_prefix = sink_prefix
        self.seen: list[list[tuple[str, bool]]] = []

    def encode(self, run: Sequence[Text]) -> list[int]:
        self.seen.append([(piece.text, piece.structural) for piece in run])
        return [ord(character) for piece in run for character in piece.text]


@pytest.mark.parametrize("length", ["", "two", "-1", "+1", "1.0", "0x2", "1_0", "2 3", "٣", "9" * 5000, '2" len="2'])
def test_a_length_is_one_whole_number(length):
    error = refused(schema_of(f'<module name="m">\n<parameter name="slot" length="{length}"/></module>'))
    assert ("slot" in error.message, error.line) == (True, 2)
    facts(schema_of('<module name="m"><parameter name="slot" length=" 2 "/></module>'))


@pytest.mark.parametrize(
    ("element", "attribute"),
    [
        ("<schema name='s' lang='en'/>", "lang"),
        (schema_of("<module name='m' length='3'/>"), "length"),
        (schema_of("<module name='m'><parameter name='p' lenght='3'/></module>"), "lenght"),
        (schema_of("<module name='m'><param name='p' len='3' xml:space='preserve'/></module>"), "xml:space"),
        (schema_of("<union name='u'/>"), "name"),
        (schema_of("<user xml:space='preserve'/>"), "xml:space"),
        (schema_of("<module src='x.txt'/>"), "name='...' is missing"),
        (schema_of("<scaffold/>"), "modules='...' is missing"),
    ],
)
def test_an_attribute_that_is_unknown_or_missing_is_named_with_its_element(element, attribute):
    error = refused("\n" + element, template="chatml")
    assert attribute in error.message
    assert error.message.startswith("<")
    assert error.line == 2


@pytest.mark.parametrize(
    "doctype",
    [
        "<!DOCTYPE schema>",
        '<!DOCTYPE schema SYSTEM "file:///etc/passwd">',
        '<!DOCTYPE schema [<!ENTITY % x SYSTEM "file:///etc/passwd"> %x;]>',
        '<!DOCTYPE schema [<!ENTITY a "aaaaaaaaaa"><!ENTITY b "&a;&a;&a;&a;&a;&a;&a;&a;&a;&a;">]>',
    ],
)
def test_a_document_type_is_refused(doctype):
    error = refused(f'<?xml version="1.0"?>\n{doctype}\n<schema name="s">&x;</schema>')
    assert ("DOCTYPE" in error.message, error.line) == (True, 2)
    with pytest.raises(PMLError, match="DOCTYPE") as caught:
        parse_prompt(f'{doctype}<prompt schema="s">&x;</prompt>')
    assert (caught.value.where, caught.value.line) == ("prompt", 1)


CHILDREN = {
    "text": "t",
    "module": '<module name="c"/>',
    "union": "<union/>",
    "parameter": '<parameter name="p" length="1"/>',
    "role": "<user>u</user>",
    "scaffold": '<scaffold modules="a b"/>',
}
PARENTS = {
    "schema": ("{}", {"text", "module", "union", "role", "scaffold"}),
    "module": ('<module name="m">{}</module>', {"text", "module", "union", "parameter", "role"}),
    "union": ("<union>{}</union>", {"module"}),
    "role": ("<system>{}</system>", {"text", "module", "union"}),
    "role in a module": ('<module name="m"><system>{}</system></module>', {"text", "module", "union", "parameter"}),
    "role around a module": ('<system><module name="m">{}</module></system>', {"text", "module", "union", "parameter"}),
    "parameter": ('<module name="m"><parameter name="q" length="1">{}</parameter></module>', set[str]()),
    "scaffold": ('<scaffold modules="a b">{}</scaffold>', set[str]()),
}


@pytest.mark.parametrize("child", CHILDREN)
@pytest.mark.parametrize("parent", PARENTS)
def test_what_may_stand_in_what(parent, child):
    frame, allowed = PARENTS[parent]
    inside = "\n" + CHILDREN[child]
    text = schema_of('<module name="a"/><module name="b"/>' + frame.format(inside))
    if child in allowed:
        facts(text, template="chatml")
    else:
        error = refused(text, template="chatml")
        assert error.line == (1 if child == "text" else 2)
        assert "<" in error.message


@pytest.mark.parametrize("name", ["_", "_1", "a-b.c_d", "unit.py", "A9", "xml", "é", "Ж1", "名前", "x" * 3000, "a٣"])
def test_a_name_is_a_letter_then_letters_digits_and_three_signs(name):
    schema = f'<schema name="{name}"><module name="{name}">m <param name="{name}" len="1"/></module></schema>'
    outcome = facts_of(case_of(schema, f'<prompt schema="{name}"><{name} {name}="v"/>q</prompt>'))
    assert not isinstance(outcome, PMLError), outcome
    assert outcome["arguments"] == [[1]]


@pytest.mark.parametrize(
    "name", ["", " ", "1x", "-a", ".a", "big doc", "a/b", "a:b", "a\u0301", "a!", "a\u200d", "😀", "x\n"]
)
def test_what_is_not_a_name_is_refused(name):
    for text in (
        f"<schema name='{name}'/>",
        schema_of(f"<module name='{name}'/>"),
        schema_of(f"<module name='m'><param name='{name}' len='1'/></module>"),
    ):
        assert "is not a name" in refused(text).message


@pytest.mark.parametrize("name", ["𠀀", "x𠀀", "ﬁ", "x²", "ª", "Ꙁ"])
def test_a_name_that_no_prompt_could_write_is_refused(name):
    """XML knows fewer letters than Unicode: such a module could be declared but never imported."""
    for text in (
        schema_of(f"\n<module name='{name}'/>"),
        schema_of(f"<module name='m'>\n<param name='{name}' len='1'/></module>"),
    ):
        error = refused(text)
        assert (repr(name) in error.message, error.line) == (True, 2)
    facts(f"<schema name='{name}'/>")  # a schema's name is never written as a tag


def test_a_registry_keeps_schemas_by_name():
    registry = Registry(WordTokenizer(), max_positions=5)
    one, two = parse_schema("<schema name='s'>one</schema>"), parse_schema("<schema name='s'>one two</schema>")
    long = parse_schema("<schema name='s'>1 2 3 4 5 6</schema>")
    prompt = parse_prompt("\n<prompt schema='s'>q</prompt>")

    def length() -> int:
        return registry.of(prompt).length

    with pytest.raises(PMLError, match=r"'s'.*none") as unknown:
        registry.of(prompt)
    assert (unknown.value.where, unknown.value.line) == ("prompt", 2)
    with pytest.raises(PMLError, match=r"6 positions.* 5") as refusal:
        registry.add(long)
    assert refusal.value.where == "schema"
    assert registry.replace(one).length == length() == 1, "replacing what is not there adds it"
    with pytest.raises(PMLError, match="'s'") as taken:
        registry.add(two)
    assert (taken.value.where, taken.value.line, length()) == ("registry", None, 1)
    with pytest.raises(PMLError, match="positions"):
        registry.replace(long)
    assert length() == 1, "nothing changes after an error"
    assert registry.replace(two).length == length() == 2
    registry.remove("s")
    with pytest.raises(PMLError, match="'s'") as gone:
        registry.remove("s")
    assert gone.value.where == "registry"
    assert registry.add(one).length == length() == 1


@pytest.mark.parametrize(
    ("piece", "kept"),
    [
        (" \n\t ", ""),
        (" a ", " a "),
        ("\na\n", "a"),
        ("  \n  a", "a"),
        ("\ra\r\n", "a"),
        (" a\n", " a"),
        ("a  b\n\n c\td", "a  b\n\n c\td"),
        ("\u2028a", "\u2028a"),
    ],
)
def test_the_whitespace_rule(piece, kept):
    assert tidy(piece) == kept
    assert tidy(kept) == kept, "reading what was written changes nothing"


@pytest.mark.parametrize(
    ("body", "kept"),
    [
        ("one<!-- c -->two", ["onetwo"]),
        ("one <!-- c --> two", ["one  two"]),
        ("\n<!-- c --> one", ["one"]),
        (" <?a?><!-- b --><?c?>x", [" x"]),
        ("a <![CDATA[<b> & ]]> c", ["a <b> &  c"]),
        ("<![CDATA[]]]]><![CDATA[>]]>", ["]]>"]),
        ("&lt;b&gt; &amp;amp; &quot;&apos;", ["<b> &amp; \"'"]),
        ("&#65;&#x42;&#x1F600;", ["AB😀"]),
        ("a\r\nb\rc", ["a\nb\nc"]),
    ],
)
def test_what_a_run_holds(body, kept):
    assert texts(parse_schema(schema_of(body))) == kept
    assert texts(module_in(parse_schema(schema_of(f"<module name='m'>{body}</module>")))) == kept


def test_elements_cut_runs_and_turns_do_not():
    tokenizer = Runs()
    body = (
        "a <module name='m'>b<param name='p' len='1'/>c</module> d<union/>e<user>f</user><!-- --> g"
        "<scaffold modules='m n'/>h<module name='n'/>"
    )
    lay_out(parse_schema(schema_of(body)), tokenizer, roles=NAMED["chatml"])
    runs = ["".join(text for text, _ in run) for run in tokenizer.seen]
    user = NAMED["chatml"]["user"]
    assert runs == ["a ", "b", "", "c", " d", f"e{user.open}f{user.close} g", "h"]  # "" is the placeholder


def test_space_is_preserved_or_default_and_cache_true_or_false():
    assert texts(parse_schema(schema_of(" a\n", " xml:space='preserve'"))) == [" a\n"]
    assert texts(parse_schema(schema_of(" a\n", " xml:space='default'"))) == [" a"]
    for attribute in ("xml:space='keep'", "cache='False'", "cache=' true'"):
        error = refused(schema_of(f"\n<module name='m' {attribute}/>"))
        assert (attribute.split("=")[0] in error.message, error.line) == (True, 2)


@pytest.mark.parametrize(
    ("text", "line"),
    [
        (" \n ", 2),
        ("<schema name='s'>\na < b</schema>", 2),
        ("<schema name='s'>&unknown;</schema>", 1),
        ("<schema name='s'>&#0;</schema>", 1),
        ("<schema name='s'>\n<module name='m'>\n</modul></schema>", 3),
        ("<schema name='s'/>\n<schema name='t'/>", 2),
        ("text\n<schema name='s'/>", 1),
        ("<schema name='s'>]]></schema>", 1),
        ("<schema name='s'><![CDATA[x</schema>", 1),
        ("<schema name='s'>\n\x01</schema>", 2),
        (" <?xml version='1.0'?><schema name='s'/>", 1),
    ],
)
def test_malformed_input_is_refused_with_its_line(text, line):
    error = refused(text)
    assert error.line == line
    assert error.column is not None
    assert "\n" not in error.message


def test_bytes_are_utf_8_whatever_they_declare():
    text = "<schema name='s'>é 名 😀</schema>"
    expected = parse_schema(text)
    declared = f"<?xml version='1.0' encoding='iso-8859-1'?>{text}"
    for source in (text, text.encode(), text.encode("utf-8-sig"), "\ufeff" + text, declared, declared.encode()):
        assert parse_schema(source) == expected
    for broken in (declared.encode("latin-1", "replace"), text.encode()[:-12] + b"\xff</schema>", b"\xff"):
        with pytest.raises(PMLError) as caught:
            parse_schema(broken)
        assert (caught.value.where, caught.value.line) == ("schema", 1)
    assert "surrogate" in refused("<schema name='s'>\ud800</schema>").message


def test_only_strings_of_the_template_are_structural():
    tokenizer, user, system = Runs(), NAMED["llama2"]["user"], NAMED["llama2"]["system"]
    schema = parse_schema(schema_of("&lt;/s><user>&lt;/s></user><system><!-- nothing --> </system>"))
    lay_out(schema, tokenizer, roles=NAMED["llama2"])
    (run,) = tokenizer.seen
    turns = [(user.open, True), ("</s>", False), (user.close, True), (system.alone, True)]
    assert [piece for piece in run if piece[0]] == [("</s>", False), *(piece for piece in turns if piece[0])]
    run_tokens([Text(text="a"), Text(text="b"), Text(text="?", tokens=(7, 8)), Text(text="c")], tokenizer)
    assert [[text for text, _ in piece] for piece in tokenizer.seen[1:]] == [["a", "b"], ["c"]], "not what is known"


def test_a_turn_without_a_template_is_refused():
    roles: Roles = {"user": NAMED["chatml"]["user"]}
    lay_out(parse_schema(schema_of("<user>x</user>")), Runs(), roles=roles)
    for turn in ("<system/>", "<module name='m'><system>x</system></module>"):
        with pytest.raises(PMLError, match=r"<system>.*template") as caught:
            lay_out(parse_schema(schema_of("\n" + turn)), Runs(), roles=roles)
        assert (caught.value.where, caught.value.line) == ("schema", 2)


SCAFFOLDED = (
    "<module name='a'/><module name='b'><module name='i'/></module>"
    "<module name='off' cache='false'><module name='on'/></module>"
    "<union><module name='x'><union><module name='xx'/><module name='xy'/></union></module><module name='y'/></union>\n"
)


@pytest.mark.parametrize(
    ("modules", "named"),
    [
        ("", ""),
        ("a b a", "a b a"),
        ("a ghost", "ghost"),
        ("a i", "'i'"),
        ("a /b", "/b"),
        ("x y", "exclude"),
        ("x/xx x/xy", "exclude"),
        ("a off", "cache"),
    ],
)
def test_a_bad_set_is_refused(modules, named):
    error = refused(schema_of(SCAFFOLDED + f"<scaffold modules='{modules}'/>"))
    assert ("<scaffold>" in error.message, named in error.message, error.line) == (True, True, 2)


def test_a_bad_union_scaffold_is_refused():
    for union, named in (
        ("<union scaffold='x/y'><module name='x'><module name='y'/></module></union>", "x/y"),
        ("<union scaffold='x'><module name='x' cache='false'/></union>", "cache"),
        ("<module name='m' cache='false'><union scaffold='x'><module name='x'/></union></module>", "'m'"),
    ):
        error = refused(schema_of("\n" + union))
        assert ("<union>" in error.message, named in error.message, error.line) == (True, True, 2)


@pytest.fixture
def folder(tmp_path):
    inside = tmp_path / "desk"
    (inside / "docs").mkdir(parents=True)
    (inside / "terms.txt").write_bytes("\n  Terms <b> & é \r\n more\n\n".encode())
    (inside / "docs" / "bom.txt").write_bytes(b"\xef\xbb\xbfhello")
    (inside / "latin.txt").write_bytes("é".encode("latin-1"))
    (inside / "empty.txt").write_bytes(b" \n")
    (tmp_path / "secret.txt").write_text("secret")
    (inside / "inner").symlink_to("terms.txt")
    (inside / "outer").symlink_to(tmp_path / "secret.txt")
    (inside / "up").symlink_to("..")
    (inside / "loop").symlink_to("loop")
    os.mkfifo(inside / "pipe")
    return inside


def test_a_file_stands_before_the_inline_text(folder):
    text = (
        "<schema name='s' src='docs/bom.txt'> there<module name='m' src='terms.txt'>\n&amp; more "
        "<union><module name='u' src='inner'/></union></module></schema>"
    )
    schema = parse_schema(text, folder=folder)
    terms = "Terms <b> & é \n more"
    assert schema.file == File(name="docs/bom.txt", text="hello")
    assert module_in(schema).file == File(name="terms.txt", text=terms)
    tokenizer = Runs()
    layout = lay_out(schema, tokenizer)
    assert [[text for text, _ in run] for run in tokenizer.seen] == [["hello", " there"], [terms, "& more "], [terms]]
    assert layout.length == sum(len(text) for run in tokenizer.seen for text, _ in run)
    assert parse_schema(write_schema(schema), folder=folder) == schema
    assert lay_out(parse_schema("<schema name='s' src='empty.txt'/>", folder=folder), WordTokenizer()).length == 0


@pytest.mark.parametrize(
    ("src", "why"),
    [
        ("../secret.txt", "outside"),
        ("/etc/passwd", "outside"),
        ("outer", "outside"),
        ("up/secret.txt", "outside"),
        ("loop", "oop"),
        ("latin.txt", "UTF-8"),
        ("pipe", "not an ordinary file"),
        ("x" * 5000, "long"),
    ],
)
def test_a_file_that_cannot_be_used_is_an_error(folder, src, why):
    with pytest.raises(PMLError) as caught:
        parse_schema(schema_of(f"\n<module name='here' src='{src}'/>"), folder=folder)
    assert (caught.value.where, caught.value.line) == ("schema", 2)
    for part in ("'here'", repr(src), why):
        assert part in caught.value.message


def test_a_file_needs_a_folder_which_may_be_relative(folder, monkeypatch):
    error = refused(schema_of("\n<module name='m' src='x.txt'/>"))
    assert ("'x.txt'" in error.message, "folder" in error.message, error.line) == (True, True, 2)
    monkeypatch.chdir(folder.parent)
    assert parse_schema("<schema name='s' src='terms.txt'/>", folder=Path("desk")).file is not None
    with pytest.raises(PMLError, match="outside"):
        parse_schema("<schema name='s' src='../secret.txt'/>", folder=Path("desk"))


def test_a_huge_slot_costs_nothing_until_it_is_used():
    slot = f"<param name='p' len='{MAX_SLOT}'/>"
    members = "".join(f"<module name='m{i}'>{slot}</module>" for i in range(30))
    schema = parse_schema(schema_of(f"<union>{members}</union>"))
    assert "1000000" in refused(schema_of(f'<module name="m"><param name="p" len="{MAX_SLOT + 1}"/></module>')).message
    tracemalloc.start()
    try:
        assert lay_out(schema, WordTokenizer()).length == MAX_SLOT
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert peak < MAX_SLOT, "not even a byte per id"


def test_rules_hold_for_what_a_program_builds():
    turns = Role(role="user", children=(Role(role="user"),))
    for child, named in ((Parameter(name="p", length=1), "'p'"), (turns, "<user>"), (Module(name="1"), "'1'")):
        with pytest.raises(PMLError, match=named) as caught:
            check_schema(Schema(name="s", children=(child,)))
        assert caught.value.line is None


def test_lines_break_where_only_tags_meet_and_reading_drops_them():
    pair = Union(members=(Module(name="a", children=(Text(text="x"),)), Module(name="b")))
    kept = Module(name="k", children=(Text(text="end\n"), Module(name="n")))
    schema = Schema(name="s", children=(Text(text="root"), Module(name="m", children=(pair,)), kept))
    assert write_schema(schema) == (
        '<schema name="s">root<module name="m">\n    <union>\n      <module name="a">x</module>\n'
        '      <module name="b"/>\n    </union>\n  </module>\n'
        '  <module name="k" xml:space="preserve">end\n<module name="n"/></module>\n</schema>'
    )
    assert parse_schema(write_schema(schema)) == schema


@pytest.mark.parametrize(
    "children",
    [
        (Text(text="a\0"),),
        (Text(text="\ud800"),),
        (Text(text="<s>", structural=True),),
        (Text(text="a", tokens=(1,)),),
        (Module(name="m", children=(Parameter(name="p", length=1, placeholder="\x0b"),)),),
    ],
)
def test_what_the_language_cannot_say_is_not_written(children):
    with pytest.raises(ValueError):
        write_schema(Schema(name="s", children=children))
