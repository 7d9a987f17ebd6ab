"""Scores and times a fine-tuned model in float32 and int8, format by format.

    python tools/benchmark/int8.py --model=runs/sst2 --task=sst2 \
        --data_dir=glue --peer_python=ENVIRONMENT/bin/python

In: a model and the task that it was fine-tuned on. It is exported as a
SavedModel and an ONNX file, each in float32 and in int8, and as LiteRT in
int8; with --peer_python, of an environment with transformers and onnxscript,
transformers' own model goes to ONNX too and is quantised by ONNX Runtime as
ours is. All get the same ids. Out, a line each: the megabytes, the task's
score on the dev split, the share of examples with the prediction of the first,
and the processor's seconds that 32 rows of 128 tokens take on one thread, the
median of --rounds in turns.

Takes about 5 minutes for a small model and 900 short texts. Needs: pip install
'bert_keras[litert,onnx]'.
"""

import os
import subprocess
import tempfile
import time

import numpy as np
from absl import flags

from bert_keras import files
from bert_keras.errors import InputError
from official_tasks import script
from official_tasks.tasks import registry

SHAPE = 32, 128
KINDS = "BertClassifier", "BertTagger", "BertSpanPredictor"
# Name of an input of ours -> of transformers'.
THEIRS = {
    "token_ids": "input_ids",
    "padding_mask": "attention_mask",
    "segment_ids": "token_type_ids",
}
EXPORT = """
import json, sys, torch, transformers
folder, path, *outputs = sys.argv[1:]
[kind] = json.load(open(folder + "/config.json"))["architectures"]
model = getattr(transformers, kind).from_pretrained(folder).eval()
model.config.return_dict = False
names = ["input_ids", "attention_mask", "token_type_ids"]
# Three tensors: the export takes one that is given twice for one input.
rows = {name: torch.ones(2, 8, dtype=torch.int64) for name in names}
rows["attention_mask"][1, 5:] = 0
axes = {0: torch.export.Dim.DYNAMIC, 1: torch.export.Dim.DYNAMIC}
torch.onnx.export(
    model, (), path, kwargs=rows,
    input_names=names, output_names=outputs, external_data=False,
    dynamo=True, dynamic_shapes=dict.fromkeys(names, axes),
)
"""


def define_flags():
    registry.define_task_flags()
    flags.adopt_module_key_flags(registry)
    flags.DEFINE_string("model", None, "Folder of a run or a model.")
    flags.DEFINE_string(
        "peer_python", None, "Of one with transformers, onnxscript."
    )
    flags.DEFINE_integer("rounds", 9, "Times that each is asked.", 1)
    flags.mark_flags_as_required(["model", "task"])


def systems(model, preprocess, folder, peer_python):
    """Name -> (bytes, a function of a batch's inputs to the outputs)."""
    import bert_keras
    from bert_keras.serving.portable_formats import (
        DTYPES,
        MODEL,
        RUNTIMES,
        export_on_ids,
    )

    found = {}
    for dtype in DTYPES:
        path = os.path.join(folder, dtype)
        bert_keras.export_saved_model(
            model,
            preprocess,
            path,
            dtype=dtype,
            ids_signature="ours",
            verify=False,
        )
        served = bert_keras.load_saved_model(path)
        function = served.loaded.signatures["ids"]
        found[f"SavedModel, {dtype}"] = (
            files.folder_size(path),
            _served(function),
        )
    for format, file in MODEL.items():
        for dtype in DTYPES if format == "onnx" else ("int8",):
            path = os.path.join(folder, f"{format}_{dtype}")
            export_on_ids(model, preprocess, path, format, dtype=dtype)
            path = os.path.join(path, file)
            run = RUNTIMES[format](path, threads=1)
            found[f"{format}, {dtype}"] = os.path.getsize(path), _arrays(run)
    for path in _peer(model, preprocess, folder, peer_python):
        name = os.path.basename(path).removesuffix(".onnx")
        run = _theirs(RUNTIMES["onnx"](path, threads=1))
        found[f"transformers' onnx, {name}"] = os.path.getsize(path), run
    return found


