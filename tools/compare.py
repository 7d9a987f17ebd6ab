"""Asks recorded requests again and says where the answers differ.

    python tools/compare.py old.jsonl runs/served

In: a JSONL file of what another server answered, one request a line,
{"inputs": {"text": "..."}, "answer": {"label": "...", "probabilities": [...]}},
and the folder of a SavedModel. Out: for each output the share of equal
answers, the greatest difference of numbers, and the worst cases. Takes some
seconds and the model's time for as many texts.
"""

import json

from absl import flags

from official_tasks import script


def define_flags():
    flags.DEFINE_integer("worst", 5, "Cases of an output to show.", 0)


def main(values, records, folder):
    from bert_keras.serving.comparison import compare, read_records
    from bert_keras.serving.load import load_saved_model
    from official_tasks import progress

    records, served = read_records(records), load_saved_model(folder)
    found = compare(records, served, values.worst)
    for name, summary in found.items():
        cases = summary.pop("worst")
        progress.console.print(name, summary)
        for case in cases:
            progress.console.print("  " + json.dumps(case, ensure_ascii=False))


if __name__ == "__main__":
    script.start(main, define_flags, places=("OLD.jsonl", "FOLDER"))
