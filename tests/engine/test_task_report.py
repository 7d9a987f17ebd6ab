"""The page that a fine-tuning run leaves."""

import html
import re
import types
import warnings

import pytest

from bert_keras.files import atomic_output
from official_tasks import page as drawing
from official_tasks.engine import task_report

pytest.importorskip("matplotlib", reason="matplotlib is not installed")

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
    assert "20 of 25 on dev" in page and "0.875" in page
    assert page.count("<svg") == 3  # loss, accuracy, confusion
    # Only what is too long for a column may be broken within a word.
    assert f"<td class=long>see {LINK} &lt;here&gt;</td>" in page
    assert "<td>bad</td>" in page
    assert max(map(len, re.findall("x+", page))) == task_report.LONGEST_TEXT - 1


TEXTS = [
    r"$\foo$",
    "$$",
    "$100 # $200",
    "$_{$",
    "_hidden",
    "100 %",
    "{0} <b> & ]]>",
    "two\nlines",
    "\0\x1b\ufffe",
    "",
    " ",
    "\U0001f600 \u05d0\u6f22",
    "x" * 5000,
    r"\frac{1}{",
]


def test_any_text_is_text_in_every_chart():
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        eye = [[int(i == j) for i in TEXTS] for j in TEXTS]
        confusion = drawing.confusion_chart(TEXTS, eye)
        for text in TEXTS[:8]:
            assert html.escape(" ".join(text.split()), False) in confusion
        for text in TEXTS[:6]:
            # A legend leaves out names with "_" in front; ours have none.
            steps = {text.removeprefix("_"): ([1, 2], [0.5, 1])}
            line = drawing.line_chart(text, text, steps)
            assert line.count(html.escape(text, False)) >= 2


def test_one_epoch_is_drawn_with_whole_steps():
    for steps in ([7], [7, 8], [1000]):
        lines = {"training": (steps, [0.5] * len(steps))}
        shown = drawing.line_chart("Loss", "step", lines)
        xaxis = shown[shown.index("matplotlib.axis_1") :]
        xaxis = xaxis[: xaxis.index("matplotlib.axis_2")]
        ticks = re.findall(r"<text[^>]*>([\d.]+)</text>", xaxis)
        assert ticks and all(tick.isdecimal() for tick in ticks)


def test_a_page_that_cannot_be_drawn_is_a_note(tmp_path, capsys):
    def fail():
        raise ValueError("no such [/colour]")

    folder = types.SimpleNamespace(output=lambda name: atomic_output(path))
    path = str(tmp_path / "report.html")
    drawing.write_report(folder, fail)
    assert not list(tmp_path.iterdir())
    printed = " ".join(capsys.readouterr().out.split())
    assert printed == (
        "note: no report.html: it cannot be drawn (ValueError: no such "
        "[/colour])"
    )
