"""The documentation that is installed beside Python, as a corpus.

Real English that is on every machine: the docstrings of the standard library
and of the libraries that this package needs, and Python's language reference
(`pydoc_data.topics`). Source files are parsed with `ast`; none is imported.
"""

import ast
import gc
import os
import sysconfig
import warnings
from collections.abc import Iterator
from importlib.machinery import PathFinder

from bert_keras.data.documents import Document
from bert_keras.data.prose import prose
from bert_keras.data.sentences import split_sentences

# What this package depends on, directly or through another; one that is not
# installed is left out. A longer list would make the corpus depend on what
# else happens to be installed.
LIBRARIES = (
    "tensorflow",
    "keras",
    "tensorflow_text",
    "numpy",
    "absl",
    "google.protobuf",
    "grpc",
    "h5py",
    "markdown_it",
    "ml_dtypes",
    "opt_einsum",
    "optree",
    "packaging",
    "pygments",
    "requests",
    "rich",
    "safetensors",
    "setuptools",
    "urllib3",
    "wrapt",
)
# "keras": TensorFlow carries an old copy of Keras, whose text Keras has.
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


def installed_documentation() -> Iterator[Document]:
    """Yields one document a module or topic, in a fixed order.

    `group` is the library that it documents, "python" for the standard
    library. Each paragraph is one sentence; a sentence that an earlier
    document holds is dropped, so that held-out documents share none with the
    others. Modules without prose yield nothing.
    """
    seen: set[str] = set()
    for group, name, docstrings in _modules():
        paragraphs = (text for doc in docstrings for text in prose(doc))
        sentences = []
        for text in paragraphs:
            for sentence in split_sentences(text):
                key = sentence.casefold().rstrip(".")
                if key not in seen:
                    seen.add(key)
                    sentences.append(sentence)
        if sentences:
            yield Document(name, group, sentences, sentences_given=True)


def _modules() -> Iterator[tuple[str, str, list[str]]]:
    """(library, module or topic, its docstrings) of everything there is."""
    standard = sysconfig.get_paths()["stdlib"]
    for topic, text in sorted(_topics(standard).items()):
        yield "python", f"pydoc_data.topics.{topic}", [text]
    for name, path in _python_files(standard):
        yield "python", name, _docstrings(path)
    for library in LIBRARIES:
        for folder in _locate(library):
            for name, path in _python_files(folder):
                yield library, f"{library}.{name}", _docstrings(path)


def _locate(library: str) -> list[str]:
    """The folders of a package, found without importing it or its parent."""
    folders = None
    for part in library.split("."):
        spec = PathFinder.find_spec(part, folders)
        if spec is None or spec.submodule_search_locations is None:
            return []
        folders = list(spec.submodule_search_locations)
    return folders


def _python_files(folder: str) -> Iterator[tuple[str, str]]:
    """(dotted name, path) of the modules under a folder, tests left out."""
    for root, folders, files in os.walk(folder):
        folders[:] = sorted(set(folders) - _SKIPPED)
        for file in sorted(files):
            stem, extension = os.path.splitext(file)
            test = stem.startswith("test_") or stem.endswith("_test")
            if extension == ".py" and not test:
                path = os.path.join(root, file)
                relative = os.path.relpath(path, folder)[: -len(".py")]
                yield relative.replace(os.sep, "."), path


def _docstrings(path: str) -> list[str]:
    """The docstrings of a module, its classes and functions, in order."""
    tree = _parse(path)
    if tree is None:
        return []
    found = (ast.get_docstring(node) for node in _documented(tree))
    return [docstring for docstring in found if docstring]


def _documented(node: ast.AST) -> Iterator[ast.AST]:
    """The nodes that may have a docstring; what is in functions is not."""
    if isinstance(node, _DOCUMENTED):
        yield node
    if not isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
        for child in getattr(node, "body", ()):
            if isinstance(child, _BLOCKS):
                yield from _documented(child)


def _parse(path: str) -> ast.Module | None:
    """The module's syntax tree, None where this Python cannot read it."""
    # A tree has thousands of nodes and no cycle: looking for cycles while it
    # grows takes as long as parsing.
    collects = gc.isenabled()
    gc.disable()
    try:
        with open(path, "rb") as file, warnings.catch_warnings():
            warnings.simplefilter("ignore")  # of escapes in others' code
            text = file.read()
            documented = b'"""' in text or b"'''" in text
            return ast.parse(text) if documented else None
    except (OSError, SyntaxError, ValueError):
        return None
    finally:
        if collects:
            gc.enable()


def _topics(standard: str) -> dict[str, str]:
    """The language reference that `help()` shows, by topic."""
    tree = _parse(os.path.join(standard, "pydoc_data", "topics.py"))
    for node in tree.body if tree else ():
        if isinstance(node, ast.Assign) and node.targets[0].id == "topics":
            return ast.literal_eval(node.value)
    return {}
