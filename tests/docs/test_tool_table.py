"""The flags in own_data.md's table on tools read what the tools write."""

import json
import re
import shlex

from official_tasks.tasks.registry import TASKS
from tests.support.run_script import ROOT


def tool_files():
    """Return the files of the table on tools: name -> content."""
    words = ["Ola", "ran"]
    text = {"text": "Ola ran"}
    span = {"start": 0, "end": 3, "label": "PER"}
    pairs = [("q0", "d0", 2), ("q1", "d1", 1), ("q1", "d9", 1)]
    result = {"type": "labels", "from_name": "label", "to_name": "text"}
    result["value"] = {"start": 0, "end": 3, "labels": ["PER"]}
    files = {
        "pandas.csv": ["text,labels", "a,\"['rude', 'spam']\"", "b,['rude']"],
        "fasttext.txt": ["__label__a x", "__label__b y"],
        "kaggle.csv": ["text,rude,spam", "a,1,1", "b,1,0"],
        "words.csv": [
            "Sentence,Word,Tag",
            *("1,Ola,B-PER", ",ran,O", "2,Bo,B-PER", ",ran,O"),
        ],
        "words.conllu": [
            f"{i + 1}\t{word}\t_\t{tag}" + "\t_" * 6
            for i, (word, tag) in enumerate(
                zip(words, ("PROPN", "VERB"), strict=True)
            )
        ],
        "qrels.tsv": [
            "query-id\tcorpus-id\tscore",
            *("\t".join(map(str, pair)) for pair in pairs),
        ],
        "triplets.csv": [
            "anchor,text,positive,negative_1,negative_2",
            *("a,x,b,c,d", "e,x,f,g,h"),
        ],
    }
    objects = {
        "hot.jsonl": [
            {"text": t, "labels": [1, n]} for n, t in enumerate("ab")
        ],
        "doccano.jsonl": [{"text": x, "label": [x]} for x in "ab"],
        "doccano_spans.jsonl": [{**text, "label": [[0, 3, "PER"]]}],
        "prodigy.jsonl": [{**text, "spans": [span], "answer": "accept"}],
        "spacy.jsonl": [{**text, "entities": [[0, 3, "PER"]]}],
        "argilla.json": [
            {
                "fields": {"text": x},
                "responses": {"label": [{"value": x, "user_id": "u"}]},
            }
            for x in "ab"
        ],
        "flat.jsonl": [{"text": x, "label.responses": [x]} for x in "ab"],
        "studio.json": [{"data": text, "annotations": [{"result": [result]}]}],
        "queries.jsonl": [{"_id": f"q{n}", "text": f"q {n}"} for n in (0, 1)],
        "corpus.jsonl": [
            {"_id": f"d{n}", "title": "T", "text": f"d {n}"} for n in (0, 1)
        ],
    }
    for name, content in objects.items():
        lines = [json.dumps(row) for row in content]
        lines = [json.dumps(content)] if name.endswith(".json") else lines
        files[name] = lines
    return files


TRUTH = {  # file of --train -> labels of its examples
    "pandas.csv": [{0, 1}, {0}],
    "kaggle.csv": [{0, 1}, {0}],
    "hot.jsonl": [{0}, {0, 1}],
    "doccano.jsonl": [0, 1],
    "argilla.json": [0, 1],
    "flat.jsonl": [0, 1],
    "fasttext.txt": [0, 1],
    "words.csv": [("B-PER", "O")] * 2,
    "words.conllu": [("PROPN", "VERB")],
    "qrels.tsv": [2.0, 1.0],
    "triplets.csv": [None, None],
}


def test_what_tools_write_is_read_by_the_flags_of_the_table(tmp_path):
    text = (ROOT / "docs" / "own_data.md").read_text(encoding="utf-8")
    table = text.partition("| tool | writes |")[2].partition("\n\n")[0]
    rows = re.findall(r"`(--task=[^`]*)` \|$", table, re.M)
    for name, lines in tool_files().items():
        (tmp_path / name).write_text("".join(f"{line}\n" for line in lines))
    assert len(rows) == table.count("\n") - 1 == 15
    for row in rows:
        options = dict(w[2:].split("=", 1) for w in shlex.split(row))
        entry, name = TASKS[options.pop("task")], options["train"]
        options["max_score"] = float(options.get("max_score", 1))
        options = {k: v for k, v in options.items() if k in entry.fields}
        options["dev"] = options["train"]
        for key in {"train", "dev", "queries", "passages"} & options.keys():
            options[key] = str(tmp_path / options[key])
        task = entry.make(**options)
        labels = [example.label for example in task.read("train")]
        assert labels == TRUTH.get(name, [("B-PER", "O")]), row
