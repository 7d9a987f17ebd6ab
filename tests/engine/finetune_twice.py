"""Fine-tunes twice as one of several workers; for test_finetuning.py.

    python finetune_twice.py PLACE

PLACE has train.csv, dev.csv and the weights init/; the runs are a/ and b/.
"""

import sys

from official_tasks.engine import finetuning
from official_tasks.tasks.custom import CustomTask


def main(place):
    task = CustomTask(f"{place}/train.csv", f"{place}/dev.csv")
    for name in ("a", "b"):
        finetuning.run(
            task,
            f"{place}/init",
            f"{place}/{name}",
            epochs=0.2,
            batch_size=8,
            distribution="multi_worker",
        )


if __name__ == "__main__":
    main(*sys.argv[1:])
