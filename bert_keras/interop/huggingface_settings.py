"""The settings that a Hugging Face folder has for a model of ours."""

from bert_keras.interop.computable import (
    check_computable,
    settings_of_start,
)
from bert_keras.interop.huggingface_config import (
    ACTIVATIONS,
    CLASSES,
    PROBLEMS,
    WITH_DROPOUT,
)

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
