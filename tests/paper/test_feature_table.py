"""The table of features and fine-tuning: which rows, which means."""

import json

import pytest

from official_tasks.engine import grid
from official_tasks.paper import feature_table
from official_tasks.tasks.recipes import RECIPES


def test_the_table_gathers_rows_and_is_drawn(tmp_path, monkeypatch):
    tokens = {"seed-0": 0.6, "seed-1": 0.5, "seed-2": 0.0}
    runs = {name: {"token_f1": value} for name, value in tokens.items()}

    def run(task, init, output, **arguments):
        best = {"f1": 0.5, "token_f1": 0.6, "runs": runs}
        if output.endswith("/embeddings"):  # of one seed
            return {"f1": 0.5, "token_f1": 0.6}
        if output.endswith("/last"):
            failed = {"mean": None, "deviation": None, "failed": list(runs)}
            return {**best, **failed}
        return {**best, "mean": 0.4, "deviation": 0.1, "failed": ["seed-2"]}

    monkeypatch.setattr(grid, "run", run)
    asked = []
    table = feature_table.fill(
        lambda recipe: (asked.append(recipe), {}), "init", str(tmp_path)
    )
    assert asked == [*RECIPES, None]
    assert table["fine_tuning"]["f1"] == 0.4
    assert table["fine_tuning"]["token_f1"] == pytest.approx(0.55)
    assert table["embeddings"]["token_f1"] == 0.6
    # A row whose seeds failed has neither mean nor deviation.
    assert table["last"] == dict.fromkeys(("f1", "deviation", "token_f1"))
    shown = grid.table_of("toy", dict(sorted(table.items())))
    names = [column.header for column in shown.columns]
    assert names == ["", "f1", "deviation", "token f1"]
    assert list(shown.columns[names.index("f1")].cells)[3] == ""
    pytest.importorskip("matplotlib")
    feature_table.draw(table, "toy", tmp_path / "table.png")
    assert (tmp_path / "table.png").read_bytes().startswith(b"\x89PNG")
    assert json.loads(json.dumps(table)) == table
