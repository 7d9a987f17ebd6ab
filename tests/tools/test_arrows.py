"""Rules for imports between packages, modules and scripts."""

import ast
import graphlib
from pathlib import Path

import pytest

pytestmark = pytest.mark.fast

ROOT = Path(__file__).parent.parent.parent
FRAMEWORKS = {"tensorflow", "tensorflow_text"}
# Top-level modules of bert_keras, which every package may import.
OF_ALL = {
    "errors",
    "file_forms",
    "files",
    "folder_lock",
    "full_disk",
    "interrupts",
    "json_files",
    "manifest",
    "parallel",
    "processes",
    "remote_files",
    "run_folder",
    "comparison",
    "safetensors_files",
    "versions",
}
# Package of bert_keras -> the packages that it may import.
ROOMS = {
    "modeling": set(),
    "text": set(),
    "data": {"text"},
    "training": {"modeling"},
    "interop": {"modeling", "text"},
    "serving": {"modeling", "text", "interop"},
}
# Imports inside functions: `from_preset` and `save_preset` use interop, the
# step of a task model uses training, `BertEmbedder.encode` uses serving and
# text.
AT_CALL_TIME = {
    ("modeling/model_methods.py", "interop"),
    ("modeling/model_methods.py", "training"),
    ("modeling/task_base.py", "training"),
    ("modeling/text_inputs.py", "interop"),
    ("modeling/text_inputs.py", "text"),
    ("modeling/embedder.py", "training"),
    ("modeling/embedder.py", "serving"),
    ("modeling/embedder.py", "text"),
    ("text/preprocessor.py", "interop"),
    ("text/tokenizer.py", "interop"),
}


def imports(path):
    """Yield (module, True if at the top level) for each import in a file."""
    tree = ast.parse(path.read_text(encoding="utf-8"))
    top = set(map(id, tree.body))
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from ((alias.name, id(node) in top) for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            yield node.module, id(node) in top
            # A name may be a module: from official_tasks import pretrain
            for alias in node.names:
                yield f"{node.module}.{alias.name}", id(node) in top


def test_rooms_import_only_the_rooms_below_them():
    wrong = []
    for room, below in ROOMS.items():
        for path in (ROOT / "bert_keras" / room).rglob("*.py"):
            name = path.relative_to(ROOT / "bert_keras").as_posix()
            for module, at_top in imports(path):
                parts = module.split(".")
                if parts[0] != "bert_keras" or len(parts) < 2:
                    continue
                allowed = {room, *OF_ALL, *below}
                if not at_top and (name, parts[1]) in AT_CALL_TIME:
                    continue
                if parts[1] not in allowed:
                    wrong.append((name, module))
    assert not wrong


def test_the_readers_of_forms_know_no_task():
    forms = "official_tasks.tasks.forms"
    paths = [*(ROOT / forms.replace(".", "/")).glob("*.py")]
    wrong = [
        (path.name, module)
        for path in paths
        for module, _ in imports(path)
        if module.startswith("official_tasks") and not module.startswith(forms)
    ]
    assert len(paths) > 5 and not wrong


def modules():
    """Return dict of dotted name -> path, without the tests."""
    paths = (
        path
        for room in ("bert_keras", "official_tasks", "tools")
        for path in (ROOT / room).rglob("*.py")
        if path.stem != "__init__"
    )
    return {
        ".".join(path.relative_to(ROOT).with_suffix("").parts): path
        for path in paths
    }


def test_no_file_imports_itself_by_way_of_others():
    """Imports inside functions count too."""
    paths = modules()
    graph = {
        name: {
            module
            for module, _ in imports(path)
            if module in paths and module != name
        }
        for name, path in paths.items()
    }
    assert len(graph["bert_keras.interop.presets"]) > 5
    graphlib.TopologicalSorter(graph).prepare()  # raises CycleError


def test_modeling_and_the_optimizer_never_import_tensorflow():
    files = [*(ROOT / "bert_keras" / "modeling").rglob("*.py")]
    # gradients.py imports TensorFlow if it is the backend. A function of the
    # other two files makes or reads a `tf.data.Dataset`.
    readers = {"inputs.py", "keras_adapter.py"}
    files.remove(ROOT / "bert_keras" / "modeling" / "gradients.py")
    files.append(ROOT / "bert_keras" / "training" / "optimizers.py")
    wrong = [
        (path.name, module)
        for path in files
        for module, is_top in imports(path)
        if module.split(".")[0] in FRAMEWORKS
        and (is_top or path.name not in readers)
    ]
    assert not wrong


def test_nothing_imports_a_script_but_the_demo_and_the_tests():
    scripts = {
        f"official_tasks.{path.stem}"
        for path in (ROOT / "official_tasks").glob("*.py")
        if "\n    cli.start(main" in path.read_text(encoding="utf-8")
    }
    wrong = [
        (path.name, module)
        for folder in ("bert_keras", "official_tasks")
        for path in (ROOT / folder).rglob("*.py")
        for module, _ in imports(path)
        if module in scripts or module.startswith("tools")
    ]
    assert scripts and not wrong


def test_the_library_neither_prints_nor_reads_flags():
    files = [*(ROOT / "bert_keras").rglob("*.py")]
    wrong = [
        path.name
        for path in files
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8")))
        if isinstance(node, ast.Call)
        and "print" in (getattr(node.func, x, "") for x in ("id", "attr"))
    ]
    # Only the scripts read flags.
    scripts = {"absl", "argparse", "official_tasks", "tools"}
    wrong += [
        (path.name, module)
        for path in files
        for module, _ in imports(path)
        if module.split(".")[0] in scripts
    ]
    assert not wrong
