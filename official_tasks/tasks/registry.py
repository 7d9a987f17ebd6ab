"""Every task by its name, and a task from a file, made from flags."""

import importlib.util
import inspect
import os
import sys

from absl import flags

from bert_keras.errors import InputError
from official_tasks import script
from official_tasks.tasks import glue, multiple_choice, squad, tagging
from official_tasks.tasks.base import Task
from official_tasks.tasks.custom import (
    CustomChoices,
    CustomSpans,
    CustomTags,
    CustomTask,
)
from official_tasks.tasks.glue import GlueTask
from official_tasks.tasks.multiple_choice import ChoiceTask
from official_tasks.tasks.retrieval import EmbeddingTask, RankingTask
from official_tasks.tasks.squad import SquadTask
from official_tasks.tasks.tagging import NerTask


def _of_rows(cls, rows):
    return {row.name: (cls, {"row": row}) for row in rows}


# Name -> the class, and the arguments that make it this task.
TASKS = {
    **_of_rows(GlueTask, glue.ROWS),
    "custom": (CustomTask, {}),
    # The same as --task=custom --problem=spans.
    "customspans": (CustomSpans, {}),
    "customtags": (CustomTags, {}),
    "customchoices": (CustomChoices, {}),
    "embedding": (EmbeddingTask, {}),
    "ranking": (RankingTask, {}),
    **_of_rows(SquadTask, squad.ROWS),
    **_of_rows(ChoiceTask, multiple_choice.ROWS),
    **_of_rows(NerTask, tagging.ROWS),
}
# Title in --help -> the classes whose options stand under it; options of more
# classes are common.
FAMILIES = {
    "--task=custom": (CustomTask, CustomSpans, CustomTags, CustomChoices),
    "--task=embedding, ranking": (EmbeddingTask, RankingTask),
    "--task=squad1, squad2, triviaqa": (SquadTask,),
    "--task=ner, conll2003, wnut17, wikiann": (NerTask,),
}
OPTIONS = sorted({name for cls, _ in TASKS.values() for name in cls.options})
_DEFINE = {
    str: flags.DEFINE_string,
    type(None): flags.DEFINE_string,
    int: flags.DEFINE_integer,
    float: flags.DEFINE_float,
    bool: flags.DEFINE_bool,
}


def define_task_flags(default=None, more=()):
    """--task, and every option of every task, whose help says whose it is.

    Args:
        more: names that the script takes in addition to those of `TASKS`.
    """
    flags.DEFINE_string(
        "task",
        default,
        f"What to learn: one of {', '.join([*TASKS, *more])}, or a Python file "
        "with a task of your own.",
    )
    flags.DEFINE_multi_string(
        "option", [], "NAME=VALUE, for a task of your own; may be repeated."
    )
    owners: dict = {}
    for name, (cls, _) in TASKS.items():
        for option in cls.options:
            owners.setdefault(option, []).append(name)
    for option, names in owners.items():
        default = _default_of(option, names)
        _DEFINE[type(default)](option, None, _format_help(option, names))
        classes = {TASKS[name][0] for name in names}
        if classes <= {one for family in FAMILIES.values() for one in family}:
            for title, family in FAMILIES.items():
                if classes & set(family):
                    script.group_flags(title, option)
    script.applies_only(
        "with --problem=multi",
        lambda v: v.problem == "multi" or is_file(v),
        "label_separator",
    )
    script.applies_only(
        "without --dev, to what is then held out",
        lambda v: v.dev is None or is_file(v),
        "split_seed",
    )
    script.applies_only(
        "with --predictions of evaluate",
        lambda v: ("predictions" in v and v.predictions) or is_file(v),
        "null_odds",
    )


def _default_of(option, names):
    """Return one task's default; all have the same type, or None (a text)."""
    defaults = [TASKS[name][0].options[option].default for name in names]
    types = {str if d is None else type(d) for d in defaults}
    if len(types) > 1:
        raise TypeError(f"--{option} has several types: {types}")
    return defaults[0]


def is_file(values):
    """Whether --task is a file, whose options have meanings of their own."""
    return bool(values.task) and values.task.endswith(".py")


def _format_help(option, names):
    """What an option means, with the tasks of each of its meanings."""
    meanings: dict = {}
    for name in names:
        default, text = TASKS[name][0].options[option]
        if default is not None:
            text += f" Default: {default}."
        meanings.setdefault(text, []).append(name)
    return " ".join(
        f"{text} Tasks: {'all' if len(of) == len(TASKS) else ', '.join(of)}."
        for text, of in meanings.items()
    )


def task_from_flags(values, task=None):
    """The task that the flags name, and the options that were given for it.

    Args:
        values: absl's FLAGS.
        task: a name in place of --task.

    Returns:
        `(task, settings)`; settings is what differs from other runs, JSON.
    """
    given = {n: values[n].value for n in OPTIONS if values[n].present}
    task = task or values.task
    if task == "custom" and f"custom{given.get('problem')}" in TASKS:
        task += given.pop("problem")
    cls, fixed = find_task(task)
    for text in values.option:
        name, separator, value = text.partition("=")
        if not separator:
            raise InputError(f"--option={text}: expected NAME=VALUE")
        given[name] = value
    unknown = sorted(given.keys() - cls.options.keys())
    if unknown:
        raise InputError(
            f"--{unknown[0]} does nothing for the task {task}: its options "
            f"are {', '.join(cls.options) or 'none'}"
        )
    options = {
        name: converted(f"--{name}", value, cls.options[name].default)
        for name, value in given.items()
    }
    return cls(**fixed, **options), options


def find_task(name: str):
    """The class of a task, and its fixed arguments, by name or file."""
    if name is None:
        raise InputError(
            f"--task is missing: give one of {', '.join(TASKS)}, or a Python "
            "file with a task of your own"
        )
    if name.endswith(".py"):
        return task_class(name), {}
    plain = name.lower().replace("-", "").replace("_", "")
    if plain not in TASKS:
        raise InputError(
            f"There is no task {name!r}: expected one of {', '.join(TASKS)}, "
            "or a Python file with a task of your own"
        )
    return TASKS[plain]


def task_class(path):
    """The one `Task` subclass that a Python file defines."""
    if not os.path.isfile(path):
        raise InputError(f"{path}: no such file")
    # Dataclasses look their module up; no name of an installed one is hidden.
    name = f"task_in_{os.path.basename(path)}"
    spec = importlib.util.spec_from_file_location(name, path)
    sys.modules[name] = module = importlib.util.module_from_spec(spec)
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
    if missing:  # said now, and not after training
        raise InputError(
            f"{path}: the class {classes[0].__name__} lacks "
            f"{', '.join(missing)}: see official_tasks/tasks/base.py"
        )
    return classes[0]


def converted(flag, value, default):
    """A value of an option in the type of the option's default.

    Raises:
        InputError: it is none of that type.
    """
    if not isinstance(value, str) or default is None:
        return value
    if isinstance(default, bool):
        choices = {"true": True, "false": False}
        if value.lower() not in choices:
            raise InputError(f"{flag}={value}: expected true or false")
        return choices[value.lower()]
    try:
        return type(default)(value)
    except ValueError:
        raise InputError(
            f"{flag}={value}: expected {type(default).__name__}"
        ) from None
