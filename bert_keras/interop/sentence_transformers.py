"""sentence-transformers folders: a Hugging Face encoder and its pooling."""

import os

from bert_keras import files
from bert_keras.interop.huggingface import open_huggingface
from bert_keras.interop.tensor_files import Fields, read_json
from bert_keras.interop.tensors import WeightsError

MODULES, SETTINGS = "modules.json", "sentence_bert_config.json"
KINDS = ("Transformer", "Pooling", "Normalize")
POOLINGS = {
    "pooling_mode_cls_token": "cls",
    "pooling_mode_mean_tokens": "mean",
    "pooling_mode_max_tokens": "max",
}


def open_sentence_transformers(folder):
    """The `Checkpoint` of the folder; `embedding` says how to pool."""
    modules = _modules(folder)
    inner = os.path.join(folder, modules["Transformer"])
    for place in modules.values():
        files.check_inside(os.path.join(folder, place), folder)
    checkpoint = open_huggingface(inner)
    checkpoint.source, checkpoint.format = str(folder), "sentence_transformers"
    checkpoint.embedding = {
        "pooling": _pooling(os.path.join(folder, modules["Pooling"])),
        "normalize": "Normalize" in modules,
    }
    if checkpoint.read_text is not None:
        read, path = checkpoint.read_text, os.path.join(inner, SETTINGS)
        checkpoint.read_text = lambda: _with_settings(read(), path)
    return checkpoint


def _with_settings(text, path):
    """The text side under the settings of the folder's first module."""
    settings = read_json(path) if os.path.exists(path) else Fields({}, path)
    if "max_seq_length" in settings:
        text.sequence_length = settings.integer("max_seq_length")
    if settings.boolean("do_lower_case", False):
        text.cases[path] = True
    return text


def _modules(folder):
    """Dict of kind -> folder inside, of the modules in their order."""
    path = os.path.join(folder, MODULES)
    found = {}
    for module in read_json(path, kind=list).values:
        fields = Fields(module if isinstance(module, dict) else {}, path)
        kind = fields.text("type").rpartition(".")[2]
        place = fields.text("path", "")
        if place and not files.is_plain_name(place):
            fields.refuse("path", "a folder in this folder", place)
        if kind not in KINDS:
            raise WeightsError(
                path,
                f"the embedding needs a module {kind}, which is not computed",
                "Name the folder of its Transformer for the encoder alone",
                expected=", ".join(KINDS),
                found=kind,
            )
        found[kind] = place
    if not {"Transformer", "Pooling"} <= set(found):
        raise WeightsError(
            path,
            "the embedding is not complete",
            "Fetch the folder again",
            expected="the modules Transformer and Pooling",
            found=", ".join(found) or "none",
        )
    return found


def _pooling(folder):
    """How a row's vectors become one: exactly one of the known ways."""
    config = read_json(os.path.join(folder, "config.json"))
    if "pooling_mode" in config:  # since version 5.4
        chosen = [config.raw("pooling_mode")]
    else:
        chosen = [
            POOLINGS.get(name, name)
            for name, value in config.values.items()
            if name.startswith("pooling_mode_") and value is True
        ]
    ways = list(POOLINGS.values())
    if len(chosen) != 1 or chosen[0] not in ways:
        config.refuse("pooling_mode", " or ".join(ways), str(chosen))
    return chosen[0]
