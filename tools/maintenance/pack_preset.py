r"""Packs a trained model as a preset of the package.

    python tools/maintenance/pack_preset.py --model=runs/mini/model \
        --data=runs/mini_data --output=bert_keras/packaged/bert_keras_mini_en

In: the folder of a pre-trained model, and a folder of pre-training data. Out:
the files of `save_preset`, with bfloat16 weights, in --output. README.md and
LICENSE may already be there. The script prints the metrics of model and preset
on held-out documents, computed in float32. mini_en.md has the commands that
trained the model. Takes minutes on one core.
"""

import official_tasks  # noqa: F401  import first, because it handles Ctrl-C

# isort: split
import dataclasses
import os
import shutil
import tempfile

from official_tasks import cli
from official_tasks.options import option
from official_tasks.pretraining.settings import Execution, Settings, phases

# Sequence length -> (rows, predictions of a row) for batches of 1,024 tokens.
LENGTHS = {128: (8, 20), 512: (2, 77)}
# Upper limit for the preset's default sequence length. Longer rows cost more.
USUAL_LENGTH = 128


@dataclasses.dataclass(frozen=True, kw_only=True)
class Options:
    """Options of this script."""

    model: str = option(help="Folder of the trained model.")
    data: str = option(help="Folder of pre-training data.")
    batches: int = option(
        100, "Held-out batches to score, each of 1,024 tokens.", at_least=1
    )
    output: str = option(help="Folder of the preset.")


def pack(model_folder, folder):
    """Write the files of the preset."""
    from bert_keras import BertPreprocessor
    from bert_keras.interop.convert import model_class
    from bert_keras.interop.opening import open_checkpoint
    from bert_keras.interop.saving import save_model

    checkpoint = open_checkpoint(model_folder)
    model = model_class(checkpoint).from_preset(checkpoint)
    # Write no origin and no license. The preset is the origin of its weights,
    # and the preset's LICENSE file applies to them.
    encoder = getattr(model, "encoder", model)
    encoder.origin = encoder.license = None
    length = BertPreprocessor.from_preset(checkpoint).sequence_length
    text = BertPreprocessor.from_preset(
        checkpoint, sequence_length=min(length, USUAL_LENGTH)
    )
    with tempfile.TemporaryDirectory() as temporary:
        packed = os.path.join(temporary, "model")
        save_model(packed, model, text, dtype="bfloat16")
        shutil.copytree(packed, folder, dirs_exist_ok=True)


def held_out(preset, data, length, batches) -> dict:
    """Return the pre-training metrics of a preset on held-out documents."""
    from official_tasks.pretraining.model import compiled_model
    from official_tasks.pretraining.objectives import OBJECTIVES
    from official_tasks.pretraining.source import PretrainingSource

    rows, predictions = LENGTHS[length]
    settings = Settings(
        init=preset,
        packed=True,
        sequence_length=length,
        max_predictions=predictions,
        batch_size=rows,
        phase_2_steps=0,
        evaluation_steps=batches,
    )
    objective = OBJECTIVES[settings.objectives]
    source = PretrainingSource(data, settings, objective)
    model = compiled_model(settings, objective, source, Execution())
    (phase,) = phases(settings)
    return model.evaluate(source.held_out(phase), verbose=0, return_dict=True)


def main(values):
    pack(values.model, values.output)
    for preset in (values.model, values.output):
        for length in LENGTHS:
            found = held_out(preset, values.data, length, values.batches)
            print(
                f"| {preset} | {length} | {found['mlm_accuracy']:.2%} "
                f"| {found['mlm_perplexity']:.1f} "
                f"| {found['nsp_accuracy']:.1%} |"
            )


if __name__ == "__main__":
    cli.start(main, Options)
