"""Hugging Face folders, read and written: config.json and the weights.

Their tokenizer files are in `text_settings.py`.
"""

import dataclasses
import functools
import glob
import os
import re

import numpy as np

from bert_keras import files
from bert_keras.errors import InputError
from bert_keras.interop import tensor_files, tensors, text_settings
from bert_keras.interop.native import new_folder
from bert_keras.interop.tensors import WeightsError
from bert_keras.modeling.weights import POOLER, published_weights

CONFIG = "config.json"
WEIGHTS = "model.safetensors"
INDEX = "model.safetensors.index.json"
SAFETENSORS = (WEIGHTS, INDEX)
WRITTEN = (CONFIG, WEIGHTS, *text_settings.WRITTEN_TEXT)
KERAS = "tf_model.h5"
INNER = "*_Transformer"  # where sentence-transformers puts it in its folder

# Every class that the format may name, with the class of ours that holds it.
CLASSES = {
    "BertModel": "BertEncoder",
    "BertForPreTraining": "BertPretrainer",
    "BertForMaskedLM": "BertPretrainer",
    "BertLMHeadModel": "BertCausalModel",
    "BertForNextSentencePrediction": "BertPretrainer",
    "BertForSequenceClassification": "BertClassifier",
    "BertForMultipleChoice": "BertChooser",
    "BertForTokenClassification": "BertTagger",
    "BertForQuestionAnswering": "BertSpanPredictor",
}
# These classes of transformers have no pooler.
WITHOUT_POOLER = (
    "BertForMaskedLM",
    "BertLMHeadModel",
    "BertForTokenClassification",
    "BertForQuestionAnswering",
)
# What transformers computes under each name.
ACTIVATIONS = {
    "gelu": "gelu_exact",
    "gelu_python": "gelu_exact",
    "gelu_new": "gelu_tanh",
    "gelu_fast": "gelu_tanh",
    "gelu_pytorch_tanh": "gelu_tanh",
}
PROBLEMS = {
    "single_label_classification": "single",
    "multi_label_classification": "multi",
    "regression": "regression",
}
TIED = ("BertPretrainer", "BertCausalModel")
LABELLED = ("BertClassifier", "BertTagger")
WITH_DROPOUT = ("BertClassifier", "BertChooser", "BertTagger")

# The library's names <-> tensor names of Hugging Face's BERT classes.
_LAYER = "encoder.layer.{}"
_DENSE = {
    "encoder/layer_{}/attention/query": f"{_LAYER}.attention.self.query",
    "encoder/layer_{}/attention/key": f"{_LAYER}.attention.self.key",
    "encoder/layer_{}/attention/value": f"{_LAYER}.attention.self.value",
    "encoder/layer_{}/attention/output": f"{_LAYER}.attention.output.dense",
    "encoder/layer_{}/intermediate": f"{_LAYER}.intermediate.dense",
    "encoder/layer_{}/output": f"{_LAYER}.output.dense",
    "encoder/pooler": "pooler.dense",
    "mlm/dense": "cls.predictions.transform.dense",
    "nsp": "cls.seq_relationship",
}
_NORM = {
    "encoder/embeddings/norm": "embeddings.LayerNorm",
    "encoder/layer_{}/attention_norm": f"{_LAYER}.attention.output.LayerNorm",
    "encoder/layer_{}/output_norm": f"{_LAYER}.output.LayerNorm",
    "mlm/norm": "cls.predictions.transform.LayerNorm",
}
_TABLES = {
    "encoder/embeddings/token/embeddings": "embeddings.word_embeddings.weight",
    "encoder/embeddings/position/embeddings": (
        "embeddings.position_embeddings.weight"
    ),
    "encoder/embeddings/segment/embeddings": (
        "embeddings.token_type_embeddings.weight"
    ),
    "mlm/bias": "cls.predictions.bias",
}
# The head's own layer, by our class: three of theirs are a `classifier`.
_HEADS = {
    "BertClassifier": {"classifier": "classifier"},
    "BertTagger": {"tagger": "classifier"},
    "BertChooser": {"chooser": "classifier"},
    "BertSpanPredictor": {"span": "qa_outputs"},
}
_ENDS = (".weight", ".bias")
_TOPS = ("cls", "classifier", "qa_outputs")


def names(head):
    """The table of names for the weights of our class of this name."""
    return {
        **_TABLES,
        **tensors.expanded(_DENSE | _HEADS.get(head, {}), _NORM, _ENDS),
    }


# Reading.


