"""Markdown as site generators extend it: boxes, tabs and imported components become ordinary paragraphs.

Docusaurus and MDX (`:::tip`, `<TabItem label="…">`, `import`), VitePress (`::: tip`), MkDocs Material (`!!! note`,
`??? question "…"`, `=== "Tab"` with an indented body), GitHub (`> [!NOTE]`), Hugo (`{{< note >}}`).
"""

import re
from collections.abc import Iterator

_FENCE = re.compile(r"[ \t]*(`{3,}|~{3,})")
_INDENTED_BOX = re.compile(
    r'(?P<indent>[ \t]*)(?:(?:!!!|\?\?\?\+?)[ \t]+[\w-]+(?:[ \t]+[\w-]+)*|={3}[+!]*)[ \t]*(?:"(?P<title>.*)")?[ \t]*'
)
_CONTAINER = re.compile(r"[ \t]*:{3,}[ \t]*[\w-]*[ \t]*(?:\[(?P<bracketed>.*)\]|(?P<plain>[^{]*))(?:\{.*\})?[ \t]*")
_LABELLED = re.compile(
    r"<(?:TabItem|Tab|Admonition|Step|Accordion)\b[^>]{0,400}?\b(?:label|title)=[\"'](?P<label>[^\"'<>]{0,200})[\"'][^>]{0,400}>"
)
_ALERT = re.compile(r"^([ \t]*>[ \t]*)\[!\w+\][+-]?[ \t]*", re.MULTILINE)
_IMPORT = re.compile(
    r"(?:import\s(?:[\w$*{},\s]+\sfrom\s)?\s*[\"'][@\w./-]+[\"']|export\s+(?:const|let|default|function)\b.*);?\s*"
)
_COMMENT = re.compile(r"\{/\*.{0,4000}?\*/\}", re.DOTALL)
_SHORTCODE = re.compile(r"\{\{[<%].{0,400}?[%>]\}\}")
_INDENT = 4  # of the body of a box of MkDocs


def common_markdown(text: str) -> str:
    """Return the text with these extensions as paragraphs. Programs in fences stay as they are."""
    return "\n".join(_lines(text.split("\n")))


def _lines(lines: list[str]) -> Iterator[str]:
    fence = ""
    boxes: list[int] = []  # indents of open boxes of MkDocs
    prose: list[str] = []  # lines outside of programs
    for line in lines:
        indent = len(line) - len(line.lstrip())
        while boxes and line.strip() and indent < boxes[-1] + _INDENT:
            boxes.pop()
        shift = _INDENT * len(boxes)
        line = line[min(shift, indent) :]
        mark = _FENCE.match(line)
        if fence or mark:
            if mark and not fence:
                fence = mark[1]
                yield from _prose(prose)
                prose = []
            elif mark and line.strip().startswith(fence) and not line.strip().strip(fence[0]):
                fence = ""
            yield line
        elif box := _INDENTED_BOX.fullmatch(line):
            boxes.append(indent)
            title = box["title"] or ""
            prose += ["", f"{title}:" if line.lstrip().startswith("=") else title, ""]
        else:
            prose.append(line)
    yield from _prose(prose)


def _prose(lines: list[str]) -> Iterator[str]:
    text = "\n".join(lines)
    text = _SHORTCODE.sub("", _COMMENT.sub("", _ALERT.sub(r"\1", _LABELLED.sub("\n\n\\g<label>:\n\n", text))))
    for line in text.split("\n"):
        if container := _CONTAINER.fullmatch(line):
            yield from ("", container["bracketed"] or container["plain"] or "", "")
        elif not _IMPORT.fullmatch(line):
            yield line
