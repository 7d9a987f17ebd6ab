"""Toy folders in every readable format, to fuzz the readers."""

import os

from bert_keras.interop.saving import save_model
from bert_keras.modeling.encoder import BertEncoder
from bert_keras.modeling.task_models import BertClassifier
from tests.support.data_samples import numbers, write_store
from tests.support.foreign_formats import (
    write_google,
    write_json,
    write_keras_hub,
    write_model_garden,
    write_tf_hub,
)
from tests.support.tiny import remove_block
from tests.support.weight_names import CLASSIFIER

PIECES = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "good", "##ly", "!"]


def write_samples(folder):
    """Write a model in each format; return dict of format -> path."""
    from bert_keras.text.preprocessor import BertPreprocessor
    from bert_keras.text.tokenizer import WordPieceTokenizer

    model = BertClassifier(
        BertEncoder(len(PIECES), 1, 2, 4, 6, 8), labels=["no", "yes"]
    )
    text = BertPreprocessor(WordPieceTokenizer(PIECES), 8)
    return {
        name: write(os.path.join(folder, name), model, text)
        for name, write in WRITERS.items()
    }


def write_data_samples(folder):
    """Write pre-training data of each type; return dict of type -> path."""
    from bert_keras.data.sampling import SamplingRules
    from bert_keras.data.shards import write_records

    documents = numbers(6, longest=6, size=40)
    store = write_store(os.path.join(folder, "store"), documents, size=40)
    paths = {"store": store.folder}
    for name, packed in (("records", False), ("packed", True)):
        paths[name] = os.path.join(folder, name)
        rules = SamplingRules(16, 4, packed=packed)
        write_records(store, paths[name], rules, 0)
    return paths


def _plain(save):
    def write(path, model, text):
        save(path, model, text)
        return path

    return write


def _foreign(path, model, text):
    """Write a Hugging Face folder, without `bert_keras` in its config."""
    save_model(path, model, text)
    remove_block(path)


def _sharded(path, model, text):
    """Write a Hugging Face folder with weights in two files and an index."""
    from safetensors.numpy import load_file, save_file

    _foreign(path, model, text)
    whole = os.path.join(path, "model.safetensors")
    tensors = load_file(whole)
    os.remove(whole)
    files = [f"model-0000{i}-of-00002.safetensors" for i in (1, 2)]
    index = {name: files[i % 2] for i, name in enumerate(sorted(tensors))}
    for file in files:
        part = {n: tensors[n] for n, own in index.items() if own == file}
        save_file(part, os.path.join(path, file))
    write_json(path, "model.safetensors.index.json", {"weight_map": index})
    return path


def _sentences(path, model, text):
    model.encoder.sentence_embedding = {"pooling": "mean", "normalize": False}
    _foreign(path, model.encoder, text)
    return path


WRITERS = {
    "bert_keras": _plain(save_model),
    "huggingface": _plain(_foreign),
    "huggingface_sharded": _sharded,
    "google": _plain(lambda path, *_: write_google(path, CLASSIFIER)),
    "keras_hub": _plain(write_keras_hub),
    "saved_model": _plain(lambda path, *_: write_tf_hub(path)),
    "model_garden": _plain(lambda path, *_: write_model_garden(path)),
    "sentence_transformers": _sentences,
}
