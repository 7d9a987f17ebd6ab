"""Docstrings to plain English: code, tables, signatures and markup go."""

import itertools
import re

_FENCE = re.compile(r"^[ \t]*(```|~~~).*?(?:^[ \t]*\1[ \t]*$|\Z)", re.M | re.S)
_CODE = re.compile(r">>>|\.\.\. |\$ |In \[|import |from \w+ import |@\w")
_RULE = re.compile(r"[-=~^*+#\"'`|\s]{3,}$")
# Lines that are not part of a sentence: rules, tables, headings ("Args:"),
# directives, and NumPy's "x : array".
_NO_PROSE = re.compile(
    r"[-=~^*+#\"'`|\s]{3,}$|.*?(?:\||\S\t|\S {3,}\S)"
    r"|(?:#+ .*|[\w' /-]{1,40}:)$|\.\. |:[\w-]+:$|[`*\w][\w.,* ]{0,40} : "
)
_BULLET = re.compile(r"([-*+\u2022]|\(?\w{1,2}[.)]|#\.|\[\d+\])\s+")
# "name (type): text", ":param name: text", "* name: text"
_LABEL = re.compile(
    r"(?::\w+[^:]{0,60}:|[-*]?\s*[`*\"']*\w[\w.,*/`'\" =-]{0,40}[`*\"']*"
    r"\s*(?:\([^)]{0,80}\))?\s*:)\s+(?=\S)"
)
_OPTIONAL = re.compile(r"\(?[Oo]ptional\.?\)?[.:,]?\s+")
_MARKED = re.compile(r"[`*_\[\\]|://")
_MARKUP = (
    (re.compile(r"!?\[([^\]]+)\]\([^)\s]*\)"), r"\1"),  # [text](link)
    (re.compile(r"`([^`<]+?)\s*<[^>`]*>`_*"), r"\1"),  # `text <link>`_
    (re.compile(r":[\w:]+:`~[\w.]*?(\w+)`"), r"\1"),  # :role:`~a.b.name`
    (re.compile(r":[\w:]+:`([^`]+)`"), r"\1"),  # :role:`name`
    (re.compile(r"`+"), ""),
    (re.compile(r"(?<!\w)(\*\*?|__)(\S(?:.*?\S)?)\1(?!\w)"), r"\2"),
    (re.compile(r"<?https?://[^\s>)]+>?"), ""),
    (re.compile(r"\s*\[\d+\]_?|\\"), ""),
)
_ODD_START = frozenset("|<>=+*/\\#@$%&;:,.)]}~^")
_WORD = re.compile(
    r"[\"'(\u201c]?[A-Za-z]+(?:['\u2019-][A-Za-z]+)*[\"')\u201d]?[.,;:!?]*"
)


def prose(docstring: str) -> list[str]:
    """The paragraphs and list items of a docstring that are English prose.

    >>> prose("Adds two numbers, one by one.\\n\\n>>> add(1, 2)\\n3\\n")
    ['Adds two numbers, one by one.']
    """
    kept = []
    for block in _blocks(_FENCE.sub("\n", docstring)):
        for item in _items(block):
            text = _plain(item)
            if _is_prose(text):
                kept.append(text)
    return kept


def _blocks(text: str) -> list[list[str]]:
    """Blocks of lines between blank lines, without blocks of code."""
    blocks = []
    code_indent = None  # the indent of the text that announced code by "::"
    for block in re.split(r"\n\s*\n", text):
        indent = len(block) - len(block.lstrip(" "))
        lines = [line.strip() for line in block.strip().split("\n")]
        if code_indent is not None and indent > code_indent:
            continue
        code_indent = indent if lines[-1].endswith("::") else None
        if not any(map(_CODE.match, lines)):
            blocks.append(lines)
    return blocks


def _items(lines: list[str]) -> list[str]:
    """Joins wrapped lines; a bullet or an argument's name opens an item."""
    items = [[]]
    for line, following in itertools.zip_longest(lines, lines[1:]):
        underlined = following is not None and _RULE.match(following)
        if underlined or _NO_PROSE.match(line):
            items.append([])
        elif match := _BULLET.match(line) or _LABEL.match(line):
            items.append([line[match.end() :]])
        else:
            items[-1].append(line)
    return [" ".join(item) for item in items if item]


def _plain(text: str) -> str:
    """Takes the markup out and the label that may stand before the text."""
    for opening in (_LABEL, _OPTIONAL):
        if match := opening.match(text):
            text = text[match.end() :]
    if _MARKED.search(text):
        for pattern, replacement in _MARKUP:
            text = pattern.sub(replacement, text)
    return " ".join(text.split())


def _is_prose(text: str) -> bool:
    """At least four words, two thirds of them plain."""
    words = text.split()
    if len(words) < 4 or text[0] in _ODD_START:
        return False
    plain = sum(map(bool, map(_WORD.fullmatch, words)))
    return 3 * plain >= 2 * len(words)
