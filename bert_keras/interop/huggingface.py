"""Hugging Face folders, read and written: config.json, model.safetensors."""

import dataclasses
import functools
import glob
import os
import re

import numpy as np

from bert_keras import files
from bert_keras.errors import InputError
from bert_keras.files import is_plain_name
from bert_keras.interop.huggingface_tokenizer import text_reader
from bert_keras.interop.native import check_replaceable, write_pieces
from bert_keras.interop.tensor_files import (
    read_h5,
    read_json,
    read_safetensors,
    write_safetensors,
)
from bert_keras.interop.tensors import (
    DENSE,
    NORM,
    Checkpoint,
    WeightsError,
    check_computable,
    expanded,
    mapped,
    renamed,
    settings_of_start,
)
from bert_keras.interop.text_settings import check_fits
from bert_keras.interop.torch_pickle import pickles_in
from bert_keras.modeling.weights import published_weights

# Tensor names of Hugging Face's BERT classes <-> the library's names.

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
# The head's own layer, by our class: three of theirs are a `classifier`.
_HEADS = {
    "BertClassifier": {"classifier": "classifier"},
    "BertTagger": {"tagger": "classifier"},
    "BertChooser": {"chooser": "classifier"},
    "BertSpanPredictor": {"span": "qa_outputs"},
}
_ENDS = (".weight", ".bias")


def heads_in(tensors):
    """Our classes whose head the file may hold, by the names of its tensors.

    Args:
        tensors: their names, as `modern` or `from_keras` gives them.
    """
    stems = {name.split(".")[0] for name in tensors}
    heads = ["BertPretrainer"] if "cls" in stems else []
    for head, layer in _HEADS.items():
        if stems & set(layer.values()):
            heads.append(head)
    return heads


def names(head):
    """The table of names for the weights of one class.

    Args:
        head: the name of our model class.
    """
    return {
        "encoder/embeddings/token/embeddings": (
            "embeddings.word_embeddings.weight"
        ),
        "encoder/embeddings/position/embeddings": (
            "embeddings.position_embeddings.weight"
        ),
        "encoder/embeddings/segment/embeddings": (
            "embeddings.token_type_embeddings.weight"
        ),
        "mlm/bias": "cls.predictions.bias",
        **expanded(_DENSE | _HEADS.get(head, {}), DENSE, _ENDS),
        **expanded(_NORM, NORM, _ENDS),
    }


def modern(name):
    """Their name today: no prefix, `weight` and `bias` for LayerNorm's.

    Before 2019 LayerNorm's scale and offset had TensorFlow's names.
    """
    name = name.removeprefix("bert.")
    name = re.sub(r"(?<=LayerNorm\.)gamma$", "weight", name)
    return re.sub(r"(?<=LayerNorm\.)beta$", "bias", name)


