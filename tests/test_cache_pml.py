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
from cache.pml.nodes import MAX_SLOT, RESERVED, File, Module, Parameter, Role, Scaffold, Schema, Union, check_schema
from cache.pml.parser import parse_prompt, parse_schema, tidy, write_prompt, write_schema
from cache.prompt.parts import Text
from cache.prompt.tokenizer import NAMED, Roles, RoleStrings, WordTokenizer, run_tokens


def schema_of(body: str, attributes: str = "") -> str:
    """A schema around some children."""
    return f'<schema name="s"{attributes}>{body}</schema>'


def refused(schema: str, **options: Any) -> PMLError:
    """The error a schema ends in."""
    outcome = facts_of(case_of(schema, **options))
    assert isinstance(outcome, PMLError), outcome
    assert outcome.where == "schema"
    return outcome


def facts(schema: str, **options: Any) -> Facts:
    """The facts of a schema that is fine."""
    outcome = facts_of(case_of(schema, **options))
    assert not isinstance(outcome, PMLError), outcome
    return outcome


def texts(node: Schema | Module | Role) -> list[str]:
    """Pieces of text directly in a node."""
    return [child.text for child in node.children if isinstance(child, Text)]


def module_in(schema: Schema, index: int = 0) -> Module:
    """A module directly in a schema."""
    return [child for child in schema.children if isinstance(child, Module)][index]


class Runs:
    """A tokenizer that keeps the runs it was asked about: one id per character."""

    filler = 0
    sink_prefix: tuple[int, ...] = ()

    def __init__(self) -> None:
        self.seen: list[list[tuple[str, bool]]] = []

    def encode(self, run: Sequence[Text]) -> list[int]:
        """Code points."""
        self.seen.append([(piece.text, piece.structural) for piece in run])
        return [ord(character) for piece in run for character in piece.text]


# --- 2.1 elements and attributes -------------------------------------------------------------------------------------


@pytest.mark.parametrize("tag", ["parameter", "param"])
@pytest.mark.parametrize("length", ["length", "len"])
def test_four_spellings_of_a_parameter_mean_the_same(tag: str, length: str) -> None:
    schema = parse_schema(schema_of(f'<module name="m"><{tag} name="p" {length}=" 4 " scaffold="x y"/></module>'))
    assert module_in(schema).children == (Parameter(name="p", length=4, placeholder="x y"),)


@pytest.mark.parametrize("given", ['length="2" len="2"', 'len="2" length="3"'])
def test_two_lengths_are_refused(given: str) -> None:
    error = refused(schema_of(f'<module name="m">\n<param name="slot" {given}/></module>'))
    assert ("<param" in error.message, "slot" in error.message, error.line) == (True, True, 2)


@pytest.mark.parametrize("length", ["", "two", "-1", "+1", "1.0", "1e3", "0x2", "1_0", "2 3", "٣", "²", "9" * 5000])
def test_a_length_is_a_whole_number(length: str) -> None:
    error = refused(schema_of(f'<module name="m">\n<parameter name="slot" length="{length}"/></module>'))
    assert ("slot" in error.message, error.line) == (True, 2)


def test_a_slot_longer_than_any_model_is_refused() -> None:
    assert facts(schema_of(f'<module name="m"><param name="p" len="{MAX_SLOT}"/></module>'))["length"] == MAX_SLOT
    assert "slot" in refused(schema_of(f'<module name="m"><param name="slot" len="{MAX_SLOT + 1}"/></module>')).message


