"""Records what the package does, and compares a later state with it.

    python tests/frozen/frozen.py --check
    python tests/frozen/frozen.py --record --only=help,errors

frozen.json holds the record: ids, hashes of data and batches, logits of every
format, losses of every step, scores, answers, help texts, messages. It is made
again only where a change of behaviour is meant. --check prints each difference
in a line and exits with 1; --only names sections; --quick does the part that
the suite runs. Hashes of trained weights are kept for each model of
processor, all other numbers must agree to 1e-5 on any.

Takes about 6 minutes on two CPU cores, --quick less than one.
"""

import argparse
import json
import multiprocessing
import os
import pathlib
import sys
import tempfile
import time

# Sums in one order, lines of one width, no word from C++.
os.environ["TF_NUM_INTRAOP_THREADS"] = "1"
os.environ["TF_NUM_INTEROP_THREADS"] = "1"
os.environ["TF_CPP_MIN_LOG_LEVEL"] = "3"
os.environ["CUDA_VISIBLE_DEVICES"] = ""
os.environ["COLUMNS"] = "80"
os.environ["HF_HUB_OFFLINE"] = "1"
sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[2]))
sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1] / "fuzz"))
sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1] / "samples"))

import frozen_scripts
from frozen_compare import differences, lines_of, merged
from frozen_forks import processor

RECORD = pathlib.Path(__file__).with_suffix(".json")


def measured(section, quick):
    """A section's name, what it finds, and its seconds, also of the CPU."""
    start, used = time.monotonic(), _cpu_seconds()
    home = os.getcwd()
    with tempfile.TemporaryDirectory(prefix="frozen-") as folder:
        os.chdir(folder)
        try:
            found = frozen_scripts.SECTIONS[section](quick)
        except Exception as error:
            found = error
        finally:
            os.chdir(home)
    seconds = time.monotonic() - start
    return section, found, f"{seconds:.0f} s (CPU {_cpu_seconds() - used:.0f})"


def _cpu_seconds():
    times = os.times()
    return sum(times[:4])


def _measured(arguments):
    return measured(*arguments)


def all_measured(sections, quick, jobs):
    """Yields of `measured`, as many sections at a time as there are jobs."""
    tasks = [(section, quick) for section in sections]
    if jobs == 1:
        yield from map(_measured, tasks)
        return
    with multiprocessing.get_context("fork").Pool(jobs) as pool:
        yield from pool.imap_unordered(_measured, tasks, chunksize=1)


def main(words=None):
    """Returns the exit code."""
    options = _parser().parse_args(words)
    known = list(frozen_scripts.SECTIONS)
    sections = options.only.split(",") if options.only else known
    if options.quick:
        sections = [s for s in sections if s not in frozen_scripts.SLOW]
    if options.quick and options.record:
        print("--quick is a part of --check: record the whole.")
        return 2
    unknown = sorted(set(sections) - set(known))
    if unknown:
        print(f"There is no section {unknown[0]}: expected {', '.join(known)}.")
        return 2
    record = json.loads(RECORD.read_text()) if RECORD.exists() else {}
    count, failed = 0, False
    for section, found, seconds in all_measured(
        sections, options.quick, options.jobs
    ):
        if isinstance(found, Exception):
            count, failed = count + 1, True
            print(f"{section}: {seconds}, fails: {found}", flush=True)
            continue
        found = json.loads(json.dumps(found))
        before = record.get(section, {})
        lines = [*differences(before, found, options.quick, section)]
        count += len(lines)
        print(f"{section}: {seconds}, {len(lines)} differences", flush=True)
        for line in lines if options.check else ():
            print(f"  {line}", flush=True)
        if options.record:
            record[section] = merged(before, found)
            kept = {name: record[name] for name in known if name in record}
            RECORD.write_text(lines_of(kept) + "\n", encoding="utf-8")
    if options.check:
        print(f"{count} differences on {processor()}")
    return int(bool(count)) if options.check else int(failed)


def _parser():
    parser = argparse.ArgumentParser(
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    what = parser.add_mutually_exclusive_group(required=True)
    what.add_argument("--record", action="store_true")
    what.add_argument("--check", action="store_true")
    parser.add_argument("--only", help="sections, with commas between")
    parser.add_argument("--quick", action="store_true")
    parser.add_argument("--jobs", type=int, default=2, help="at a time")
    return parser


if __name__ == "__main__":
    sys.exit(main())
