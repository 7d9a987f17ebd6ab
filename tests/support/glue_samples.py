"""Toy files of all GLUE tasks, in the official layouts."""

import numpy as np

from official_tasks.tasks import glue
from tests.support.task_samples import sentences

BOM = "\ufeff"


def _pairs(count, seed):
    rows = sentences(count, seed)
    return [(text, f"the {text}", y) for text, y in rows]


def _lines(header, rows, end="\n", bom=""):
    lines = ["\t".join(map(str, row)) for row in rows]
    if header:
        lines.insert(0, "\t".join(header))
    return bom + "\n".join(lines) + end


def _single(row, rows, split):
    spelled = row.spelled
    if split == "test":
        return ["index", "sentence"], [(i, a) for i, (a, _) in rows]
    if row.name == "cola":
        return None, [("x", spelled[y], "", a) for _, (a, y) in rows]
    return ["sentence", "label"], [(a, spelled[y]) for _, (a, y) in rows]


def _paired(row, rows, split):
    def told(y):
        return f"{2.5 * y:.3f}" if row.spelled is None else row.spelled[y]

    if row.name == "mrpc":
        names = ["#1 ID", "#2 ID", "#1 String", "#2 String"]
        if split == "test":
            cells = [(i, 7, 8, a, b) for i, (a, b, _) in rows]
            return ["index", *names], cells
        cells = [(told(y), i, i + 900, a, b) for i, (a, b, y) in rows]
        return ["Quality", *names], cells
    header = [row.index, "genre", row.text, row.text_pair]
    cells = [(i, "toy", a, b) for i, (a, b, _) in rows]
    if split == "test" or row is glue.AX:
        return header, cells
    cells = [
        (*c, told(y)) for c, (_, (_, _, y)) in zip(cells, rows, strict=True)
    ]
    return [*header, row.label], cells


def write_glue(folder, train=24, held_out=8):
    """Write the files of all GLUE tasks; some have a BOM or no last newline."""
    for number, row in enumerate(glue.ROWS):
        place = folder / row.folder
        place.mkdir(parents=True)
        for split in ("train", "dev", "test"):
            if row is glue.AX and split != "test":
                continue
            for part in row.parts.get(split, (split,)):
                seed = number + len(part)
                count = train if split == "train" else held_out
                make = _pairs if row.text_pair else sentences
                rows = list(enumerate(make(count, seed)))
                shaped = _paired if row.text_pair else _single
                header, cells = shaped(row, rows, split)
                end = "" if number % 2 else "\n"
                bom = BOM if row.name == "mrpc" else ""
                text = _lines(header, cells, end, bom)
                (place / f"{part}.tsv").write_text(text, encoding="utf-8")
    return folder


def random_outputs(examples, classes):
    """Return random outputs of the shape (examples, classes)."""
    random = np.random.default_rng(0)
    return random.normal(size=(len(examples), classes)).astype("float32")
