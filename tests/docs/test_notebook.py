"""The notebook and the README's Python run in an empty folder."""

import ast
import contextlib
import io
import os
import re
from pathlib import Path

import nbformat
import numpy as np
import pytest

import bert_keras
from tests.support.run_script import ROOT

# Replacements in the cells, so that the cells take seconds.
SMALLER = {
    "in itertools.product(*words)": "in [*itertools.product(*words)][::99]",
    "learn_vocabulary(sentences, 150)": "learn_vocabulary(sentences, 100)",
    "epochs=4, steps_per_epoch=60": "epochs=2, steps_per_epoch=3",
    "num_layers=2": "num_layers=1",
}


@pytest.fixture
def notebook():
    path = ROOT / "docs" / "tour.ipynb"
    return nbformat.read(path, as_version=4)


def code_cells(notebook):
    return [cell for cell in notebook.cells if cell.cell_type == "code"]


def test_the_stored_text_does_not_depend_on_the_version_of_python(notebook):
    cell = code_cells(notebook)[0]
    assert cell.source.count("import ") == 1 and "itertools" in cell.source
    lines, _, shown = cell.source.rpartition("\n")
    names = {}
    exec(lines, names)
    assert repr(eval(shown, names)) == cell.outputs[0].data["text/plain"]


def test_the_cells_import_public_names_only(notebook):
    sources = "\n".join(cell.source for cell in code_cells(notebook))
    assert "import bert_keras" in sources
    assert not re.search(r"(from|import) bert_keras\.", sources)


def readme_lines():
    """Return each Python block of the README and the output under it."""
    page = (ROOT / "README.md").read_text(encoding="utf-8")
    pattern = r"^```python\n(.*?)^```\n\n((?:    [^\n]*\n)+)"
    return re.findall(pattern, page, re.M | re.S)


def run_and_show(code, names):
    """Run code; return the value of its last line."""
    *lines, last = ast.parse(code).body
    exec(compile(ast.Module(lines, []), "page", "exec"), names)
    return eval(ast.unparse(last), names)


# Another seed moves a probability by 0.03, another rate by 0.1.
TOLERANCE = 0.02


def assert_near(found, shown):
    """Check a value of a page, whose last digits depend on the processor."""
    if isinstance(shown, dict):
        assert found.keys() == shown.keys()
        for name, value in shown.items():
            assert_near(found[name], value)
    elif isinstance(shown, list) and isinstance(shown[0], dict):
        for one, value in zip(found, shown, strict=True):
            assert_near(one, value)
    elif np.asarray(shown).dtype.kind == "f":
        np.testing.assert_allclose(found, shown, atol=TOLERANCE)
    else:
        np.testing.assert_array_equal(found, shown)


MINI_LM = "all-MiniLM-L6-v2"
SHOWN = {"array": np.array, "float32": np.float32, "int32": np.int32}


@pytest.mark.release
def test_the_first_lines_are_twelve_and_answer_as_shown(
    notebook, tmp_path, monkeypatch
):
    first, second, _ = readme_lines()
    code = first[0] + second[0]
    assert sum(bool(line) for line in code.splitlines()) == 12
    sources = [f"{cell.source}\n" for cell in code_cells(notebook)]
    assert sources[-2:] == [first[0], second[0]]
    monkeypatch.chdir(tmp_path)
    names = {}
    for part, shown in (first, second):
        assert_near(run_and_show(part, names), eval(shown.strip(), {**SHOWN}))


@pytest.mark.release
def test_texts_are_compared_without_training_as_shown():
    code, shown = readme_lines()[2]
    assert code.count(MINI_LM) == 1 and code.count("\n") == 3
    weights = Path(os.environ.get("BERT_KERAS_DATA", ""), "weights", MINI_LM)
    is_real = weights.is_dir()
    preset = str(weights) if is_real else "bert_keras_mini_en"
    names = {"bert_keras": bert_keras}
    found = run_and_show(code.replace(MINI_LM, preset), names)
    expected = eval(shown.strip(), {**SHOWN})
    assert found.shape == expected.shape
    if is_real:
        np.testing.assert_allclose(found, expected, atol=0.011)


@pytest.mark.release
def test_the_cells_run_in_an_empty_folder(notebook, tmp_path, monkeypatch):
    text = "\n".join(cell.source for cell in code_cells(notebook)[:-2])
    for part, smaller in SMALLER.items():
        assert text.count(part) == 1
        text = text.replace(part, smaller)
    monkeypatch.chdir(tmp_path)
    output = io.StringIO()
    with contextlib.redirect_stdout(output):
        exec(text, {"__name__": "__main__"})
    *_, guesses = re.findall(r"^\[.*\].*$", output.getvalue(), re.M)
    assert ast.literal_eval(guesses)[0] == "door"  # from the packaged model


@pytest.mark.long
def test_the_notebook_runs_as_it_stands(notebook, tmp_path, monkeypatch):
    from nbclient import NotebookClient

    client = NotebookClient(
        notebook,
        timeout=600,
        startup_timeout=300,  # a kernel starts slowly on a busy machine
        kernel_name="python3",
        resources={"metadata": {"path": str(tmp_path)}},
    )
    monkeypatch.setenv("PYTHONPATH", str(ROOT))
    client.execute()
    cells = code_cells(notebook)
    assert ast.literal_eval(last_line(cells[3]))[0] == "door"
    answer = cells[-1].outputs[-1].data["text/plain"]
    assert answer.startswith("{'label': ['positive']")


def last_line(cell):
    printed = [o.text for o in cell.outputs if o.get("name") == "stdout"]
    return "".join(printed).splitlines()[-1]
