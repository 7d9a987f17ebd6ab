"""Table of all tasks by name; make a task from flags or a Python file."""

import dataclasses
import functools
import importlib.util
import inspect
import os
import sys
from collections.abc import Callable
from typing import NamedTuple

from bert_keras import files
from bert_keras.errors import InputError
from bert_keras.json_files import read_json
from bert_keras.run_folder import SETTINGS, absolute_paths, find_base
from official_tasks.options import Condition, Option, list_options, option
from official_tasks.tasks import conll, glue, multiple_choice, own_tasks, squad
from official_tasks.tasks.base import Task
from official_tasks.tasks.embedding import EmbedOptions, embed_task
from official_tasks.tasks.retrieval import RankOptions, rank_task
from official_tasks.tasks.source import FileOptions, OfficialOptions
from official_tasks.tasks.tagging import TagOptions, tag_task


class Entry(NamedTuple):
    """A row of `TASKS`: the function that makes a task, and its options.

    The options are a dataclass; its fields are the function's arguments.
    """

    make: Callable[..., Task]
    options: type

    @property
    def fields(self) -> dict[str, Option]:
        """The options by name."""
        return list_options(self.options)


def _make_entries(make, rows, options):
    return {
        row.name: Entry(functools.partial(make, row), options) for row in rows
    }


PREFIX = "task_in_"  # prefix of the module name of a task that the user wrote
TASKS = {
    # A user's own data.
    "classify": Entry(own_tasks.classify_task, own_tasks.ClassifyOptions),
    "multilabel": Entry(own_tasks.multilabel_task, own_tasks.MultilabelOptions),
    "regress": Entry(own_tasks.regress_task, own_tasks.RegressOptions),
    "spans": Entry(own_tasks.spans_task, own_tasks.SpansOptions),
    "tags": Entry(own_tasks.tags_task, own_tasks.TagsOptions),
    "choices": Entry(own_tasks.choices_task, own_tasks.ChoicesOptions),
    "embed": Entry(embed_task, EmbedOptions),
    "rank": Entry(rank_task, RankOptions),
    **_make_entries(glue.glue_task, glue.ROWS, OfficialOptions),
    **_make_entries(squad.squad_task, squad.ROWS, squad.SquadOptions),
    **_make_entries(
        multiple_choice.choice_task, multiple_choice.ROWS, OfficialOptions
    ),
    **_make_entries(tag_task, conll.ROWS, TagOptions),
}
PATHS = (
    *list_options(FileOptions),
    "queries",
    "passages",
)  # options that name files
# Name of a task in the records of earlier versions, with the value of the
# option "problem" -> present name.
_OLD_NAMES = {
    "custom": "classify",
    "custom single": "classify",
    "custom multi": "multilabel",
    "custom regression": "regress",
    "customspans": "spans",
    "customtags": "tags",
    "customchoices": "choices",
    "embedding": "embed",
    "ranking": "rank",
}


def make_options(tasks):
    """Return a dataclass with a field for each option of the tasks.

    The default of each is None, because tasks have different defaults.
    """
    options: dict[str, Option] = {}
    for entry in tasks.values():
        for name, field in entry.fields.items():
            if options.setdefault(name, field).kind is not field.kind:
                raise TypeError(f"--{name} has several types")
    fields = [
        (name, field.kind, option(None, field.help, group="task"))
        for name, field in sorted(options.items())
    ]
    return dataclasses.make_dataclass(
        "AllOptions", fields, frozen=True, kw_only=True
    )


AllOptions = make_options(TASKS)
OPTIONS = list(list_options(AllOptions))


def task_option(default=None, *more):
    """Return the field `task`; it also accepts the names `more`."""
    return option(
        default,
        f"Task: one of {', '.join([*TASKS, *more])}, or a Python file with a "
        "task that you wrote. --task=NAME --help shows the task's options.",
    )


