"""Read rows of TensorFlow Datasets, which is imported at the first use.

The folder of the data is that of TFDS: `TFDS_DATA_DIR`, or
`~/tensorflow_datasets`.
"""

import json
import logging
import os
import urllib.error
import urllib.request

from bert_keras.errors import InputError, get_first_line

logger = logging.getLogger(__name__)

_PROBE = "https://storage.googleapis.com/tfds-data"
_PROBE_SECONDS = 10


def open_tfds(name: str, find_split):
    """Return the features of a data set, as a dict, and its `Rows`.

    Rows come in the order of the data set's files, not shuffled. A row is a
    dict of Python values: text is str, an array is a list.

    Args:
        name: `NAME[/CONFIG][:VERSION]`, or a folder that TFDS prepared.
        find_split: function of the names of the splits; it returns the split,
            or a part of it such as "train[:10%]".

    Raises:
        InputError: TFDS has no such data set or split, or cannot prepare it.
    """
    import tensorflow_datasets as tfds

    builder = _find_builder(tfds, name)
    _prepare(builder, name)
    split = find_split(list(builder.info.splits))
    try:
        _ = builder.info.splits[split]  # which may be a part of a split
    except (ValueError, AssertionError) as error:
        raise InputError(
            f"tfds:{name} has no split {split!r}: {get_first_line(error)} It "
            f"has {', '.join(builder.info.splits)}"
        ) from error
    return dict(builder.info.features.items()), Rows(builder, split)


class Rows:
    """The rows of a data set, dicts of Python values.

    Args:
        builder: TFDS's builder.
        split: the split, or a part of it.
        columns: names of the columns to decode; None for all.
    """

    def __init__(self, builder, split, columns=None):
        self._builder, self._split, self._columns = builder, split, columns

    def select_columns(self, names):
        """Return the rows without the other columns, such as images."""
        return Rows(self._builder, self._split, names)

    def __iter__(self):
        import tensorflow as tf
        import tensorflow_datasets as tfds

        decoders = None
        kind = type(self._builder.info.features)
        # TFDS cannot take columns out of features of another class.
        if self._columns and kind is tfds.features.FeaturesDict:
            names = dict.fromkeys(self._columns, True)
            decoders = tfds.decode.PartialDecoding(names)
        data = self._builder.as_dataset(
            split=self._split,
            shuffle_files=False,
            decoders=decoders,
            # One file after the other, and no copy of the data in memory.
            read_config=tfds.ReadConfig(
                interleave_cycle_length=1, try_autocache=False
            ),
        )
        try:
            yield from map(_to_python, tfds.as_numpy(data))
        except tf.errors.OpError as error:  # such as a damaged file
            raise OSError(error.message) from error


def _find_builder(tfds, name):
    from google.protobuf import json_format

    try:
        if os.path.isdir(name):
            return tfds.builder_from_directory(name)
        return tfds.builder(name)
    except (json.JSONDecodeError, json_format.ParseError) as error:
        raise InputError(
            f"tfds:{name}: a JSON file in its folder is damaged: "
            f"{get_first_line(error)} Remove the folder, and prepare it again"
        ) from error
    # A missing version is an AssertionError, a folder without data an OSError.
    except (ValueError, AssertionError, OSError, ImportError) as error:
        raise InputError(
            f"tfds:{name}: TensorFlow Datasets has no such data set: "
            f"{get_first_line(error)} Expected tfds:NAME[/CONFIG][:VERSION]"
            "[#SPLIT], such as tfds:glue/mrpc#train"
        ) from error


def _prepare(builder, name):
    """Download and prepare a data set, unless its folder has it."""
    path = os.fspath(builder.data_path)
    if os.path.isdir(path) and builder.is_prepared():
        return
    try:
        if builder.url_infos:  # a builder of the user may need no network
            _check_network()
        size = builder.info.download_size
        size = f"{size} " if size else ""
        logger.warning("tfds:%s: downloading %sto %s", name, size, path)
        builder.download_and_prepare()
    # A data set that needs files from the user raises an AssertionError.
    except (OSError, ValueError, RuntimeError, AssertionError) as error:
        raise InputError(
            f"tfds:{name} is not in {path} and cannot be downloaded: "
            f"{get_first_line(error)}. Give a folder or files, a data set of "
            "the Hugging Face Hub (hf:NAME), or a TFDS_DATA_DIR that has it"
        ) from error


def _check_network():
    """Raise OSError without a network; TFDS would try for minutes."""
    try:
        urllib.request.urlopen(_PROBE, timeout=_PROBE_SECONDS).close()
    except urllib.error.HTTPError:
        return  # any answer will do
    except OSError as error:
        raise OSError("there is no network") from error


def _to_python(value):
    """Return a value of `tfds.as_numpy` as Python values."""
    if isinstance(value, bytes):
        return value.decode("utf-8")
    if isinstance(value, dict):
        return {key: _to_python(part) for key, part in value.items()}
    if hasattr(value, "to_list"):  # a tf.RaggedTensor
        return _to_python(value.to_list())
    if isinstance(value, list):
        return [_to_python(part) for part in value]
    return _to_python(value.tolist()) if hasattr(value, "tolist") else value