@pytest.mark.parametrize(
    ("element", "attribute"),
    [
        ("<schema name='s' lang='en'/>", "lang"),
        ("<schema name='s' cache='true'/>", "cache"),
        ("<schema Name='s' name='s'/>", "Name"),
        (schema_of("<module name='m' length='3'/>"), "length"),
        (schema_of("<module name='m'><parameter name='p' lenght='3'/></module>"), "lenght"),
        (schema_of("<module name='m'><param name='p' len='3' placeholder='x'/></module>"), "placeholder"),
        (schema_of("<module name='m'><param name='p' len='3' xml:space='preserve'/></module>"), "xml:space"),
        (schema_of("<union name='u'/>"), "name"),
        (schema_of("<scaffold modules='a b' name='x'/>"), "name"),
        (schema_of("<system name='x'/>"), "name"),
        (schema_of("<user xml:space='preserve'/>"), "xml:space"),
        (schema_of("<assistant cache='false'/>"), "cache"),
        (schema_of("<module name='m' xmlns='http://x'/>"), "xmlns"),
    ],
)
def test_an_unknown_attribute_is_named_with_its_element(element: str, attribute: str) -> None:
    error = refused("\n" + element, template="chatml")
    assert repr(attribute) in error.message
    assert error.message.startswith("<")
    assert error.line == 2


@pytest.mark.parametrize(
    "doctype",
    [
        "<!DOCTYPE schema>",
        '<!DOCTYPE schema SYSTEM "file:///etc/passwd">',
        '<!DOCTYPE schema PUBLIC "-//X//Y//EN" "http://127.0.0.1:9/x.dtd">',
        '<!DOCTYPE schema [<!ENTITY x SYSTEM "file:///etc/passwd">]>',
        '<!DOCTYPE schema [<!ENTITY % x SYSTEM "file:///etc/passwd"> %x;]>',
        '<!DOCTYPE schema [<!ENTITY a "aaaaaaaaaa"><!ENTITY b "&a;&a;&a;&a;&a;&a;&a;&a;&a;&a;">]>',
        '<!DOCTYPE schema [<!ATTLIST module name CDATA "m">]>',
    ],
)
def test_a_document_type_is_refused(doctype: str) -> None:
    error = refused(f'<?xml version="1.0"?>\n{doctype}\n<schema name="s">&x;</schema>')
    assert ("DOCTYPE" in error.message, error.line) == (True, 2)
    with pytest.raises(PMLError, match="DOCTYPE") as caught:
        parse_prompt(f'{doctype}<prompt schema="s">&x;</prompt>')
    assert (caught.value.where, caught.value.line) == ("prompt", 1)


@pytest.mark.parametrize(
    ("body", "who"),
    [
        ("<module/>", "module"),
        ('<module name="m"><parameter length="2"/></module>', "parameter"),
        ('<module name="m"><param len="2"/></module>', "param"),
        ("<union><module>x</module></union>", "module"),
        ("<module src='x.txt'/>", "module"),
        ("<module cache='perhaps'/>", "module"),
        ("<scaffold/>", "scaffold"),
    ],
)
def test_a_required_attribute_that_is_missing_is_named(body: str, who: str) -> None:
    error = refused(schema_of("\n" + body))
    assert (f"<{who}>" in error.message, "missing" in error.message, error.line) == (True, True, 2)


# --- 2.2 nesting -----------------------------------------------------------------------------------------------------

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
    "member": ('<union><module name="m">{}</module></union>', {"text", "module", "union", "parameter", "role"}),
    "union": ("<union>{}</union>", {"module"}),
    "role": ("<system>{}</system>", {"text", "module", "union"}),
    "role in a module": (
        '<module name="m"><system>{}</system></module>',
        {"text", "module", "union", "parameter"},
    ),
    "role around a module": (
        '<system><module name="m">{}</module></system>',
        {"text", "module", "union", "parameter"},
    ),
    "parameter": ('<module name="m"><parameter name="q" length="1">{}</parameter></module>', set[str]()),
    "param": ('<module name="m"><param name="q" len="1">{}</param></module>', set[str]()),
    "scaffold": ('<scaffold modules="a b">{}</scaffold>', set[str]()),
}


@pytest.mark.parametrize("child", CHILDREN)
@pytest.mark.parametrize("parent", PARENTS)
def test_what_may_stand_in_what(parent: str, child: str) -> None:
    frame, allowed = PARENTS[parent]
    inside = "\n" + CHILDREN[child]
    text = schema_of('<module name="a"/><module name="b"/>' + frame.format(inside))
    if child in allowed:
        facts(text, template="chatml")
    else:
        error = refused(text, template="chatml")
        assert error.line == (1 if child == "text" else 2)
        assert "<" in error.message


