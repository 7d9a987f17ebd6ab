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
from official_tasks.tasks.file_task import FileTask
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
_ALL = {n: o for cls, _ in TASKS.values() for n, o in cls.options.items()}
OPTIONS = sorted(_ALL)
_DEFINE = {
    str: flags.DEFINE_string,
    type(None): flags.DEFINE_string,
    int: flags.DEFINE_integer,
    float: flags.DEFINE_float,
    bool: flags.DEFINE_bool,
}


def define_task_flags(default=None, more=None):
    """--task, and every option of every task; --help shows those of --task.

    Args:
        more: names that the script takes in addition to those of `TASKS` ->
            the options that act with them; under None, without --task.
    """
    more = {None: tuple(FileTask.options), **(more or {})}
    flags.DEFINE_string(
        "task",
        default,
        "What to learn: one of "
        f"{', '.join([*TASKS, *filter(None, more)])}, or a Python file with a "
        "task of your own. --task=NAME --help shows its options too.",
    )
    flags.DEFINE_multi_string(
        "option", [], "NAME=VALUE, for a task of your own; may be repeated."
    )
    for name in OPTIONS:
        owners = [cls for cls, _ in TASKS.values() if name in cls.options]
        option = owners[0].options[name]
        _DEFINE[_type_of(name, owners)](name, None, option.help)
    script.show_flags(lambda values: shown_options(values, more), *OPTIONS)
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


def _type_of(name, classes):
    """Return the type of an option, which is the same in all tasks."""
    types = {type(cls.options[name].default) for cls in classes}
    types = {str if kind is type(None) else kind for kind in types}
    if len(types) > 1:
        raise TypeError(f"--{name} has several types: {types}")
    return types.pop()


def shown_options(values, more) -> dict[str, str]:
    """Return the options that --help shows, and what it says of each.

    Args:
        values: absl's FLAGS.
        more: see `define_task_flags`.
    """
    task = values["task"].value if values["task"].present else None
    if task in more:
        options = {name: _ALL[name] for name in more[task]}
    elif task.endswith(".py"):
        options = FileTask.options
    else:
        options = find_task(_name_of(task, values))[0].options
    return {
        name: option.help
        if option.default is None
        else f"{option.help} Default: {option.default}."
        for name, option in options.items()
    }


def _name_of(task, values):
    """Return --task, or the task that it is with --problem."""
    problem = f"{task}{values['problem'].value}"
    return problem if problem in TASKS else task


def is_file(values):
    """Whether --task is a file, whose options have meanings of their own."""
    return bool(values.task) and values.task.endswith(".py")


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
    if (name := _name_of(task, values)) != task:
        task = name
        del given["problem"]
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
