"""sentence-transformers folders, read and written: a Hugging Face encoder and
how it pools."""

import dataclasses
import os
import warnings

from bert_keras import files
from bert_keras.interop.block import CONFIG
from bert_keras.interop.huggingface import open_huggingface
from bert_keras.interop.tensor_files import Fields, read_json
from bert_keras.interop.tensors import WeightsError
from bert_keras.interop.text_settings import read_prompts

MODULES, SETTINGS = "modules.json", "sentence_bert_config.json"
EMBEDDING = "config_sentence_transformers.json"
SIMILARITIES = ("cosine", "dot", "euclidean", "manhattan")
KNOWN = {
    *("__version__", "default_prompt_name", "model_type", "prompts"),
    *("similarity_fn_name", "truncate_dim"),
}
# Of each module the folder inside, as it is written.
PLACES = {"Transformer": "", "Pooling": "1_Pooling", "Normalize": "2_Normalize"}
KINDS = tuple(PLACES)
WRITTEN = (
    *(MODULES, SETTINGS, EMBEDDING),
    *(PLACES["Pooling"], PLACES["Normalize"]),
)
POOLINGS = {
    "pooling_mode_cls_token": "cls",
    "pooling_mode_mean_tokens": "mean",
    "pooling_mode_max_tokens": "max",
    "pooling_mode_lasttoken": "last",
}


def open_sentence_transformers(folder):
    """The `Checkpoint` of the folder; `embedding` says how to pool."""
    modules = _modules(folder)
    inner = os.path.join(folder, modules["Transformer"])
    for place in modules.values():
        files.check_inside(os.path.join(folder, place), folder)
    checkpoint = open_huggingface(inner)
    checkpoint.source, checkpoint.format = str(folder), "sentence_transformers"
    if "Pooling" in modules:  # a CrossEncoder has the Transformer alone
        checkpoint.embedding = {
            "pooling": _pooling(os.path.join(folder, modules["Pooling"])),
            "normalize": "Normalize" in modules,
        }
    if checkpoint.read_text is not None:
        read, path = checkpoint.read_text, os.path.join(inner, SETTINGS)
        longest = checkpoint.encoder["max_sequence_length"]
        checkpoint.read_text = lambda: _with_settings(read(), path, longest)
    if "Pooling" in modules:
        read_text = checkpoint.read_text
        prompts = _read_prompts(folder, modules["Pooling"])
        if read_text is not None and prompts["prompts"]:
            checkpoint.read_text = lambda: dataclasses.replace(
                read_text(), **prompts
            )
    return checkpoint


def _read_prompts(folder, pooling):
    """Return the prompts of the folder, as of `TextSide`.

    Raises:
        WeightsError: vectors are cut, or pooled without their prompts.
    """
    config = read_json(os.path.join(folder, EMBEDDING), optional=True)
    for name in sorted(set(config.values) - KNOWN):
        warnings.warn(
            f"{config.path}: the unknown setting {name} is not applied.",
            stacklevel=2,
        )
    if "truncate_dim" in config:
        config.refuse("truncate_dim", "none", config.raw("truncate_dim"))
    config.choice("similarity_fn_name", SIMILARITIES, SIMILARITIES[0])
    found = read_prompts(config)
    pool = read_json(os.path.join(folder, pooling, CONFIG))
    is_pooled = pool.boolean("include_prompt", True)
    if any(found["prompts"].values()) and not is_pooled:
        pool.refuse("include_prompt", "true where there are prompts", False)
    return found


def _with_settings(text, path, longest):
    """The text side under the settings of the folder's first module."""
    settings = read_json(path, optional=True)
    if "max_seq_length" in settings:
        text.sequence_length = settings.integer("max_seq_length")
    elif text.sequence_length is None:  # as sentence-transformers
        text.sequence_length = longest
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
    is_embedder = {"Transformer", "Pooling"} <= set(found)
    if not is_embedder and set(found) != {"Transformer"}:
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


# Writing.


def write_modules(folder, model, preprocessor):
    """Write how sentences are embedded, next to the files of Hugging Face.

    Nothing is written of a model that does not embed, or pools in a way that
    sentence-transformers does not have.

    Args:
        folder: where to; it is there.
        model: the model.
        preprocessor: its `BertPreprocessor`.
    """
    how = getattr(model, "sentence_embedding", None)
    if how is None or how["pooling"] not in POOLINGS.values():
        return
    kinds = KINDS if how["normalize"] else KINDS[:2]
    modules = [
        {
            "idx": i,
            "name": str(i),
            "path": PLACES[kind],
            "type": f"sentence_transformers.models.{kind}",
        }
        for i, kind in enumerate(kinds)
    ]
    pooling = {
        "word_embedding_dimension": getattr(model, "encoder", model).hidden_dim,
        **{theirs: ours == how["pooling"] for theirs, ours in POOLINGS.items()},
    }
    settings = {
        "max_seq_length": preprocessor.sequence_length,
        "do_lower_case": False,  # the tokenizer itself does
    }
    embedding = {
        "prompts": dict(preprocessor.prompts),
        "default_prompt_name": preprocessor.prompt,
        "similarity_fn_name": "cosine",
    }
    for kind in kinds[1:]:
        os.mkdir(os.path.join(folder, PLACES[kind]))
    for name, value in (
        (MODULES, modules),
        (SETTINGS, settings),
        (EMBEDDING, embedding),
        (os.path.join(PLACES["Pooling"], CONFIG), pooling),
    ):
        files.write_json(value, os.path.join(folder, name))
