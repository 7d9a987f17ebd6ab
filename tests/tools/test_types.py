"""Types of the public names, as editors and type checkers see them."""

import ast
import contextlib
import inspect
import re
from pathlib import Path

import pytest
from mypy import api

import bert_keras
from tests.support.run_script import ROOT

REVEALED = """
import bert_keras

preprocess = bert_keras.BertPreprocessor.from_preset("m", sequence_length=8)
model = bert_keras.BertClassifier.from_preset("m", labels=["no", "yes"])
model.compile(bert_keras.adamw(2e-5, steps=10), "mse")
model.fit(preprocess(["A text."]), epochs=2)
served = bert_keras.load_saved_model("served")

reveal_type(model)
reveal_type(preprocess.tokenizer.get_vocabulary())
reveal_type(bert_keras.adamw(2e-5, steps=10))
reveal_type(bert_keras.export_saved_model(model, "served", preprocess))
reveal_type(served.classify(["A text."]))
reveal_type(model.labels[0])
reveal_type(bert_keras.BertTagger.from_preset("m", labels=["O"]).labels)
bert_keras.BertEmbedder.from_preset("m").encode(("A text.",), preprocess)
"""
TYPES = [
    "bert_keras.modeling.task_models.BertClassifier",
    "list[str]",
    "bert_keras.training.optimizers.AdamW",
    "str",
    "dict[str, Any]",
    "str | Any",
    "list[str]",
]
MISTAKES = {
    "bert_keras.BertTagger(encoder, labels=3)": '"labels"',
    "bert_keras.BertClasifier(encoder)": "BertClasifier",
    'bert_keras.adamw(2e-5, steps="10")': '"steps"',
    "bert_keras.export_saved_model(encoder, 'a', weights_dtype=8)": (
        '"weights_dtype"'
    ),
}


@pytest.fixture(scope="module")
def printed(tmp_path_factory):
    """Lines that mypy prints about two files of a user."""
    folder = tmp_path_factory.mktemp("users")
    (folder / "right.py").write_text(REVEALED)
    head = "import bert_keras\nencoder = bert_keras.BertEncoder(9, 1, 1, 8, 8)"
    (folder / "wrong.py").write_text("\n".join([head, *MISTAKES]))
    arguments = ["--config-file", ROOT / "pyproject.toml", "--no-error-summary"]
    # mypy is fast with this cache, which `make lint` fills.
    arguments += ["--cache-dir", ROOT / ".mypy_cache", *folder.glob("*.py")]
    with contextlib.chdir(ROOT):
        output, errors, _ = api.run([str(word) for word in arguments])
    assert not errors
    return output.splitlines()


@pytest.mark.release
def test_types_of_the_ten_lines_are_revealed(printed):
    found = [
        re.search(r'Revealed type is "(.+)"', line)[1]
        for line in printed
        if "wrong.py" not in line
    ]
    assert [name.replace("builtins.", "") for name in found] == TYPES


@pytest.mark.release
def test_mistakes_are_refused_each_in_its_line(printed):
    for number, (mistake, named) in enumerate(MISTAKES.items(), 3):
        (error,) = [line for line in printed if f"wrong.py:{number}: e" in line]
        assert named in error, mistake


def test_checkers_see_the_names_that_load_lazily():
    tree = ast.parse(Path(bert_keras.__file__).read_text(encoding="utf-8"))
    (block,) = [
        node
        for node in tree.body
        if isinstance(node, ast.If)
        and isinstance(node.test, ast.Name)
        and node.test.id == "TYPE_CHECKING"
    ]
    seen = {
        alias.asname: (node.module, alias.name)
        for node in block.body
        for alias in node.names
    }
    assert seen == {
        name: (f"bert_keras.{home}", name)
        for name, home in bert_keras._MODULES.items()
    }


def own_functions():
    """Yield (name, function) of each public function, method and property."""
    for name in bert_keras._MODULES:
        value = getattr(bert_keras, name)
        if inspect.isfunction(value):
            yield name, value
            continue
        for base in value.__mro__:
            if not base.__module__.startswith("bert_keras"):
                continue
            for key, method in vars(base).items():
                method = getattr(method, "fget", method)  # of a property
                method = getattr(method, "__func__", method)
                is_public = not key.startswith("_") or key in (
                    "__init__",
                    "__call__",
                )
                if inspect.isfunction(method) and is_public:
                    yield f"{base.__name__}.{key}", method


def test_everything_public_is_annotated():
    lacking = set()
    for name, function in own_functions():
        if hasattr(function, "__wrapped__"):  # wraps a Keras method
            continue
        signature = inspect.signature(function)
        named = [p for p in signature.parameters.values() if p.name != "self"]
        if signature.return_annotation is signature.empty or any(
            p.annotation is p.empty for p in named if p.name != "cls"
        ):
            lacking.add(name)
    assert not lacking


def test_from_preset_of_the_preprocessor_names_its_arguments():
    source = inspect.getsource(bert_keras.BertPreprocessor)
    (kind,) = re.findall(r"\*\*arguments: Unpack\[(\w+)\]", source)
    module = inspect.getmodule(bert_keras.BertPreprocessor)
    stated = module.__dict__[kind].__annotations__
    taken = {
        name
        for cls in (bert_keras.WordPieceTokenizer, bert_keras.BertPreprocessor)
        for name in inspect.signature(cls).parameters
    }
    taken -= {"tokenizer", "vocabulary", "kwargs"}
    assert set(stated) - {"revision"} == taken


def test_dir_and_repr_show_names_and_arguments():
    assert dir(bert_keras) == sorted([*bert_keras._MODULES, "__version__"])
    loss = bert_keras.Matryoshka(bert_keras.Triplet(0.25), [8, 4])
    special = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "a"]
    for value, shown in (
        (loss, "Matryoshka(loss=Triplet(margin=0.25), dims=[8, 4], weights="),
        (
            bert_keras.adamw(2e-5, steps=100),
            "AdamW(learning_rate=WarmupLinearDecay(peak=2e-05, steps=100, war",
        ),
        (bert_keras.adamw(2e-5), "AdamW(learning_rate=2e-05, weight_decay=0.0"),
        (bert_keras.TokenMasker(special), "TokenMasker(6 tokens, max_predict"),
    ):
        assert repr(value).startswith(shown)
