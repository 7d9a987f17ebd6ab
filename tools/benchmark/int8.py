"""Scores and times a classifier in float32 and int8, format by format.

    python tools/benchmark/int8.py --model=runs/sst2/model --task=sst2 \
        --data_dir=glue --peer_python=ENVIRONMENT/bin/python

In: a classifier's folder and its task of GLUE. It is exported as a SavedModel
and an ONNX file, each in float32 and in int8, and as LiteRT in int8; with
--peer_python, that of an environment with PyTorch and transformers,
transformers' own model goes to ONNX too and is quantised by ONNX Runtime as
ours is. Out, a line each: the megabytes, the accuracy on the dev split, the
share of rows with the answer of the first, and, of a task of single texts, the
processor's seconds that 32 texts of 128 tokens take on one thread, the median
of --rounds in turns. A SavedModel reads the strings; for the others ours makes
the ids.

Takes about 5 minutes for a small model. Needs: pip install
'bert_keras[litert,onnx]'.
"""

import os
import subprocess
import tempfile
import time

import numpy as np
from absl import flags

from official_tasks import script
from official_tasks.tasks import glue

SHAPE = 32, 128
# Name of an input of ours -> of transformers'.
THEIRS = {
    "token_ids": "input_ids",
    "padding_mask": "attention_mask",
    "segment_ids": "token_type_ids",
}
EXPORT = """
import sys, torch
from transformers import BertForSequenceClassification
model = BertForSequenceClassification.from_pretrained(sys.argv[1]).eval()
model.config.return_dict = False
names = ["input_ids", "attention_mask", "token_type_ids"]
# Three tensors: the export takes one that is given twice for one input.
rows = {name: torch.ones(2, 8, dtype=torch.int64) for name in names}
rows["attention_mask"][1, 5:] = 0
axes = {0: torch.export.Dim.DYNAMIC, 1: torch.export.Dim.DYNAMIC}
torch.onnx.export(
    model, (), sys.argv[2], kwargs=rows,
    input_names=names, output_names=["logits"], external_data=False,
    dynamo=True, dynamic_shapes=dict.fromkeys(names, axes),
)
"""


def define_flags():
    flags.DEFINE_string("model", None, "Folder of a classifier.")
    rows = [row.name for row in glue.ROWS if row.labels]
    flags.DEFINE_enum("task", "sst2", rows, "That it was fine-tuned on.")
    flags.DEFINE_string("data_dir", None, "Folder of the official files.")
    flags.DEFINE_string(
        "peer_python", None, "Of an environment with transformers."
    )
    flags.DEFINE_integer("rounds", 9, "Times that each is asked.", 1)
    flags.mark_flags_as_required(["model", "data_dir"])


def systems(model, preprocess, pair, folder, peer_python):
    """Name -> (bytes, a function of columns of texts to scores)."""
    import bert_keras
    from bert_keras.serving.portable_formats import DTYPES, MODEL, export_on_ids
    from tools.export import folder_size

    found = {}
    for dtype in DTYPES:
        path = os.path.join(folder, dtype)
        bert_keras.export_saved_model(
            model, preprocess, path, dtype=dtype, pair=pair, verify=False
        )
        served = bert_keras.load_saved_model(path)
        found[f"SavedModel, {dtype}"] = folder_size(path), _strings(served)
    for format, file in MODEL.items():
        for dtype in DTYPES if format == "onnx" else ("int8",):
            path = os.path.join(folder, f"{format}_{dtype}")
            export_on_ids(model, preprocess, path, format, dtype=dtype)
            path = os.path.join(path, file)
            run = {"onnx": _onnx, "litert": _litert}[format](path)
            ask = _ids(run, preprocess)
            found[f"{format}, {dtype}"] = os.path.getsize(path), ask
    for path in _peer(model, preprocess, folder, peer_python):
        name = os.path.basename(path).removesuffix(".onnx")
        ask = _ids(_onnx(path, THEIRS), preprocess)
        found[f"transformers' onnx, {name}"] = os.path.getsize(path), ask
    return found


