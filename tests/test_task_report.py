"""The page that a fine-tuning run leaves."""

import re

import pytest

from official_tasks import task_report

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
    page = task_report.render("toy", "accuracy", RESULTS, mistakes, {"seed": 3})
    assert "1,234 training rows, 4 dev examples; the weights of step 30" in page
    assert "25.0% of the training texts are cut" in page
    assert "accuracy; the best constant guess: 0.500" in page
    assert "&lt;b&gt; is a class" in page and "<b> is" not in page
    assert "20 of 25 on dev" in page and "0.875" in page
    assert page.count("<svg") == 3  # loss, accuracy, confusion
    # Only what is too long for a column may be broken within a word.
    assert f"<td class=long>see {LINK} &lt;here&gt;</td>" in page
    assert "<td>bad</td>" in page
    assert max(map(len, re.findall("x+", page))) == task_report.TEXT_SHOWN - 1
