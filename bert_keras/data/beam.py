"""Run tasks on many machines with Apache Beam."""

from collections.abc import Callable

from bert_keras.errors import InputError, install_command


def make_runner(flags: list[str] | tuple[str, ...] = ()) -> Callable:
    """Return a function of a picklable task and a list of items.

    It calls the task for each item on the workers of a Beam runner, and returns
    an empty tuple. The workers write their results to files in a folder that
    all machines share; see `create_from_files`.

    Args:
        flags: pipeline options of Beam, such as `--runner=FlinkRunner`.

    Raises:
        InputError: Apache Beam is not installed.
    """
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
