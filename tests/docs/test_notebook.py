"""The notebook runs from top to bottom, in an empty folder."""

import ast
import re

import nbformat
from nbclient import NotebookClient
from run_script import ROOT


def test_the_tour_runs_and_holds_the_ten_lines_of_the_readme(
    tmp_path, monkeypatch
):
    path = ROOT / "docs" / "tour.ipynb"
    notebook = nbformat.read(path, as_version=4)
    cells = [cell for cell in notebook.cells if cell.cell_type == "code"]
    readme = (ROOT / "README.md").read_text(encoding="utf-8")
    lines = re.search(
        r"```python\n(import bert_keras.*?)```", readme, re.DOTALL
    )
    assert lines[1].strip() in [cell.source for cell in cells]
    client = NotebookClient(
        notebook,
        timeout=600,
        startup_timeout=300,  # of a kernel on a busy machine
        kernel_name="python3",
        resources={"metadata": {"path": str(tmp_path)}},
    )
    monkeypatch.setenv("PYTHONPATH", str(ROOT))
    client.execute()
    assert len(ast.literal_eval(last_line(cells[3]))) == 5
    assert last_line(cells[-1]).startswith("['positive', 'negative']")


def last_line(cell):
    said = [o.text for o in cell.outputs if o.get("name") == "stdout"]
    return "".join(said).splitlines()[-1]
