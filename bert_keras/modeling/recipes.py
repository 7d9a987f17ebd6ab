"""Recipes that make a token's features from the layers of a frozen encoder.

The paper has six recipes (section 5.3, table 7). Users can define others.
"""

from typing import NamedTuple

from bert_keras.errors import InputError

ALL = "all"
HOW = ("concat", "sum", "weighted_sum")


class Recipe(NamedTuple):
    """Layers of the encoder, and the method that combines their vectors.

    Attributes:
        layers: indices of the hidden states: 0 for the embeddings, 1 for the
            first layer, -1 for the last; or "all" (without the embeddings).
        how: "concat", "sum", or "weighted_sum" with trainable weights.
    """

    layers: tuple[int, ...] | str
    how: str

    def find_layers(self, num_layers: int) -> list[int]:
        """Return the indices, from 0, of the hidden states to combine.

        Raises:
            InputError: the encoder lacks one of the layers.
        """
        if isinstance(self.layers, str):  # "all"
            return list(range(1, num_layers + 1))
        for layer in self.layers:
            if not -num_layers <= layer <= num_layers:
                raise InputError(
                    f"The recipe reads layer {layer}, but the encoder has "
                    f"{num_layers} layers. Expected layers from {-num_layers} "
                    f"to {num_layers}."
                )
        return [
            layer if layer >= 0 else num_layers + 1 + layer
            for layer in self.layers
        ]

    def width(self, num_layers: int, hidden_dim: int) -> int:
        """Return the number of features of a token."""
        count = len(self.find_layers(num_layers)) if self.how == "concat" else 1
        return count * hidden_dim

    def vectors(self, states):
        """Return features `(B, T, F)` of hidden states `(B, T, D)`.

        For "weighted_sum", this method returns the plain sum. `LayerMix`
        computes the sum with trainable weights.
        """
        from keras import ops

        chosen = [states[layer] for layer in self.find_layers(len(states) - 1)]
        if self.how == "concat":
            return ops.concatenate(chosen, axis=-1)
        return sum(chosen[1:], chosen[0])


# These are the feature-based rows of the paper's table 7.
RECIPES = {
    "embeddings": Recipe((0,), "concat"),
    "second_to_last": Recipe((-2,), "concat"),
    "last": Recipe((-1,), "concat"),
    "weighted_sum_last_four": Recipe((-4, -3, -2, -1), "weighted_sum"),
    "concat_last_four": Recipe((-4, -3, -2, -1), "concat"),
    "weighted_sum_all": Recipe(ALL, "weighted_sum"),
}
SUMS = {
    "sum_last_four": Recipe((-4, -3, -2, -1), "sum"),
    "sum_all": Recipe(ALL, "sum"),
}


def find_recipe(name: str) -> Recipe:
    """Return a recipe by its name, or from a method and layer numbers.

    >>> find_recipe("concat:-1,0").layers
    (-1, 0)
    """
    known = RECIPES | SUMS
    if name in known:
        return known[name]
    how, _, layers = str(name).rpartition(":")
    try:
        numbers = tuple(int(layer) for layer in layers.split(","))
    except ValueError:
        numbers = ()
    if how not in HOW or not numbers:
        raise InputError(
            f"There is no recipe {name!r}: expected one of "
            f"{', '.join(known)}, or a method and layer numbers, such as "
            "concat:-1,-2 or weighted_sum:0,6,12."
        )
    return Recipe(numbers, how)
