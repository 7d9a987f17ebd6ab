"""Cleans a folder of books for pre-training, and counts what was dropped.

    python tools/maintenance/clean_corpus.py --input=corpus --output=clean

In: a folder with `classics/*.txt` (books, one file each) and
`openstax/<textbook>/*.txt` (one file a chapter), UTF-8, one paragraph a line.
Out: `clean/train` and `clean/held_out`, the same files with the paragraphs
that are prose, and `clean/counts.json`: for each reason, how many paragraphs
and characters were dropped. Takes about a minute on one CPU core.
"""

import official_tasks  # noqa: F401  first: it handles Ctrl-C

# isort: split
import collections
import hashlib
import json
import re
from pathlib import Path

from absl import flags

from bert_keras.errors import InputError
from official_tasks import script

# All books of these authors and this textbook: no author is on both sides.
HELD_OUT = (
    "openstax/american-government/",
    "classics/Elizabeth_Gaskell_",
    "classics/Frances_Hodgson_Burnett_",
    "classics/Jane_Austen_",
    "classics/Joseph_Conrad_",
    "classics/Samuel_Butler_",
    "classics/Zane_Grey_",
)
# Its licence (CC BY-NC-SA) forbids commercial use, those of the others do not.
LEFT_OUT = ("openstax/business-law/",)
# Headings of what is a list, not prose, up to the next heading.
LISTS = re.compile(
    r"(further|suggested|additional) (research|reading|resource|exploration)"
    r"|references$|sources$|articles$|websites$|videos$|key (terms|equations)"
    r"|answer|objectives$|outcomes$|figuring for yourself|bibliography"
    r"|(review|thinking|application|reflection|link|thought|book|understanding)"
    r" questions?$|(section|self.check) quiz|short answer|contents$|index$"
)
LICENCE = re.compile(
    r"creative commons|all rights reserved|gutenberg|openstax|transcriber"
    r"|\bisbn\b|©"
)
SENTENCE_END = re.compile(r"[.!?:;,…—\-][\"'”’)\]]*$")


def define_flags():
    flags.DEFINE_string("input", None, "Folder of the corpus.")
    flags.DEFINE_string("output", None, "Folder to write.")
    script.define_overwrite()
    flags.mark_flags_as_required(["input", "output"])


def clean(paragraphs, seen, dropped):
    """Return the paragraphs that are prose and new.

    The preface of a textbook is about its publisher: nothing is kept.

    Args:
        paragraphs: list of strings, one document.
        seen: set of the hashes of earlier paragraphs; grows.
        dropped: Counter of (reason, unit) -> number; grows.
    """
    kept, listing = [], False
    preface = paragraphs[0] == "Preface" and any(
        "OpenStax" in text for text in paragraphs
    )
    for text in paragraphs:
        short = len(text.split()) < 12
        heading = short and not SENTENCE_END.search(text)
        if heading:
            listing = bool(LISTS.search(text.lower()))
        reason = "preface" if preface else reason_to_drop(text, heading)
        if reason is None and listing:
            reason = "list"
        if reason is None and repeats(text, seen):
            reason = "repeated"
        if reason is None:
            kept.append(text)
        else:
            dropped[reason, "paragraphs"] += 1
            dropped[reason, "characters"] += len(text)
    return kept


def reason_to_drop(text, heading):
    """Return why a paragraph is not prose, or None."""
    if heading:
        return "heading"
    if LICENCE.search(text.lower()):
        return "licence"
    if "http" in text or "www." in text:
        return "link"
    symbols = sum(c.isdigit() or c in "=+*/<>|^_~×−·" for c in text)
    if symbols > 0.2 * len(text) or max(map(len, text.split())) > 60:
        return "formula or table"
    return None


def repeats(text, seen):
    """Return True if a paragraph of eight words or more is in `seen`."""
    words = text.lower().split()
    if len(words) < 8:
        return False
    key = hashlib.sha256(" ".join(words).encode()).digest()[:12]
    repeated = key in seen
    seen.add(key)
    return repeated


def main(values):
    source, output = Path(values.input), Path(values.output)
    files = sorted(source.rglob("*.txt"))
    if not files:
        raise InputError(f"{source} holds no *.txt file.")
    script.prepare_output(values, is_folder=True)
    seen, dropped, counts = set(), collections.Counter(), {}
    # What is held out is read first: a paragraph on both sides stays there.
    files.sort(key=lambda file: side(file, source) != "held_out")
    for file in files:
        name = side(file, source)
        if name is None:
            continue
        paragraphs = file.read_text(encoding="utf-8").splitlines()
        paragraphs = [p.strip() for p in paragraphs if p.strip()]
        kept = paragraphs and clean(paragraphs, seen, dropped)
        if not kept:
            continue
        path = output / name / file.relative_to(source)
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text("\n".join(kept) + "\n", encoding="utf-8")
        count = counts.setdefault(name, collections.Counter())
        count["documents"] += 1
        count["characters"] += sum(map(len, kept))
    for (reason, unit), number in sorted(dropped.items()):
        counts.setdefault("dropped", {}).setdefault(reason, {})[unit] = number
    (output / "counts.json").write_text(json.dumps(counts, indent=1) + "\n")
    print(json.dumps(counts, indent=1))


def side(file, source):
    """Return "train", "held_out", or None for a file that is left out."""
    name = file.relative_to(source).as_posix()
    if name.startswith(LEFT_OUT):
        return None
    return "held_out" if name.startswith(HELD_OUT) else "train"


if __name__ == "__main__":
    script.start(main, define_flags)
