"""A folder in every format that the package reads, and a fake Hub."""

import fnmatch
import pathlib
import shutil
import types
from unittest import mock

import huggingface_hub
import keras
import pytest

from tests.support.weight_samples import write_samples


@pytest.fixture(scope="session")
def samples(tmp_path_factory):
    """Dict of format -> path; a test must copy what it changes."""
    return write_samples(str(tmp_path_factory.mktemp("samples")))


@pytest.fixture
def no_memory(monkeypatch):
    """Fail a test that allocates a weight: its error must come earlier."""

    def allocated(*args, **arguments):
        raise AssertionError("a weight was allocated")

    for name in ("_initialize", "_initialize_with_initializer"):
        monkeypatch.setattr(keras.Variable, name, allocated)


class Hub:
    """A fake Hub with one model under any name except `org/none`.

    Attributes:
        folder: files of the model on the Hub.
        snapshot: downloaded files.
        calls: name, revision and patterns of each download.
        refusal: error that `create_repo` raises, or None.
        private: argument of the last `create_repo`, or None.
        branches: names of the branches that were made.
    """

    commit = "0123456"

    def __init__(self, folder):
        self.folder = folder / "hub"
        self.snapshot = folder / "snapshots" / self.commit
        self.calls, self.refusal, self.private = [], None, None
        self.branches = []

    def snapshot_download(self, name, *, revision, allow_patterns):
        self.calls.append((name, revision, allow_patterns))
        if not self.folder.is_dir() or name == "org/none":
            raise OSError(f"404: {name}\nmore lines")
        self.snapshot.mkdir(parents=True, exist_ok=True)
        for path in filter(pathlib.Path.is_file, self.folder.rglob("*")):
            name = path.relative_to(self.folder)
            if any(fnmatch.fnmatch(name, wanted) for wanted in allow_patterns):
                (self.snapshot / name).parent.mkdir(exist_ok=True)
                shutil.copyfile(path, self.snapshot / name)
        return str(self.snapshot)

    def list_repo_files(self, name, *, revision):
        return [path.name for path in self.folder.iterdir()]

    def create_repo(self, api, name, *, private, exist_ok):
        self.private = private
        if self.refusal:
            raise self.refusal

    def create_branch(self, api, name, *, branch, exist_ok):
        assert exist_ok
        self.branches.append(branch)

    def upload_folder(
        self, api, *, repo_id, folder_path, delete_patterns, **arguments
    ):
        for path in filter(pathlib.Path.is_file, self.folder.rglob("*")):
            name = path.relative_to(self.folder)
            if any(fnmatch.fnmatch(name, old) for old in delete_patterns):
                path.unlink()
        shutil.copytree(folder_path, self.folder, dirs_exist_ok=True)
        url = f"https://huggingface.co/{repo_id}/commit/{self.commit}"
        return types.SimpleNamespace(commit_url=url)


@pytest.fixture
def hub(monkeypatch, tmp_path):
    """A `Hub`; each call must match the signature in huggingface_hub."""
    hub = Hub(tmp_path)
    for owner, name in (
        (huggingface_hub, "snapshot_download"),
        (huggingface_hub, "list_repo_files"),
        (huggingface_hub.HfApi, "create_repo"),
        (huggingface_hub.HfApi, "create_branch"),
        (huggingface_hub.HfApi, "upload_folder"),
    ):
        function = mock.create_autospec(
            getattr(owner, name), side_effect=getattr(hub, name)
        )
        monkeypatch.setattr(owner, name, function)
    return hub
