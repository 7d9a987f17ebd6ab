"""Read the documentation that is installed with Python, as English prose.

The demo trains on this text. It consists of Python's language reference
(`pydoc_data.topics`) and of the docstrings of the standard library and of the
packages in `LIBRARIES`, so it needs no download. Source files are parsed with
`ast`, not imported.
"""

import ast
import contextlib
import importlib.util
import itertools
import os
import re
import sysconfig
import warnings
from collections.abc import Iterator
from pydoc_data.topics import topics
from typing import NamedTuple

from bert_keras.data.corpus import Document
from bert_keras.data.sentences import split_sentences

_FENCE = re.compile(r"^[ \t]*(```|~~~).*?(?:^[ \t]*\1[ \t]*$|\Z)", re.M | re.S)
_CODE = re.compile(r">>>|\.\.\. |\$ |In \[|import |from \w+ import |@\w")
_RULE = re.compile(r"[-=~^*+#\"'`|\s]{3,}$")
# Lines that are not part of a sentence: horizontal rules, tables, headings
# ("Args:"), directives, and NumPy's "x : array".
_NO_PROSE = re.compile(
    r"[-=~^*+#\"'`|\s]{3,}$|.*?(?:\||\S\t|\S {3,}\S)"
    r"|(?:#+ .*|[\w' /-]{1,40}:)$|\.\. |:[\w-]+:$|[`*\w][\w.,* ]{0,40} : "
)
_BULLET = re.compile(r"([-*+\u2022]|\(?\w{1,2}[.)]|#\.|\[\d+\])\s+")
# Labels before a text: "name (type): text", ":param name: text", "* name: text"
_LABEL = re.compile(
    r"(?::\w+[^:]{0,60}:|[-*]?\s*[`*\"']*\w[\w.,*/`'\" =-]{0,40}[`*\"']*"
    r"\s*(?:\([^)]{0,80}\))?\s*:)\s+(?=\S)"
)
_OPTIONAL = re.compile(r"\(?[Oo]ptional\.?\)?[.:,]?\s+")
_MARKED = re.compile(r"[`*_\[\\]|://")
_MARKUP = (
    (re.compile(r"!?\[([^\]]+)\]\([^)\s]*\)"), r"\1"),  # [text](link)
    (re.compile(r"`([^`<]+?)\s*<[^>`]*>`_*"), r"\1"),  # `text <link>`_
    (re.compile(r":[\w:]+:`~[\w.]*?(\w+)`"), r"`\1`"),  # :role:`~a.b.name`
    (re.compile(r":[\w:]+:`([^`]+)`"), r"`\1`"),  # :role:`name`
    (re.compile(r"`+"), "`"),
    (re.compile(r"(?<!\w)(\*\*?|__)(\S(?:.*?\S)?)\1(?!\w)"), r"\2"),
    (re.compile(r"<?https?://[^\s>)]+>?"), ""),
    (re.compile(r"\s*\[\d+\]_?|\\"), ""),
)
_ODD_START = frozenset("|<>=+*/\\#@$%&;:,.)]}~^")
_WORD = re.compile(
    r"[\"'(\u201c]?[A-Za-z]+(?:['\u2019-][A-Za-z]+)*[\"')\u201d]?[.,;:!?]*"
)


def prose(docstring: str) -> list[str]:
    """Return the paragraphs and list items of a docstring that are prose.

    Code in them is between backquotes.

    >>> prose("Adds ``a`` and b, one by one.\\n\\n>>> add(1, 2)\\n3\\n")
    ['Adds `a` and b, one by one.']
    """
    kept = []
    for group in _split_groups(_FENCE.sub("\n", docstring)):
        for item in _join_items(group):
            text = _remove_markup(item)
            if _is_prose(text.replace("`", "")):
                kept.append(text)
    return kept


def _split_groups(text: str) -> list[list[str]]:
    """Return groups of lines between blank lines, without code."""
    groups = []
    code_indent = None  # indent of the group that announces code by "::"
    for group in re.split(r"\n\s*\n", text):
        indent = len(group) - len(group.lstrip(" "))
        lines = [line.strip() for line in group.strip().split("\n")]
        if code_indent is not None and indent > code_indent:
            continue
        code_indent = indent if lines[-1].endswith("::") else None
        if not any(map(_CODE.match, lines)):
            groups.append(lines)
    return groups


def _join_items(lines: list[str]) -> list[str]:
    """Join wrapped lines into items.

    A bullet or a label begins a new item and is removed. A heading or a line of
    `_NO_PROSE` ends an item and is removed.
    """
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


def _remove_markup(text: str) -> str:
    for opening in (_LABEL, _OPTIONAL):
        if match := opening.match(text):
            text = text[match.end() :]
    if _MARKED.search(text):
        for pattern, replacement in _MARKUP:
            text = pattern.sub(replacement, text)
    return " ".join(text.split())


def _is_prose(text: str) -> bool:
    """Return True if a text is prose.

    Prose has at least 4 words. At least two thirds of them have only letters
    and usual punctuation. Prose does not begin with a symbol of `_ODD_START`.
    """
    words = text.split()
    if len(words) < 4 or text[0] in _ODD_START:
        return False
    plain = sum(map(bool, map(_WORD.fullmatch, words)))
    return 3 * plain >= 2 * len(words)


