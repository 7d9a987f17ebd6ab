"""Measures this package beside its peers, in one run on one machine.

    python tools/benchmark.py --rows=small,base --environments=runs/peers \
        --output=runs/benchmark.json
    python tools/benchmark.py --draw=runs/benchmark.json --output=runs/chart.png

In: nothing but pip; each peer gets an environment of its own in
--environments, made on first use (transformers brings PyTorch: gigabytes).
One that lies there already is taken as it is. Out: a table on the terminal
and as JSON, for each row the seconds an example of every contender, median
and spread of turns that alternate, the ratio to the best peer, and the limit:
the matrix products of the step and nothing else. --check=RECORDED compares
the ratios with those of an earlier file and fails where one fell by more than
--margin. Takes about 3 minutes a row.
"""

import os
import platform
import subprocess

from absl import flags

from official_tasks import script


def define_flags():
    flags.DEFINE_list("rows", [], "Rows to measure; all where none is named.")
    flags.DEFINE_string("environments", "runs/peers", "Where peers lie.")
    flags.DEFINE_string("output", None, "JSON file, or chart, to write.")
    flags.DEFINE_integer("turns", 9, "Steps of each contender.", lower_bound=1)
    flags.DEFINE_string("input", None, "Text of natural length; else docs.")
    flags.DEFINE_string("draw", None, "Results to draw; measures nothing.")
    flags.DEFINE_string("check", None, "Earlier results that must hold.")
    flags.DEFINE_float("margin", 0.15, "Share by which a ratio may fall.")


def main(values):
    from bert_keras.errors import InputError
    from bert_keras.files import read_json, write_json
    from official_tasks import progress
    from official_tasks.tools.contenders import table

    if values.draw:
        if not values.output:
            raise InputError("Give --output, the chart to write.")
        return table.draw(read_json(values.draw), values.output)
    results = measure(values)
    if values.output:
        write_json(results, values.output)
    progress.console.print(table.as_text(results), markup=False)
    if values.check:
        table.check(results, read_json(values.check), values.margin)
    return None


def measure(values) -> dict:
    """All rows asked for: name -> title, goal and figures."""
    from bert_keras.errors import InputError
    from official_tasks import progress
    from official_tasks.tools.contenders.rows import GROWTH, ROWS

    growth = {f"growth {name}": row for name, row in GROWTH.items()}
    rows = ROWS | {
        name: {"title": f"small, {name}, float32", "contenders": row}
        for name, row in growth.items()
    }
    names = values.rows or list(rows)
    for name in names:
        if name not in rows:
            raise InputError(f"No row {name!r}: expected {', '.join(rows)}")
    results = {"machine": machine(), "rows": {}}
    for name in names:
        row = rows[name]
        with progress.bar(row["title"], values.turns) as update:
            figures = run(row["contenders"], values, update)
        results["rows"][name] = {
            "title": row["title"],
            "goal": row.get("goal"),
            "contenders": figures,
        }
    return results


def run(contenders, values, told):
    from official_tasks.tools.contenders.environments import interpreter
    from official_tasks.tools.contenders.rows import NATURAL
    from official_tasks.tools.contenders.turns import measured

    ready = {}
    for name, (peer, file, settings) in contenders.items():
        if settings.get("lengths") == NATURAL:
            lengths = natural_lengths(values.input, settings["length"])
            settings = {**settings, "lengths": lengths}
        ready[name] = interpreter(values.environments, peer), file, settings
    return measured(ready, values.turns, told)


def natural_lengths(source, longest, count=400):
    """Pieces of real documents, the longer ones cut, special pieces added."""
    from bert_keras.data.corpus import read_documents
    from bert_keras.data.documentation import installed_documentation

    documents = read_documents(source) if source else installed_documentation()
    lengths = []
    for document in documents:
        # A piece is four characters of English, within a tenth.
        pieces = sum(map(len, document.paragraphs)) // 4
        while pieces > 0:
            lengths.append(min(pieces, longest - 3) + 3)
            pieces -= longest - 3
        if len(lengths) > 20 * count:
            break
    return lengths[:: max(1, len(lengths) // count)][:count]


def machine() -> dict:
    """What decides the figures beside the package."""
    with open("/proc/cpuinfo", encoding="utf-8") as file:
        models = [line for line in file if line.startswith("model name")]
    commit = subprocess.run(
        ["git", "rev-parse", "--short", "HEAD"],
        capture_output=True,
        text=True,
        cwd=os.path.dirname(os.path.abspath(__file__)),
    )
    return {
        "processor": models[0].split(":")[1].strip() if models else "",
        "cores": len(os.sched_getaffinity(0)),
        "system": platform.platform(),
        "commit": commit.stdout.strip(),
    }


if __name__ == "__main__":
    script.start(main, define_flags)
