"""Options of scripts: each field of a dataclass is a flag.

    @dataclasses.dataclass(frozen=True, kw_only=True)
    class Options:
        model: str = option(help="Folder of the model.")  # must be set
        port: int = option(8501, "Port.", at_least=0, at_most=65535)
        conditions = (Condition(("port",), "without --model=-", has_model),)

The name, type, default, help and range of a flag, its group in `--help` and the
conditions under which it applies are all stated in this class.
"""

import copy
import dataclasses
import functools
import math
import os
import shlex
import types
import typing
from collections.abc import Callable, Collection
from typing import Any, NamedTuple

from absl import flags

from bert_keras import files
from bert_keras.errors import InputError
from bert_keras.training import DISTRIBUTIONS

# Values of --dtype in training: Keras policies. The default is float32, not
# "auto", so that the dtype does not depend on the processor.
DTYPES = ("auto", "float32", "mixed_bfloat16", "mixed_float16")
LARGEST_SEED = 2**32 - 1  # the largest seed that Keras and NumPy accept
LARGEST_BATCH = 2**20  # rows; the LAMB paper uses up to 65,536


class Option(NamedTuple):
    """A value that the user can set.

    Attributes:
        default: the default; MISSING if the option must be set.
        help: text in `--help`.
        choices: the valid values, if only these are valid.
        at_least: minimum of a number.
        more_than: number that a number must exceed.
        at_most: maximum of a number.
        below: number that a number must be below.
        group: title of its section in `--help`; "" for the first section.
        is_repeated: True if the flag may be given several times.
        kind: type of the value, or of the values of a list. The annotation of
            the field states it, and `is_list` too.
        is_list: True if the value is a list.
    """

    default: Any
    help: str
    choices: Collection[str] = ()
    at_least: float | None = None
    more_than: float | None = None
    at_most: float | None = None
    below: float | None = None
    group: str = ""
    is_repeated: bool = False
    kind: type = str
    is_list: bool = False

    @property
    def expected(self) -> str:
        """The valid numbers in words, or ""."""
        least, greatest = self.at_least, self.at_most
        text = "a whole number" if self.kind is int else "a number"
        if self.more_than is not None:
            text += f" above {self.more_than}"
            if greatest is not None:
                text += f" and at most {greatest}"
            return text
        if least is None:
            return ""
        if greatest is not None:
            return f"{text} from {least} to {greatest}"
        if self.below is not None:
            return f"{text} from {least} to below {self.below}"
        return f"{text}, {least} or more"

    def fits(self, value) -> bool:
        """Return True if a number is valid; None always is."""
        if value is None:
            return True
        return (
            math.isfinite(value)
            and (self.kind is not int or value % 1 == 0)
            and (self.at_least is None or value >= self.at_least)
            and (self.more_than is None or value > self.more_than)
            and (self.at_most is None or value <= self.at_most)
            and (self.below is None or value < self.below)
        )


class Condition(NamedTuple):
    """A condition without which flags have no effect, and are refused.

    A flag that has its default value is not refused.

    Attributes:
        names: names of the flags.
        to: words after "only applies" in the message, such as "with --packed".
        acts: function of the flags' values that returns True if the flags have
            an effect.
    """

    names: Collection[str]
    to: str
    acts: Callable[[Any], Any]


def option(default=dataclasses.MISSING, help="", **more):
    """Return a dataclass field; the arguments are those of `Option`."""
    metadata = {"option": Option(default, help, **more)}
    return dataclasses.field(default=default, metadata=metadata)


def define_overwrite():
    """Return the field `overwrite`."""
    return option(False, "Replace an existing --output.")


def define_seed(help):
    """Return the field `seed`, 0 by default."""
    return option(0, help, at_least=0, at_most=LARGEST_SEED)


def define_workers():
    """Return the field `workers`."""
    return option(os.cpu_count(), "Number of processes.", at_least=1)


