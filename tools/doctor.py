"""Examines a vocabulary or a pre-training run; says what to do about it.

    python tools/doctor.py --vocabulary=vocab.txt --texts="books/*.txt" \
        --lowercase
    python tools/doctor.py --run=runs/pretrain

A vocabulary: in goes a file with one piece a line; text, as
tools/train_vocabulary.py takes it; and whether the tokenizer lower-cases
(--nolowercase for vocabularies with capital letters). Out come, on the
terminal, how many words become [UNK], how many pieces a word has and how long
sentences are, and each thing that is wrong (pieces there twice, special tokens
missing, case that contradicts the setting, too many [UNK], too many pieces)
with what to do. Exit code 1 where anything is wrong. Takes about half a minute
for 100 MB of text.

A run: in goes the folder of official_tasks.pretrain, while it runs or
afterwards; out come its figures against reference curves, each with advice.
"""

import collections

from absl import flags

from bert_keras.data.corpus import read_documents
from bert_keras.data.sentences import document_sentences
from bert_keras.errors import InputError
from bert_keras.text import vocabulary
from official_tasks import script
from official_tasks.pretraining import run_doctor
from official_tasks.progress import console

# Words in a sentence, up to each and from the one before.
LENGTHS = (5, 10, 20, 40, 80, 160)


def define_flags():
    flags.DEFINE_string("vocabulary", None, "Vocabulary to examine.")
    flags.DEFINE_string("texts", None, "Text to try it on.")
    flags.DEFINE_bool("lowercase", True, "Whether text is lower-cased.")
    flags.DEFINE_bool("strip_accents", None, "Where not as --lowercase says.")
    flags.DEFINE_string("run", None, "Folder of a pre-training run to judge.")
    script.applies_only(
        "with --vocabulary",
        lambda v: v.vocabulary,
        *("texts", "lowercase", "strip_accents"),
    )


def main(values):
    if (values.vocabulary is None) == (values.run is None):
        raise InputError(
            "Nothing to examine, or two things; expected --vocabulary=FILE or "
            "--run=FOLDER. Give one of them."
        )
    if values.run is None:
        return _examine_vocabulary(values)
    for line in run_doctor.report(values.run):
        _print(line)
    return 0


def _examine_vocabulary(values):
    pieces = vocabulary.read_pieces(values.vocabulary)
    findings = vocabulary.examine_vocabulary(pieces, values.lowercase)
    _print(f"{values.vocabulary}: {len(pieces):,} pieces")
    if values.texts and "[UNK]" in pieces:
        findings += _examine_fit(pieces, values)
    for finding in findings:
        _print(f"{finding.problem} {finding.evidence}")
        _print(f"  {finding.advice}")
    if not findings:
        _print("Nothing is wrong with it.")
    return int(bool(findings))


def _examine_fit(pieces, values):
    """Findings about the pieces on the texts, after their figures."""
    lengths = collections.Counter()
    texts = _paragraphs(values.texts, lengths)
    case = values.lowercase, values.strip_accents
    fit = vocabulary.fit_vocabulary(pieces, texts, *case)
    _print(
        f"{values.texts}: {fit.words:,} words, {fit.pieces_per_word:.3f} "
        f"pieces a word, {fit.unknown_share:.4%} [UNK]"
    )
    _print(f"  most in pieces: {_format_counts(fit.split_words)}")
    _print(f"  most often [UNK]: {_format_counts(fit.unknown_words)}")
    _print(f"  {sum(lengths.values()):,} sentences; {_format_lengths(lengths)}")
    return vocabulary.examine_fit(fit)


def _paragraphs(source, lengths):
    """The paragraphs; counts the words of their sentences on the way."""
    for document in read_documents(source):
        for sentence in document_sentences(document):
            lengths[len(sentence.split())] += 1
        yield from document.paragraphs


def _format_lengths(lengths):
    """Which share of the sentences has how many words."""
    total, below, shares = sum(lengths.values()), 0, []
    for most in LENGTHS:
        upto = sum(n for length, n in lengths.items() if length <= most)
        shares.append(f"{(upto - below) / total:.1%} up to {most}")
        below = upto
    return f"{', '.join(shares)} words, the longest {max(lengths)}"


def _format_counts(words):
    return ", ".join(f"{word} ({n:,})" for word, n in words) or "none"


def _print(line):
    console.print(line, soft_wrap=True)


if __name__ == "__main__":
    script.start(main, define_flags)
