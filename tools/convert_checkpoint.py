r"""Converts weights to a Hugging Face folder and compares the outputs.

    bert-keras convert_checkpoint --source=uncased_L-12_H-768_A-12 \
        --output=bert_base

In: a path or a name. A path is a folder, a checkpoint or a SavedModel. A folder
is from this package (model or run), Hugging Face, sentence-transformers or
keras-hub. A checkpoint is from the original BERT or Model Garden. A SavedModel
is from TF Hub. A name is org/name on the Hugging Face Hub, or one of
`bert_keras.presets()`. Out: a folder with weights, head, label names and
tokenizer, as `save_preset` writes it. transformers can open this folder, except
if the model has right_to_left attention or is a DistilBERT that uses the
pooler. The script loads the written model with bert_keras. It prints the
greatest difference between the outputs of the written model and of the source
model, on fixed random rows.

A source is refused if its settings and its vocabulary contradict each other
about the case of the text. Then set --lowercase or --nolowercase.

Takes about 10 seconds for BERT base, without the time of a download.
"""

import official_tasks  # noqa: F401  import first, because it handles Ctrl-C

# isort: split
import dataclasses

from official_tasks import cli, options, progress
from official_tasks.options import option
from official_tasks.outputs import prepare_output


@dataclasses.dataclass(frozen=True, kw_only=True)
class Options:
    """Options of this script."""

    source: str = option(help="Weights to convert: a path or a name.")
    output: str = option(help="Folder to write.")
    overwrite: bool = options.define_overwrite()
    lowercase: bool | None = option(
        None,
        "Lower-case the text. Set this flag if the source's settings and "
        "vocabulary disagree about case.",
    )


def main(values):
    from bert_keras.interop.convert import convert

    prepare_output(values, values.source, is_folder=True)
    done = convert(
        values.source, values.output, values.lowercase, values.overwrite
    )
    progress.console.print(
        f"{values.output}: {done.task} of {values.source} ({done.format}), "
        f"max abs difference {done.difference:.1e}"
        f"{done.remark and ', ' + done.remark}",
        soft_wrap=True,
    )


if __name__ == "__main__":
    cli.start(main, Options)
