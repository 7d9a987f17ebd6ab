"""Upload of a model, its tokenizer and its card to the Hugging Face Hub."""

import os
import tempfile
from typing import TYPE_CHECKING

import keras

from bert_keras.errors import InputError
from bert_keras.interop import (
    downloads,
    huggingface,
    saving,
    sentence_transformers,
)
from bert_keras.interop.head_table import HEADS
from bert_keras.interop.saving import new_folder, save_model
from bert_keras.modeling import weights

if TYPE_CHECKING:
    from bert_keras.text.preprocessor import BertPreprocessor

CARD = "README.md"
OPTIONAL_PARTS = ("mlm/", "nsp/", "encoder/pooler/")  # may be untrained
OUTPUT_FILES = (*saving.OUTPUT_FILES, CARD)


def push_to_hub(
    model: keras.Model,
    preprocessor: "BertPreprocessor",
    name: str,
    *,
    card: str | None = None,
    private: bool | None = None,
    revision: str | None = None,
) -> str:
    """Upload a model, its tokenizer and a model card to the Hugging Face Hub.

    Log in with `hf auth login`, or set the environment variable `HF_TOKEN`. The
    repository is created if it does not exist.

    Args:
        model: `BertEncoder` or a task model.
        preprocessor: the model's `BertPreprocessor`.
        name: `org/name`, with or without "hf://" before it.
        card: text of README.md; None for the text of `model_card`.
        private: True if only the owner can see a new repository; None for the
            account's default.
        revision: branch that gets the commit, made if it is missing; None for
            `main`.

    Returns:
        The URL of the commit.

    Raises:
        InputError: the name is invalid, the class is not in `HEADS` (unless
            `card` is given), the preprocessor does not fit, a needed weight was
            never trained, huggingface-hub is missing, or the Hub refuses the
            upload.

    Examples:
        >>> from bert_keras import BertEmbedder, BertPreprocessor, push_to_hub
        >>> model = BertEmbedder.from_preset("bert_keras_mini_en")
        >>> preprocess = BertPreprocessor.from_preset("bert_keras_mini_en")
        >>> push_to_hub(model, preprocess, "me/english")  # doctest: +SKIP
    """
    name = _checked_name(name)
    api = downloads.huggingface_hub("Publishing a model").HfApi()
    with tempfile.TemporaryDirectory() as parent:
        folder = os.path.join(parent, "model")
        write_model_and_card(folder, model, preprocessor, name, card)
        with downloads.hub_errors(
            lambda reason: (
                f"{name} cannot be published on the Hugging Face Hub "
                f"({reason}). Check the network. Log in with `hf auth login`, "
                "or set HF_TOKEN to a token that may write there."
            )
        ):
            api.create_repo(name, private=private, exist_ok=True)
            if revision and not revision.startswith("refs/"):
                api.create_branch(name, branch=revision, exist_ok=True)
            commit = api.upload_folder(
                repo_id=name,
                folder_path=folder,
                revision=revision,
                # Delete an earlier model's sentence-transformers files, which
                # this model may lack. Files uploaded again are not deleted.
                delete_patterns=[
                    pattern
                    for name in sentence_transformers.OUTPUT_FILES
                    for pattern in (name, f"{name}/*")
                ],
                commit_message="Upload of bert_keras",
            )
    return commit.commit_url


def write_model_and_card(
    folder, model, preprocessor, name, card=None, overwrite=True
):
    """Write to `folder` the files that `push_to_hub` uploads."""
    without = _list_untrained(model)
    if card is None:
        card = model_card(model, name)
    with new_folder(
        folder, OUTPUT_FILES, model, preprocessor, overwrite
    ) as partial:
        save_model(partial, model, preprocessor, without)
        path = os.path.join(partial, CARD)
        with open(path, "w", encoding="utf-8") as file:
            file.write(card)


def _has_known_pooling(model):
    is_embedder = type(model).__name__ == "BertEmbedder"
    known = sentence_transformers.POOLINGS.values()
    return is_embedder and model.pooling in known


def _list_untrained(model):
    """Return the names of weights to leave out: those in untrained parts.

    A `BertPretrainer` may have an untrained head. A `BertPretrainer`, a
    `BertEncoder` and a model that does not use the pooler may have an untrained
    pooler.

    Raises:
        InputError: any other weight is untrained.
    """
    random = weights.untrained_weights(model)
    kind, optional = type(model).__name__, ()
    pools = kind != "BertEmbedder" or model.pools
    if kind in ("BertPretrainer", "BertEncoder") or not pools:
        optional = OPTIONAL_PARTS
    needed = [
        n
        for n in weights.drop_unused_pooler(model, random)
        if not n.startswith(optional)
    ]
    if needed:
        raise InputError(
            f"{', '.join(needed)} of {kind} are untrained. Fine-tune the "
            "model, then publish it."
        )
    return _list_untrained_parts(model, optional)


def _list_untrained_parts(model, prefixes):
    """Return the names of all weights in parts that have an untrained weight.

    `prefixes` has a name prefix for each part. Biases and scales are included,
    although `mark_new_weights` never marks them.
    """
    random = weights.untrained_weights(model)
    parts = [p for p in prefixes if any(n.startswith(p) for n in random)]
    names = weights.published_weights(model)
    return [name for name in names if name.startswith(tuple(parts))]


