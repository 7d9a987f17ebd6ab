"""The documentation installed with Python, which the demo trains on."""

import collections

import pytest

from official_tasks.documentation import prose, read_documentation

DOCSTRING = """Computes the mean of all values, one by one.

    The values may be of `any` kind :class:`~a.b.Number`, see
    [the guide](https://example.com/guide) or `this page <x.html>`_.

    Usage:

    >>> mean([1, 2])
    1.5

    ```python
    import numpy as np
    print("some code that is long enough to look like a sentence")
    ```

    Results so far::

        a block of code that is also made of quite plain words

    ==========  =====
    Method      Time
    ==========  =====

    Args:
        values: The numbers that are to be averaged,
            all of them.
        axis (int): Optional. The axis along which to go.

    Parameters
    ----------
    out : ndarray
        Where to put the result of it all.

    * A list item with some words in it
    * x
    """


def test_docstrings_become_plain_prose():
    assert prose(DOCSTRING) == [
        "Computes the mean of all values, one by one.",
        "The values may be of `any` kind `Number`, see the guide or this page.",
        "The numbers that are to be averaged, all of them.",
        "The axis along which to go.",
        "Where to put the result of it all.",
        "A list item with some words in it",
    ]


def test_code_names_are_found_where_backquotes_were(monkeypatch):
    docstrings = [
        "Calls ``f`` with :arg:`x`, twice or more. It has no code.",
        "Adds `a + b` to the old value of `c`, once.",  # other code
        "Counts the `int`s of a list, one by one.",  # part of a word
        "Opens `name' in the text mode of the old time.",  # no pair
        "The words `end. And` are parts of two sentences.",
    ]
    monkeypatch.setattr(
        "official_tasks.documentation._list_modules",
        lambda: [("m", docstrings)],
    )
    ((document, names),) = read_documentation()
    assert document.paragraphs == [
        "Calls f with x, twice or more.",
        "It has no code.",
        "Adds a + b to the old value of c, once.",
        "Counts the ints of a list, one by one.",
        "Opens name' in the text mode of the old time.",
        "The words end.",
        "And are parts of two sentences.",
    ]
    assert names == [[(6, 7), (13, 14)], *[[]] * 6]


@pytest.mark.long
def test_the_installed_documentation_is_english_prose(monkeypatch):
    # Leave out TensorFlow's documentation, which takes most of the time.
    monkeypatch.setattr(
        "official_tasks.documentation.LIBRARIES",
        ("numpy", "google.protobuf", "no_such_library"),
    )
    found, code = zip(*read_documentation(), strict=True)
    names = [document.name for document in found]
    assert any(name.startswith("numpy.") for name in names)
    assert any(name.startswith("google.protobuf.") for name in names)
    assert len(set(names)) == len(names) > 500
    assert "pydoc_data.topics.assert" in names
    assert not any(".tests." in name for name in names)
    sentences = [s for d in found for s in d.paragraphs]
    assert len(set(sentences)) == len(sentences)
    assert all(document.sentences_given for document in found)
    text = " ".join(sentences)
    assert "`" not in text
    code_names = collections.Counter(
        sentence[start:end]
        for document, spans in zip(found, code, strict=True)
        for sentence, names in zip(document.paragraphs, spans, strict=True)
        for start, end in names
    )
    assert code_names["None"] > 50 and code_names["axis"] > 50
    assert not any(set(name) & set(" `") for name in code_names)
    assert len(text) > 1_000_000
    words = text.lower().split()
    share = sum(word in {"the", "of", "a", "to", "is", "in"} for word in words)
    assert share > 0.15 * len(words)  # about 0.2 in English prose
    assert ">>>" not in text and "```" not in text
