r"""Converts weights of any format to a Hugging Face folder and compares them.

    python tools/convert_checkpoint.py --source=uncased_L-12_H-768_A-12 \
        --output=bert_base

In: a folder of Hugging Face, sentence-transformers, keras-hub or this
package, the folder of a run, a checkpoint of the original, a Model Garden
checkpoint, a SavedModel of TF Hub, org/name on the Hugging Face Hub,
or the name of an original release. Out: a folder that transformers opens, as
`save_preset` writes it, with weights, head, label names and tokenizer; and one
line with the greatest difference between the outputs of the source and of the
written folder, loaded again, on fixed random rows.

A source is refused if its settings and its vocabulary contradict each other
about the case of the text. Then set --lowercase or --nolowercase.

Takes about 10 seconds for BERT base. A name is downloaded the first time.
"""

import official_tasks  # noqa: F401  first: it handles Ctrl-C

# isort: split
from absl import flags

from official_tasks import progress, script


def define_flags():
    flags.DEFINE_string("source", None, "What to convert: a path or a name.")
    flags.DEFINE_string("output", None, "Folder to write.")
    script.define_overwrite()
    flags.DEFINE_bool(
        "lowercase",
        None,
        "Lower-case text; needed if the source's settings and vocabulary "
        "disagree about case.",
    )
    flags.mark_flags_as_required(["source", "output"])


def main(values):
    from bert_keras.interop.convert import convert

    script.prepare_output(values, is_folder=True, inputs=("source",))
    done = convert(values.source, values.output, values.lowercase)
    progress.console.print(
        f"{values.output}: {done.task} of {values.source} ({done.format}), "
        f"max abs difference {done.difference:.1e}"
        f"{done.remark and ', ' + done.remark}",
        soft_wrap=True,
    )


if __name__ == "__main__":
    script.start(main, define_flags)