@pytest.mark.parametrize("inner", ["system", "user", "assistant"])
def test_a_turn_is_in_no_turn_at_any_depth(inner: str) -> None:
    nested = f"<{inner}>x</{inner}>"
    for around in (
        "{}",
        '<module name="m">{}</module>',
        '<union><module name="m"><module name="n">{}</module></module></union>',
    ):
        error = refused(schema_of(f"<user>a\n{around.format(nested)}</user>"), template="chatml")
        assert (f"<{inner}>" in error.message, error.line) == (True, 2)
    facts(schema_of(f'<user>a</user>{nested}<module name="m">{nested}</module>'), template="chatml")


def test_depth_is_unlimited() -> None:
    depth = 5000
    text = schema_of('<module name="a">x' * depth + "</module>" * depth)
    assert facts(text)["length"] == depth
    members = schema_of('<module name="a"><union>' * depth + "</union></module>" * depth)
    assert facts(members.replace("<union><module", '<union><module cache="false"'))["length"] == 0
    prompt = parse_prompt('<prompt schema="s">' + "<a>" * depth + "</a>" * depth + "</prompt>")
    assert write_prompt(prompt).count("<a") == depth


# --- 2.3 names and scopes --------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["_", "_1", "a-b.c_d", "unit.py", "A9", "xml", "é", "Ж1", "名前", "x" * 3000, "a٣"])
def test_a_name_is_a_letter_then_letters_digits_and_three_signs(name: str) -> None:
    schema = f'<schema name="{name}"><module name="{name}">m <param name="{name}" len="1"/></module></schema>'
    outcome = facts_of(case_of(schema, f'<prompt schema="{name}"><{name} {name}="v"/>q</prompt>'))
    assert not isinstance(outcome, PMLError), outcome
    assert outcome["arguments"] == [[1]]


@pytest.mark.parametrize(
    "name", ["", " ", "1x", "-a", ".a", "big doc", "a/b", "a:b", "a\u0301", "a!", "a\u200d", "😀", "x\n"]
)
def test_what_is_not_a_name_is_refused(name: str) -> None:
    for text in (
        f"<schema name='{name}'/>",
        schema_of(f"<module name='{name}'/>"),
        schema_of(f"<module name='m'><param name='{name}' len='1'/></module>"),
    ):
        assert "is not a name" in refused(text).message


@pytest.mark.parametrize("name", ["𠀀", "x𠀀", "ﬁ", "x²", "ª", "Ꙁ"])
def test_a_name_that_no_prompt_could_write_is_refused(name: str) -> None:
    """XML knows fewer letters than Unicode: such a module could be declared but never imported."""
    for text in (
        schema_of(f"\n<module name='{name}'/>"),
        schema_of(f"<module name='m'>\n<param name='{name}' len='1'/></module>"),
    ):
        error = refused(text)
        assert (repr(name) in error.message, error.line) == (True, 2)
    facts(f"<schema name='{name}'/>")  # a schema's name is never written as a tag


@pytest.mark.parametrize("word", sorted(RESERVED))
def test_words_of_the_language_are_reserved_as_module_names_only(word: str) -> None:
    error = refused(schema_of(f"\n<module name='{word}'/>"))
    assert (repr(word) in error.message, error.line) == (True, 2)
    assert refused(schema_of(f"<union><module name='{word}'/></union>"))
    facts(f"<schema name='{word}'><module name='m'><param name='{word}' len='1'/></module></schema>")


def test_the_reserved_words_are_all_there() -> None:
    elements = {"schema", "prompt", "module", "union", "param", "parameter", "scaffold"}
    assert elements | {"system", "user", "assistant"} == RESERVED


