"""What every model can do: come from a preset, go into one, change dtype."""

from bert_keras.modeling.initialization import skip_initialization
from bert_keras.modeling.weights import (
    copy_weights,
    mark_untrained,
    untrained_weights,
)


class Portable:
    """Loading, saving and copying, for `BertEncoder` and every task model."""

    @classmethod
    def from_preset(cls, preset, **arguments):
        """A model with the weights of a preset: a folder or a name.

        `arguments` go to the constructor, over what the preset says.
        """
        from bert_keras.interop.presets import load_model

        return load_model(cls, preset, **arguments)

    def save_preset(self, folder, preprocessor):
        """Writes configuration, weights and vocabulary to `folder`."""
        from bert_keras.interop.presets import save_preset

        save_preset(folder, self, preprocessor)

    def get_compile_config(self):
        """Keras's, with the paths of the layers that are frozen.

        The optimizer has no state for them: a model saved by Keras and loaded
        trains what it trained before. Of LoRA the merged kernels are left.
        """
        config = super().get_compile_config()
        frozen = list(_frozen(self))  # of which Keras's own models know nothing
        return {**config, "frozen": frozen} if config and frozen else config

    def compile_from_config(self, config):
        config = dict(config)
        frozen = config.pop("frozen", ())
        for layer in self._flatten_layers(include_self=False):
            if layer.path in frozen:
                layer.trainable = False
        super().compile_from_config(config)

    def with_dtype(self, policy):
        """A copy with the same weights under another dtype policy.

        What LoRA added is merged into the copy's weights.
        """
        with skip_initialization():
            copy = self._rebuilt(policy)
        copy_weights(self, copy)
        self.hand_on(copy)
        return copy

    def hand_on(self, copy):
        """Gives a copy what belongs to the weights beside their numbers."""
        ours, theirs = (getattr(m, "encoder", m) for m in (self, copy))
        theirs.license, theirs.origin = ours.license, ours.origin
        theirs.initializer_range = ours.initializer_range
        mark_untrained(copy, untrained_weights(self))
        if hasattr(self, "sentence_embedding"):
            copy.sentence_embedding = dict(self.sentence_embedding)


def _frozen(layer):
    """Paths of the outermost layers inside that do not train."""
    for inner in layer._layers:
        if inner.trainable:
            yield from _frozen(inner)
        elif inner.path:  # an input has none
            yield inner.path