def open_huggingface(folder):
    """The `Checkpoint` of a Hugging Face folder.

    `architectures` in its settings says whose head it holds; the folders of
    2019 lack that, and their tensors say it.
    """
    config = tensor_files.read_json(os.path.join(folder, CONFIG))
    _check_model(config)
    weights = _read_weights(folder)
    stated = _stated_head(config)
    heads = [stated] if stated else _possible_heads(config, weights)
    of_class = {
        head: functools.partial(_checkpoint, folder, config, weights, head)
        for head in heads
    }
    if len(heads) == 1:
        return of_class[heads[0]]()
    checkpoint = _checkpoint(folder, config, weights, "BertEncoder")
    return dataclasses.replace(checkpoint, of_class=of_class)


def _checkpoint(folder, config, weights, head):
    """The folder as that of our class of this name."""
    encoder = _read_encoder(config)
    arguments = _read_arguments(config, head)
    stored, modern_name, is_turned = weights
    found, skipped = tensors.renamed(stored, names(head), folder, modern_name)
    for name, tensor in found.items():
        if is_turned and name.endswith("/kernel"):
            found[name] = tensor.transposed()
    return tensors.Checkpoint(
        source=str(folder),
        format="huggingface",
        encoder=encoder,
        head=head,
        head_arguments=arguments,
        tensors=found,
        skipped=skipped,
        read_text=text_settings.huggingface_text(
            folder, config, encoder["max_sequence_length"]
        ),
        initializer_range=config.handed_on("initializer_range"),
    )


def _check_model(config):
    """Refuses what is not a plain BERT, by name."""
    if "auto_map" in config or "custom_pipelines" in config:
        raise WeightsError(
            config.path,
            "the folder asks to run code that came with it (auto_map)",
            "Convert it with the code that it came with",
        )
    kind = config.text("model_type", "bert")
    if kind != "bert":
        raise WeightsError(
            config.path,
            f'this is a model of type "{kind}"',
            "Load it with a package for that model",
            expected='the model type "bert"',
            found=f'"{kind}"',
        )
    position = config.text("position_embedding_type", "absolute")
    if position != "absolute":
        raise WeightsError(
            config.path,
            f'the positions are "{position}", not those of the original',
            "Take a checkpoint with absolute positions",
        )
    for name in ("quantization_config", "pruned_heads", "add_cross_attention"):
        if config.raw(name):
            raise WeightsError(
                config.path,
                f'"{name}" is set, which this package does not compute',
                "Take the checkpoint that it was made from",
            )


def _read_encoder(config):
    """The arguments of `BertEncoder` that the file states."""
    activation = config.choice("hidden_act", ACTIVATIONS, "gelu")
    directed = config.boolean("is_decoder", False)
    return {
        "vocabulary_size": config.integer("vocab_size", 30522),
        "num_layers": config.integer("num_hidden_layers", 12, maximum=1000),
        "num_heads": config.integer("num_attention_heads", 12),
        "hidden_dim": config.integer("hidden_size", 768),
        "intermediate_dim": config.integer("intermediate_size", 3072),
        "max_sequence_length": config.integer("max_position_embeddings", 512),
        "num_segments": config.integer("type_vocab_size", 2),
        "dropout": config.share("hidden_dropout_prob", 0.1),
        "attention_dropout": config.share("attention_probs_dropout_prob", 0.1),
        "activation": ACTIVATIONS[activation],
        "attention": "left_to_right" if directed else "bidirectional",
        "norm_epsilon": config.epsilon("layer_norm_eps"),
    }


def _stated_head(config):
    """The name of our class that the file names, None where it names none."""
    stated = config.texts("architectures", [])
    if not stated:
        return None
    if stated[0] not in CLASSES:
        config.refuse("architectures", " or ".join(CLASSES), stated[0])
    head = CLASSES[stated[0]]
    if head == "BertCausalModel" and not config.boolean("is_decoder", False):
        return "BertPretrainer"
    return head


def _possible_heads(config, weights):
    """Which of our classes the tensors may be of, for want of a name.

    Three classes of transformers call their head `classifier`: its outputs,
    the pooler and the settings distinguish most of them.
    """
    stored, modern_name, _ = weights
    by_name = {modern_name(name): tensor for name, tensor in stored.items()}
    layers = {name.split(".")[0] for name in by_name if name}
    heads = ["BertPretrainer"] if "cls" in layers else []
    heads += [h for h, table in _HEADS.items() if layers & {*table.values()}]
    bias = by_name.get("classifier.bias")
    if bias:
        outputs, pools = np.prod(bias.shape), "pooler.dense.weight" in by_name
        one = len(_read_labels(config)) == 1  # as for a regression
        fits = {
            "BertClassifier": pools and (outputs > 1 or one),
            "BertTagger": outputs > 1 and "problem_type" not in config,
            "BertChooser": pools and outputs == 1 and not one,
        }
        heads = [head for head in heads if fits.get(head, True)]
    if config.boolean("is_decoder", False):
        heads = [h.replace("Pretrainer", "CausalModel") for h in heads]
    return heads or ["BertEncoder"]