@dataclasses.dataclass(frozen=True, kw_only=True)
class TaskOptions(AllOptions):
    """--task, --option and the options of all tasks.

    Attributes:
        others: dict: further value of --task -> names of the options that it
            has. Without --task, `--help` shows the options of the key None.
    """

    others = {None: tuple(list_options(FileOptions))}
    task: str | None = task_option()
    conditions = (
        Condition(
            ("split_seed",),
            "without --dev, when dev is split from train",
            lambda v: v.dev is None or is_file(v),
        ),
        Condition(
            ("null_odds",),
            "to an evaluation with --predictions",
            lambda v: ("predictions" in v and v.predictions) or is_file(v),
        ),
    )
    option: tuple[str, ...] = option(
        (),
        "NAME=VALUE for a task that you wrote; may be repeated.",
        is_repeated=True,
    )

    @classmethod
    def select(cls, values) -> dict[str, str | None]:
        """Return a dict: option -> help, or None if the task lacks it.

        Args:
            values: absl's FLAGS.
        """
        task = values["task"].value
        key = task and task.lower()
        others = {**TaskOptions.others, **cls.others}
        if key in others:
            shown = {
                name: next(
                    entry.fields[name]
                    for entry in TASKS.values()
                    if name in entry.fields
                )
                for name in others[key]
            }
        elif task.endswith(".py"):
            shown = list_options(FileOptions)
        else:
            shown = find_task(task).fields
        texts = dict.fromkeys(OPTIONS)
        for name, field in shown.items():
            texts[name] = field.help
            if field.default is not None:
                texts[name] += f" Default: {field.default}."
        return texts


def is_file(values):
    """Return True if --task is a Python file, which has options of its own."""
    return bool(values.task) and values.task.endswith(".py")


def task_from_flags(values, task=None):
    """Return the task that the flags name, and the options that are set.

    Args:
        values: absl's FLAGS.
        task: name or file of a task that replaces --task.

    Returns:
        `(task, settings)`; `settings` is a dict of the options that are set.
    """
    chosen = {n: values[n].value for n in OPTIONS if values[n].present}
    task = task or values.task
    entry = find_task(task)
    for text in values.option:
        name, separator, value = text.partition("=")
        if not separator:
            raise InputError(f"--option={text}: expected NAME=VALUE")
        chosen[name] = value
    unknown = sorted(chosen.keys() - entry.fields.keys())
    if unknown:
        owners = [n for n in TASKS if unknown[0] in TASKS[n].fields]
        owners = f" It is for {', '.join(owners)}." if owners else ""
        raise InputError(
            f"--{unknown[0]} does nothing for the task {task}.{owners} Options "
            f"of {task}: {', '.join(entry.fields) or 'none'}"
        )
    options = {
        name: convert(f"--{name}", value, entry.fields[name].kind)
        for name, value in chosen.items()
    }
    made = entry.make(**options)
    if not isinstance(getattr(made, "name", None), str):
        raise InputError(
            f"{task}: the class {type(made).__name__} lacks a `name`, the name "
            "of the task"
        )
    return made, options


def read_run_record(model, field) -> dict:
    """Return a field of run.json, the record of the run that made a model.

    The field is "settings", or "inputs" for the files that the run read. Paths
    of files that exist are absolute if the current folder is not the one in
    which the run was started. The result is {} if there is no run.json, or if
    the field cannot be read.
    """
    # `model` is a run folder, or the model folder inside a run folder.
    for folder in (model, os.path.dirname(os.path.abspath(model))):
        path = os.path.join(folder, SETTINGS)
        if files.is_file(path):
            try:
                record = read_json(path)
                return _resolve_paths(record, field, folder)
            except (ValueError, KeyError, TypeError):
                return {}
    return {}


def _resolve_paths(record, field, folder) -> dict:
    values = dict(record[field])
    if field == "settings":
        values = _rename_task(values)
    base = find_base(record, folder)
    if os.path.realpath(base) == os.path.realpath(os.getcwd()):
        return values
    if field == "inputs":
        return {absolute_paths(name, base): values[name] for name in values}
    return {
        name: absolute_paths(value, base)
        if name in PATHS and isinstance(value, str)
        else value
        for name, value in values.items()
    }


def _rename_task(settings) -> dict:
    """Return a run's settings with the present name of its task."""
    old = f"{settings.get('task')} {settings.get('problem', '')}".strip()
    if old not in _OLD_NAMES:
        return settings
    return {
        **{n: value for n, value in settings.items() if n != "problem"},
        "task": _OLD_NAMES[old],
    }


def keep_old_name(folder, settings) -> dict:
    """Return the settings with the task's name of the run in `folder`.

    A run of an earlier version, which named the task in another way, then
    resumes: see `RunFolder`.
    """
    old = read_settings(folder)
    if _rename_task(old).get("task") != settings["task"]:
        return settings
    names = {"task", "problem"} & old.keys()
    return {**settings, **{name: old[name] for name in names}}


