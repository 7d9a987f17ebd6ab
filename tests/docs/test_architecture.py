"""The diagrams of docs/architecture.md name files and functions that exist."""

import ast
import re

from run_script import ROOT

BOX = re.compile(r'\["([\w/]+\.py)<br/>([\w.]+)"\]')


def functions_in(path):
    """Yield functions, classes and methods of a file, dotted."""
    tree = ast.parse((ROOT / path).read_text(encoding="utf-8"))
    for node in tree.body:
        if isinstance(node, ast.FunctionDef | ast.ClassDef):
            yield node.name
        if isinstance(node, ast.ClassDef):
            for inner in node.body:
                if isinstance(inner, ast.FunctionDef):
                    yield f"{node.name}.{inner.name}"


def test_each_box_of_a_diagram_is_a_function():
    page = (ROOT / "docs" / "architecture.md").read_text(encoding="utf-8")
    boxes = BOX.findall(page)
    assert len(boxes) == page.count('["') > 30
    missing = [
        (path, name)
        for path, name in boxes
        if name not in {*functions_in(path)}
    ]
    assert not missing
