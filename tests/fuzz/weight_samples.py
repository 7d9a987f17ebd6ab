"""A toy folder in every readable format, for the fuzzing of the readers."""

import os

import numpy as np
from data_samples import numbers, write_store
from foreign_formats import (
    shape_with_heads,
    write_google,
    write_json,
    write_keras_hub,
    write_pieces,
)
from tiny import remove_block

from bert_keras.interop.model_garden import NAMES, PARTS, TABLES
from bert_keras.interop.saving import save_model
from bert_keras.interop.tensors import map_name
from bert_keras.modeling.encoder import BertEncoder
from bert_keras.modeling.task_models import BertClassifier
from bert_keras.modeling.weights import published_weights

PIECES = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "good", "##ly", "!"]


def write_samples(folder):
    """Writes one of each; returns dict of format -> path."""
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
    """Writes pre-training data of each kind; returns dict of kind -> path."""
    from bert_keras.data.pretraining_data import write_records
    from bert_keras.data.sampling import SamplingRules

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
    """A folder of Hugging Face without our block."""
    save_model(path, model, text)
    remove_block(path)


def _sharded(path, model, text):
    """The weights in two files with an index."""
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


def _saved_model(path, model, text):
    """The encoder as TF Hub has it: numbered variables that have names."""
    import tensorflow as tf

    module, encoder = tf.Module(), model.encoder
    module.numbered = [
        tf.Variable(
            np.reshape(
                w.numpy(), shape_with_heads(name, w.shape, encoder.num_heads)
            ),
            name=map_name(name, NAMES),
        )
        for name, w in published_weights(encoder).items()
    ]
    pieces = f"{path}.txt"
    with open(pieces, "w") as file:
        file.write("\n".join(PIECES) + "\n")
    module.vocab_file = tf.saved_model.Asset(pieces)
    module.do_lower_case = tf.Variable(True, trainable=False)
    tf.saved_model.save(module, path)
    os.remove(pieces)
    return path


def _object_checkpoint(path, model, text):
    """The encoder as Model Garden leaves it: keys are places of objects."""
    import tensorflow as tf

    encoder, root = model.encoder, tf.train.Checkpoint()
    for name, weight in published_weights(encoder).items():
        key = _object_key(map_name(name, NAMES), encoder.num_layers)
        *objects, last = key.split("/")
        owner = root
        for part in objects:
            if not hasattr(owner, part):
                setattr(owner, part, tf.train.Checkpoint())
            owner = getattr(owner, part)
        shape = shape_with_heads(name, weight.shape, encoder.num_heads)
        numbers = np.reshape(weight.numpy(), shape)
        setattr(owner, last, tf.Variable(numbers))
    os.mkdir(path)
    checkpoint = tf.train.Checkpoint(encoder=root)
    checkpoint.write(os.path.join(path, "bert_model.ckpt"))
    write_pieces(os.path.join(path, "vocab.txt"), text)
    return path


def _object_key(name, layers):
    """The key that `plain_names` brings to this name."""
    numbers = {table: number for number, table in enumerate(TABLES)}
    numbers |= {"embeddings/layer_norm": 3, "pooler_transform": layers + 4}
    owner, _, last = name.rpartition("/")
    if owner in numbers:
        return f"layer_with_weights-{numbers[owner]}/{last}"
    _, layer, part = owner.split("/", 2)
    number = 4 + int(layer.removeprefix("layer_"))
    theirs = {ours: theirs for theirs, ours in PARTS.items()}[part]
    return f"layer_with_weights-{number}/{theirs}/{last}"


def _sentences(path, model, text):
    model.encoder.sentence_embedding = {"pooling": "mean", "normalize": False}
    _foreign(path, model.encoder, text)
    return path


WRITERS = {
    "bert_keras": _plain(save_model),
    "huggingface": _plain(_foreign),
    "huggingface_sharded": _sharded,
    "google": _plain(write_google),
    "keras_hub": _plain(write_keras_hub),
    "saved_model": _saved_model,
    "model_garden": _object_checkpoint,
    "sentence_transformers": _sentences,
}
