"""The published model sizes by name, as arguments of `BertEncoder`."""

# Integer arguments of `BertEncoder`, with the names of keras-hub. All except
# num_heads determine the shapes and the number of weights.
DIMENSIONS = (
    "vocabulary_size",
    "num_layers",
    "num_heads",
    "hidden_dim",
    "intermediate_dim",
    "max_sequence_length",
    "num_segments",
)
POOLER_ACTIVATIONS = ("tanh", "relu")  # BERT: tanh, DistilBERT: relu


def _size(num_layers, hidden_dim, vocabulary_size=None):
    size = {
        "num_layers": num_layers,
        "num_heads": hidden_dim // 64,  # as in Google's models
        "hidden_dim": hidden_dim,
        "intermediate_dim": 4 * hidden_dim,
    }
    if vocabulary_size is not None:
        size["vocabulary_size"] = vocabulary_size
    return size


_UNCASED, _CASED = 30522, 28996

# A key is a size or the folder name of a released checkpoint. A checkpoint's
# entry has `vocabulary_size`: `BertEncoder(**SIZES["cased_L-12_H-768_A-12"])`.
SIZES = {
    "tiny": _size(2, 128),
    "mini": _size(4, 256),
    "small": _size(4, 512),
    "medium": _size(8, 512),
    "base": _size(12, 768),
    "large": _size(24, 1024),
    **{
        f"uncased_L-{layers}_H-{dim}_A-{dim // 64}": _size(
            layers, dim, _UNCASED
        )
        for layers in (2, 4, 6, 8, 10, 12)
        for dim in (128, 256, 512, 768)
    },
    "cased_L-12_H-768_A-12": _size(12, 768, _CASED),
    "uncased_L-24_H-1024_A-16": _size(24, 1024, _UNCASED),
    "cased_L-24_H-1024_A-16": _size(24, 1024, _CASED),
    "wwm_uncased_L-24_H-1024_A-16": _size(24, 1024, _UNCASED),
    "wwm_cased_L-24_H-1024_A-16": _size(24, 1024, _CASED),
    "multilingual_L-12_H-768_A-12": _size(12, 768, 105879),
    "multi_cased_L-12_H-768_A-12": _size(12, 768, 119547),
    "chinese_L-12_H-768_A-12": _size(12, 768, 21128),
}