@pytest.mark.parametrize(
    "body",
    [
        "<union><module name='x'/></union>\n<union>\n<module name='x'/></union>",
        "<module name='x'/>\n<user>\n<module name='x'/></user>",
        "<system><module name='x'/></system>\n<user>\n<module name='x'/></user>",
        "<user><union><module name='x'/></union></user>\n\n<module name='x'/>",
        "<module name='o'><union><module name='x'/></union>\n<user>\n<module name='x'/></user></module>",
        "<module name='o'><param name='x' len='1'/>\n<user>\n<param name='x' len='1'/></user></module>",
        "<module name='o'><param name='x' len='1'/><module name='i'><param name='x' len='1'/></module>\n\n"
        "<parameter name='x' length='1'/></module>",
    ],
)
def test_a_second_name_in_one_scope_is_refused_where_it_stands(body: str) -> None:
    error = refused(schema_of(body), template="chatml")
    assert ("'x'" in error.message, error.line) == (True, 3)


def test_a_registry_keeps_schemas_by_name() -> None:
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


# --- 2.4 text, whitespace, escaping ----------------------------------------------------------------------------------

SPACES = [
    ("", ""),
    (" ", ""),
    (" \n\t ", ""),
    ("a", "a"),
    (" a ", " a "),
    ("\t  a", " a"),
    ("a \t", "a "),
    ("\na\n", "a"),
    ("  \n  a", "a"),
    ("a  \n", "a"),
    ("\ra\r\n", "a"),
    (" a\n", " a"),
    ("\n a b ", "a b "),
    ("a  b\n\n c\td", "a  b\n\n c\td"),
    ("\u00a0a\u2003", "\u00a0a\u2003"),
    ("\u2028a", "\u2028a"),
]


@pytest.mark.parametrize(("piece", "kept"), SPACES)
def test_the_whitespace_rule(piece: str, kept: str) -> None:
    assert tidy(piece) == kept
    assert tidy(kept) == kept, "reading what was written changes nothing"


@pytest.mark.parametrize(
    ("body", "kept"),
    [
        ("one<!-- c -->two", ["onetwo"]),
        ("one <!-- c --> two", ["one  two"]),
        ("one<!-- \n -->two", ["onetwo"]),
        ("one\n<!-- c -->\n", ["one"]),
        ("<!-- c --> one", [" one"]),
        ("\n<!-- c --> one", ["one"]),
        ("<!-- only -->\n", []),
        ("one<?php echo ?>two", ["onetwo"]),
        (" <?a?><!-- b --><?c?>x", [" x"]),
        ("a <![CDATA[<b> & ]]> c", ["a <b> &  c"]),
        ("<![CDATA[ ]]>", []),
        ("<![CDATA[x]]><![CDATA[y]]>", ["xy"]),
        ("<![CDATA[]]]]><![CDATA[>]]>", ["]]>"]),
        ("&lt;b&gt; &amp;amp; &quot;&apos;", ["<b> &amp; \"'"]),
        ("&#65;&#x42;&#x1F600;", ["AB😀"]),
        ("&#10;x&#32;", ["x "]),
        ("a&#13;&#10;b", ["a\r\nb"]),
        ("a\r\nb\rc", ["a\nb\nc"]),
        ("e\u0301 \U0001f469\u200d\U0001f680", ["e\u0301 \U0001f469\u200d\U0001f680"]),
        ("x" * 100_000, ["x" * 100_000]),
    ],
)
def test_what_a_run_holds(body: str, kept: list[str]) -> None:
    assert texts(parse_schema(schema_of(body))) == kept
    assert texts(module_in(parse_schema(schema_of(f"<module name='m'>{body}</module>")))) == kept


def test_elements_cut_runs_and_turns_do_not() -> None:
    tokenizer = Runs()
    body = (
        "a <module name='m'>b<param name='p' len='1'/>c</module> d<union/>e<user>f</user><!-- --> g"
        "<scaffold modules='m n'/>h<module name='n'/>"
    )
    lay_out(parse_schema(schema_of(body)), tokenizer, roles=NAMED["chatml"])
    runs = ["".join(text for text, _ in run) for run in tokenizer.seen]
    user = NAMED["chatml"]["user"]
    assert runs == ["a ", "b", "", "c", " d", f"e{user.open}f{user.close} g", "h"]  # "" is the placeholder