# Some direct and indirect dependencies of this package. The list is fixed,
# because other installed packages would make the corpus differ by machine.
LIBRARIES = (
    "tensorflow keras tensorflow_text numpy absl google.protobuf grpc h5py "
    "markdown_it ml_dtypes opt_einsum optree packaging pygments requests rich "
    "safetensors setuptools urllib3 wrapt".split()
)
# Folders to skip. TensorFlow's "keras" is an old copy of Keras.
_SKIPPED = frozenset(
    "keras test tests testing idle_test lib2to3 site-packages dist-packages "
    "_vendor vendor __pycache__ _api".split()
)
_DOCUMENTED = (
    ast.Module,
    ast.ClassDef,
    ast.FunctionDef,
    ast.AsyncFunctionDef,
)
_BLOCKS = (*_DOCUMENTED, ast.If, ast.Try, ast.With)


class Documentation(NamedTuple):
    """The prose of a module or topic.

    Attributes:
        document: `Document` of the sentences, without backquotes.
        names: for each sentence, the (start, end) of the code names that were
            in backquotes; empty if other text was in backquotes, too.
    """

    document: Document
    names: list[list[tuple[int, int]]]


def read_documentation() -> Iterator[Documentation]:
    """Yield the documentation of each module or topic, in a fixed order.

    A sentence that occurs again is skipped, so training data and held-out data
    have no sentence in common. Modules without prose are skipped.
    """
    seen: set[str] = set()
    for name, docstrings in _list_modules():
        paragraphs = (text for doc in docstrings for text in prose(doc))
        found = {}
        for text in paragraphs:
            for sentence, names in _split_names(text):
                key = sentence.casefold().rstrip(".")
                if key not in seen:
                    seen.add(key)
                    found[sentence] = names
        if found:
            document = Document(name, [*found], sentences_given=True)
            yield Documentation(document, [*found.values()])


def _split_names(paragraph):
    """Yield each sentence of a paragraph with its code names.

    >>> [*_split_names("Calls `f`. It adds `a + b`.")]
    [('Calls f.', [(6, 7)]), ('It adds a + b.', [])]
    """
    parts = paragraph.split("`")  # each second part is code
    ends = [*itertools.accumulate(map(len, parts))]
    code = [*zip(ends[::2], ends[1::2], strict=False)]
    text, end = "".join(parts), 0
    for sentence in split_sentences(text):
        start = text.index(sentence, end)
        end = start + len(sentence)
        names = [(a, b) for a, b in code if a < end and start < b]
        # A name has no space, and no letter before or after it.
        is_clear = len(parts) % 2 and all(
            start <= a < b <= end
            and len(text[a:b].split()) == 1
            and not text[a - 1 : a].isalnum()
            and not text[b : b + 1].isalnum()
            for a, b in names
        )
        yield (
            sentence,
            [(a - start, b - start) for a, b in names] if is_clear else [],
        )


def _list_modules() -> Iterator[tuple[str, list[str]]]:
    for topic, text in sorted(topics.items()):
        yield f"pydoc_data.topics.{topic}", [text]
    for name, path in _list_python_files(sysconfig.get_paths()["stdlib"]):
        yield name, _find_docstrings(path)
    for library in LIBRARIES:
        for folder in _locate(library):
            for name, path in _list_python_files(folder):
                yield f"{library}.{name}", _find_docstrings(path)


def _locate(library: str) -> list[str]:
    with contextlib.suppress(ModuleNotFoundError):
        spec = importlib.util.find_spec(library)
        return list(spec.submodule_search_locations or []) if spec else []
    return []


def _list_python_files(folder: str) -> Iterator[tuple[str, str]]:
    """Yield (dotted name, path) of the modules in a folder, except tests."""
    for root, folders, files in os.walk(folder):
        folders[:] = sorted(set(folders) - _SKIPPED)
        for file in sorted(files):
            stem, extension = os.path.splitext(file)
            test = stem.startswith("test_") or stem.endswith("_test")
            if extension == ".py" and not test:
                path = os.path.join(root, file)
                relative = os.path.relpath(path, folder)[: -len(".py")]
                yield relative.replace(os.sep, "."), path


def _find_docstrings(path: str) -> list[str]:
    try:
        with open(path, "rb") as file, warnings.catch_warnings():
            warnings.simplefilter("ignore")  # invalid escapes cause warnings
            text = file.read()
            if b'"""' not in text and b"'''" not in text:
                return []  # most likely no docstrings; skip the slow parser
            nodes = _find_documented(ast.parse(text))
            return [text for node in nodes if (text := ast.get_docstring(node))]
    except (OSError, SyntaxError, ValueError):
        return []


def _find_documented(node: ast.AST) -> Iterator[ast.AST]:
    """Yield nodes that may have a docstring.

    Nodes in functions and in `else` and `except` branches are skipped.
    """
    if isinstance(node, _DOCUMENTED):
        yield node
    if not isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
        for child in getattr(node, "body", ()):
            if isinstance(child, _BLOCKS):
                yield from _find_documented(child)
