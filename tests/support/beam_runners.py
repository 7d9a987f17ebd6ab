"""Flags of the Beam runners that tests use."""

import contextlib
import os

import pytest

# Without this location, Beam would download its runner Prism.
DIRECT = "--runner=DirectRunner --prism_location=none"
# By default, a Dask task gets at least 128 items, so one task would get all.
_DASK = (
    "--runner=apache_beam.runners.dask.dask_runner.DaskRunner "
    "--dask_partition_size=1 --dask_client_address="
)


@contextlib.contextmanager
def dask_workers():
    """Start two workers of Dask; yield Beam's flags and their process ids."""
    dask = pytest.importorskip(
        "distributed", reason="needs pip install 'bert_keras[dask]'"
    )
    with dask.LocalCluster(
        n_workers=2, threads_per_worker=1, dashboard_address=None
    ) as cluster:
        pids = list(dask.Client(cluster).run(os.getpid).values())
        yield _DASK + cluster.scheduler_address, pids
        # Beam leaves clients open. Without any, `default_client` raises.
        with contextlib.suppress(ValueError):
            for _ in range(10):
                dask.default_client().close()