def test_preserved_space_is_the_elements_own() -> None:
    body = (
        "\n a <module name='m'> b </module> <user> c </user>\n"
        "<module name='k' xml:space='preserve'> d <union> <module name='u'> e\n</module> </union>"
        " <user> f </user></module>"
    )
    plain = parse_schema(schema_of(body))
    assert texts(plain) == ["a "]
    m, k = module_in(plain), module_in(plain, 1)
    assert texts(m) == [" b "]
    assert texts(k) == [" d ", " "]
    union, role = k.children[1], k.children[3]
    assert isinstance(union, Union)
    assert isinstance(role, Role)
    assert texts(union.members[0]) == [" e"], "a module inside has a rule of its own"
    assert texts(role) == [" f "], "a turn belongs to the element around it"
    kept = parse_schema(schema_of(body, " xml:space='preserve'"))
    assert texts(kept) == ["\n a ", " ", "\n"]
    assert texts(module_in(kept)) == [" b "]
    assert parse_schema(schema_of(body, " xml:space='default'")) == plain
    for schema in (plain, kept):
        assert parse_schema(write_schema(schema)) == schema


@pytest.mark.parametrize("value", ["", "Preserve", "keep"])
def test_space_is_preserved_or_default(value: str) -> None:
    error = refused(schema_of(f"\n<module name='m' xml:space='{value}'/>"))
    assert ("xml:space" in error.message, error.line) == (True, 2)


@pytest.mark.parametrize(
    ("text", "line"),
    [
        ("", 1),
        (" \n ", 2),
        ("no markup", 1),
        ("<schema name='s'>\na < b</schema>", 2),
        ("<schema name='s'>\n\nAT&T</schema>", 3),
        ("<schema name='s'>&unknown;</schema>", 1),
        ("<schema name='s'>&#0;</schema>", 1),
        ("<schema name='s'>&#xD800;</schema>", 1),
        ("<schema name='s'>\n<module name='m'>\n</modul></schema>", 3),
        ("<schema name='s'>\n<module name='m'></schema>", 2),
        ("<schema name='s'/>\n<schema name='t'/>", 2),
        ("<schema name='s'/>\ntext", 2),
        ("text\n<schema name='s'/>", 1),
        ("<schema name='s'>\n<module name='m' name='n'/></schema>", 2),
        ("<schema name=s/>", 1),
        ("<schema name='s'><module name='a<b'/></schema>", 1),
        ("<schema name='s'>]]></schema>", 1),
        ("<schema name='s'><!-- a -- b --></schema>", 1),
        ("<schema name='s'><![CDATA[x</schema>", 1),
        ("<schema name='s'>\n\x01</schema>", 2),
        ("<schema name='s'>\0</schema>", 1),
        ("<schema name='s'>\ufffe</schema>", 1),
        ("<schema name='s'><1/></schema>", 1),
        ("<schema name='s'", 1),
        (" <?xml version='1.0'?><schema name='s'/>", 1),
    ],
)
def test_malformed_input_is_refused_with_its_line(text: str, line: int) -> None:
    error = refused(text)
    assert error.line == line
    assert error.column is not None
    assert "\n" not in error.message


def test_half_a_character_is_refused() -> None:
    assert "surrogate" in refused("<schema name='s'>\ud800</schema>").message
    with pytest.raises(PMLError, match="surrogate") as caught:
        parse_prompt("<prompt schema='s'>\udfff</prompt>")
    assert caught.value.where == "prompt"


def test_bytes_are_utf_8_whatever_they_declare() -> None:
    text = "<schema name='s'>é 名 😀</schema>"
    expected = parse_schema(text)
    declared = f"<?xml version='1.0' encoding='iso-8859-1'?>{text}"
    for source in (text, text.encode(), text.encode("utf-8-sig"), "\ufeff" + text, declared, declared.encode()):
        assert parse_schema(source) == expected
    for broken in (
        declared.encode("latin-1", "replace"),
        text.encode("utf-8", "replace")[:-12] + b"\xff</schema>",
        b"\xff",
    ):
        with pytest.raises(PMLError) as caught:
            parse_schema(broken)
        assert (caught.value.where, caught.value.line) == ("schema", 1)


