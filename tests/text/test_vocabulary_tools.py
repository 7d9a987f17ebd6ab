"""Scripts that write vocabularies, and the settings files next to them."""

import builtins
import contextlib
import errno
import functools
import json
import os

import pytest

import bert_keras
from bert_keras.errors import InputError
from bert_keras.interop.huggingface_tokenizer import write_tokenizer
from bert_keras.json_files import write_json
from bert_keras.text import learning, vocabulary
from bert_keras.text.vocabulary import (
    SETTINGS,
    read_vocabulary,
    resolve_settings,
    write_with_settings,
)
from bert_keras.text.wordpiece import SPECIAL_TOKENS
from official_tasks import options
from tests.support import tiny
from tests.support.script_flags import parse_flags
from tests.support.strange_strings import strange_strings
from tools import create_pretraining_data, extend_vocabulary, train_vocabulary

RUSSIAN = "Мой трамвай и твой чай. Он пил чай у моей ели. " * 9
FRENCH = "Été ou été, où ça ? L'île, déjà. " * 9
ENGLISH = "A naive goat sailed home to the old harbour. " * 40 + "Café?"


@pytest.fixture
def run(tmp_path, monkeypatch):
    """Function that runs a tool in the folder `tmp_path`, with flags."""
    monkeypatch.chdir(tmp_path)

    def run(tool, command):
        tool.main(parse_flags(tool.Options, command.split()))

    return run


def settings_of(path):
    stated = json.loads((path / SETTINGS).read_text())
    return stated["do_lower_case"], stated["strip_accents"]


@pytest.mark.parametrize(
    ("text", "flags", "expected", "piece"),
    [
        (RUSSIAN, "", (True, False), "мой"),
        (FRENCH, "", (True, False), "été"),
        (ENGLISH, "", (True, True), "cafe"),
        (FRENCH, "--strip_accents", (True, True), "ete"),
        (FRENCH, "--nolowercase", (False, False), "Été"),
        (ENGLISH, "--nostrip_accents", (True, False), "café"),
    ],
)
def test_settings_go_with_a_learned_vocabulary(
    run, tmp_path, text, flags, expected, piece
):
    (tmp_path / "text.txt").write_text(text, encoding="utf-8")
    flags += " --min_count=1 --vocabulary_size=400 --workers=1"
    run(train_vocabulary, f"--input=text.txt --output=v/vocab.txt {flags}")
    path = tmp_path / "v" / "vocab.txt"
    assert settings_of(tmp_path / "v") == expected
    assert piece in read_vocabulary(path)
    assert read_vocabulary(path) == learning.learn_vocabulary(
        [text], 400, expected[0], 1, expected[1]
    )
    tokenizer = bert_keras.WordPieceTokenizer(path)
    assert (tokenizer.lowercase, tokenizer.strip_accents) == expected


def test_all_that_read_a_vocabulary_follow_its_settings(
    run, tmp_path, monkeypatch
):
    (tmp_path / "text.txt").write_text(RUSSIAN, encoding="utf-8")
    write_with_settings([*SPECIAL_TOKENS, *"мойчаи"], "vocab.txt", True, False)
    run(
        extend_vocabulary,
        "--vocabulary=vocab.txt --input=text.txt --output=b/vocab.txt",
    )
    assert "трамвай" in read_vocabulary("b/vocab.txt")
    assert settings_of(tmp_path / "b") == (True, False)
    data = "--input=text.txt --vocabulary=b/vocab.txt --output=data"
    values = parse_flags(create_pretraining_data.Options, data.split())
    assert options.load_tokenizer(values).strip_accents is False
    with pytest.raises(InputError, match="strip_accents=True.? contradicts"):
        run(create_pretraining_data, f"{data} --strip_accents")
    with pytest.raises(InputError, match="lowercase=False` contradicts"):
        run(
            train_vocabulary,
            "--input=text.txt --output=other.txt --nolowercase",
        )
    words = "--input=text.txt --min_count=1 --overwrite --output="
    run(train_vocabulary, f"{words}other.txt")
    with pytest.raises(InputError, match="lowercase=False` contradicts"):
        run(train_vocabulary, f"{words}vocab.txt --nolowercase")
    os.remove("other.txt")  # now no other vocabulary shares the settings file
    run(train_vocabulary, f"{words}vocab.txt --nolowercase")
    assert settings_of(tmp_path) == (False, False)


@pytest.mark.parametrize(
    ("content", "expected"),
    [
        (None, (None, None)),
        ({}, (None, None)),
        ({"do_lower_case": False}, (False, False)),
        ({"do_lower_case": True, "strip_accents": None}, (True, True)),
        ({"do_lower_case": True, "strip_accents": False}, (True, False)),
        ({"do_lower_case": "yes"}, "true or false"),
        ([], "JSON object"),
        ("{", "cannot be read"),
    ],
)
def test_the_settings_are_read_or_refused(tmp_path, content, expected):
    if isinstance(content, str):
        (tmp_path / SETTINGS).write_text(content)
    elif content is not None:
        write_json(content, tmp_path / SETTINGS)
    if isinstance(expected, str):
        with pytest.raises(InputError, match=expected):
            resolve_settings(tmp_path / "vocab.txt")
    else:
        assert resolve_settings(tmp_path / "vocab.txt") == expected