def define_dtype(**more):
    """Return the field `dtype`, the dtype policy of a training."""
    return option(
        "float32",
        "Keras dtype policy of the computation. auto means mixed_bfloat16 if "
        "the processor, GPU or TPU is fast in bfloat16, else float32.",
        choices=DTYPES,
        **more,
    )


@dataclasses.dataclass(frozen=True, kw_only=True)
class DeviceOptions:
    """Options of a training that choose its devices; see `make_strategy`."""

    distribution: str = option(
        "off",
        "Devices to train on; see docs/devices.md.",
        choices=DISTRIBUTIONS,
        group="devices",
    )
    tpu: str = option(
        "local", "local, or a TPU's name or address.", group="devices"
    )
    conditions = (
        Condition(
            ("tpu",),
            "with --distribution=tpu",
            lambda v: v.distribution == "tpu",
        ),
    )


@dataclasses.dataclass(frozen=True, kw_only=True)
class StepOptions:
    """Options of a training that may change when its run resumes.

    They affect at most rounding and dropout masks, but not a step's examples.
    """

    accumulation: int = option(
        1,
        "Number of micro-batches into which each device splits its part of a "
        "batch, to save memory.",
        at_least=1,
        group="devices",
    )
    steps_per_execution: int = option(
        1,
        "Number of steps that Python starts in one call.",
        at_least=1,
        group="devices",
    )
    save_every: int = option(
        1000, "Steps between checkpoints, from which a run resumes.", at_least=1
    )


@dataclasses.dataclass(frozen=True, kw_only=True)
class CorpusOptions:
    """Options of a tool that reads text."""

    input: str = option(help="Text to read.")
    text_field: str = option(
        "text", "Field of the text in JSONL, Parquet or data sets."
    )
    lowercase: bool | None = option(
        None,
        "Lower-case the text. The default is the vocabulary's setting. If the "
        "vocabulary has none, text is lower-cased.",
    )
    strip_accents: bool | None = option(
        None,
        "Strip accents. The default is the vocabulary's setting. If the "
        "vocabulary has none, the default is the value of --lowercase. "
        "In train_vocabulary, the default depends on the text.",
    )


def load_tokenizer(values):
    """Return the `WordPieceTokenizer` that --vocabulary names.

    --vocabulary is a file, a model folder or the name of weights. --lowercase
    must not contradict the vocabulary's settings. --strip_accents overrides the
    setting of a folder or of weights, but must equal a setting stored next to a
    vocabulary file.
    """
    from bert_keras import WordPieceTokenizer

    source, names = values.vocabulary, ("lowercase", "strip_accents")
    chosen = {name: getattr(values, name) for name in names}
    if files.is_file(source) or source.endswith(".txt"):
        return WordPieceTokenizer(source, **chosen)
    chosen = {k: v for k, v in chosen.items() if v is not None}
    return WordPieceTokenizer.from_preset(
        source, keep_special_tokens=False, **chosen
    )


@dataclasses.dataclass(frozen=True, kw_only=True)
class NoOptions:
    """The options of a script without flags."""


@functools.cache
def list_options(cls) -> dict[str, Option]:
    """Return a dict: name of a field of the dataclass -> `Option`."""
    hints = typing.get_type_hints(cls)
    options = {}
    for field in dataclasses.fields(cls):
        kind, is_list = _read_hint(hints[field.name])
        plain = Option(field.default, "")  # a field without `option`
        options[field.name] = field.metadata.get("option", plain)._replace(
            kind=kind, is_list=is_list
        )
    return options


def _read_hint(hint):
    """Return the type of a value, and True if the field has several."""
    if typing.get_origin(hint) in (types.UnionType, typing.Union):
        hint = typing.get_args(hint)[0]  # `int | None` -> int
    if typing.get_origin(hint) is tuple:
        return typing.get_args(hint)[0], True
    return hint, False


def list_defaults(cls) -> dict:
    """Return a dict: name of a field of the dataclass -> its default."""
    return {name: o.default for name, o in list_options(cls).items()}


def list_changes(options) -> dict:
    """Return a dict of the fields whose values are not the defaults."""
    defaults = list_defaults(type(options))
    values = dataclasses.asdict(options)
    return {k: v for k, v in values.items() if v != defaults[k]}


