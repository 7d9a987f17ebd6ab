"""One system that classifies texts, in a process and environment of its own.

    python tools/benchmark/serving_worker.py SYSTEM FOLDER

Reads one JSON list of texts a line from standard input, answers each with one
line: the seconds it took from strings to probabilities, those of the
processor, and the first row's probabilities. SYSTEM is savedmodel (FOLDER of
an export), transformers (of Hugging Face files) or onnxruntime (of
tools/export.py --format=onnx). Imports nothing of this package;
tools/benchmark/serving.py starts it.
"""

import json
import os
import sys
import time


def savedmodel(folder):
    import tensorflow as tf
    import tensorflow_text  # noqa: F401  (registers its operations)

    loaded = tf.saved_model.load(folder)  # must live as long as its signature
    classify = loaded.signatures["classify"]

    def ask(texts, loaded=loaded):
        return classify(text=tf.constant(texts))["probabilities"].numpy()

    return ask


def transformers(folder):
    from transformers import pipeline

    classify = pipeline("text-classification", model=folder, device="cpu")

    def ask(texts):
        found = classify(
            texts, batch_size=len(texts), top_k=None, truncation=True
        )
        return [[x["score"] for x in sorted(row, key=_label)] for row in found]

    def _label(entry):
        return classify.model.config.label2id[entry["label"]]

    return ask


def onnxruntime(folder):
    import numpy as np
    import onnxruntime as ort
    from tokenizers import BertWordPieceTokenizer

    with open(os.path.join(folder, "tokenizer_settings.json")) as file:
        settings = json.load(file)
    tokenizer = BertWordPieceTokenizer(
        os.path.join(folder, "vocab.txt"), lowercase=settings["lowercase"]
    )
    tokenizer.enable_padding(pad_id=settings["ids"]["pad"])
    tokenizer.enable_truncation(settings["sequence_length"])
    options = ort.SessionOptions()
    options.intra_op_num_threads = int(os.environ.get("OMP_NUM_THREADS", "0"))
    session = ort.InferenceSession(
        os.path.join(folder, "model.onnx"),
        options,
        providers=["CPUExecutionProvider"],
    )

    def ask(texts):
        rows = tokenizer.encode_batch(texts)
        inputs = {
            "token_ids": [row.ids for row in rows],
            "segment_ids": [row.type_ids for row in rows],
            "padding_mask": [row.attention_mask for row in rows],
        }
        inputs = {k: np.array(v, "int32") for k, v in inputs.items()}
        (logits,) = session.run(None, inputs)
        shifted = np.exp(logits - logits.max(-1, keepdims=True))
        return shifted / shifted.sum(-1, keepdims=True)

    return ask


def main(system, folder):
    ask = {
        "savedmodel": savedmodel,
        "transformers": transformers,
        "onnxruntime": onnxruntime,
    }[system](folder)
    for line in sys.stdin:
        texts = json.loads(line)
        began = time.perf_counter(), time.process_time()
        answer = ask(texts)
        ended = time.perf_counter(), time.process_time()
        seconds = [b - a for a, b in zip(began, ended, strict=True)]
        first = [float(x) for x in answer[0]]
        print(json.dumps([seconds, first]), flush=True)


if __name__ == "__main__":
    main(*sys.argv[1:])