def from_keras(path):
    """Their name for a dataset of `tf_model.h5`; None for a second copy.

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
        path = path[max(path.find(f"{part}/") for part in _TOPS) :]
    path = path.replace("layer_._", "layer/").replace("/", ".")
    stem, _, end = path.rpartition(".")
    ends = {"kernel": "weight", "gamma": "weight", "beta": "bias"}
    return f"{stem}.{ends.get(end, end).replace('embeddings', 'weight')}"


_TOPS = ("cls", "classifier", "qa_outputs")


# Hugging Face's `config.json` <-> arguments of our encoder and heads.

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
EPSILON = 1e-12


def check_model(config):
    """Refuses what is not a plain BERT, by name.

    Args:
        config: the `Fields` of the file.
    """
    if "auto_map" in config or "custom_pipelines" in config:
        _refuse(
            config,
            "the folder asks to run code that came with it (auto_map)",
            "Convert it with the code that it came with",
        )
    kind = config.text("model_type", "bert")
    if kind != "bert":
        _refuse(
            config,
            f'this is a model of type "{kind}"',
            "Load it with a package for that model",
            expected='the model type "bert"',
            found=f'"{kind}"',
        )
    position = config.text("position_embedding_type", "absolute")
    if position != "absolute":
        _refuse(
            config,
            f'the positions are "{position}", not those of the original',
            "Take a checkpoint with absolute positions",
        )
    for name in ("quantization_config", "pruned_heads", "add_cross_attention"):
        if config.raw(name):
            _refuse(
                config,
                f'"{name}" is set, which this package does not compute',
                "Take the checkpoint that it was made from",
            )


def read_encoder(config):
    """The arguments of `BertEncoder` that the file states."""
    epsilon = config.raw("layer_norm_eps", EPSILON)
    if type(epsilon) is not float or not 0 < epsilon < 1:
        config.refuse("layer_norm_eps", "a number above 0, below 1", epsilon)
    activation = config.text("hidden_act", "gelu")
    if activation not in ACTIVATIONS:
        config.refuse("hidden_act", " or ".join(ACTIVATIONS), activation)
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
        "norm_epsilon": epsilon,
    }


def stated_head(config):
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


def possible_heads(config, heads, outputs, pools):
    """Which of our classes the tensors may be of, for want of a name.

    The files of 2019 have none. Three classes of transformers call their
    head `classifier`: its outputs, the pooler and the settings tell most of
    them apart.

    Args:
        heads: our classes whose head has the names of the tensors.
        outputs: how many numbers `classifier` puts out; None without one.
        pools: whether there is a pooler.
    """
    if outputs is not None:
        one = len(read_labels(config)) == 1  # as for a regression
        fits = {
            "BertClassifier": pools and (outputs > 1 or one),
            "BertTagger": outputs > 1 and "problem_type" not in config,
            "BertChooser": pools and outputs == 1 and not one,
        }
        heads = [head for head in heads if fits.get(head, True)]
    if config.boolean("is_decoder", False):
        heads = [h.replace("Pretrainer", "CausalModel") for h in heads]
    return heads


def read_arguments(config, head):
    """The arguments of our class beside the encoder."""
    arguments = {}
    if head in TIED and not config.boolean("tie_word_embeddings", True):
        config.refuse("tie_word_embeddings", "true, as in BERT", "false")
    if head in LABELLED:
        arguments["labels"] = read_labels(config)
    if head == "BertClassifier":
        arguments["problem"] = _read_problem(config, arguments["labels"])
        if arguments == {"labels": ["LABEL_0"], "problem": "regression"}:
            arguments["labels"] = None  # the name for want of one
    if head in WITH_DROPOUT and "classifier_dropout" in config:
        arguments["dropout"] = config.share("classifier_dropout")
    return arguments


def read_labels(config):
    """The label names in the order of the logits."""
    names = config.object("id2label", {}).values
    if not names:
        count = config.integer("num_labels", 2, maximum=2**20)
        return [f"LABEL_{index}" for index in range(count)]
    labels = [names.get(str(index)) for index in range(len(names))]
    if not all(isinstance(label, str) for label in labels):
        config.refuse("id2label", f"names of 0 to {len(names) - 1}", names)
    return labels


def _read_problem(config, labels):
    # Unnamed, transformers takes one output for regression.
    default = "regression" if len(labels) == 1 else "single"
    if "problem_type" not in config:
        return default
    problem = config.text("problem_type")
    if problem not in PROBLEMS:
        config.refuse("problem_type", " or ".join(PROBLEMS), problem)
    return PROBLEMS[problem]


def _refuse(config, problem, way_out, **values):
    raise WeightsError(config.path, problem, way_out, **values)


# Hugging Face folders: config.json, model.safetensors, vocab.txt.

CONFIG = "config.json"
WEIGHTS = "model.safetensors"
INDEX = "model.safetensors.index.json"
SAFETENSORS = (WEIGHTS, INDEX)
KERAS = "tf_model.h5"
INNER = "*_Transformer"  # where sentence-transformers puts it in its folder


def open_huggingface(folder):
    """The `Checkpoint` of a Hugging Face folder.

    Whose head it holds says `architectures` in its settings; the folders of
    2019 lack that, and their tensors say it.
    """
    config = read_json(os.path.join(folder, CONFIG))
    check_model(config)
    weights = _read_weights(folder)
    stated = stated_head(config)
    heads = [stated] if stated else _heads_by_tensors(config, weights)
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
    encoder = read_encoder(config)
    arguments = read_arguments(config, head)
    tensors, plain, turn = weights
    found, skipped = renamed(tensors, names(head), folder, plain)
    for name, tensor in found.items():
        if turn and name.endswith("/kernel"):
            found[name] = tensor.transposed()
    return Checkpoint(
        source=str(folder),
        format="huggingface",
        encoder=encoder,
        head=head,
        head_arguments=arguments,
        tensors=found,
        skipped=skipped,
        read_text=text_reader(folder, config, encoder["max_sequence_length"]),
        initializer_range=config.handed_on("initializer_range"),
    )


def _heads_by_tensors(config, weights):
    tensors, plain, _ = weights
    by_name = {plain(name): tensor for name, tensor in tensors.items()}
    bias = by_name.get("classifier.bias")
    heads = possible_heads(
        config,
        heads_in(filter(None, by_name)),
        bias and bias.shape[0],
        "pooler.dense.weight" in by_name,
    )
    return heads or ["BertEncoder"]


def _read_weights(folder):
    """The tensors; what gives their names of today; whether kernels are
    (outputs, inputs)."""
    path = os.path.join(folder, KERAS)
    if os.path.exists(path) and not has_weights(folder, SAFETENSORS):
        return read_h5(path), from_keras, False
    return _read_safetensors(folder), modern, True


def has_weights(folder, files=(*SAFETENSORS, KERAS)):
    """Whether the folder has one of the files; a pickle does not count."""
    return any(os.path.exists(os.path.join(folder, name)) for name in files)


def places(folder):
    """Where in a folder a Hugging Face folder may be, from the folder."""
    return ["", *sorted(glob.glob(INNER, root_dir=folder))]


def _read_safetensors(folder):
    path = os.path.join(folder, WEIGHTS)
    if os.path.exists(path):
        return read_safetensors(path)
    if os.path.exists(os.path.join(folder, INDEX)):
        return _read_shards(folder)
    pickles = pickles_in(folder)
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
    index = read_json(os.path.join(folder, INDEX))
    shards = index.object("weight_map").values
    tensors, read = {}, {}
    for name, file in shards.items():
        if not is_plain_name(file):
            index.refuse(name, "a file in this folder", file)
        if file not in read:
            read[file] = read_safetensors(os.path.join(folder, file))
        if name not in read[file]:
            index.refuse(name, f"a tensor in {file}", "none")
        tensors[name] = read[file][name]
    return tensors


# The settings that a Hugging Face folder has for a model of ours.

# These classes of transformers have no pooler.
WITHOUT_POOLER = (
    "BertForMaskedLM",
    "BertLMHeadModel",
    "BertForTokenClassification",
    "BertForQuestionAnswering",
)
SPECIAL = ("[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]")


def architecture(head, weights):
    """The class of transformers that holds exactly these weights.

    Args:
        head: the name of our model class.
        weights: the library's names.
    """
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
    return "BertModel"  # the writer then refuses the weights of the head


def config_json(model, kind, preprocessor=None):
    """The contents of config.json.

    Args:
        model: `BertEncoder` or a task model.
        kind: the class of transformers.
        preprocessor: its `BertPreprocessor`, which knows the id of [PAD].
    """
    encoder = getattr(model, "encoder", model)
    directed = encoder.attention == "left_to_right"
    if not directed:
        check_computable(model, "huggingface", "transformers")
    named = {ours: theirs for theirs, ours in reversed(ACTIVATIONS.items())}
    return {
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
        **settings_of_start(model),
        "position_embedding_type": "absolute",
        "torch_dtype": "float32",
        **(
            {"pad_token_id": preprocessor.tokenizer.pad_id}
            if preprocessor
            else {}
        ),
        **_head_json(model),
    }


def _head_json(model):
    config = {}
    if hasattr(model, "labels"):
        labels = model.labels or ["LABEL_0"]
        config["id2label"] = {str(i): name for i, name in enumerate(labels)}
        config["label2id"] = {name: i for i, name in enumerate(labels)}
    if hasattr(model, "problem"):
        problems = {ours: theirs for theirs, ours in PROBLEMS.items()}
        config["problem_type"] = problems[model.problem]
    if type(model).__name__ in WITH_DROPOUT:
        config["classifier_dropout"] = model.dropout
    return config


def tokenizer_config_json(preprocessor):
    """The contents of tokenizer_config.json."""
    tokenizer = preprocessor.tokenizer
    names = [token.strip("[]").lower() for token in SPECIAL]
    return {
        "tokenizer_class": "BertTokenizer",
        "do_lower_case": tokenizer.lowercase,
        "strip_accents": tokenizer.strip_accents,
        "tokenize_chinese_chars": True,
        "split_special_tokens": not tokenizer.keep_special_tokens,
        "model_max_length": preprocessor.sequence_length,
        # Where it is all that fits in, theirs would say nothing to us.
        "sequence_length": preprocessor.sequence_length,
        **{
            f"{name}_token": token
            for name, token in zip(names, SPECIAL, strict=True)
        },
    }


def tokenizer_json(tokenizer):
    """The contents of tokenizer.json, as the `tokenizers` package has it."""
    ids = {piece: i for i, piece in enumerate(tokenizer.vocabulary)}
    return {
        "version": "1.0",
        "truncation": None,
        "padding": None,
        "added_tokens": [
            _added(token, ids[token]) for token in SPECIAL if token in ids
        ],
        "normalizer": {
            "type": "BertNormalizer",
            "clean_text": True,
            "handle_chinese_chars": True,
            "strip_accents": tokenizer.strip_accents,
            "lowercase": tokenizer.lowercase,
        },
        "pre_tokenizer": {"type": "BertPreTokenizer"},
        "post_processor": _template(ids),
        "decoder": {"type": "WordPiece", "prefix": "##", "cleanup": True},
        "model": {
            "type": "WordPiece",
            "unk_token": "[UNK]",
            "continuing_subword_prefix": "##",
            "max_input_chars_per_word": tokenizer.max_word_length,
            "vocab": ids,
        },
    }


def _added(token, number):
    return {
        "id": number,
        "content": token,
        "single_word": False,
        "lstrip": False,
        "rstrip": False,
        "normalized": False,
        "special": True,
    }


def _template(ids):
    """[CLS] A [SEP] of segment 0, then B [SEP] of segment 1."""

    def special(token, segment):
        return {"SpecialToken": {"id": token, "type_id": segment}}

    def sequence(name, segment):
        return {"Sequence": {"id": name, "type_id": segment}}

    single = [special("[CLS]", 0), sequence("A", 0), special("[SEP]", 0)]
    return {
        "type": "TemplateProcessing",
        "single": single,
        "pair": [*single, sequence("B", 1), special("[SEP]", 1)],
        "special_tokens": {
            token: {"id": token, "ids": [ids[token]], "tokens": [token]}
            for token in ("[CLS]", "[SEP]")
        },
    }


# Writing a Hugging Face folder that transformers loads as its own.

WRITTEN = (
    "config.json",
    "model.safetensors",
    "vocab.txt",
    "tokenizer.json",
    "tokenizer_config.json",
)
POOLER = ("encoder/pooler/kernel", "encoder/pooler/bias")


def save_huggingface(folder, model, preprocessor=None, without=()):
    """Writes the folder beside, then renames it.

    Args:
        folder: where to.
        model: `BertEncoder` or a task model.
        preprocessor: its `BertPreprocessor`; no tokenizer is written without.
        without: library names of weights to leave out, such as those that
            were never trained; the class that is named follows from them.

    Returns:
        names of the weights that were left out: `without`, and the pooler
        where that class has none.
    """
    every = published_weights(model)
    head = type(model).__name__
    kind = architecture(head, set(every) - set(without))
    without = [*without, *(POOLER if kind in WITHOUT_POOLER else ())]
    weights = {k: v for k, v in every.items() if k not in without}
    tensors = _tensors(weights, names(head), bare=kind == "BertModel")
    config = config_json(model, kind, preprocessor)
    if preprocessor is not None:
        check_fits(model, preprocessor)
    check_replaceable(folder, WRITTEN)
    with files.written_beside(folder) as partial:
        os.mkdir(partial)
        files.write_json(config, os.path.join(partial, "config.json"))
        write_safetensors(os.path.join(partial, "model.safetensors"), tensors)
        if preprocessor is not None:
            _write_tokenizer(partial, preprocessor)
    return sorted(set(without))


def _tensors(weights, table, bare):
    found = {}
    for name, weight in weights.items():
        theirs = mapped(name, table)
        if theirs is None:
            raise InputError(
                f"transformers has no place for {name}. Save the model in "
                "the library's own format, with save_preset."
            )
        if name.startswith("encoder/") and not bare:
            theirs = f"bert.{theirs}"
        shape, read = tuple(weight.shape), weight.numpy
        if name.endswith("/kernel"):
            shape, read = shape[::-1], _turned(weight)
        found[theirs] = shape, read
    return found


def _turned(weight):
    return lambda: np.transpose(weight.numpy())


def _write_tokenizer(folder, preprocessor):
    for name, value in (
        ("tokenizer_config.json", tokenizer_config_json(preprocessor)),
        ("tokenizer.json", tokenizer_json(preprocessor.tokenizer)),
    ):
        files.write_json(value, os.path.join(folder, name))
    write_pieces(preprocessor, os.path.join(folder, "vocab.txt"))
