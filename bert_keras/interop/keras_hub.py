"""Reader of keras-hub's preset folders of backbones and tasks.

The reader imports no class that a file names. It accepts only known names.
"""

import os
import re

from bert_keras.interop import tensor_files, tensors
from bert_keras.interop.hdf5 import read_h5
from bert_keras.interop.head_table import layers_in
from bert_keras.interop.tensor_files import FRACTION
from bert_keras.interop.tensors import WeightsError
from bert_keras.interop.text_settings import read_vocabulary
from bert_keras.json_files import BOOLEAN, COUNT, TEXT, count_to
from bert_keras.modeling.sizes import DIMENSIONS

CONFIG, TASK_CONFIG = "config.json", "task.json"
TOKENIZER, PREPROCESSOR = "tokenizer.json", "preprocessor.json"
WEIGHTS, TASK_WEIGHTS = "model.weights.h5", "task.weights.h5"
ASSETS = os.path.join("assets", "tokenizer")
VOCABULARY = os.path.join(ASSETS, "vocabulary.txt")
# Class of keras-hub -> class of this package.
TASKS = {
    "BertTextClassifier": "BertClassifier",
    "BertClassifier": "BertClassifier",  # name in keras-nlp 0.14
    "BertMaskedLM": "BertPretrainer",
    "BertTextEmbedder": "BertEncoder",  # the pooling has no weights
}
POOLINGS = ("mean", "cls", "max")

# In keras-hub, the masked-LM head's activation and epsilon differ from the
# encoder's.
_MLM_HEAD = {"mlm_activation": "gelu_exact", "mlm_norm_epsilon": 1e-5}

# Weight names in bert_keras -> paths in keras-hub's weight files. Keras numbers
# layers of one class: a second dense layer would be `dense_1`. The weights of a
# layer are numbered 0, 1, ... in the order of creation.
_LAYER = "layers/transformer_encoder_{}"
_ATTENTION = f"{_LAYER}/_self_attention_layer"
_ENDS = ("/vars/0", "/vars/1")
_ENCODER = {
    "encoder/layer_{}/attention/query": f"{_ATTENTION}/query_dense",
    "encoder/layer_{}/attention/key": f"{_ATTENTION}/key_dense",
    "encoder/layer_{}/attention/value": f"{_ATTENTION}/value_dense",
    "encoder/layer_{}/attention/output": f"{_ATTENTION}/output_dense",
    "encoder/layer_{}/intermediate": (
        f"{_LAYER}/_feedforward_intermediate_dense"
    ),
    "encoder/layer_{}/output": f"{_LAYER}/_feedforward_output_dense",
    "encoder/pooler": "layers/dense",
}
_ENCODER_NORM = {
    "encoder/embeddings/norm": "layers/layer_normalization",
    "encoder/layer_{}/attention_norm": f"{_LAYER}/_self_attention_layer_norm",
    "encoder/layer_{}/output_norm": f"{_LAYER}/_feedforward_layer_norm",
}
BACKBONE_NAMES = {
    "encoder/embeddings/token/embeddings": "layers/reversible_embedding/vars/0",
    "encoder/embeddings/position/embeddings": (
        "layers/position_embedding/vars/0"
    ),
    "encoder/embeddings/segment/embeddings": "layers/embedding/vars/0",
    **tensors.expand_names(_ENCODER, _ENCODER_NORM, _ENDS),
}
# Model class of this package -> names of the head's weights in
# task.weights.h5. The backbone's weights are in model.weights.h5.
_MLM = "layers/masked_lm_head"
TASK_NAMES = {
    **{
        head: tensors.expand_names(layer, ends=_ENDS)
        for head, layer in layers_in("keras_hub").items()
    },
    "BertPretrainer": {
        "mlm/bias": f"{_MLM}/vars/0",
        **tensors.expand_names(
            {"mlm/dense": f"{_MLM}/_intermediate_dense"},
            {"mlm/norm": f"{_MLM}/_intermediate_layer_norm"},
            _ENDS,
        ),
    },
}


def matches(folder):
    """Return True for a folder whose config.json Keras wrote.

    Keras adds the key `registered_name` when it serializes a model. Of the
    known formats, only keras-hub's config.json is written by Keras.
    """
    path = os.path.join(folder, CONFIG)
    if not os.path.exists(path):
        return False
    return "registered_name" in tensor_files.read_json(path)