def define_flags(cls, values=flags.FLAGS):
    """Define a flag in absl's `values` for each field of a dataclass."""
    for name, option in list_options(cls).items():
        _define_flag(name, option, values)


def _define_flag(name, option, values):
    default = option.default
    if default is dataclasses.MISSING:
        default = None  # `check_conditions` refuses it
    if option.is_list and default is not None:
        default = list(map(str, default))
    if option.choices:
        flags.DEFINE_enum(
            name, default, list(option.choices), option.help, values
        )
    else:
        define = {
            bool: flags.DEFINE_bool,
            int: flags.DEFINE_integer,
            float: flags.DEFINE_float,
            str: flags.DEFINE_string,
        }[option.kind]
        if option.is_list:
            define = flags.DEFINE_list
        if option.is_repeated:
            define = flags.DEFINE_multi_string
        define(name, default, option.help, flag_values=values)
    if option.expected:
        # `--help` prints this text. absl shares parsers between flags.
        values[name].parser = copy.copy(values[name].parser)
        values[name].parser.syntactic_help = option.expected
        flags.register_validator(
            name, option.fits, f"expected {option.expected}", values
        )


def read(cls, values):
    """Return an instance of the dataclass with the values of its flags.

    Raises:
        InputError: a list of numbers has something else.
    """
    chosen = {}
    for name, option in list_options(cls).items():
        value = values[name].value
        if option.is_list and value is not None:
            try:
                value = tuple(map(option.kind, value))
            except ValueError:
                raise InputError(
                    f"--{name}={','.join(value)}: expected numbers, separated "
                    "by commas."
                ) from None
        chosen[name] = value
    return cls(**chosen)


def check(options):
    """Raise InputError if a value is not one of the choices, or out of range.

    For options that come from Python; the flags check themselves.
    """
    for name, option in list_options(type(options)).items():
        value = getattr(options, name)
        if value is None and option.default is None:
            continue
        if option.choices and value not in option.choices:
            raise InputError(
                f"`{name}` is {value!r}; expected one of "
                f"{', '.join(option.choices)}."
            )
        if option.expected and not option.fits(value):
            raise InputError(
                f"`{name}` is {value}; expected {option.expected}."
            )


def check_conditions(cls, values):
    """Raise InputError if a flag is missing, or changed without an effect.

    See `Condition`.
    """
    for name, option in list_options(cls).items():
        if option.default is dataclasses.MISSING and values[name].value is None:
            raise InputError(f"--{name} is missing (see --help)")
    conditions = [
        condition
        for base in reversed(cls.__mro__)
        for condition in vars(base).get("conditions", ())
    ]
    for names, to, acts in conditions:
        changed = [n for n in names if values[n].value != values[n].default]
        if changed and not acts(values):
            listed = ", ".join(
                f"--no{n}" if values[n].value is False else f"--{n}"
                for n in changed
            )
            verb = "applies" if len(changed) == 1 else "apply"
            raise InputError(f"{listed} only {verb} {to}. Leave {listed} out.")


def list_flags(cls, values=flags.FLAGS) -> dict:
    """Return a dict: title of a group -> its flags, which `--help` prints.

    A class may have a function `select`: of the flags' values, it returns a
    dict: name of a field -> help, or None for a field that is not shown.
    """
    selected = cls.select(values) if hasattr(cls, "select") else {}
    groups: dict[str, dict] = {"": {}}
    for name, option in list_options(cls).items():
        flag = values[name]
        flag.help = selected.get(name, flag.help)
        if flag.help is not None:
            groups.setdefault(option.group, {})[name] = flag
    return {title: named for title, named in groups.items() if named}


def split_words(name, text) -> list[str]:
    """Return the words of the flag `name`, whose value is quoted as in a shell.

    Raises:
        InputError: a quotation mark is missing.
    """
    try:
        return shlex.split(text)
    except ValueError as error:
        raise InputError(f"--{name}={text}: {error}") from None
