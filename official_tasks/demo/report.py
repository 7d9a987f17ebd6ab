"""The results of the demo, and the page that shows them."""

from bert_keras import files, json_files
from official_tasks import page

PRETRAINING = (
    *("mlm_accuracy", "mlm_unigram_baseline"),
    *("nsp_accuracy", "nsp_majority_baseline"),
    *("parameters", "curve", "predictions"),
)
SIDES = "pretrained", "scratch"


def gather(folder, seconds) -> dict:
    """Return the results of a finished demo.

    Args:
        folder: of the demo.
        seconds: stage -> its duration.
    """
    pretraining = json_files.read_json(f"{folder}/pretrain/results.json")
    results = {name: pretraining[name] for name in PRETRAINING}
    curves = {}
    for side in SIDES:
        tuned = json_files.read_json(f"{folder}/{side}/results.json")
        mean = tuned.get("mean") or tuned["accuracy"]
        results[f"classify_accuracy_{side}"] = mean
        results[f"classify_std_{side}"] = tuned.get("deviation")
        curves[side] = tuned["curve"]
    best = json_files.read_json(f"{folder}/{SIDES[0]}/results.json")
    with files.open_file(f"{folder}/answers.jsonl", "r") as file:
        answers = list(map(json_files.parse_json, file))
    return {
        **results,
        "classify_majority_baseline": best["majority_baseline"],
        "classify_rows": best["rows"],
        "classify_dev_rows": best["dev_rows"],
        "seconds": seconds,
        "curves": curves,
        "classes": list(best["classes"]),
        "confusion": best["confusion"],
        "answers": [
            [
                row["inputs"]["text"],
                row["answer"]["label"],
                max(row["answer"]["probabilities"]),
            ]
            for row in answers
        ],
    }


def render(report, command) -> str:
    """Return the page of the results of `gather`.

    Args:
        report: of `gather`.
        command: commands to run next, as text.
    """
    sections = [
        page.tiles(_tiles(report)),
        _charts(report),
        page.section(
            "Which source says this sentence?",
            "Held-out sentences, from the pre-trained encoder.",
            page.confusion_chart(report["classes"], report["confusion"]),
        ),
        page.show_predictions(
            report["predictions"],
            "Held-out sentences, the true token in bold, and the five best "
            "predictions.",
        ),
        page.section(
            "Raw text in, answers out",
            "Answers of the SavedModel.",
            page.table(report["answers"], ("text", "source", "probability")),
        ),
        page.section(
            "Time",
            "Seconds of each stage.",
            page.table(list(report["seconds"].items()), numbers=(1,)),
        ),
        page.section(
            "Now with your data",
            "A CSV file with the columns text and label:",
            page.Html(f"<pre>{page.escape(command)}</pre>"),
        ),
    ]
    text = f"A model of {report['parameters']:,} parameters."
    heading = "From raw text to a served BERT"
    return page.page("bert_keras demo", heading, text, sections)


def _tiles(report):
    """Return pairs of a number and its meaning, with its baseline."""
    pretrained, scratch = (report[f"classify_accuracy_{s}"] for s in SIDES)
    return [
        (
            f"{report['mlm_accuracy']:.1%}",
            "of the masked tokens of held-out documents; always the most "
            f"frequent one: {report['mlm_unigram_baseline']:.1%}",
        ),
        (
            f"{report['nsp_accuracy']:.1%}",
            "of the next sentences; always the more frequent answer: "
            f"{report['nsp_majority_baseline']:.1%}",
        ),
        (
            f"{pretrained:.1%}",
            f"of {report['classify_dev_rows']:,} held-out sentences assigned "
            "to their source; the largest class: "
            f"{report['classify_majority_baseline']:.1%}",
        ),
        (
            f"{100 * (pretrained - scratch):+.1f} points",
            f"from pre-training: random weights reach {scratch:.1%} on the "
            f"same {report['classify_rows']:,} rows",
        ),
    ]


def _charts(report):
    def lines(curve, **names):
        steps = [line["step"] for line in curve]
        return {
            name: (steps, [line[key] for line in curve])
            for name, key in names.items()
        }

    curve = report["curve"]
    loss = lines(curve, training="loss", held_out="val_loss")
    accuracy = lines(curve, mlm="val_mlm_accuracy", nsp="val_nsp_accuracy")
    tuned = {
        side: lines(report["curves"][side], accuracy="val_accuracy")["accuracy"]
        for side in SIDES
    }
    drawn = [
        page.line_chart("Pre-training loss", "step", loss),
        page.line_chart(
            "Held-out accuracy", "step", accuracy, is_fraction=True
        ),
        page.line_chart(
            "Fine-tuning accuracy", "step", tuned, is_fraction=True
        ),
    ]
    return page.charts("Held-out documents were never trained on.", drawn)