# --- 2.5 chat turns --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("template", NAMED)
def test_strings_of_a_template_are_kept_exactly_and_structural(template: str) -> None:
    roles = NAMED[template]
    for role, strings in roles.items():
        tokenizer = Runs()
        lay_out(parse_schema(schema_of(f"<{role}>x</{role}>")), tokenizer, roles=roles)
        assert tokenizer.seen == [[(strings.open, True), ("x", False), (strings.close, True)]]
        tokenizer = Runs()
        lay_out(parse_schema(schema_of(f"<{role}><!-- nothing --> </{role}>")), tokenizer, roles=roles)
        assert tokenizer.seen[0][0] == (strings.alone, True)
        assert "".join(text for text, _ in tokenizer.seen[0]) == strings.alone


def test_named_templates_are_the_published_ones() -> None:
    llama, chatml, falcon = NAMED["llama2"], NAMED["chatml"], NAMED["falcon"]
    assert llama["system"] == RoleStrings("<s> [INST] <<SYS>>\n", "<</SYS>>\n\n", "<s> [INST] ")
    assert (llama["user"], llama["assistant"]) == (RoleStrings("", "[/INST]"), RoleStrings("", "</s><s> [INST] "))
    assert chatml["system"] == RoleStrings("<|im_start|>system\n", "<|im_end|>\n", "")
    assert chatml["user"] == RoleStrings("<|im_start|>user\n", "<|im_end|>\n<|im_start|>assistant\n")
    assert chatml["assistant"] == RoleStrings("", "<|im_end|>\n")
    assert falcon["system"] == RoleStrings("", "\n\n", "")
    assert (falcon["user"], falcon["assistant"]) == (
        RoleStrings("User: ", "\n\nAssistant:"),
        RoleStrings(" ", "\n\n"),
    )


def test_what_a_document_says_is_never_structural() -> None:
    tokenizer = Runs()
    marker = "<|im_start|>system"
    schema = parse_schema(schema_of("&lt;|im_start|>system<user>&lt;|im_start|>system</user>"))
    lay_out(schema, tokenizer, roles=NAMED["chatml"])
    user = NAMED["chatml"]["user"]
    assert tokenizer.seen == [[(marker, False), (user.open, True), (marker, False), (user.close, True)]]


@pytest.mark.parametrize("role", ["system", "user", "assistant"])
@pytest.mark.parametrize("body", ["\n<{0}/>", "<module name='m'>\n<{0}>x</{0}></module>"])
def test_a_turn_without_a_template_is_refused(role: str, body: str) -> None:
    error = refused(schema_of(body.format(role)))
    assert (f"<{role}>" in error.message, "template" in error.message, error.line) == (True, True, 2)


def test_a_template_without_one_turn_refuses_that_turn() -> None:
    roles: Roles = {"user": NAMED["chatml"]["user"]}
    lay_out(parse_schema(schema_of("<user>x</user>")), Runs(), roles=roles)
    with pytest.raises(PMLError, match="<system>"):
        lay_out(parse_schema(schema_of("<system>x</system>")), Runs(), roles=roles)


# --- 2.6 scaffolds ---------------------------------------------------------------------------------------------------

SCAFFOLDED = (
    "<module name='a'/><module name='b'><module name='i'/></module>"
    "<module name='off' cache='false'><module name='on'/></module>"
    "<union><module name='x'><union><module name='xx'/><module name='xy'/></union></module><module name='y'/></union>\n"
)


@pytest.mark.parametrize(
    ("modules", "named"),
    [
        ("", ""),
        ("a", "a"),
        ("a a", "a a"),
        ("a b a", "a b a"),
        ("a ghost", "ghost"),
        ("a i", "'i'"),
        ("a /b", "/b"),
        ("a b/", "b/"),
        ("a b/ghost", "b/ghost"),
        ("x y", "exclude"),
        ("a x/xx y", "exclude"),
        ("x/xx x/xy", "exclude"),
        ("a off", "cache"),
    ],
)
def test_a_bad_set_is_refused(modules: str, named: str) -> None:
    error = refused(schema_of(SCAFFOLDED + f"<scaffold modules='{modules}'/>"))
    assert ("<scaffold>" in error.message, named in error.message, error.line) == (True, True, 2)