def _strings(served):
    return lambda *columns: served.classify(*columns)["probabilities"]


def _ids(run, preprocess):
    def ask(*columns):
        texts = tuple(map(list, columns))
        inputs = preprocess(texts if len(texts) > 1 else texts[0])
        longest = int(np.sum(inputs["padding_mask"], axis=1).max())
        return run({k: np.array(v)[:, :longest] for k, v in inputs.items()})

    return ask


def _onnx(path, names=None):
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = 1
    session = onnxruntime.InferenceSession(
        path, options, providers=["CPUExecutionProvider"]
    )

    def run(inputs):
        if names:
            inputs = {names[k]: v.astype("int64") for k, v in inputs.items()}
        return session.run(["logits"] if names else None, inputs)[0]

    return run


def _litert(path):
    from ai_edge_litert.interpreter import Interpreter

    runner = Interpreter(path, num_threads=1).get_signature_runner()
    return lambda inputs: next(iter(runner(**inputs).values()))


def _peer(model, preprocess, folder, python):
    """transformers' model as an ONNX file, and in int8."""
    if not python:
        return []
    from onnxruntime.quantization import QuantType, quantize_dynamic

    from bert_keras.interop.convert import convert

    own, theirs = (os.path.join(folder, n) for n in ("own", "transformers"))
    model.save_preset(own, preprocess)
    convert(own, theirs, "huggingface")
    exact = os.path.join(folder, "float32.onnx")
    subprocess.run([python, "-c", EXPORT, theirs, exact], check=True)
    small = os.path.join(folder, "int8.onnx")
    quantize_dynamic(
        exact, small, per_channel=True, weight_type=QuantType.QInt8
    )
    return [exact, small]


def answers(ask, columns):
    """The class of each row, 32 rows at a time in the file's order."""
    size, rows = SHAPE[0], len(columns[0])
    scores = [
        ask(*(column[first : first + size] for column in columns))
        for first in range(0, rows, size)
    ]
    return np.concatenate(scores).argmax(axis=-1)


def seconds(found, texts, rounds):
    """The median seconds of each system, asked in turns."""
    spent = {name: [] for name in found}
    for number in range(rounds + 1):  # the first warms
        for name, (_, ask) in found.items():
            began = time.process_time()
            ask(texts)
            if number:
                spent[name].append(time.process_time() - began)
    return {name: float(np.median(times)) for name, times in spent.items()}


def main(values):
    for name in ("INTRAOP", "INTEROP"):
        os.environ[f"TF_NUM_{name}_THREADS"] = "1"
    import bert_keras
    from official_tasks import progress
    from tools.benchmark.serving import texts

    row = next(row for row in glue.ROWS if row.name == values.task)
    task = glue.GlueTask(row, values.data_dir)
    examples = task.read("dev")
    columns = [[example.text for example in examples]]
    if task.pair:
        columns.append([example.text_pair for example in examples])
    labels = np.array([example.label for example in examples])
    model = bert_keras.BertClassifier.from_preset(values.model)
    preprocess = bert_keras.BertPreprocessor.from_preset(
        values.model, sequence_length=SHAPE[1]
    )
    with tempfile.TemporaryDirectory() as folder:
        found = systems(
            model, preprocess, task.pair, folder, values.peer_python
        )
        classes = {k: answers(ask, columns) for k, (_, ask) in found.items()}
        times = {}
        if not task.pair:
            asked = texts(preprocess.tokenizer.vocabulary, *reversed(SHAPE))
            times = seconds(found, asked, values.rounds)
        first = next(iter(classes.values()))
        for name, (size, _) in found.items():
            line = f"{name}: {size / 1e6:.1f} MB, accuracy "
            line += f"{np.mean(classes[name] == labels):.4f}, same answer "
            line += f"{np.mean(classes[name] == first):.2%}"
            if name in times:
                line += f", {times[name]:.3f} s"
            progress.console.print(line, soft_wrap=True)


if __name__ == "__main__":
    script.start(main, define_flags)
