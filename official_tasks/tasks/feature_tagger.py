"""The paper's feature-based tagger: two BiLSTMs on a frozen encoder."""

import keras

from bert_keras.modeling.heads import BiLSTM, LogitsHead, check_labels
from bert_keras.modeling.task_base import (
    TaskModel,
    mix_features,
    symbolic_inputs,
)

LSTM_LAYERS = 2  # the paper, section 5.3


@keras.saving.register_keras_serializable("bert_keras")
class FeatureTagger(TaskModel):
    """Model that labels each token from features of an encoder.

    The encoder runs without dropout and is not trained. Two bidirectional LSTMs
    read the features. Dropout and a dense layer follow (the paper, section
    5.3).

    Weights by path: the encoder's paths; features/{mix,scale} for a weighted
    sum; bilstm_0/ and bilstm_1/ with paths of `BiLSTM`; tagger/{kernel,bias}.

    Args:
        encoder: a `BertEncoder`.
        labels: names of the classes, in the order of the logits.
        recipe: name of the layers to read; see `find_recipe`.
        lstm_dim: width of each LSTM in each direction.
        dropout: dropout rate before the dense layer; None takes the encoder's
            rate.

    Call arguments:
        inputs: dict of `token_ids`, `segment_ids`, `padding_mask`,
            int32 (B, T); or the token ids alone.

    Returns:
        float32 (B, T, C), logits.

    Raises:
        InputError: labels are missing or repeated, the recipe is unknown, or
            the encoder lacks a layer that the recipe reads.
    """

    pools = False

    def __init__(
        self,
        encoder,
        labels=None,
        recipe="concat_last_four",
        lstm_dim=768,  # the paper, section 5.3
        dropout=None,
        name="feature_tagger",
    ):
        self.labels = check_labels(labels)
        self.recipe, self.lstm_dim = recipe, lstm_dim
        self.dropout = encoder.dropout if dropout is None else dropout
        policy = encoder.dtype_policy
        inputs = symbolic_inputs()
        vectors = mix_features(encoder, inputs, recipe)  # (B, T, F)
        for number in range(LSTM_LAYERS):
            bilstm = BiLSTM(lstm_dim, name=f"bilstm_{number}", dtype=policy)
            vectors = bilstm(vectors, inputs["padding_mask"])
        self.tagger = LogitsHead(
            len(labels), self.dropout, name="tagger", dtype=policy
        )
        super().__init__(inputs, self.tagger(vectors), encoder, name)