@pytest.mark.parametrize("modules", ["a b", " b\n a ", "b b/i", "x x/xx", "a x/xy b/i", "a off/on"])
def test_a_good_set_takes_no_ids(modules: str) -> None:
    with_set = facts(schema_of(f"<scaffold modules='{modules}'/>" + SCAFFOLDED))
    assert with_set == facts(schema_of(SCAFFOLDED))


@pytest.mark.parametrize(
    ("union", "named"),
    [
        ("<union scaffold='z'><module name='x'/></union>", "'z'"),
        ("<union scaffold=''><module name='x'/></union>", "''"),
        ("<union scaffold='x'/>", "'x'"),
        ("<union scaffold='x/y'><module name='x'><module name='y'/></module></union>", "x/y"),
        ("<union scaffold='x'><module name='x' cache='false'/></union>", "cache"),
        (
            "<module name='m' cache='false'><system><union scaffold='x'><module name='x'/></union></system></module>",
            "'m'",
        ),
    ],
)
def test_a_bad_union_scaffold_is_refused(union: str, named: str) -> None:
    error = refused(schema_of("\n" + union), template="chatml")
    assert ("<union>" in error.message, named in error.message, error.line) == (True, True, 2)


# --- 2.7 files, cache, truncation ------------------------------------------------------------------------------------


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A schema's folder with files in it, and one beside it."""
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
    return inside


def test_a_file_stands_before_the_inline_text(folder: Path) -> None:
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


def test_an_empty_file_is_no_text(folder: Path) -> None:
    assert lay_out(parse_schema("<schema name='s' src='empty.txt'/>", folder=folder), WordTokenizer()).length == 0


@pytest.mark.parametrize(
    ("src", "why"),
    [
        ("missing.txt", "No such file"),
        ("docs", "directory"),
        ("", "directory"),
        (".", "directory"),
        ("../secret.txt", "outside"),
        ("docs/../../secret.txt", "outside"),
        ("/etc/passwd", "outside"),
        ("outer", "outside"),
        ("up/secret.txt", "outside"),
        ("loop", "oop"),
        ("latin.txt", "UTF-8"),
        ("x" * 5000, "long"),
        ("terms.txt/x", "ot a directory"),
    ],
)
def test_a_file_that_cannot_be_used_is_an_error(folder: Path, src: str, why: str) -> None:
    for text in (f"\n<schema name='here' src='{src}'/>", schema_of(f"\n<module name='here' src='{src}'/>")):
        with pytest.raises(PMLError) as caught:
            parse_schema(text, folder=folder)
        assert (caught.value.where, caught.value.line) == ("schema", 2)
        assert "'here'" in caught.value.message
        assert repr(src) in caught.value.message
        assert why in caught.value.message


def test_a_file_needs_a_folder() -> None:
    error = refused(schema_of("\n<module name='m' src='x.txt'/>"))
    assert ("'x.txt'" in error.message, "folder" in error.message, error.line) == (True, True, 2)


