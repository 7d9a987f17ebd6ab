"""Create pre-training data on many machines with Apache Beam.

The files have the same bytes as those of `create_pretraining_data`. The workers
write their files to a folder that all machines share.
"""

import contextlib
import dataclasses
import os

from bert_keras import files, json_files
from bert_keras.data import building, corpus
from bert_keras.data.data_sets import is_data_set
from bert_keras.data.pretraining_data import finish_data, one_writer
from bert_keras.data.sampling import SamplingRules
from bert_keras.data.token_store import TokenStore
from bert_keras.errors import InputError, install_command
from bert_keras.manifest import unfinished_build

PARTS = ".parts"  # folder for tokens, with one file for each input file


def create_pretraining_data_with_beam(
    source: str,
    tokenizer,
    folder: str,
    rules: SamplingRules | None = None,
    seed: int = 0,
    copies: int = 1,
    held_out_share: float = 0.05,
    sentences: str = "split",
    layout: str = "auto",
    text_field: str = "text",
    beam_flags: list[str] | tuple[str, ...] = (),
    records: bool = False,
) -> dict[str, dict]:
    """Run `create_pretraining_data` on the workers of an Apache Beam runner.

    A task tokenises one input file or writes one shard, so a corpus of many
    files uses many workers. This process assembles the stores, and tokenises
    data sets and `documentation:` by itself. After an interruption,
    a second call makes only the missing token files and shards.

    For `source`, `layout` and `text_field`, see `read_documents`. `beam_flags`
    are pipeline options of Beam, such as `--runner=FlinkRunner`. The other
    arguments and the result are those of `create_pretraining_data`. `folder`
    and the input files must have the same paths on every machine.
    """
    run = _make_runner(beam_flags)
    tokens = os.path.join(folder, "tokens")
    parts = os.path.join(tokens, PARTS)
    with one_writer(folder, copies), _remove_after_error(parts):
        if source == corpus.DOCUMENTATION or is_data_set(source):
            reading = layout, text_field, sentences == "split"
            documents = corpus.read_documents(source, *reading)
            stores = building.build_stores(
                documents, tokenizer, tokens, held_out_share, sentences
            )
        else:
            tokenise = building.Tokenise(tokenizer, sentences)
            settings = building.describe_build(
                tokenizer, sentences, held_out_share
            )
            task = TokeniseFile(tokenise, layout, text_field, settings)
            stores = _build_stores(source, tokenizer, tokens, task, run)
        manifests = finish_data(
            stores, folder, rules, seed, copies, records, run
        )
    files.remove(parts)
    return manifests


@contextlib.contextmanager
def _remove_after_error(folder):
    """Remove a folder after `InputError`, if the `with` block made it."""
    is_new = not files.is_folder(folder)
    try:
        yield
    except InputError:
        if is_new:
            files.remove(folder)
        raise


def _make_runner(flags):
    try:
        import apache_beam as beam
        from apache_beam.options.pipeline_options import PipelineOptions
    except ImportError as error:
        raise InputError(
            f"Apache Beam is not installed: {install_command('beam')}."
        ) from error

    def run(task, items):
        if items:
            options = PipelineOptions(list(flags))
            with beam.Pipeline(options=options) as pipeline:
                (
                    pipeline
                    | beam.Create(items)
                    | beam.Reshuffle()  # spread the items over workers
                    | beam.Map(task)
                )
        return ()

    return run


@dataclasses.dataclass(frozen=True)
class TokeniseFile:
    """Task that tokenises an input file and writes the tokens to a file.

    Args:
        tokenise: the `Tokenise` function.
        layout, text_field: see `read_documents`.
        settings: from `describe_build`. If its "sentence_rule" is "lines",
            lines are not joined.
    """

    tokenise: building.Tokenise
    layout: str
    text_field: str
    settings: dict

    @property
    def names(self) -> list[str]:
        return building.side_names(self.settings["held_out_share"])

    def __call__(self, pair: tuple[str, str]):
        path, target = pair
        documents = corpus.read_file(
            *(path, path, "", self.layout, self.text_field),
            join_lines=self.settings["sentence_rule"] == "split",
        )
        fraction = self.settings["held_out_share"]
        parts = building.iterate_parts(documents, fraction, self.names)
        building.write_tokens(target, parts, self.tokenise, self.names)
        return target


def _build_stores(
    source: str, tokenizer, folder: str, task: TokeniseFile, run
) -> dict[str, TokenStore]:
    building.find_finished(folder, task.names, task.settings)
    _, paths = corpus.find_files(source)
    # One changed file changes the key, so all parts are made again.
    versions = list(map(files.describe_version, paths))
    key = json_files.json_hash(
        [task.settings, task.layout, task.text_field, paths, versions]
    )[:16]
    parts = os.path.join(folder, PARTS, key)
    targets = [
        os.path.join(parts, f"part-{number:06d}.npz")
        for number in range(len(paths))
    ]
    done = set(files.list_folder(parts))
    pairs = zip(paths, targets, strict=True)
    todo = [pair for pair in pairs if os.path.basename(pair[1]) not in done]
    work = building.work_folder(folder)
    record = task.settings | {"stores": task.names}
    with (
        unfinished_build(folder, record, work),
        _remove_after_error(os.path.join(folder, PARTS)),
    ):
        run(task, todo)
        stores = building.assemble_stores(
            targets, task.names, work, tokenizer, task.settings
        )
        return building.move_stores(stores, work, folder)
