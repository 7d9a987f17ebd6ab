"""Exports a fine-tuned or pre-trained model as a SavedModel of raw strings.

    python tools/export.py --model=runs/reviews/model --output=runs/served

In: one or more model folders (--model may be given again). Out: one
SavedModel with the tokenizer in its graph, `classify` for a classifier,
`fill_mask` for a pre-trained model, and a card that says what goes in and
what comes out. It runs in float32, whatever the model was trained in, and
needs only tensorflow and tensorflow_text to be loaded. A fresh process loads
it and must agree with the model to 1e-5 (--noverify leaves that out).

Takes about half a minute for a small model, more for BERT base.
"""

from absl import flags

from official_tasks import script


def define_flags():
    flags.DEFINE_multi_string("model", None, "Model folder; may be repeated.")
    flags.DEFINE_string("output", None, "Folder of the SavedModel.")
    flags.DEFINE_integer("sequence_length", None, "Pieces of a text at most.")
    flags.DEFINE_bool("pair", False, "The classifier reads two texts.")
    flags.DEFINE_integer("top_k", 5, "Guesses of fill_mask for each mask.")
    flags.DEFINE_enum(
        "pooling", None, ("mean", "cls", "pooled"), "What embed gives a text."
    )
    flags.DEFINE_enum(
        "long_text",
        "truncate",
        ("truncate", "windows"),
        "Cut a text that is longer than a row, or read it in several.",
    )
    flags.DEFINE_enum(
        "ids_signature",
        None,
        ("ours", "original", "transformers"),
        "Also answer ids, under these names.",
    )
    flags.DEFINE_bool("portable", False, "For servers without tensorflow_text.")
    flags.DEFINE_bool("verify", True, "Compare in a fresh process.")
    flags.mark_flags_as_required(["model", "output"])


def main(values):
    import bert_keras
    from bert_keras.interop.presets import open_checkpoint
    from official_tasks import progress

    models = []
    for folder in values.model:
        checkpoint = open_checkpoint(folder)
        model_class = getattr(bert_keras, checkpoint.head or "BertEncoder")
        models.append(model_class.from_preset(checkpoint))
    preprocess = bert_keras.BertPreprocessor.from_preset(
        values.model[0], sequence_length=values.sequence_length
    )
    folder = bert_keras.export_saved_model(
        models,
        preprocess,
        values.output,
        pair=values.pair,
        top_k=values.top_k,
        pooling=values.pooling,
        long_text=values.long_text,
        ids_signature=values.ids_signature,
        portable=values.portable,
        verify=values.verify,
    )
    served = bert_keras.load_saved_model(folder)
    progress.console.print(f"{folder} answers {', '.join(served.signatures)}")


if __name__ == "__main__":
    script.start(main, define_flags)