def _checked_name(name):
    found = downloads.hub_name(str(name))
    if found is None:
        raise InputError(
            f"{name} does not have the form of a Hub name. Expected org/name, "
            "where org is your account or organization."
        )
    return found


def model_card(
    model,
    name,
    *,
    sections=(),
    metrics=None,
    dataset=None,
    base_model=None,
    license=None,
) -> str:
    """Return README.md of a published model, with metadata for the Hub.

    Args:
        model: the model.
        name: `org/name`, with or without "hf://" before it.
        sections: (title, text) pairs that come before "How to load it".
        metrics: dict of a metric's name -> its value on `dataset`.
        dataset: name of the data that the metrics were measured on; required
            with metrics, because the Hub refuses results without data.
        base_model: `org/name` of the weights that training began from; None
            for the name of the weights that were loaded from the Hub, if any.
        license: license of the model; None for the license of the weights
            that training began from.

    Raises:
        InputError: the name is invalid, the class is not in `HEADS`, `license`
            differs from the license of the weights that training began from,
            `metrics` are given without `dataset`, or huggingface-hub is
            missing.
    """
    name = _checked_name(name)
    if metrics and not dataset:
        raise InputError(
            "metrics need the name of the data that they were measured on. "
            "Pass dataset."
        )
    kind = type(model).__name__
    if kind not in HEADS:
        raise InputError(
            f"A {kind} cannot be published. Expected one of "
            f"{', '.join(HEADS)}. Save any other model with save_preset."
        )
    encoder = getattr(model, "encoder", model)
    stated = encoder.license and encoder.license.name
    if stated and license not in (None, stated):
        raise InputError(
            f"`license` is {license}, but the weights that training began from "
            f"are under {stated}. The model must keep {stated}. Leave license "
            "out."
        )
    license = license or stated
    base_model = base_model or _find_base(encoder)
    library, auto_class = _find_transformers_class(model)
    parts = [
        _make_front_matter(
            name, kind, metrics, dataset, base_model, license, library
        ),
        f"# {name.rpartition('/')[2]}",
        _describe_model(model),
    ]
    for title, text in [*sections, ("How to load it", _loading(model, name))]:
        parts += [f"## {title}", text]
    if library:
        parts.append(_transformers(auto_class, name))
    if library and _has_known_pooling(model):
        parts.append(
            "With sentence-transformers, which also applies the pooling: "
            f'`SentenceTransformer("{name}")`.'
        )
    return "\n\n".join(parts) + "\n"


def _find_base(encoder):
    origin = encoder.origin or ""
    if origin.startswith(downloads.PREFIX):
        return origin.removeprefix(downloads.PREFIX).partition("@")[0]
    return None


def _find_transformers_class(model):
    """Return "transformers" and the name of its class that loads the model.

    If transformers lacks the head, the class loads the encoder only. If
    transformers cannot compute the encoder, the result is (None, None).
    """
    without = _list_untrained_parts(model, OPTIONAL_PARTS)  # not published
    config, _ = huggingface.describe(model, without=without)
    if config["model_type"] != "bert":
        return None, None
    if config["architectures"] == ["BertModel"]:
        return "transformers", "AutoModel"
    return "transformers", HEADS[type(model).__name__].auto_class


def _make_front_matter(
    name, kind, metrics, dataset, base_model, license, library_name
):
    library = downloads.huggingface_hub("A model card")
    task = HEADS[kind].task
    results = [
        library.EvalResult(
            task_type=task,
            dataset_type=dataset,
            dataset_name=dataset,
            metric_type=metric,
            metric_value=round(value, 4),
        )
        for metric, value in (metrics or {}).items()
    ]
    data = library.ModelCardData(
        library_name=library_name,
        license=license,
        pipeline_tag=task,
        base_model=base_model,
        tags=["bert", "keras"],
        model_name=name.rpartition("/")[2],
        eval_results=results or None,
    )
    return f"---\n{data.to_yaml()}\n---"


def _describe_model(model):
    encoder = getattr(model, "encoder", model)
    text = (
        f"A `{type(model).__name__}` with {encoder.num_layers} layers of width "
        f"{encoder.hidden_dim}, {encoder.num_heads} heads, "
        f"{encoder.vocabulary_size:,} word pieces, texts of up to "
        f"{encoder.max_sequence_length} tokens, {model.count_params():,} "
        "weights."
    )
    if getattr(model, "labels", None):
        text += f" Its labels: {', '.join(model.labels)}."
    return text


def _loading(model, name):
    kind = type(model).__name__
    predict = 'model.predict(preprocess(["An hour well spent."]))\n'
    # `BertPretrainer` also needs `mask_positions`; `BertChooser` needs choices.
    if kind in ("BertPretrainer", "BertChooser"):
        predict = ""
    return f"""In Keras, after `pip install '.[hub]'` in a clone of bert_keras:

```python
import bert_keras

preprocess = bert_keras.BertPreprocessor.from_preset("{downloads.PREFIX}{name}")
model = bert_keras.{kind}.from_preset("{downloads.PREFIX}{name}")
{predict}```"""


def _transformers(auto_class, name):
    return f"""With transformers:

```python
from transformers import AutoTokenizer, {auto_class}

tokenizer = AutoTokenizer.from_pretrained("{name}")
model = {auto_class}.from_pretrained("{name}")
```"""
