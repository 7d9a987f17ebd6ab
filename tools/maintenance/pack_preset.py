r"""Packs a trained model as a preset of the package.

    python tools/maintenance/pack_preset.py --model=runs/mini/model \
        --data=runs/mini_data --output=bert_keras/packaged/bert_keras_mini_en

In: the folder of a pre-trained model, and the data of its held-out documents.
Out: in --output, which may hold README.md and LICENSE already, the weights in
bfloat16 (half the bytes), as `save_preset` writes them. It prints each file's
hash, and both folders' held-out metrics in float32. Takes minutes on one core.
"""

import official_tasks  # noqa: F401  first: it handles Ctrl-C

# isort: split
import os
import shutil
import tempfile

from absl import flags

from bert_keras.manifest import describe_files
from official_tasks import script
from official_tasks.pretraining.settings import Execution, Settings, phases

# Length -> (rows of a batch of 1,024 tokens, predictions of a row).
LENGTHS = {128: (8, 20), 512: (2, 77)}
# Maximum default sequence length of the preset, because longer rows cost more.
USUAL_LENGTH = 128


def define_flags():
    flags.DEFINE_string("model", None, "Folder of the trained model.")
    flags.DEFINE_string("data", None, "Folder of pre-training data.")
    flags.DEFINE_integer(
        "batches", 100, "Batches of 1,024 tokens for each metric.", 1
    )
    flags.DEFINE_string("output", None, "Folder of the preset.")
    flags.mark_flags_as_required(["model", "data", "output"])


def pack(model_folder, folder):
    """Write the preset; return a dict: name -> size and hash of each file."""
    from bert_keras import BertPreprocessor
    from bert_keras.interop.convert import model_class
    from bert_keras.interop.presets import open_checkpoint
    from bert_keras.interop.saving import save_model

    checkpoint = open_checkpoint(model_folder)
    model = model_class(checkpoint).from_preset(checkpoint)
    # State no origin or license: the preset itself is the origin of its
    # weights, and its LICENSE file holds for them.
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
    return describe_files(folder, sorted(os.listdir(folder)))


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
    for name, entry in pack(values.model, values.output).items():
        print(f"{entry['bytes']:>12,}  {entry['sha256']}  {name}")
    for preset in (values.model, values.output):
        for length in LENGTHS:
            found = held_out(preset, values.data, length, values.batches)
            print(
                f"| {preset} | {length} | {found['mlm_accuracy']:.2%} "
                f"| {found['mlm_perplexity']:.1f} "
                f"| {found['nsp_accuracy']:.1%} |"
            )


if __name__ == "__main__":
    script.start(main, define_flags)