def read_settings(folder) -> dict:
    """Return the settings as the run in `folder` recorded them.

    The result is {} if there is no run, or if `RunFolder` refuses its record.
    """
    path = os.path.join(folder, SETTINGS)
    if not files.is_file(path):
        return {}
    try:
        return dict(read_json(path)["settings"])
    except (ValueError, KeyError, TypeError):
        return {}


def complete_flags(values):
    """Set --task and its missing options from the run that made --model.

    Of several models, the first counts. If --task names another task than the
    run, or `TASKS` lacks the run's task, no flag is set.

    Args:
        values: absl's FLAGS.

    Raises:
        InputError: neither --task nor the run names a task.
    """
    if not values.model:
        return
    model, *_ = files.split_paths(values.model)
    settings = read_run_record(model, "settings")
    task = settings.get("task")
    if task is None and values.task is None:
        raise InputError(
            f"--task is missing, and {model} has no run settings that name a "
            "task. Give --task"
        )
    named = values.task and _normalize(values.task)
    if task not in TASKS or named not in (None, task):
        return
    # Do not copy long_text: it would count as set by the user and replace the
    # value in the model's folder.
    names = {"task", *TASKS[task].fields} - {"long_text"}
    for name in names:
        if name in settings and not values[name].present:
            values[name].value = settings[name]
            values[name].present = 1


def find_task(name: str) -> Entry:
    """Return the `Entry` of a task, from its name or Python file."""
    if name is None:
        raise InputError(
            f"--task is missing: give one of {', '.join(TASKS)}, or a Python "
            "file with a task that you wrote"
        )
    if name.endswith(".py"):
        cls = load_task_class(name)
        return Entry(cls, cls.options)
    plain = _normalize(name)
    new = [n for old, n in _OLD_NAMES.items() if old.split()[0] == plain]
    if plain == "custom":
        new += ["spans", "tags", "choices"]
    if new:
        raise InputError(
            f"--task={name} is now --task={', '.join(dict.fromkeys(new))}"
        )
    if plain not in TASKS:
        raise InputError(
            f"There is no task {name!r}: expected one of {', '.join(TASKS)}, "
            "or a Python file with a task that you wrote"
        )
    return TASKS[plain]


def _normalize(name):
    """Return a task's name as `TASKS` spells it: "SST-2" is "sst2"."""
    return name.lower().replace("-", "").replace("_", "")


def find_task_file(task) -> dict:
    """Return {path: version} of the Python file of a user's own task, or {}.

    The version is `files.describe_version` at the import of the file.
    """
    name = type(task).__module__
    if not name.startswith(PREFIX):
        return {}
    module = sys.modules[name]
    return {os.path.abspath(module.__file__): module.file_version}


def load_task_class(path):
    """Return the one `Task` subclass that a Python file defines."""
    if not os.path.isfile(path):
        raise InputError(f"{path}: no such file")
    # Dataclasses look up their module in sys.modules. The prefix keeps the file
    # from replacing a module of the same name.
    name = f"{PREFIX}{os.path.basename(path)}"
    spec = importlib.util.spec_from_file_location(name, path)
    sys.modules[name] = module = importlib.util.module_from_spec(spec)
    module.file_version = files.describe_version(path)
    spec.loader.exec_module(module)
    classes = [
        value
        for value in vars(module).values()
        if inspect.isclass(value)
        and issubclass(value, Task)
        and value.__module__ == name
    ]
    if len(classes) != 1:
        raise InputError(
            f"{path}: expected one class that extends "
            f"official_tasks.tasks.base.Task, got {len(classes)}"
        )
    missing = sorted(classes[0].__abstractmethods__)
    if missing:
        raise InputError(
            f"{path}: the class {classes[0].__name__} lacks "
            f"{', '.join(missing)}: see Task in official_tasks/tasks/base.py"
        )
    return classes[0]


def convert(flag, value, kind):
    """Return an option's value; convert a string to the type `kind`.

    Raises:
        InputError: the value cannot be converted.
    """
    if not isinstance(value, str):
        return value
    if kind is bool:
        choices = {"true": True, "false": False}
        if value.lower() not in choices:
            raise InputError(f"{flag}={value}: expected true or false")
        return choices[value.lower()]
    try:
        return kind(value)
    except ValueError:
        raise InputError(f"{flag}={value}: expected {kind.__name__}") from None
