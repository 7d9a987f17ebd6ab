"""Reads damaged and hostile weights and data by the thousand.

    python tests/fuzz/fuzz_loading.py --mutants=10000

In: nothing; a toy folder of every readable format of weights and of every
kind of pre-training data is made, and one file of it changed at random: bits,
stretches, cuts, JSON values; headers, indices and manifests that lie with a
checksum that holds; a pipe, a device or a link in the file's place. Out: how
many were refused with an error of this package and how many could be read,
for each format. Whatever else happens (another error, more than 20 seconds,
or memory beyond twice the file and what Python itself takes) ends the run,
exits with 1 and says which mutant it was; --seed=NUMBER --mutants=1 makes it
again. Should a reader crash or wait for ever, the bar has stopped at it.

10,000 mutants take about 7 minutes on two cores.
"""

from absl import flags

from official_tasks import script


def define_flags():
    flags.DEFINE_integer("mutants", 10_000, "How many.", lower_bound=1)
    flags.DEFINE_integer("seed", 0, "Number of the first one.")


def main(values):
    from fuzzing import Finding, fuzz

    from official_tasks import progress

    try:
        with progress.bar("Mutants", values.mutants) as update:
            tally = fuzz(
                values.mutants,
                values.seed,
                lambda tally: update(tally.total()),
            )
    except Finding as finding:
        progress.console.print(str(finding), style="red", markup=False)
        return 1
    for (name, outcome), count in sorted(tally.items()):
        progress.console.print(f"{name:24} {outcome:8} {count:6}")
    return 0


if __name__ == "__main__":
    script.start(main, define_flags)