def open_folder(folder, wanted=None):
    """Return the `Checkpoint` of a keras-hub preset folder.

    `wanted` is not used: task.json states the class.
    """
    encoder = _read_encoder(folder)
    head, arguments, embedding = _read_task(folder)
    tables = {WEIGHTS: BACKBONE_NAMES}
    if os.path.exists(os.path.join(folder, TASK_WEIGHTS)):
        tables[TASK_WEIGHTS] = TASK_NAMES.get(head, {})
    found, skipped = {}, []
    for file, table in tables.items():
        stored = read_h5(os.path.join(folder, file))
        some, others = tensors.rename_tensors(
            stored, table, folder, _normalize_path
        )
        found, skipped = found | some, skipped + others
    return tensors.Checkpoint(
        path=folder,
        source=str(folder),
        format="keras_hub",
        encoder=encoder,
        head=head,
        head_arguments=arguments,
        tensors={
            name: tensors.merge_heads(name, t) for name, t in found.items()
        },
        skipped=skipped,
        embedding=embedding,
    )


def _normalize_path(path):
    """Return the path as in `BACKBONE_NAMES` and `TASK_NAMES`.

    Keras before 3.15 and keras-hub before 0.32 use other names for the
    container of layers and for the parts of a layer. Keras gives the first
    transformer layer no number. It gets the number 0 here.
    """
    path = re.sub(r"^_layer_checkpoint_dependencies/", "layers/", path)
    path = path.replace("layernorm/", "layer_norm/")
    path = re.sub(r"/_(query|key|value|output)_dense/", r"/\1_dense/", path)
    return re.sub(r"^(layers/transformer_encoder)/", r"\1_0/", path)


def _read_encoder(folder):
    config = _read_class_config(
        tensor_files.read_json(os.path.join(folder, CONFIG)), ["BertBackbone"]
    )
    most = {"num_layers": 1000}
    sizes = {
        name: config.get(name, count_to(most.get(name, 2**31 - 1)))
        for name in DIMENSIONS
    }
    dropout = config.get("dropout", FRACTION, 0.1)
    return {
        **sizes,
        "dropout": dropout,
        "attention_dropout": dropout,
        "activation": "gelu_tanh",
        "attention": "bidirectional",
    }


def _read_class_config(file, classes):
    """Return a Keras object's `config`; refuse a class not in `classes`."""
    name, module = file.get("class_name", TEXT), file.get("module", TEXT)
    packages = ("keras_hub", "keras_nlp")
    if name not in classes or module.split(".")[0] not in packages:
        raise WeightsError(
            file.path,
            "this is not keras-hub's BERT",
            "Load the folder with the package that wrote it",
            expected=" or ".join(classes) + " of keras_hub",
            found=f"{name} of {module}",
        )
    return file.object("config")


def _read_task(folder):
    """Return (class name, arguments without the encoder, pooling).

    The class is one of bert_keras. The pooling is a dict for a
    `BertTextEmbedder` of keras-hub, else None.
    """
    path = os.path.join(folder, TASK_CONFIG)
    if not os.path.exists(path):
        return "BertEncoder", {}, None
    file = tensor_files.read_json(path)
    config = _read_class_config(file, TASKS)
    head = TASKS[file.get("class_name", TEXT)]
    if head == "BertPretrainer":
        return head, dict(_MLM_HEAD), None
    if head == "BertEncoder":
        pooling = config.get("pooling_mode", POOLINGS, "mean")
        normalize = config.get("normalize", BOOLEAN, True)
        return head, {}, {"pooling": pooling, "normalize": normalize}
    activation = config.get("activation", default="linear")
    if activation not in ("linear", "softmax", "sigmoid"):
        config.refuse("activation", "linear, softmax or sigmoid", activation)
    count = config.get("num_classes", count_to(2**20))
    problem = "multi" if activation == "sigmoid" else None
    arguments = tensors.unnamed_labels(count, problem)
    arguments["dropout"] = config.get("dropout", FRACTION, 0.1)
    return head, arguments, None


def read_text(checkpoint):
    """Return the `TextSettings`; None without a vocabulary."""
    folder = checkpoint.path
    settings = _read_text_settings(folder)
    return read_vocabulary(os.path.join(folder, VOCABULARY), **settings)


def _read_text_settings(folder):
    """Return the arguments of `TextSettings`, except the pieces, as a dict."""
    path = os.path.join(folder, TOKENIZER)
    if not os.path.exists(path):
        return {}
    config = _read_class_config(tensor_files.read_json(path), ["BertTokenizer"])
    preprocessor = tensor_files.read_json(
        os.path.join(folder, PREPROCESSOR), optional=True
    )
    rows = preprocessor.object("config", {})
    return {
        "tokenizer": {
            "strip_accents": config.get("strip_accents", BOOLEAN, False),
            "keep_special_tokens": config.get(
                "special_tokens_in_strings", BOOLEAN, False
            ),
            "max_word_length": 200,
        },
        "cases": {path: config.get("lowercase", BOOLEAN, False)},
        "sequence_length": rows.get("sequence_length", COUNT)
        if "sequence_length" in rows
        else None,
    }
