"""The notebook runs from top to bottom, in an empty folder."""

import ast
import contextlib
import io
import re

import nbformat
import pytest
from run_script import ROOT

# Replacements in the cells, so that the cells take seconds.
SMALLER = {
    "in itertools.product(*words)": "in [*itertools.product(*words)][::99]",
    "learn_vocabulary(sentences, 150)": "learn_vocabulary(sentences, 100)",
    "epochs=4, steps_per_epoch=60": "epochs=2, steps_per_epoch=3",
    "num_layers=2": "num_layers=1",
    "sequence_length=128": "sequence_length=16",
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


@pytest.mark.release
def test_the_cells_run_and_hold_the_ten_lines_of_the_readme(
    notebook, tmp_path, monkeypatch
):
    sources = [cell.source for cell in code_cells(notebook)]
    readme = (ROOT / "README.md").read_text(encoding="utf-8")
    lines = re.search(
        r"```python\n(import bert_keras.*?)```", readme, re.DOTALL
    )
    assert lines[1].strip() in sources
    text = "\n".join(sources)
    for part, smaller in SMALLER.items():
        assert text.count(part) == 1
        text = text.replace(part, smaller)
    monkeypatch.chdir(tmp_path)
    output = io.StringIO()
    with contextlib.redirect_stdout(output):
        exec(text, {"__name__": "__main__"})
    *_, guesses, answer = re.findall(r"^\[.*\].*$", output.getvalue(), re.M)
    assert ast.literal_eval(guesses)[0] == "door"  # from the packaged model
    assert answer.startswith("['positive', 'negative']")


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
    assert last_line(cells[-1]).startswith("['positive', 'negative']")


def last_line(cell):
    printed = [o.text for o in cell.outputs if o.get("name") == "stdout"]
    return "".join(printed).splitlines()[-1]
