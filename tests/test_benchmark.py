"""The benchmark beside peers: turns, ratios, the check, the chart."""

import sys

import numpy as np
import pytest
from run_script import ROOT, run_script

from bert_keras.errors import InputError
from bert_keras.files import read_json, write_json
from official_tasks.tools.contenders import environments, rows, table, turns

sys.path.insert(0, str(ROOT / "tools" / "contenders"))
import examples
import limit

TINY = {
    "size": "mini",
    "batch": 2,
    "length": 16,
    "predictions": 2,
    "dropout": 0.0,
    "dtype": "float32",
}


def results(**medians):
    figures = {
        name: {"median": m, "least": m, "most": m, "peak_megabytes": 1}
        for name, m in medians.items()
    }
    row = {"title": "a row", "goal": 1.1, "contenders": figures}
    return {"machine": {}, "rows": {"a": row}}


def test_contenders_take_turns_and_tell_seconds_an_example():
    lengths = [3, 9, 16, 5, 4, 7]
    figures = turns.measured(
        {
            "ours": (sys.executable, "ours.py", TINY),
            "packed": (
                sys.executable,
                "ours_packed.py",
                {**TINY, "lengths": lengths},
            ),
            "limit": (sys.executable, "limit.py", TINY),
        },
        turns=2,
    )
    for figure in figures.values():
        assert 0 < figure["least"] <= figure["median"] <= figure["most"] < 10
        assert figure["peak_megabytes"] > 100
        assert "tensorflow" in figure["versions"]


def test_a_contender_that_fails_is_told_with_its_words(tmp_path):
    with pytest.raises(InputError, match=r"ours.py ended (.|\n)*KeyError"):
        turns.measured({"a": (sys.executable, "ours.py", {})}, turns=1)


def test_the_limit_counts_the_products_of_the_model():
    # Of a dense layer: 2 operations a weight and token, three times a step.
    layers, width, _ = examples.SIZES["mini"]
    dense = 12 * width**2 * layers * 2 * 16
    head = (width**2 + width * examples.VOCABULARY) * 2 * 2
    attention = 2 * 16 * 16 * width * layers * 2
    assert limit.operations(TINY) == 3 * 2 * (dense + head + attention)


def test_the_ratio_is_to_the_fastest_peer():
    times, best = table.ratio(
        results(ours=2.0, a=5.0, b=3.0, limit=1.0)["rows"]["a"]
    )
    assert (times, best) == (1.5, "b")
    assert table.ratio(results(ours=2.0, limit=1.0)["rows"]["a"]) is None


def test_the_check_compares_ratios_and_names_what_fell():
    recorded = results(ours=1.0, a=2.0, limit=0.5)
    # A machine half as fast, and the same ratio.
    table.check(results(ours=2.0, a=4.0, limit=1.0), recorded, 0.15)
    with pytest.raises(InputError, match=r"a from 2.00 to 1.50"):
        table.check(results(ours=2.0, a=3.0, limit=1.0), recorded, 0.15)


def test_results_are_drawn_by_the_second_command(tmp_path):
    write_json(results(ours=1.0, a=2.0, limit=0.5), tmp_path / "r.json")
    script = ROOT / "tools" / "benchmark.py"
    done = run_script(
        script, "--draw=r.json", "--output=c.png", folder=tmp_path
    )
    assert done.returncode == 0, done.stderr
    assert (tmp_path / "c.png").stat().st_size > 5000
    done = run_script(script, "--rows=large", folder=tmp_path)
    assert done.returncode == 2 and "No row 'large'" in done.stderr


def test_recorded_results_have_every_row_with_its_goal():
    recorded = read_json(ROOT / "tools" / "contenders" / "recorded.json")
    assert set(rows.ROWS) <= set(recorded["rows"])
    for name, row in rows.ROWS.items():
        assert recorded["rows"][name]["goal"] == row["goal"]
        assert table.ratio(recorded["rows"][name]) is not None


def test_an_environment_that_is_there_is_taken_as_it_is(tmp_path):
    python = tmp_path / "keras_hub" / "bin" / "python"
    python.parent.mkdir(parents=True)
    python.touch()
    found = environments.interpreter(str(tmp_path), "keras_hub")
    assert found == str(python)
    assert environments.interpreter(str(tmp_path), "ours") == sys.executable


def test_padded_examples_hold_as_many_masks_as_their_length_allows():
    batch = examples.padded_batch([3, 40], 64)
    np.testing.assert_array_equal(batch["mask_weights"].sum(1), [1, 6])
    places = batch["mask_positions"]
    assert (places < [[3], [40]]).all()
    assert len(set(places[1].tolist())) == 6
