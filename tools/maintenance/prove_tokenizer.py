"""Proves that the tokenizer in a graph makes the ids of the original BERT.

    python tools/maintenance/prove_tokenizer.py --vocabulary=uncased-vocab.txt \
        --vocabulary=cased-vocab.txt --texts=udhr --output=proof.json

In: vocabularies (published ones prove most), a folder of texts in many
languages, and a checkout of the source: its tests restate the rules of the
original. Out: a JSON file with, for each part of the proof, the number of
compared strings, the number that differ, and some of these. Every code point is
compared alone, inside a word, next to punctuation and near a final sigma; so
are generated strings, the texts and a megabyte without a space.

Exit code 1 if anything differs. Run it with Python 3.11: the tokenizer is
pinned to its Unicode. Takes about an hour on one CPU core; --step=100 compares
every hundredth code point, in a minute.
"""

import official_tasks  # noqa: F401  first: it handles Ctrl-C

# isort: split
import json
import sys
import time
from pathlib import Path

from absl import flags

from bert_keras.errors import InputError
from bert_keras.json_files import write_json
from official_tasks import progress, script

TESTS = Path(__file__).resolve().parent.parent.parent / "tests"


def define_flags():
    flags.DEFINE_multi_string("vocabulary", None, "Vocabulary to prove with.")
    flags.DEFINE_string("texts", None, "Folder of texts (*.txt).")
    flags.DEFINE_string("output", None, "JSON file to write.")
    script.define_overwrite()
    flags.DEFINE_integer("strings", 100_000, "Generated strings.", 0)
    flags.DEFINE_integer("step", 1, "Try every so many code points.", 1)
    flags.mark_flags_as_required(["vocabulary", "texts", "output"])


def main(values):
    if not (TESTS / "oracles" / "tokenizer_proof.py").exists():
        raise InputError(
            f"There is no oracles/tokenizer_proof.py in {TESTS}. The proof "
            "runs in a checkout of the source only: clone it and run it there."
        )
    sys.path[:0] = [str(TESTS / "oracles"), str(TESTS / "samples")]
    from tokenizer_proof import MEGABYTES, parts_of_proof

    script.prepare_output(values)
    texts = [
        path.read_bytes() for path in sorted(Path(values.texts).glob("*.txt"))
    ]
    report = {}
    parts = parts_of_proof(
        list(map(Path, values.vocabulary)),
        texts + MEGABYTES,
        values.strings,
        values.step,
    )
    for name, tally, steps, total in parts:
        began = time.monotonic()
        with progress.bar(name) as update:
            for done in steps:
                update(done, total)
        report[name] = tally.report() | {
            "seconds": round(time.monotonic() - began)
        }
        progress.console.print(json.dumps(report[name], ensure_ascii=True))
        write_json(report, values.output)
    return int(any(part["mismatches"] for part in report.values()))


if __name__ == "__main__":
    script.start(main, define_flags)
