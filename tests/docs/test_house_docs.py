"""The walks of docs/house.md name files and functions that there are."""

import ast
import re

from run_script import ROOT

STEP = re.compile(r"^\d+\. `([\w/]+\.py)` `([\w.]+)`: \S", re.MULTILINE)


def names_of(path):
    """Functions, classes and methods of a file, dotted."""
    tree = ast.parse((ROOT / path).read_text(encoding="utf-8"))
    for node in tree.body:
        if isinstance(node, ast.FunctionDef | ast.ClassDef):
            yield node.name
        if isinstance(node, ast.ClassDef):
            for inner in node.body:
                if isinstance(inner, ast.FunctionDef):
                    yield f"{node.name}.{inner.name}"


def test_each_step_of_a_walk_is_there():
    page = (ROOT / "docs" / "house.md").read_text(encoding="utf-8")
    steps = STEP.findall(page)
    assert len(steps) == len(re.findall(r"^\d+\. ", page, re.MULTILINE))
    assert len(steps) > 30
    missing = [
        (path, name) for path, name in steps if name not in {*names_of(path)}
    ]
    assert not missing
