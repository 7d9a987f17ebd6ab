"""Reader and writer of sentence-transformers folders: encoder and pooling."""

import dataclasses
import os
import warnings

from bert_keras import files, json_files
from bert_keras.interop import huggingface
from bert_keras.interop.block import CONFIG
from bert_keras.interop.huggingface_tokenizer import read_prompts
from bert_keras.interop.tensor_files import Fields, read_json
from bert_keras.interop.tensors import WeightsError
from bert_keras.json_files import BOOLEAN, COUNT, TEXT, count_to

MODULES, SETTINGS = "modules.json", "sentence_bert_config.json"
EMBEDDING = "config_sentence_transformers.json"
SIMILARITIES = ("cosine", "dot", "euclidean", "manhattan")
KNOWN = {
    *("__version__", "default_prompt_name", "model_type", "prompts"),
    *("similarity_fn_name", "truncate_dim"),
}
# Type of a module -> subfolder that this package writes for the module.
FOLDERS = {
    "Transformer": "",
    "Pooling": "1_Pooling",
    "Normalize": "2_Normalize",
}
KINDS = tuple(FOLDERS)
OUTPUT_FILES = (
    *(MODULES, SETTINGS, EMBEDDING),
    *(FOLDERS["Pooling"], FOLDERS["Normalize"]),
)
POOLINGS = {
    "pooling_mode_cls_token": "cls",
    "pooling_mode_mean_tokens": "mean",
    "pooling_mode_max_tokens": "max",
    "pooling_mode_lasttoken": "last",
}


def matches(folder):
    """Return True for a folder with modules.json."""
    return os.path.exists(os.path.join(folder, MODULES))


def open_folder(folder, wanted=None):
    """Return the folder's `Checkpoint`, with the pooling in `embedding`."""
    modules = _read_modules(folder)
    inner = os.path.join(folder, modules["Transformer"])
    checkpoint = huggingface.open_folder(inner, wanted)
    embedding = checkpoint.embedding
    if "Pooling" in modules:  # a CrossEncoder has only a Transformer
        settings = _read_settings(folder, "Normalize" in modules)
        embedding = {
            "pooling": _read_pooling(os.path.join(folder, modules["Pooling"])),
            "normalize": "Normalize" in modules,
        }
        if "truncate_dim" in settings:
            dim = settings.get("truncate_dim", count_to(2**20))
            embedding["truncate_dim"] = dim
        _read_all_prompts(folder, modules, settings)  # refuse faults now
    return dataclasses.replace(
        checkpoint,
        path=folder,
        source=str(folder),
        format="sentence_transformers",
        embedding=embedding,
    )


def read_text(checkpoint):
    """Return the `TextSettings`; None without a vocabulary."""
    folder = checkpoint.path
    modules = _read_modules(folder)
    inner = os.path.join(folder, modules["Transformer"])
    text = huggingface.read_text(checkpoint, inner)
    if text is None:
        return None
    path = os.path.join(inner, SETTINGS)
    settings = read_json(path, optional=True)
    length = text.sequence_length
    if "max_seq_length" in settings:
        length = settings.get("max_seq_length", COUNT)
    elif length is None:  # sentence-transformers' default
        length = checkpoint.encoder["max_sequence_length"]
    lower = settings.get("do_lower_case", BOOLEAN, False)
    prompts = {}
    if "Pooling" in modules:
        embedding = read_json(os.path.join(folder, EMBEDDING), optional=True)
        prompts = _read_all_prompts(folder, modules, embedding)
    return dataclasses.replace(
        text,
        sequence_length=length,
        cases=text.cases | ({path: True} if lower else {}),
        **(prompts if prompts.get("prompts") else {}),
    )


def _read_all_prompts(folder, modules, settings):
    """Return the prompts as arguments of `TextSettings`; see `read_prompts`."""
    pooling = read_json(os.path.join(folder, modules["Pooling"], CONFIG))
    include = pooling.get("include_prompt", BOOLEAN, True)
    return {**read_prompts(settings), "include_prompt": include}