def _served(function):
    return lambda inputs: _only(function(**inputs))


def _arrays(run):
    return lambda inputs: _only(run({k: v.numpy() for k, v in inputs.items()}))


def _theirs(run):
    def call(inputs):
        inputs = {
            THEIRS[k]: v.numpy().astype("int64") for k, v in inputs.items()
        }
        return _only(run(inputs))

    return call


def _only(outputs):
    """The output itself where there is but one, as a task wants it."""
    return next(iter(outputs.values())) if len(outputs) == 1 else outputs


def _peer(model, preprocess, folder, python):
    """transformers' model as an ONNX file, and in int8."""
    if not python:
        return []
    from bert_keras.interop.convert import convert
    from bert_keras.serving.portable_formats import quantize_onnx

    own, theirs = (os.path.join(folder, n) for n in ("own", "transformers"))
    model.save_preset(own, preprocess)
    convert(own, theirs, "huggingface")
    exact = os.path.join(folder, "float32.onnx")
    outputs = model.token_outputs or ("logits",)
    subprocess.run([python, "-c", EXPORT, theirs, exact, *outputs], check=True)
    small = os.path.join(folder, "int8.onnx")
    quantize_onnx(exact, small)
    return [exact, small]


def predicted(task, examples, encoded, call, pad_id):
    """The task's score, and what is said of each example."""
    from official_tasks.engine.models import outputs_of_rows

    outputs = outputs_of_rows(call, encoded, task.per_token, pad_id, SHAPE[0])
    predictions = task.decode(examples, encoded, outputs)
    score = task.score(examples, predictions)[task.metric]
    return score, [_answer(prediction) for prediction in predictions]


def _answer(prediction):
    """What is said of an example: a text, tags, a class or a score."""
    if isinstance(prediction, tuple):  # and how sure the model is of it
        return prediction[0]
    return int(np.argmax(prediction)) if np.ndim(prediction) else prediction


def seconds(found, inputs, rounds):
    """The median seconds of each system, asked in turns."""
    spent = {name: [] for name in found}
    for number in range(rounds + 1):  # the first warms
        for name, (_, call) in found.items():
            began = time.process_time()
            call(inputs)
            if number:
                spent[name].append(time.process_time() - began)
    return {name: float(np.median(times)) for name, times in spent.items()}


def full_rows(vocabulary_size):
    """A batch of random ids without padding."""
    import tensorflow as tf

    ids = np.random.default_rng(0).integers(vocabulary_size, size=SHAPE)
    rows = {
        "token_ids": ids,
        "segment_ids": np.zeros(SHAPE),
        "padding_mask": np.ones(SHAPE),
    }
    return {name: tf.constant(v, tf.int32) for name, v in rows.items()}


def main(values):
    for name in ("INTRAOP", "INTEROP"):
        os.environ[f"TF_NUM_{name}_THREADS"] = "1"
    from official_tasks import progress
    from official_tasks.engine.models import load_trained

    task, _ = registry.task_from_flags(values)
    examples = task.read("dev")
    model, preprocess = load_trained(task, values.model)
    kind = type(model).__name__
    if kind not in KINDS:
        raise InputError(
            f"--task={task.name} has a {kind}. Name a task of one of "
            f"{', '.join(KINDS)}."
        )
    encoded = task.encode(examples, preprocess)
    with tempfile.TemporaryDirectory() as folder:
        found = systems(model, preprocess, folder, values.peer_python)
        inputs = full_rows(preprocess.tokenizer.vocabulary_size)
        times = seconds(found, inputs, values.rounds)
        first = None
        for name, (size, call) in found.items():
            score, answers = predicted(
                task, examples, encoded, call, preprocess.packer.pad_id
            )
            first = first or answers
            same = np.mean(
                [a == b for a, b in zip(answers, first, strict=True)]
            )
            progress.console.print(
                f"{name}: {size / 1e6:.1f} MB, {task.metric} {score:.4f}, "
                f"same answer {same:.2%}, {times[name]:.3f} s",
                soft_wrap=True,
            )


if __name__ == "__main__":
    script.start(main, define_flags)
