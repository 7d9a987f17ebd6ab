"""Pre-training on toy data on some devices, for test_pretrain_devices.py.

    python -m tests.support.pretrain_on_devices DEVICES DATA OUTPUT STOP

DEVICES has the format of train_on_devices.py. At step STOP, unless it is 0, the
process sends itself SIGTERM. If OUTPUT is `rows`, the process does not train:
it compares the rows of all replicas with the whole batch, in five steps.
"""

import os
import signal
import sys

import numpy as np

from bert_keras.training.strategy import make_strategy
from official_tasks import pretrain
from official_tasks.engine import training
from official_tasks.pretraining.objectives import OBJECTIVES
from official_tasks.pretraining.settings import Settings, phases
from official_tasks.pretraining.source import PretrainingSource
from tests.support.toy_pretraining import SMALLEST
from tests.support.train_on_devices import use_cpus


def compare_rows(data, strategy):
    settings = Settings(**SMALLEST)
    source = PretrainingSource(data, settings, OBJECTIVES["mlm+nsp"])
    (phase, _) = phases(settings)
    whole = iter(source.batches(phase, 3))
    distribute = strategy.distributed.experimental_distribute_dataset
    shared = iter(distribute(strategy.batches(source.batches(phase, 3))))
    for _ in range(5):
        parts = strategy.distributed.experimental_local_results(next(shared))
        assert len(parts) == strategy.num_replicas
        rows = np.concatenate([x["token_ids"] for x, _, _ in parts])
        np.testing.assert_array_equal(rows, next(whole)[0]["token_ids"])


def stop_at(step):
    """Patch `Meter` to send SIGTERM at the end of `step`, before the save."""
    move = training.Meter.on_train_batch_end

    def moved(self, batch, logs=None):
        if self._first + batch + 1 == step:
            os.kill(os.getpid(), signal.SIGTERM)
        move(self, batch, logs)

    training.Meter.on_train_batch_end = moved


def main(devices, data, output, stop):
    worker, _, number = devices.rpartition("/")
    use_cpus(int(number), worker)
    name = (
        "multi_worker" if worker else "mirrored" if int(number) > 1 else "off"
    )
    if output == "rows":
        compare_rows(data, make_strategy(name))
        return
    if int(stop):
        stop_at(int(stop))
    settings = {**SMALLEST, "dropout": 0.0, "save_every": 3}
    pretrain.run(data, output, distribution=name, **settings)


if __name__ == "__main__":
    main(*sys.argv[1:])
