"""The table of heads, with their names in bert_keras and other libraries.

Publishing, serving and the readers of weights use the table. To add a head, add
a row here and a model class in `modeling`.
"""

import dataclasses


@dataclasses.dataclass(frozen=True)
class Head:
    """A row of `HEADS`: one model class.

    Attributes:
        architectures: classes of transformers with this head. config.json of
            a saved folder names one of them, or "BertModel" if none fits.
        auto_class: class of transformers that loads any of `architectures`.
        task: the Hub's `pipeline_tag`.
        layer: name of the head's only dense layer in bert_keras; None without
            a head or with a masked-LM head.
        tensors: dict of format -> name of the layer in that format.
        parts: parts of the head that a file may lack, as weight-name prefixes.
        has_labels: True if the layer has one output for each label.
        has_dropout: True if the class has an argument `dropout`.
        is_tied: True if the output matrix is the token embeddings.
        signatures: names of signatures that an export may have, the default
            first; see `SIGNATURES`.
        peft_task: `task_type` in PEFT's adapter_config.json; PEFT allows None.
    """

    architectures: tuple[str, ...]
    auto_class: str
    task: str
    layer: str | None = None
    tensors: dict = dataclasses.field(default_factory=dict)
    parts: tuple[str, ...] = ()
    has_labels: bool = False
    has_dropout: bool = False
    is_tied: bool = False
    signatures: tuple[str, ...] = ()
    peft_task: str | None = None


EMBEDDING = ("embed", "embed_query", "embed_document")
HEADS = {
    "BertEncoder": Head(
        ("BertModel",),
        "AutoModel",
        "feature-extraction",
        signatures=EMBEDDING,
        peft_task="FEATURE_EXTRACTION",
    ),
    "BertPretrainer": Head(
        (
            "BertForPreTraining",
            "BertForMaskedLM",
            "BertForNextSentencePrediction",
        ),
        "AutoModelForPreTraining",
        "fill-mask",
        parts=("mlm/", "nsp/"),
        is_tied=True,
        signatures=("fill_mask", "next_sentence", *EMBEDDING),
    ),
    "BertCausalModel": Head(
        ("BertLMHeadModel",),
        "AutoModelForCausalLM",
        "text-generation",
        is_tied=True,
    ),
    "BertClassifier": Head(
        ("BertForSequenceClassification",),
        "AutoModelForSequenceClassification",
        "text-classification",
        layer="classifier",
        tensors={
            "huggingface": "classifier",
            "google": "output",
            "keras_hub": "layers/dense",
        },
        has_labels=True,
        has_dropout=True,
        signatures=("classify", "rank", "entail"),
        peft_task="SEQ_CLS",
    ),
    "BertTagger": Head(
        ("BertForTokenClassification",),
        "AutoModelForTokenClassification",
        "token-classification",
        layer="tagger",
        tensors={"huggingface": "classifier"},
        has_labels=True,
        has_dropout=True,
        signatures=("tag",),
        peft_task="TOKEN_CLS",
    ),
    "BertSpanPredictor": Head(
        ("BertForQuestionAnswering",),
        "AutoModelForQuestionAnswering",
        "question-answering",
        layer="span",
        tensors={"huggingface": "qa_outputs", "google": "cls/squad/output"},
        signatures=("answer",),
        peft_task="QUESTION_ANS",
    ),
    "BertChooser": Head(
        ("BertForMultipleChoice",),
        "AutoModelForMultipleChoice",
        "multiple-choice",
        layer="chooser",
        tensors={"huggingface": "classifier"},
        has_dropout=True,
        signatures=("choose",),
    ),
    "BertEmbedder": Head(
        (), "AutoModel", "sentence-similarity", signatures=EMBEDDING
    ),
}
# Class of transformers -> class of this package.
BY_ARCHITECTURE = {
    architecture: name
    for name, head in HEADS.items()
    for architecture in head.architectures
}
# Names of weights whose last axis has one entry per label.
LABELED_WEIGHTS = tuple(
    f"{head.layer}/{end}"
    for head in HEADS.values()
    if head.has_labels
    for end in ("kernel", "bias")
)


def layers_in(format):
    """Return dict of class -> {layer in bert_keras: layer in the format}."""
    return {
        name: {head.layer: head.tensors[format]}
        for name, head in HEADS.items()
        if format in head.tensors
    }