def test_a_settings_file_keeps_what_else_it_states(tmp_path):
    path = tmp_path / SETTINGS
    stated = {"do_lower_case": True, "model_max_length": 512}
    path.write_text(json.dumps(stated))
    tokens = [*SPECIAL_TOKENS, "a"]
    write_with_settings(tokens, tmp_path / "vocab.txt", True, True)
    assert path.read_text() == json.dumps(stated)
    write_with_settings(tokens, tmp_path / "vocab.txt", True, False)
    assert settings_of(tmp_path) == (True, False)
    assert json.loads(path.read_text())["model_max_length"] == 512


@pytest.mark.parametrize("function", ["open", "flush", "replace"])
@pytest.mark.parametrize("calls", [1, 2, 3, 4, 5])
def test_an_old_vocabulary_never_stays_beside_new_settings(
    tmp_path, monkeypatch, function, calls
):
    path = tmp_path / "vocab.txt"
    old, new = [*SPECIAL_TOKENS, "good"], [*SPECIAL_TOKENS, "Good"]
    write_with_settings(old, path, True, True)
    count = iter(range(calls))

    def fail(function, *arguments, **named):
        if next(count, None) is None:
            raise OSError(errno.ENOSPC, "No space left on device")
        return function(*arguments, **named)

    with monkeypatch.context() as patch, contextlib.suppress(OSError):
        owner = {"open": builtins, "flush": vocabulary, "replace": os}[function]
        real = getattr(owner, function)
        patch.setattr(owner, function, functools.partial(fail, real))
        write_with_settings(new, path, False, False)
    if path.exists():
        tokens = read_vocabulary(path)
        assert settings_of(tmp_path) == ((tokens == old),) * 2


def test_settings_of_another_vocabulary_are_not_blamed_on_a_flag(run, tmp_path):
    (tmp_path / "text.txt").write_text(RUSSIAN, encoding="utf-8")
    tokens = [*SPECIAL_TOKENS, *"мойчаи"]
    write_with_settings(tokens, "a/vocab.txt", True, True)
    write_with_settings(tokens, "b/vocab.txt", True, False)
    words = "--vocabulary=a/vocab.txt --input=text.txt --output="
    message = "folder b: .*have strip_accents=False, but a/vocab.txt has"
    with pytest.raises(InputError, match=message):
        run(extend_vocabulary, f"{words}b/more.txt")
    run(extend_vocabulary, f"{words}c/vocab.txt")
    assert settings_of(tmp_path / "c") == (True, True)


def test_counts_without_accents_are_those_of_text_without_accents():
    texts = [s.decode("utf-8", "ignore") for s in strange_strings(400, 3)]
    counts = learning.count_words(texts, True, False)
    expected = learning.count_words(texts, True, True)
    assert learning.strip_counts(counts) == expected
    assert learning.accented_fraction(expected) == 0
    assert 0 < learning.accented_fraction(counts) < 1


@pytest.mark.parametrize("source", ["folder", "bert_keras_mini_en"])
def test_a_model_names_a_vocabulary(run, tmp_path, source):
    (tmp_path / "text.txt").write_text("Zymurgy! " * 9)
    if source == "folder":  # without vocab.txt
        os.mkdir(source)
        write_tokenizer(source, tiny.preprocessor())
        os.remove("folder/vocab.txt")
    old = bert_keras.WordPieceTokenizer.from_preset(source)
    run(
        extend_vocabulary,
        f"--vocabulary={source} --input=text.txt --output=new/vocab.txt",
    )
    new = bert_keras.WordPieceTokenizer("new/vocab.txt")
    assert new.vocabulary[: old.vocabulary_size] == old.vocabulary
    assert new.vocabulary[-1].casefold() == "zymurgy"
    assert new.lowercase == old.lowercase


def test_messages_are_true_of_korean_and_of_no_new_word(run, tmp_path, capsys):
    text = "한국어 나라 사람 " * 9
    (tmp_path / "text.txt").write_text(text, encoding="utf-8")
    run(train_vocabulary, "--input=text.txt --output=vocab.txt --workers=1")
    printed = "".join(capsys.readouterr())
    assert "stripping accents changes 100.0% of the words" in " ".join(
        printed.split()
    )
    run(
        extend_vocabulary,
        "--vocabulary=vocab.txt --input=text.txt --output=new.txt --workers=1",
    )
    printed = " ".join("".join(capsys.readouterr()).split())
    assert "new.txt: each word of the text is one token already: " in printed
    assert printed.endswith("0 of them new")