def _read_settings(folder, normalizes):
    config = read_json(os.path.join(folder, EMBEDDING), optional=True)
    for name in sorted(set(config.values) - KNOWN):
        warnings.warn(
            f"{config.path}: the unknown setting {name} is not applied.",
            stacklevel=2,
        )
    similarity = config.get("similarity_fn_name", SIMILARITIES, "cosine")
    # With unit vectors, the dot product is the cosine.
    if similarity not in ("cosine", *(["dot"] if normalizes else [])):
        warnings.warn(
            f"{config.path}: similarity_fn_name is {similarity!r}, but "
            "bert_keras compares by cosine and writes 'cosine' to folders.",
            stacklevel=2,
        )
    return config


def _read_modules(folder):
    """Return dict of module type -> folder, in the order of modules.json."""
    path = os.path.join(folder, MODULES)
    found = {}
    for module in read_json(path, kind=list).values:
        fields = Fields(module if isinstance(module, dict) else {}, path)
        kind = fields.get("type", TEXT).rpartition(".")[2]
        inner = fields.get("path", TEXT, "")
        if inner and not files.is_plain_name(inner):
            fields.refuse("path", "a folder in this folder", inner)
        if kind not in KINDS:
            load = f"pass a copy of the folder without {MODULES}"
            if inner := found.get("Transformer"):
                load = f"pass its folder {inner}"
            raise WeightsError(
                path,
                f"the folder has the module {kind}, which is not supported",
                f"To load only the encoder, {load}",
                expected=", ".join(KINDS),
                found=kind,
            )
        found[kind] = inner
    is_embedder = {"Transformer", "Pooling"} <= set(found)
    if not is_embedder and set(found) != {"Transformer"}:
        raise WeightsError(
            path,
            "the folder lacks a module",
            "Fetch the folder again",
            expected="the modules Transformer and Pooling",
            found=", ".join(found) or "none",
        )
    return found


def _read_pooling(folder):
    config = read_json(os.path.join(folder, "config.json"))
    if "pooling_mode" in config:  # sentence-transformers 5.4 and later
        mode = config.get("pooling_mode")
        chosen = ["last" if mode == "lasttoken" else mode]
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


def write_modules(folder, model, preprocessor):
    """Write the files that sentence-transformers needs to open the folder.

    Write nothing if the model does not embed sentences, or has a pooling that
    sentence-transformers lacks.

    Args:
        folder: a Hugging Face folder.
        model: the model.
        preprocessor: the model's `BertPreprocessor`.
    """
    options = getattr(model, "sentence_embedding", None)
    if options is None or options["pooling"] not in POOLINGS.values():
        return
    kinds = KINDS if options["normalize"] else KINDS[:2]
    modules = [
        {
            "idx": i,
            "name": str(i),
            "path": FOLDERS[kind],
            "type": f"sentence_transformers.models.{kind}",
        }
        for i, kind in enumerate(kinds)
    ]
    pooling = {
        "word_embedding_dimension": getattr(model, "encoder", model).hidden_dim,
        **{name: mode == options["pooling"] for name, mode in POOLINGS.items()},
        "include_prompt": preprocessor.include_prompt,
    }
    settings = {
        "max_seq_length": preprocessor.sequence_length,
        # The tokenizer lowercases if its tokenizer_config.json says so.
        "do_lower_case": False,
    }
    embedding = {
        "prompts": dict(preprocessor.prompts),
        "default_prompt_name": preprocessor.prompt,
        "similarity_fn_name": "cosine",
        "truncate_dim": options.get("truncate_dim"),
    }
    for kind in kinds[1:]:
        os.mkdir(os.path.join(folder, FOLDERS[kind]))
    for name, value in (
        (MODULES, modules),
        (SETTINGS, settings),
        (EMBEDDING, embedding),
        (os.path.join(FOLDERS["Pooling"], CONFIG), pooling),
    ):
        json_files.write_json(value, os.path.join(folder, name))