def _read_arguments(config, head):
    """The arguments of our class beyond the encoder."""
    arguments = {}
    if head in TIED and not config.boolean("tie_word_embeddings", True):
        config.refuse("tie_word_embeddings", "true, as in BERT", "false")
    if head in LABELLED:
        arguments["labels"] = _read_labels(config)
    if head == "BertClassifier":
        # Unnamed, transformers takes one output for regression.
        one = len(arguments["labels"]) == 1
        arguments["problem"] = "regression" if one else "single"
        if "problem_type" in config:
            problem = config.choice("problem_type", PROBLEMS)
            arguments["problem"] = PROBLEMS[problem]
        arguments["labels"] = tensors.named(**arguments)
    if head in WITH_DROPOUT and "classifier_dropout" in config:
        arguments["dropout"] = config.share("classifier_dropout")
    return arguments


def _read_labels(config):
    """The label names in the order of the logits."""
    by_index = config.object("id2label", {}).values
    if not by_index:
        count = config.integer("num_labels", 2, maximum=2**20)
        return [f"LABEL_{index}" for index in range(count)]
    labels = [by_index.get(str(index)) for index in range(len(by_index))]
    if not all(isinstance(label, str) for label in labels):
        expected = f"names of 0 to {len(by_index) - 1}"
        config.refuse("id2label", expected, by_index)
    return labels


def has_weights(folder, files=(*SAFETENSORS, KERAS)):
    """Whether the folder has one of the files; a pickle does not count."""
    return any(os.path.exists(os.path.join(folder, name)) for name in files)


def places(folder):
    """Where in a folder a Hugging Face folder may be, from the folder."""
    return ["", *sorted(glob.glob(INNER, root_dir=folder))]


def _read_weights(folder):
    """The tensors, a function to the modern form of their names, and whether
    kernels are (outputs, inputs)."""
    path = os.path.join(folder, KERAS)
    if os.path.exists(path) and not has_weights(folder, SAFETENSORS):
        return tensor_files.read_h5(path), _modern_name_in_h5, False
    path = os.path.join(folder, WEIGHTS)
    if os.path.exists(path):
        return tensor_files.read_safetensors(path), _modern_name, True
    if os.path.exists(os.path.join(folder, INDEX)):
        return _read_shards(folder), _modern_name, True
    pickles = tensor_files.pickles_in(folder)
    if pickles:
        raise WeightsError(
            pickles[0],
            "this is a pickle, which can run any code when it is read",
            "Convert it once, apart, with python -m "
            "official_tasks.tools.convert_checkpoint --allow_torch",
            expected=WEIGHTS,
            found=os.path.basename(pickles[0]),
        )
    raise WeightsError(
        folder,
        "the folder holds no weights",
        "Fetch the folder again",
        expected=f"{WEIGHTS}, {INDEX} or {KERAS}",
        found="none",
    )


def _read_shards(folder):
    """Every tensor of the index, from the file in this folder it names."""
    index = tensor_files.read_json(os.path.join(folder, INDEX))
    found, read = {}, {}
    for name, file in index.object("weight_map").values.items():
        if not files.is_plain_name(file):
            index.refuse(name, "a file in this folder", file)
        if file not in read:
            path = os.path.join(folder, file)
            read[file] = tensor_files.read_safetensors(path)
        if name not in read[file]:
            index.refuse(name, f"a tensor in {file}", "none")
        found[name] = read[file][name]
    return found


def _modern_name(name):
    """Without prefix, and with `weight` and `bias` for LayerNorm's.

    Before 2019 LayerNorm's scale and offset had TensorFlow's names.
    """
    name = name.removeprefix("bert.")
    name = re.sub(r"(?<=LayerNorm\.)gamma$", "weight", name)
    return re.sub(r"(?<=LayerNorm\.)beta$", "bias", name)


def _modern_name_in_h5(path):
    """The same of a dataset of `tf_model.h5`; None for a second copy.

    Every layer's group repeats the path of the variable in the model, and
    the masked-LM head's lists the embeddings once more.
    """
    layer, _, path = path.removesuffix(":0").partition("/")
    if layer == "bert":
        path = path.rpartition("bert/")[2]
    elif "bert/" in path:
        return None
    else:
        path = path.replace("mlm___", "").replace("nsp___", "")
        path = path[max(path.find(f"{top}/") for top in _TOPS) :]
    path = path.replace("layer_._", "layer/").replace("/", ".")
    stem, _, end = path.rpartition(".")
    ends = {"kernel": "weight", "gamma": "weight", "beta": "bias"}
    return f"{stem}.{ends.get(end, end).replace('embeddings', 'weight')}"


