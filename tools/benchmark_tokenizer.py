"""Times the tokenizer beside Hugging Face's and tensorflow-text's.

    python tools/benchmark_tokenizer.py --vocabulary=vocab.txt \
        --input="books/*.txt" --output=speed.json

In: an uncased vocabulary and plain text; ten megabytes are enough. Out: a
table on the terminal, and as JSON: megabytes a second of each tokenizer, on
as many cores as the process may use, over batches of lines. Lines that are
not tokenised alike by all of them are left out before anything is timed, and
counted. Needs the `tokenizers` package. Takes about a minute.
"""

import functools
import os
import time

from absl import flags

from official_tasks import script


def define_flags():
    flags.DEFINE_string("vocabulary", None, "Uncased vocabulary.")
    flags.DEFINE_string("input", None, "Text to tokenise.")
    flags.DEFINE_string("output", None, "JSON file to write.")
    flags.DEFINE_integer("megabytes", 10, "Of the text, at most.")
    flags.DEFINE_integer("batch", 1000, "Lines at a time.")
    flags.DEFINE_integer("repeats", 5, "Runs of each; the fastest counts.")
    flags.mark_flags_as_required(["vocabulary", "input"])


def main(values):
    from bert_keras.data.corpus import read_documents
    from bert_keras.files import write_json
    from official_tasks import progress

    lines = [
        paragraph
        for document in read_documents(values.input)
        for paragraph in document.paragraphs
    ]
    lines = _first(lines, values.megabytes * 1e6)
    makers = _tokenizers(values.vocabulary)
    kept, different = _agreeing(makers, lines)
    timed = kept[values.batch :]
    megabytes = sum(len(line.encode()) for line in timed) / 1e6
    report = {"megabytes": round(megabytes, 2), "lines": len(kept)}
    report["lines left out"] = different
    report["cores"] = _cores()
    with progress.bar("Timing", values.repeats) as update:
        runs = {name: make(kept, values.batch) for name, make in makers.items()}
        seconds = dict.fromkeys(runs, float("inf"))
        for repeat in range(values.repeats):
            for name, run in runs.items():
                seconds[name] = min(seconds[name], _timed(run))
            update(repeat + 1)
    speeds = {name: megabytes / least for name, least in seconds.items()}
    report["megabytes a second"] = {n: round(s, 1) for n, s in speeds.items()}
    slowest = speeds["tokenizers"]
    for name, speed in speeds.items():
        progress.console.print(
            f"  {name:<28}{speed:8.1f} MB/s{speed / slowest:8.1f} x"
        )
    progress.console.print(
        f"  {report['cores']} cores, {megabytes:.1f} MB in {len(kept):,} "
        f"lines; {different} lines not tokenised alike were left out"
    )
    if values.output:
        write_json(report, values.output)


def _first(lines, size):
    kept = []
    for line in lines:
        size -= len(line.encode())
        if size < 0:
            break
        kept.append(line)
    return kept


def _tokenizers(path):
    """Name -> function of lines and batch size to what is to be timed."""
    import tensorflow as tf
    import tensorflow_text as tf_text
    import tokenizers

    from bert_keras.text.tokenizer import WordPieceTokenizer
    from bert_keras.text.vocabulary import read_vocabulary

    vocabulary = read_vocabulary(path)
    peer = tokenizers.BertWordPieceTokenizer(path)
    inexact = tf_text.FastBertTokenizer(
        vocabulary, token_out_type=tf.int32, lower_case_nfd_strip_accents=True
    )
    ours = WordPieceTokenizer(vocabulary, max_word_length=100)
    portable = WordPieceTokenizer(
        vocabulary, max_word_length=100, portable=True
    )
    return {
        "tokenizers": functools.partial(_encode, peer),
        "FastBertTokenizer (inexact)": functools.partial(
            _map, inexact.tokenize
        ),
        "WordPieceTokenizer": functools.partial(_map, ours),
        "WordPieceTokenizer, portable": functools.partial(_map, portable),
    }


def _encode(tokenizer, lines, batch):
    batches = [lines[i : i + batch] for i in range(0, len(lines), batch)]

    def run():
        for part in batches:
            for encoding in tokenizer.encode_batch(
                part, add_special_tokens=False
            ):
                yield encoding.ids

    return run


def _map(tokenize, lines, batch):
    import tensorflow as tf

    dataset = tf.data.Dataset.from_tensor_slices(lines).batch(batch).cache()
    mapped = dataset.map(tokenize, num_parallel_calls=_cores())
    return lambda: iter(mapped)


def _cores():
    return len(os.sched_getaffinity(0))


def _agreeing(makers, lines):
    """The lines that all tokenise alike, and how many are left out."""
    first, *others = (
        _rows(make(lines, len(lines))) for make in makers.values()
    )
    alike = [
        all(ids == other[i] for other in others) for i, ids in enumerate(first)
    ]
    kept = [line for line, same in zip(lines, alike, strict=True) if same]
    return kept, len(lines) - len(kept)


def _rows(run):
    rows = []
    for part in run():
        rows += part.to_list() if hasattr(part, "to_list") else [part]
    return rows


def _timed(run):
    """Seconds for all batches but the first, which starts the machinery."""
    parts = run()
    next(parts)
    began = time.perf_counter()
    for _ in parts:
        pass
    return time.perf_counter() - began


if __name__ == "__main__":
    script.start(main, define_flags)
