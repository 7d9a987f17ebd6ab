"""Converts weights of any format into another, and proves the result.

    python tools/convert_checkpoint.py --source=uncased_L-12_H-768_A-12.zip \\
        --output=bert_base --format=huggingface

In: a folder of Hugging Face, sentence-transformers, keras-hub or this
package, a checkpoint or zip of the original, a Model Garden checkpoint, a
SavedModel of TF Hub, org/name on the Hugging Face Hub, or a name that the
original released. Out: a folder in the format named (bert_keras,
huggingface, google, keras_hub or, of a BertEmbedder, sentence_transformers)
with the weights, every head that the format has a place for, label names,
tokenizer and lengths; and one line with the greatest difference between the
outputs of the source and of the folder just written, loaded again, on fixed
random rows.

A format whose home computes with other settings than the model (the form of
GELU, an epsilon) is refused; --accept_difference writes it all the same, and
the difference that it makes is what the line shows.

A source whose settings and vocabulary contradict each other about the case of
the text is refused; --lowercase or --nolowercase settles it. The folder
written in the native format is then loaded without a question.

pytorch_model.bin is a pickle, which can run any code; --allow_torch reads it
in a process of its own with PyTorch's restricted loader.

Takes about 10 seconds for BERT base; the first name from the Hub or of a
release is fetched before, once.
"""

import tempfile

from absl import flags

from official_tasks import progress, script


def define_flags():
    flags.DEFINE_string("source", None, "What to convert: a path or a name.")
    flags.DEFINE_string("output", None, "Folder to write.")
    script.define_overwrite()
    flags.DEFINE_enum(
        "format",
        "bert_keras",
        [
            *("bert_keras", "huggingface", "google", "keras_hub"),
            "sentence_transformers",
        ],
        "Format to write.",
    )
    flags.DEFINE_bool(
        "accept_difference",
        False,
        "Write a format whose own package computes otherwise.",
    )
    flags.DEFINE_bool(
        "lowercase",
        None,
        "Whether text is lower-cased, where the source contradicts itself.",
    )
    flags.DEFINE_bool("allow_torch", False, "Read pytorch_model.bin too.")
    flags.mark_flags_as_required(["source", "output"])


def main(values):
    from bert_keras.interop.convert import convert, without_pickle

    script.prepare_output(values, is_folder=True, inputs=("source",))
    with tempfile.TemporaryDirectory() as plain:
        source = values.source
        if values.allow_torch:
            source = without_pickle(source, plain)
        done = convert(
            source,
            values.output,
            values.format,
            values.accept_difference,
            values.lowercase,
        )
    progress.console.print(
        f"{values.output}: {done.task} of {values.source} ({done.format}), "
        f"max abs difference {done.difference:.1e}"
        f"{done.remark and ', ' + done.remark}",
        soft_wrap=True,
    )


if __name__ == "__main__":
    script.start(main, define_flags)