# Writing a folder that transformers loads as its own.


def save_huggingface(folder, model, preprocessor=None, without=()):
    """Writes the folder; arguments and result are as of `save_native`.

    The class that is named follows from the weights that are not left out.
    Where it has no pooler, that is left out too.
    """
    with new_folder(folder, WRITTEN, model, preprocessor) as partial:
        return write_huggingface(partial, model, preprocessor, without)


def write_huggingface(folder, model, preprocessor=None, without=()):
    """Writes the files of `save_huggingface` to a folder that is there."""
    every = published_weights(model)
    head = type(model).__name__
    kind = _architecture(head, set(every) - set(without))
    without = [*without, *(POOLER if kind in WITHOUT_POOLER else ())]
    weights = {k: v for k, v in every.items() if k not in without}
    prefix = "" if kind == "BertModel" else "bert."
    numbers = _named_numbers(weights, names(head), prefix)
    config = _config(model, kind, preprocessor)
    files.write_json(config, os.path.join(folder, CONFIG))
    tensor_files.write_safetensors(os.path.join(folder, WEIGHTS), numbers)
    if preprocessor is not None:
        text_settings.write_huggingface_tokenizer(folder, preprocessor)
    return sorted(set(without))


def _architecture(head, weights):
    """The class of transformers that holds exactly these weights of ours."""
    if head == "BertPretrainer":
        masked, following = "mlm/bias" in weights, "nsp/bias" in weights
        return {
            (True, True): "BertForPreTraining",
            (True, False): "BertForMaskedLM",
            (False, True): "BertForNextSentencePrediction",
            (False, False): "BertModel",
        }[masked, following]
    for theirs, ours in CLASSES.items():
        if ours == head:
            return theirs
    return "BertModel"  # the weights of the head are then refused


def _named_numbers(weights, table, prefix):
    """Dict of their name -> (shape, function that returns the numbers)."""
    found = {}
    for name, weight in weights.items():
        theirs = tensors.mapped(name, table)
        if theirs is None:
            raise InputError(
                f"transformers has no place for {name}. Save the model in "
                "the library's native format, with save_preset."
            )
        if name.startswith("encoder/"):
            theirs = prefix + theirs
        shape, read = tuple(weight.shape), weight.numpy
        if name.endswith("/kernel"):  # theirs is (outputs, inputs)
            shape, read = shape[::-1], lambda w=weight: w.numpy().T
        found[theirs] = shape, read
    return found


def _config(model, kind, preprocessor):
    """The contents of config.json for the class `kind` of transformers."""
    encoder = getattr(model, "encoder", model)
    directed = encoder.attention == "left_to_right"
    if not directed:
        tensors.check_computable(model, "huggingface", "transformers")
    named = {ours: theirs for theirs, ours in reversed(ACTIVATIONS.items())}
    config = {
        "architectures": [kind],
        "model_type": "bert",
        "vocab_size": encoder.vocabulary_size,
        "num_hidden_layers": encoder.num_layers,
        "num_attention_heads": encoder.num_heads,
        "hidden_size": encoder.hidden_dim,
        "intermediate_size": encoder.intermediate_dim,
        "max_position_embeddings": encoder.max_sequence_length,
        "type_vocab_size": encoder.num_segments,
        "hidden_dropout_prob": encoder.dropout,
        "attention_probs_dropout_prob": encoder.attention_dropout,
        "hidden_act": named[encoder.activation],
        "layer_norm_eps": encoder.norm_epsilon,
        "is_decoder": directed,
        **tensors.settings_of_start(model),
        "position_embedding_type": "absolute",
        "torch_dtype": "float32",
    }
    if preprocessor is not None:
        config["pad_token_id"] = preprocessor.tokenizer.pad_id
    if hasattr(model, "labels"):
        labels = model.labels or ["LABEL_0"]
        config["id2label"] = {str(i): name for i, name in enumerate(labels)}
        config["label2id"] = {name: i for i, name in enumerate(labels)}
    if hasattr(model, "problem"):
        problems = {ours: theirs for theirs, ours in PROBLEMS.items()}
        # Of one score theirs says no more: see `from_preset(problem=...)`.
        config["problem_type"] = problems.get(model.problem, "regression")
    if type(model).__name__ in WITH_DROPOUT:
        config["classifier_dropout"] = model.dropout
    return config
