"""Converts weights of any format into another, and proves the result.

    python tools/convert_checkpoint.py --source=uncased_L-12_H-768_A-12.zip \\
        --output=bert_base --format=huggingface

In: a folder of Hugging Face, sentence-transformers, keras-hub or this
package, a checkpoint or zip of the original, a Model Garden checkpoint, a
SavedModel of TF Hub, org/name on the Hugging Face Hub, or a name that the
original released. Out: a folder in the format named (bert_keras,
huggingface, google or keras_hub) with the weights, every head that the format
has a place for, label names, tokenizer and lengths; and one line with the
greatest difference between the outputs of the source and of the folder just
written, loaded again, on fixed random rows.

A format whose home computes with other settings than the model (the form of
GELU, an epsilon) is refused; --accept_difference writes it all the same, and
the difference that it makes is what the line shows.

With --all=FOLDER in place of --source, everything in FOLDER is converted into
a folder of its own, and OUTPUT/table.md says of each: source, task, labels,
greatest difference, or why it was refused.

A source whose settings and vocabulary contradict each other about the case of
the text is refused; --lowercase or --nolowercase settles it. The folder
written in the own format is then loaded without a question.

pytorch_model.bin is a pickle, which can run any code; --allow_torch reads it
in a process of its own with PyTorch's restricted loader.

Takes about 10 seconds for BERT base; the first name from the Hub or of a
release is fetched before, once.
"""

import os
import tempfile

from absl import flags

from official_tasks import script


def define_flags():
    flags.DEFINE_string("source", None, "What to convert: a path or a name.")
    flags.DEFINE_string("all", None, "Folder whose every entry is converted.")
    flags.DEFINE_string("output", None, "Folder to write.")
    script.define_overwrite()
    flags.DEFINE_enum(
        "format",
        "bert_keras",
        ["bert_keras", "huggingface", "google", "keras_hub"],
        "Format to write.",
    )
    flags.DEFINE_bool(
        "accept_difference", False, "Write what its home computes otherwise."
    )
    flags.DEFINE_bool("lowercase", None, "Settles whether text is lower-cased.")
    flags.DEFINE_bool("allow_torch", False, "Read pytorch_model.bin too.")
    flags.mark_flag_as_required("output")


def main(values):
    from bert_keras.errors import InputError

    if (values.source is None) == (values.all is None):
        raise InputError("Give --source or --all, one of them.")
    script.prepare_output(values, is_folder=True)
    if values.all:
        convert_fleet(values)
    else:
        convert_one(values)


def convert_one(values):
    from bert_keras.interop import convert
    from bert_keras.interop import convert as fleet
    from official_tasks import progress

    with tempfile.TemporaryDirectory() as beside:
        source = values.source
        if values.allow_torch:
            source = fleet.without_pickle(source, beside)
        row = convert.convert(
            source,
            values.output,
            values.format,
            values.accept_difference,
            values.lowercase,
        )
    remark = fleet.remark(row)
    progress.console.print(
        f"{values.output}: {row.task} of {values.source} ({row.format}), "
        f"max abs difference {row.difference:.1e}{remark and ', ' + remark}"
    )


def convert_fleet(values):
    from bert_keras.interop import convert as fleet
    from official_tasks import progress

    rows = fleet.convert_all(
        values.all,
        values.output,
        values.format,
        allow_torch=values.allow_torch,
        accept_difference=values.accept_difference,
        lowercase=values.lowercase,
    )
    path = os.path.join(values.output, "table.md")
    os.makedirs(values.output, exist_ok=True)
    with open(path, "w", encoding="utf-8") as file:
        file.write(fleet.table(rows))
    refused = sum(row.refused is not None for row in rows)
    progress.console.print(
        f"{len(rows) - refused} converted, {refused} refused: see {path}"
    )


if __name__ == "__main__":
    script.start(main, define_flags)
