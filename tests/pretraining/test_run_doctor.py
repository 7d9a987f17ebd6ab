"""A run is judged by its figures, each finding with advice."""

import json

import pytest

from bert_keras import InputError, files
from official_tasks.pretraining.run_doctor import REFERENCES, report
from official_tasks.pretraining.settings import Settings

SOUND = {
    "mask_rate": 0.151,
    "random_next": 0.53,
    "padding": 0.1,
    "input_tokens_per_second": 50_000.0,
}
LAST = {
    "step": 1000,
    "tokens": 3_072_000,
    "loss": 6.1,
    "val_loss": 6.2,
    "val_mlm_accuracy": 0.17,
    "val_nsp_accuracy": 0.68,
    "tokens_per_second": 9_000.0,
    "input_waits": 0.02,
    "skipped_steps": 0.0,
}


def run_folder(folder, line=(), facts=(), **settings):
    """A run's folder with one evaluation, sound but for what is given."""
    sizes = {"num_layers": 2, "hidden_dim": 256, "steps": 2000}
    settings = Settings(**{**sizes, **settings})._asdict()
    (folder / "stages").mkdir(parents=True)
    files.write_json({"settings": settings}, folder / "run.json")
    figures = {"figures": {**SOUND, **dict(facts)}, "outputs": []}
    files.write_json(figures, folder / "stages" / "data.json")
    line = {**LAST, **dict(line)}
    (folder / "metrics.jsonl").write_text(json.dumps(line) + "\n")
    return folder


def test_a_sound_run_is_called_sound(tmp_path):
    lines = report(run_folder(tmp_path))
    assert "Step 1,000 of 2,000, 3,072,000 tokens" in lines[0]
    assert "17.0% of masked pieces and 68.0% of next sentences" in lines[0]
    assert sum("as it should be" in line for line in lines) >= 2
    assert "bound by computing; --dtype=auto" in lines[-1]
    assert not [line for line in lines if "too low" in line]


def named(folder, word):
    (line,) = [line for line in report(folder) if word in line]
    return line


@pytest.mark.parametrize(
    ("line", "facts", "settings", "word", "advice"),
    [
        ({"val_mlm_accuracy": 0.06}, {}, {}, "documentation", "too low"),
        ({"val_nsp_accuracy": 0.5}, {}, {}, "commoner", "single sentences"),
        ({"skipped_steps": 7.0}, {}, {}, "not finite", "lower learning rate"),
        ({"val_loss": 8.0}, {}, {}, "by heart", "more dropout"),
        ({}, {"mask_rate": 0.09}, {}, "Predicted", "max_predictions: 20"),
        ({}, {"random_next": 0.9}, {}, "Second", "how the text was split"),
        ({}, {"padding": 0.5}, {}, "Padding", "--packed"),
        (
            {"input_waits": 0.9},
            {},
            {},
            "waits for its input for 90%",
            "bound by its input",
        ),
        ({}, {}, {"num_layers": 24}, "no reference curve", "2 x 256"),
        ({"tokens": 5000}, {}, {}, "Fewer than", "too early"),
    ],
)
def test_each_fault_is_named_with_advice(
    tmp_path, line, facts, settings, word, advice
):
    assert advice in named(run_folder(tmp_path, line, facts, **settings), word)


def test_a_direction_and_weights_of_others_have_no_reference(tmp_path):
    line = {"val_lm_accuracy": 0.2}
    folder = run_folder(tmp_path / "a", line, objectives="left_to_right")
    lines = report(folder)
    assert not [line for line in lines if "as many tokens" in line]
    assert not [line for line in lines if "Predicted pieces" in line]
    folder = run_folder(tmp_path / "b", init="weights")
    assert not [line for line in report(folder) if "as many tokens" in line]


def test_a_curve_of_several_lengths_is_compared_at_the_runs_own(tmp_path):
    mini = {"num_layers": 4, "sequence_length": 128, "phase_2_steps": 0}
    line = {"tokens": 8_000_000, "val_mlm_accuracy": 0.27}
    found = named(run_folder(tmp_path / "a", line, **mini), "Masked")
    # At 128 pieces its points around are 27.4 and 26.2 %, at 512 17.8 %.
    assert "has 27.1%" in found
    mini["sequence_length"] = 32
    found = named(run_folder(tmp_path / "b", line, **mini), "no rows of 32")
    assert "of 32 pieces" in found


def test_the_references_are_complete_curves_of_tiny_sizes():
    for reference in files.read_json(REFERENCES):
        fields = "name", "command", "commit", "seed", "size", "curve"
        assert set(reference) == set(fields)
        tokens = [line["tokens"] for line in reference["curve"]]
        assert tokens == sorted(tokens) and tokens[-1] > 1e6
        accuracies = [line["val_mlm_accuracy"] for line in reference["curve"]]
        assert accuracies[-1] > accuracies[0]


def test_other_folders_and_runs_without_evaluation_are_refused(tmp_path):
    with pytest.raises(InputError, match="not the folder of a pre-training"):
        report(tmp_path)
    folder = run_folder(tmp_path / "run")
    (folder / "metrics.jsonl").write_text("")
    with pytest.raises(InputError, match="the first comes at step 200"):
        report(folder)