def test_a_relative_folder_is_fine(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(folder.parent)
    schema = parse_schema("<schema name='s' src='terms.txt'/>", folder=Path("desk"))
    assert schema.file is not None
    with pytest.raises(PMLError, match="outside"):
        parse_schema("<schema name='s' src='../secret.txt'/>", folder=Path("desk"))


@pytest.mark.parametrize("value", ["", "no", "False", "0", " true"])
def test_cache_is_nothing_else(value: str) -> None:
    error = refused(schema_of(f"\n<module name='m' cache='{value}'/>"))
    assert ("'m'" in error.message, "cache" in error.message, error.line) == (True, True, 2)


def test_known_tokens_are_taken_as_they_are() -> None:
    tokenizer = Runs()
    run = [Text(text="a"), Text(text="b"), Text(text="?", tokens=(7, 8)), Text(text="c")]
    assert run_tokens(run, tokenizer) == (97, 98, 7, 8, 99)
    assert [[text for text, _ in piece] for piece in tokenizer.seen] == [["a", "b"], ["c"]]


# --- 3 places in a schema --------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "body",
    [
        "1 2 3 4",
        "<module name='m'><param name='p' len='4'/></module>",
        "<union><module name='m'>1 2 3 4</module></union>",
    ],
)
def test_a_schema_fits_the_model_or_is_refused(body: str) -> None:
    assert facts(schema_of(body), max_positions=4)["length"] == 4
    error = refused(schema_of("\n" + body), max_positions=3)
    assert ("'s'" in error.message, "4" in error.message, "3" in error.message, error.line) == (True, True, True, 1)


def test_a_pipe_is_no_file_and_is_not_waited_for(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe.txt")
    with pytest.raises(PMLError, match="not an ordinary file"):
        parse_schema(schema_of('<module name="m" src="pipe.txt"/>'), folder=tmp_path)


def test_a_huge_slot_costs_nothing_until_it_is_used() -> None:
    slot = f"<param name='p' len='{MAX_SLOT}'/>"
    members = "".join(f"<module name='m{i}'>{slot}</module>" for i in range(30))
    schema = parse_schema(schema_of(f"<union>{members}</union>"))
    tracemalloc.start()
    try:
        assert lay_out(schema, WordTokenizer()).length == MAX_SLOT
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert peak < MAX_SLOT, "not even a byte per id"


# --- nodes that were built, not read ---------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("schema", "named"),
    [
        (Schema(name="1"), "'1'"),
        (Schema(name="s", children=(Parameter(name="p", length=1),)), "'p'"),
        (Schema(name="s", children=(Module(name="m", children=(Parameter(name="p", length=-1),)),)), "-1"),
        (Schema(name="s", children=(Module(name="m", children=(Scaffold(modules=("a", "b")),)),)), "scaffold"),
        (Schema(name="s", children=(Role(role="user", children=(Role(role="user"),)),)), "<user>"),
        (Schema(name="s", children=(Module(name="a\ud800"),)), "name"),
    ],
)
def test_rules_hold_for_what_a_program_builds(schema: Schema, named: str) -> None:
    with pytest.raises(PMLError) as caught:
        check_schema(schema)
    assert named in caught.value.message
    assert caught.value.line is None


# --- writing ---------------------------------------------------------------------------------------------------------

TRICKY = "<a> & \"b\" 'c' ]]> &amp; \t x\ny \u0301é \U0001f469\u200d\U0001f680 \x85\u2028\ue000\ufffd"


def test_what_is_written_is_read_again() -> None:
    inner = (Text(text=f" {TRICKY}\r\n"), Role(role="user", children=(Text(text=" "),)))
    member = Module(name="x", children=(Parameter(name="p", length=3, placeholder=f" {TRICKY}\r\n"),))
    schema = Schema(
        name="s",
        children=(
            Text(text=TRICKY),
            Role(role="system"),
            Module(name="live", cached=False, children=inner),
            Module(name="m"),
            Union(members=(member,), scaffold="x"),
            Union(members=()),
            Scaffold(modules=("m", "x")),
        ),
    )
    assert parse_schema(write_schema(schema)) == schema


def test_lines_break_where_only_tags_meet_and_reading_drops_them() -> None:
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
        (Text(text="a\x1f"),),
        (Text(text="\ud800"),),
        (Text(text="\uffff"),),
        (Text(text="<s>", structural=True),),
        (Text(text="a", tokens=(1,)),),
        (Module(name="m", children=(Parameter(name="p", length=1, placeholder="\x0b"),)),),
    ],
)
def test_what_the_language_cannot_say_is_not_written(children: tuple[Text | Module, ...]) -> None:
    with pytest.raises(ValueError):
        write_schema(Schema(name="s", children=children))
