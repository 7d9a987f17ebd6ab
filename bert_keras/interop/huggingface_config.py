"""Hugging Face's `config.json` <-> arguments of our encoder and heads."""

from bert_keras.interop.checkpoint import WeightsError

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
