"""The paper's tagger on features: two BiLSTMs over a frozen encoder."""

import keras
from keras import ops

from bert_keras.modeling.heads import BiLSTM, LogitsHead, check_labels
from bert_keras.modeling.layers import KeepsArguments
from bert_keras.modeling.task_base import TaskModel, symbolic_inputs
from official_tasks.tasks.recipes import LSTM_DIM, find_recipe

LSTM_LAYERS = 2  # the paper, section 5.3


@keras.saving.register_keras_serializable("bert_keras")
class LayerMix(KeepsArguments):
    """One vector a token from hidden states, by a recipe.

    A weighted sum learns its weights: a softmax over the layers, equal at
    first, times a scale, 1 at first.

    Weights, by path: of a weighted sum, mix (L,) and scale (); else none.

    Args:
        recipe: see `find_recipe`.
        num_layers: of the encoder.

    Call arguments:
        states: list of float (B, T, D), as `BertEncoder` returns them.

    Returns:
        float (B, T, D), or of a concatenation (B, T, D times the layers).
    """

    def __init__(self, recipe, num_layers, **kwargs):
        super().__init__(**kwargs)
        self.recipe, self.num_layers = recipe, num_layers
        self.indices = find_recipe(recipe).find_layers(num_layers)
        self.is_sum = find_recipe(recipe).how == "weighted_sum"

    def build(self, states_shape):
        if self.is_sum:
            self.mix = self.add_weight(
                (len(self.indices),), "zeros", name="mix"
            )
            self.scale = self.add_weight((), "ones", name="scale")

    def call(self, states):
        chosen = [states[index] for index in self.indices]
        if not self.is_sum:
            return ops.concatenate(chosen, axis=-1)
        factors = ops.unstack(self.scale * ops.softmax(self.mix), axis=0)
        return sum(
            ops.cast(factor, state.dtype) * state
            for factor, state in zip(factors, chosen, strict=True)
        )

    def compute_output_spec(self, states):
        *shape, dim = states[0].shape
        width = dim if self.is_sum else dim * len(self.indices)
        return keras.KerasTensor((*shape, width), dtype=self.compute_dtype)


@keras.saving.register_keras_serializable("bert_keras")
class FeatureTagger(TaskModel):
    """One label a token; the encoder below does not learn.

    The encoder runs without dropout and is frozen, also in other models with
    it. Two bidirectional LSTMs read its features; dropout and a dense layer
    follow (the paper, section 5.3).

    Weights, by path: the encoder's; features/{mix,scale} of a weighted sum;
    those of `BiLSTM` behind bilstm_{0,1}/; tagger/{kernel,bias}.

    Args:
        encoder: a `BertEncoder`.
        labels: names of the classes, in the order of the logits.
        recipe: which layers are read; see `find_recipe`.
        lstm_dim: width of each LSTM, one way.
        dropout: fraction of the last vectors dropped in training; the encoder's
            where None.

    Call arguments:
        inputs: dict of `token_ids`, `segment_ids`, `padding_mask`,
            int32 (B, T); or the token ids alone.

    Returns:
        float32 (B, T, C), logits.

    Raises:
        InputError: labels missing or repeated, a layer the encoder lacks.
    """

    pools = False

    def __init__(
        self,
        encoder,
        labels=None,
        recipe="concat_last_four",
        lstm_dim=LSTM_DIM,
        dropout=None,
        name="feature_tagger",
    ):
        self.labels = check_labels(labels)
        self.recipe, self.lstm_dim = recipe, lstm_dim
        self.dropout = encoder.dropout if dropout is None else dropout
        encoder.trainable = False
        policy = encoder.dtype_policy
        inputs = symbolic_inputs()
        states = encoder(inputs, training=False, hidden_states=True)
        mix = LayerMix(
            recipe, encoder.num_layers, name="features", dtype=policy
        )
        vectors = mix(states["hidden_states"])
        for number in range(LSTM_LAYERS):
            bilstm = BiLSTM(lstm_dim, name=f"bilstm_{number}", dtype=policy)
            vectors = bilstm(vectors, inputs["padding_mask"])
        self.tagger = LogitsHead(
            len(labels), self.dropout, name="tagger", dtype=policy
        )
        super().__init__(inputs, self.tagger(vectors), encoder, name)
