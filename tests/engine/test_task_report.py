"""The HTML report of a fine-tuning run."""

import re
from xml.etree import ElementTree

import pytest
from markupsafe import escape

from official_tasks import page as drawing
from official_tasks.engine import task_report

pytestmark = pytest.mark.fast

RESULTS = {
    "accuracy": 0.75,
    "majority_baseline": 0.5,
    "rows": 1234,
    "dev_rows": 4,
    "best_step": 30,
    "cut": 0.25,
    "notes": ["<b> is a class"],
    "curve": [
        {"step": 15, "loss": 0.7, "val_accuracy": 0.5},
        {"step": 30, "loss": 0.4, "val_accuracy": 0.75},
    ],
    "classes": {
        "good": {"f1": 0.8, "support": 3},
        "bad": {"f1": 0, "support": 1},
    },
    "confusion": [[2, 1], [0, 1]],
}
LINK = "https://example.org/" + "a" * 40


def test_the_page_tells_what_was_learned_and_what_was_not():
    mistakes = [
        {"text": f"see {LINK} <here>", "truth": "bad", "probability": 0.875},
        *[{"text": "x" * 500, "truth": "good", "probability": 0.5}] * 24,
    ]
    settings = {"seed": 3, "learning_rate": 5e-5}
    page = task_report.render("toy", "accuracy", RESULTS, mistakes, settings)
    assert ">5e-05</td>" in page
    assert "1,234 training rows, 4 dev examples; the weights of step 30" in page
    assert "25.0% of the training texts are cut" in page
    assert "accuracy; the best constant prediction: 0.500" in page
    assert "&lt;b&gt; is a class" in page and "<b> is" not in page
    assert "20 of 25 wrong predictions on dev" in page and "0.875" in page
    assert page.count("<svg") == 2  # loss, accuracy
    assert page.count("<span class=cell") == 4  # confusion matrix
    # Only a cell with a word too long for a column may break within words.
    assert f"<td class=long>see {LINK} &lt;here&gt;</td>" in page
    assert "<td>bad</td>" in page
    longest = max(map(len, re.findall("x+", page)))
    assert longest == task_report.MAX_TEXT_LENGTH - 1


def test_of_many_classes_the_page_shows_the_most_frequent():
    classes = {
        f"class {i}": {"f1": 0.5, "support": i % 300} for i in range(900)
    }
    results = {**RESULTS, "classes": classes}
    del results["confusion"]
    page = task_report.render("toy", "accuracy", results, [], {})
    assert page.count("<td>class ") == task_report.MAX_ROWS
    assert "<td>class 299</td>" in page and "<td>class 0</td>" not in page
    assert f"{task_report.MAX_ROWS} most frequent of 900 classes" in page


TEXTS = [
    "$100 # $200",
    "100 %",
    "{0} <b> & ]]>",
    "two\nlines",
    "a'b\"c",
    "😀 א漢",
]
TEXTS += ["x" * 5000]


def test_any_text_is_text_in_every_chart():
    eye = [[int(i == j) for i in TEXTS] for j in TEXTS]
    confusion = drawing.confusion_table(TEXTS, eye)
    for text in TEXTS:
        line = drawing.line_chart(text, text, {text: ([1, 2], [0.5, 1])})
        ElementTree.fromstring(
            re.sub(r"=([\w.]+)(?=[ />])", r"='\1'", str(line))
        )
        assert line.count(escape(text)) >= 3
        if len(text) < 40:
            assert escape(" ".join(text.split())) in confusion


def test_lines_are_where_their_values_are():
    chart = drawing.line_chart(
        "Loss",
        "step",
        {"a": ([10, 20, 30], [4.0, None, 2.0]), "b": ([30], [3.0])},
        bounds=[20],
    )
    assert re.findall(r"points='(.*?)'", chart) == [
        "60.0,50.0 440.0,250.0",
        "440.0,150.0",
    ]
    assert "M250.0 50V250" in chart
    shown = re.findall(r">([\d.,]+)</text>", chart)
    assert shown == ["2", "3", "4", "10", "30"]
    one = drawing.line_chart("Loss", "step", {"a": ([7], [0.5])}, True)
    assert "60.0,250.0" in one and ">50.0%</text>" in one
    large = drawing.line_chart(
        "Speed", "step", {"a": ([1, 10_000], [9, 20_500])}
    )
    assert re.findall(r">([\d.,]+)</text>", large) == [
        *("9", "10,254", "20,500"),
        *("1", "10,000"),
    ]
    nothing = {"a": ([7], [float("nan")])}
    assert drawing.line_chart("Loss", "step", nothing) == ""
