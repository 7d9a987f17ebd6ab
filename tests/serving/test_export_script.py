"""Models and flags of the script tools/export.py."""

import ast
import re

import pytest

import bert_keras
from bert_keras.errors import InputError, UntrainedWarning
from bert_keras.interop.saving import save_model
from bert_keras.text.preprocessor import BertPreprocessor
from bert_keras.text.tokenizer import WordPieceTokenizer
from official_tasks import cli, progress
from tests.support.run_script import ROOT, run_script
from tests.support.script_flags import parse_flags
from tests.support.served_samples import (
    VOCABULARY,
    encoder,
    preprocessor,
    tokenizer,
)
from tools import export


@pytest.fixture
def parsed():
    """A function that parses a command line of tools/export.py."""

    def parse(*words):
        command = ["--model=m", "--output=o", *words]
        return parse_flags(export.Options, command)

    return parse


def test_models_of_two_preprocessors_are_not_exported_together(tmp_path):
    model = encoder()
    names = ("a", "short", "other", "cased", "prompted")
    folders = [str(tmp_path / name) for name in names]
    other = VOCABULARY[::-1]
    for folder, preprocess in zip(
        folders,
        (
            preprocessor(),
            preprocessor(9),
            BertPreprocessor(WordPieceTokenizer(other), sequence_length=12),
            BertPreprocessor(
                WordPieceTokenizer(VOCABULARY, lowercase=False),
                sequence_length=12,
            ),
            BertPreprocessor(tokenizer(), 12, prompts={"query": "an "}),
        ),
        strict=True,
    ):
        save_model(folder, model, preprocess)
    a, short, *_, prompted = folders
    # A model without prompts may follow one with prompts but no default.
    assert export.load_preprocessor([prompted, a]).prompts == {"query": "an "}
    assert export.load_preprocessor([a, short], 11).sequence_length == 11
    for folder, message in zip(
        folders[1:],
        (
            "short differ in sequence_length; .* Set --sequence_length, or",
            "other differ in vocabulary; .* Export the models to two folders",
            "cased differ in lowercase, ",
            "prompted differ in prompts;",
        ),
        strict=True,
    ):
        with pytest.raises(InputError, match=message):
            export.load_preprocessor([a, folder])


def test_every_option_reaches_the_export(parsed, monkeypatch):
    given = {
        "pair": True,
        "top_k": 3,
        "pooling": "cls",
        "normalize": True,
        "truncate_dim": 4,
        "features": "last",
        "hypothesis": "{}?",
        "long_text": "windows",
        "ids_signature": "original",
        "portable": True,
        "license": "mit",
        "weights_dtype": "int8",
        "verify": False,
        "allow_untrained": True,
    }
    told = []

    def exported(models, preprocess, folder, **options):
        told.append(options)
        raise KeyboardInterrupt  # before the script loads the export

    monkeypatch.setattr(bert_keras, "export_saved_model", exported)
    words = [f"--{name}={value}" for name, value in given.items()]
    with pytest.raises(KeyboardInterrupt):
        export.export([], None, parsed(*words))
    assert told == [given]


def test_the_script_exports_what_is_random_and_notes_it_in_a_line(tmp_path):
    encoder().save_preset(tmp_path / "encoder", preprocessor())
    with pytest.warns(UntrainedWarning):
        model = bert_keras.BertClassifier.from_preset(
            tmp_path / "encoder", labels=["bad", "good"]
        )
    model.save_preset(tmp_path / "model", preprocessor())
    done = run_script(
        ROOT / "tools" / "export.py",
        "--model=model",
        "--output=served",
        "--noverify",
        "--allow_untrained",
        folder=tmp_path,
    )
    assert done.returncode == 0
    lines = done.stderr.splitlines()
    (line,) = [line for line in lines if line.startswith("export.py: ")]
    assert line.startswith("export.py: note: BertClassifier from model: these")
    assert (tmp_path / "served" / "saved_model.pb").exists()


def list_messages(path):
    """Return the strings of a module, except docstrings and help of flags."""
    tree, left_out = ast.parse(path.read_text(encoding="utf-8")), set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Expr):
            left_out.add(node.value)
        if isinstance(node, ast.Call) and ast.unparse(node).startswith(
            "flags.DEFINE"
        ):
            left_out |= {*ast.walk(node)}
    return [
        node.value
        for node in ast.walk(tree)
        if isinstance(node, ast.Constant) and node not in left_out
        if isinstance(node.value, str) and " " in node.value
    ]


def test_messages_have_arguments_that_are_flags_in_backquotes():
    """Only then do the scripts name the flag."""
    paths = [
        path
        for folder in ("bert_keras", "official_tasks", "tools")
        for path in (ROOT / folder).rglob("*.py")
        if not {"benchmark", "maintenance"} & {*path.parts}
    ]
    # Fields of dataclasses of options.
    defined = r"^    (\w+): .* = (?:options?[.\w]*|_\w+)\("
    names = set()
    for path in paths:
        text = path.read_text(encoding="utf-8")
        names |= {*re.findall(defined, text, re.MULTILINE)}
    # A name that is not in backquotes, not a flag, and not part of a path. A
    # name without underscore may be another word, except at the beginning.
    long_names = "|".join(name for name in names if "_" in name)
    bare = (
        rf"(?<![\w`=./'\"{{-])({long_names})(?![\w/=\"'`]|\.\w)"
        rf"|^({'|'.join(names)}) (is|must|names)\b"
    )
    found = {
        (path.name, message)
        for path in paths
        for message in list_messages(path)
        if re.search(bare, message)
    }
    # Lists of names, and a text about the inputs of a signature
    spared = {"extract_features.py", "packing.py", "pretraining.py"}
    spared |= {"shards.py"}
    assert {name for name, _ in found} <= spared, found
    assert len(names) > 50


def test_a_message_names_the_flag_and_not_the_argument(
    parsed, monkeypatch, capsys
):
    found = parsed()
    monkeypatch.setattr(cli.flags, "FLAGS", found)
    for told, shown in (
        ("with `verify=False` to", "with --noverify to"),
        ("with `allow_untrained=True`.", "with --allow_untrained."),
        ("Pass `lowercase=True` or", "Pass `lowercase=True` or"),
        ("set `format=onnx`, or", "set --format=onnx, or"),
        ("`format` is b; expected", "--format is b; expected"),
        ("the length `long_text`.", "the length --long_text."),
        ("use `weights_dtype='int8'`, or", "use --weights_dtype=int8, or"),
        ('use `weights_dtype="int8"`, or', "use --weights_dtype=int8, or"),
        # The user's own words, such as classes and columns
        ("classes: pair, long_text", "classes: pair, long_text"),
        ("format is a class", "format is a class"),
        ("a/long_text has top_k=3", "a/long_text has top_k=3"),
    ):
        assert cli.with_flags(told) == shown
    capsys.readouterr()
    progress.print_notes(
        ["with `top_k=3` of %s, use `weights_dtype='int8'`", "b", "b"]
    )
    assert capsys.readouterr().out == (
        "note: with --top_k=3 of %s, use --weights_dtype=int8\nnote: b\n"
    )
