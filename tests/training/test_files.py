"""Atomic writes of local and remote files and folders, and folder locks."""

import contextlib
import errno
import hashlib
import itertools
import os
import time
import uuid

import pytest

from bert_keras import files, folder_lock, json_files, manifest
from bert_keras.errors import InputError
from bert_keras.folder_lock import FolderLock
from bert_keras.run_folder import RunFolder
from bert_keras.training.state import TrainingState
from official_tasks.outputs import refuse_input_as_output
from tests.support.remote_folder import DOWN, Killed, object_store

pytestmark = pytest.mark.fast


@pytest.fixture
def remote(monkeypatch):
    """Path of a remote folder on a file system without rename."""
    with object_store(monkeypatch):
        yield f"ram://{uuid.uuid4().hex}/folder"


@pytest.fixture(params=["local", "remote"])
def folder(request, tmp_path):
    if request.param == "local":
        return str(tmp_path / "folder")
    return request.getfixturevalue("remote")


def put(path, content):
    with files.atomic_output(path) as partial, open(partial, "wb") as file:
        file.write(content)


def put_folder(path, contents):
    with files.atomic_output(path) as partial:
        for name, content in contents.items():
            inner = os.path.join(partial, name)
            os.makedirs(os.path.dirname(inner), exist_ok=True)
            with open(inner, "wb") as file:
                file.write(content)


def get_folder(path):
    return {
        os.path.relpath(name, path): files.open_file(name).read()
        for name in files.walk(path)
    }


def test_a_file_is_written_read_listed_and_removed(folder):
    path = os.path.join(folder, "a.txt")
    assert not files.exists(path) and files.list_folder(folder) == []
    for content in (b"first, and longer", "zwölf\nlines".encode()):
        put(path, content)
        assert files.open_file(path).read() == content
    assert files.is_file(path) and not files.is_folder(path)
    assert files.is_folder(folder) and not files.is_file(folder)
    assert files.size(path) == 12
    assert list(files.open_file(path, "r")) == ["zwölf\n", "lines"]
    with files.open_file(path) as file:
        file.seek(7)
        assert file.read(3) == b"lin" and file.tell() == 10
    put(os.path.join(folder, "b.json"), b'{"x": [1]}')
    assert files.list_folder(folder) == ["a.txt", "b.json"]
    assert files.find(os.path.join(folder, "*.json")) == [f"{folder}/b.json"]
    assert json_files.read_json(f"{folder}/b.json") == {"x": [1]}
    expected = hashlib.sha256(b'{"x": [1]}').hexdigest()
    assert files.sha256(f"{folder}/b.json") == expected
    files.remove(path)
    files.remove(path)
    assert files.list_folder(folder) == ["b.json"]


def test_a_folder_replaces_another_folder(folder):
    old = {"manifest.json": b"1", "x/a.bin": b"2"}
    put_folder(folder, old)
    assert get_folder(folder) == old
    new = {"manifest.json": b"3", "b.bin": b"4"}
    put_folder(folder, new)
    assert get_folder(folder) == new
    files.remove(folder)
    assert not files.exists(folder)


def test_of_two_writers_of_a_new_output_the_first_wins(folder):
    for path, write in ((folder, put_folder), (f"{folder}.bin", put)):
        content = {"a": b"1"} if write is put_folder else b"1"
        with (
            pytest.raises(InputError, match="Another command wrote"),
            files.atomic_output(path, overwrite=False) as partial,
        ):
            if write is put_folder:
                os.mkdir(partial)
            else:
                open(partial, "wb").close()
            write(path, content)
        found = get_folder(path) if write is put_folder else {}
        assert (found or files.open_file(path).read()) == content


def test_a_file_takes_no_folders_place(folder):
    path = os.path.join(folder, "runs")
    put_folder(path, {"model.bin": b"precious"})
    with pytest.raises(InputError, match="runs is a folder. Name the file"):
        put(path, b"pieces")
    assert get_folder(path) == {"model.bin": b"precious"}
    assert files.list_folder(folder) == ["runs"]


@pytest.mark.parametrize(
    ("path", "message"),
    [
        ("/proc/", "/proc is a mount point"),
        ("a" * 256, "255 byt"),
        ("hf://me/model", "names weights or data on the Hub"),
    ],
)
def test_an_output_that_cannot_be_is_refused_before_anything_is_written(
    path, message, tmp_path, monkeypatch
):
    monkeypatch.chdir(tmp_path)
    with (
        pytest.raises(InputError, match=message),
        files.atomic_output(path),
    ):
        pytest.fail("the block was entered")
    assert os.listdir() == []


def test_links_are_followed_but_not_in_circles(tmp_path):
    (tmp_path / "a" / "b").mkdir(parents=True)
    (tmp_path / "other").mkdir()
    for folder in ("a/one.txt", "a/b/two.txt", "other/three.txt"):
        (tmp_path / folder).write_text("")
    (tmp_path / "a" / "b" / "up").symlink_to(tmp_path / "a")
    (tmp_path / "a" / "here").symlink_to(tmp_path / "other")
    (tmp_path / "other" / "back").symlink_to(tmp_path / "a")
    found = files.walk(tmp_path / "a")
    names = [os.path.relpath(path, tmp_path / "a") for path in found]
    assert names == ["b/two.txt", "here/three.txt", "one.txt"]


def test_a_writer_that_fails_leaves_what_was_there(folder):
    put_folder(folder, {"a": b"1"})
    with pytest.raises(Killed), files.atomic_output(folder) as partial:
        os.makedirs(partial)
        raise Killed
    assert get_folder(folder) == {"a": b"1"}


def test_a_remote_folder_is_old_or_new_wherever_its_writer_is_killed(
    monkeypatch,
):
    old = dict.fromkeys(("a", "manifest.json", "z"), b"old")
    new = dict.fromkeys(("a", "b", "manifest.json"), b"newer")
    results = []
    for fail_at in range(40):
        folder = f"ram://{uuid.uuid4().hex}/step"
        parent = os.path.dirname(folder)
        with object_store(monkeypatch):
            put_folder(folder, old)
        with object_store(monkeypatch, fail_at), contextlib.suppress(Killed):
            put_folder(folder, new)
            break
        found = get_folder(folder)
        if found.get("manifest.json") == b"old":
            assert found == old
        elif "manifest.json" in found:  # new, or its first half
            assert {**found, "manifest.json": b"newer"} == new
        with object_store(monkeypatch):
            files.remove_partials(parent)
        assert files.list_folder(parent) == ["step"]
        if found.get("manifest.json") != b"newer"[:2]:
            results.append(get_folder(folder))
    # The old folder is kept until all three new files are uploaded.
    assert results == [old] * 4 + [new] * (len(results) - 4)
    assert len(results) > 8 and get_folder(folder) == new


def test_what_is_not_there_or_not_known_is_named(remote):
    with pytest.raises(FileNotFoundError):
        files.open_file(remote + "/none")
    with pytest.raises(FileNotFoundError):
        files.size(remote + "/none")
    for call in (files.is_file, files.make_folder, files.open_file):
        with pytest.raises(InputError, match="no file system for nosuch://"):
            call("nosuch://bucket/file")
    # TensorFlow has gs:// built in. The message must not advise to install the
    # old plugin for gs://, which breaks TensorFlow 2.21.
    message = r"no file system for nosuch://.*TensorFlow has \([^)]*gs://"
    with pytest.raises(InputError, match=message) as caught:
        put("nosuch://bucket/file", b"x")
    assert "pip install" not in str(caught.value)


def test_a_file_that_cannot_be_read_is_not_called_missing(tmp_path):
    (tmp_path / "folder").mkdir()
    fault = manifest.find_size_fault(str(tmp_path / "folder"), {"bytes": 1})
    assert fault == "cannot be read (Is a directory)"
    absent = str(tmp_path / "absent")
    assert manifest.find_size_fault(absent, {"bytes": 1}) == "is missing"


def test_paths_are_told_from_addresses(tmp_path):
    assert files.is_remote("gs://bucket/x")
    assert not files.is_remote("C:/x") and not files.is_remote(tmp_path)
    assert not files.is_file("hf://me/model")
    makers = (
        lambda path: RunFolder(path, {}),
        TrainingState,
        files.make_folder,
    )
    for make in makers:
        with pytest.raises(InputError, match="weights or data on the Hub"):
            make("hf://me/model")
    assert files.absolute("gs://bucket/x") == "gs://bucket/x"
    assert files.absolute("x") == os.path.abspath("x")


@pytest.fixture
def marked(remote, monkeypatch):
    """A remote folder, and a function that writes a changed lock marker."""
    monkeypatch.setattr(folder_lock, "SETTLED_AFTER", 0)
    files.make_folder(remote)

    def write(**changes):
        lock = FolderLock(remote)
        marker = {**lock._marker, **changes}
        with files.atomic_output(lock.path) as path:
            json_files.write_json(marker, path)
        return lock

    return remote, write


def test_a_remote_folder_has_one_writer(marked):
    remote, _ = marked
    first = FolderLock(remote)
    first.check()
    with pytest.raises(InputError, match=f"process {os.getpid()} on host"):
        FolderLock(remote)
    first.release()
    second = FolderLock(remote)
    with pytest.raises(InputError, match="taken over by process"):
        first.check()
    first.release()  # keeps the marker of `second`
    second.check()
    second.remove()
    assert files.list_folder(remote) == []


@pytest.mark.parametrize("code", ["ENOSYS", "ENOLCK", "EOPNOTSUPP"])
def test_a_disk_without_locks_has_one_writer_too(code, tmp_path, monkeypatch):
    def fail(*_):
        raise OSError(getattr(errno, code), "no locks")

    monkeypatch.setattr("fcntl.flock", fail)
    monkeypatch.setattr(folder_lock, "SETTLED_AFTER", 0)
    lock = FolderLock(tmp_path)
    lock.check()
    with pytest.raises(InputError, match=f"process {os.getpid()} on host"):
        FolderLock(tmp_path)
    lock.remove()
    assert os.listdir(tmp_path) == []


ENDED = 2**30  # above every process ID


@pytest.mark.parametrize(
    ("changes", "is_free"),
    [
        ({"pid": ENDED}, True),
        ({"pid": ENDED, "host": "renamed"}, True),
        # The host was restarted, or a container on it.
        ({"pid": 1, "space": "other"}, True),
        ({"pid": ENDED, "space": "other", "host": "b"}, False),
        ({"pid": ENDED, "space": None, "host": "b"}, False),
        ({"space": "other", "host": "b", "renewed": "1"}, False),
        ({"pid": 1, "renewed": 1}, False),
        ({"pid": "1"}, False),
        ({"host": 1, "pid": [], "space": {}}, False),
    ],
)
def test_a_marker_is_replaced_where_its_process_has_ended(
    marked, changes, is_free
):
    remote, write = marked
    write(**changes)
    if is_free:
        FolderLock(remote)
        return
    with pytest.raises(InputError, match="10 minutes old, or remove ram://"):
        FolderLock(remote)


def test_a_marker_of_another_machine_is_replaced_when_it_is_old(
    marked, monkeypatch
):
    remote, write = marked
    lock = write(space="other", host="b", renewed=int(time.time()))
    with pytest.raises(InputError, match="is in use by process"):
        FolderLock(remote)
    later = time.time() + folder_lock.FREE_AFTER + 60
    monkeypatch.setattr(folder_lock.time, "time", lambda: later)
    FolderLock(remote).check()
    with pytest.raises(InputError, match="taken over by process"):
        lock.check()


def test_a_marker_is_renewed_until_its_lock_is_released(marked, monkeypatch):
    remote, _ = marked
    monkeypatch.setattr(folder_lock, "RENEWED_AFTER", 0.01)
    with object_store(monkeypatch, 1, DOWN) as changes:
        lock = FolderLock(remote)
        for _ in range(1000):
            if len(changes) > 3:  # the first renewal fails
                break
            time.sleep(0.01)
        lock.check()
        lock.release()
        done = len(changes)
        time.sleep(0.05)
        assert len(changes) == done > 3
    assert files.list_folder(remote) == []


def fail_to_read(monkeypatch, code=errno.EIO):
    def fail(path, *_, **__):
        raise OSError(code, os.strerror(code), str(path))

    monkeypatch.setattr(os, "stat", fail)
    monkeypatch.setattr(files, "size", fail)


@pytest.mark.parametrize("kind", ["local", "remote"])
def test_a_lock_that_cannot_be_read_now_is_not_called_taken(
    kind, remote, tmp_path, monkeypatch
):
    monkeypatch.setattr(folder_lock, "SETTLED_AFTER", 0)
    folder = str(tmp_path) if kind == "local" else remote
    files.make_folder(folder)
    lock = FolderLock(folder)
    with monkeypatch.context() as patch:
        fail_to_read(patch)
        lock.check()
    lock.check()
    files.remove(lock.path)
    with pytest.raises(InputError, match="taken over by another process"):
        lock.check()
    lock.release()


def test_a_file_that_cannot_be_read_now_is_neither_missing_nor_damaged(
    tmp_path, monkeypatch
):
    path = str(tmp_path / "a.json")
    manifest.write_manifest(path, {"x": 1})
    entry = manifest.describe_file(path)
    calls = (
        lambda: files.is_file(path),
        lambda: files.is_folder(path),
        lambda: manifest.read_manifest(path, "run", len),
        lambda: manifest.find_fault(path, entry),
        lambda: manifest.check_files(str(tmp_path), {"a.json": entry}, ""),
    )
    for call in calls:
        with monkeypatch.context() as patch:
            fail_to_read(patch)
            with pytest.raises(OSError, match="a.json"):
                call()
    assert manifest.find_fault(path, entry) is None
    with monkeypatch.context() as patch:
        fail_to_read(patch, errno.EACCES)
        assert not files.is_file(path)
    assert not files.is_file("a\0b")


def test_of_two_that_come_to_a_remote_folder_at_once_one_gets_it(
    remote, monkeypatch
):
    files.make_folder(remote)

    def other_comes(_):
        monkeypatch.setattr(folder_lock.time, "sleep", lambda _: None)
        monkeypatch.setattr(FolderLock, "_is_stale", lambda *_: True)
        FolderLock(remote)

    monkeypatch.setattr(folder_lock.time, "sleep", other_comes)
    with pytest.raises(InputError, match="is in use by process"):
        FolderLock(remote)


@pytest.mark.parametrize(
    ("output", "source"),
    [
        ("a/b.txt", "a/b.txt"),
        ("a/b.txt", "a/../a/b.txt"),
        ("a/b.txt", "a"),
        ("a/b.txt", "a/*.txt"),
        ("a", "a/b.txt"),
        ("link", "a/b.txt"),
        ("hard", "a"),
        ("a/b.txt", "folder/*"),
    ],
)
def test_an_output_that_is_an_input_is_refused(
    tmp_path, monkeypatch, output, source
):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "a").mkdir()
    (tmp_path / "a" / "b.txt").write_text("text")
    os.symlink("a/b.txt", "link")
    os.link("a/b.txt", "hard")
    os.symlink("a", "folder")
    refuse_input_as_output("new.txt", source)
    refuse_input_as_output("a/c.txt", source)
    refuse_input_as_output(output, None, "hf:imdb", "folder/c.*")
    with pytest.raises(InputError, match="is an input"):
        refuse_input_as_output(output, "new.txt", source)


def test_what_a_killed_writer_left_goes_with_the_next_output(
    tmp_path, monkeypatch
):
    path = tmp_path / ("a" * 250)  # near the limit of 255 bytes
    ended = 2**22 + 1  # above every process ID of Linux
    with monkeypatch.context() as patch:
        patch.setattr(os, "getpid", lambda: ended)
        patch.setattr(files, "remove", lambda path: None)  # as if killed
        with pytest.raises(Killed), files.atomic_output(path) as partial:
            open(partial, "w").close()
            raise Killed
    assert [files.is_partial(left.name) for left in tmp_path.iterdir()] == [
        True
    ]
    strange = tmp_path / f".b{files.PARTIAL}0-{ended}-2"  # another machine's
    strange.touch()
    with files.atomic_output(tmp_path / "c") as partial:
        open(partial, "w").close()
        with files.atomic_output(path) as other:
            open(other, "w").close()
    assert {*tmp_path.iterdir()} == {path, strange, tmp_path / "c"}


def test_a_folder_whose_replacement_was_killed_comes_back(
    tmp_path, monkeypatch
):
    folder = tmp_path / ("a" * 250)
    put_folder(str(folder), {"model.bin": b"precious"})
    rename = os.rename

    def kill_second(source, target):
        if target == str(folder):
            raise Killed
        rename(source, target)

    with monkeypatch.context() as patch:
        patch.setattr(os, "getpid", lambda: 2**22 + 1)
        patch.setattr(os, "rename", kill_second)
        patch.setattr(files, "remove", lambda path: None)
        patch.setattr(files, "_remove_partial", lambda path: None)
        with pytest.raises(Killed):
            put_folder(str(folder), {"model.bin": b"new"})
    assert not folder.exists()
    with files.atomic_output(tmp_path / "c") as partial:
        open(partial, "w").close()
    assert {*tmp_path.iterdir()} == {folder, tmp_path / "c"}
    assert get_folder(str(folder)) == {"model.bin": b"precious"}


def test_an_error_between_the_renames_puts_the_folder_back(
    tmp_path, monkeypatch
):
    folder = str(tmp_path / "a")
    put_folder(folder, {"model.bin": b"precious"})
    rename, count = os.rename, itertools.count()

    def stop_second(source, target):
        if next(count) == 1:
            raise KeyboardInterrupt
        rename(source, target)

    monkeypatch.setattr(os, "rename", stop_second)
    with pytest.raises(KeyboardInterrupt):
        put_folder(folder, {"model.bin": b"new"})
    assert get_folder(folder) == {"model.bin": b"precious"}
    assert os.listdir(tmp_path) == ["a"]


def test_a_path_may_have_commas_in_its_name(tmp_path):
    first, second = f"{tmp_path}/a,b.csv", f"{tmp_path}/c.csv"
    assert files.split_paths(f"{first}, {second}")[1:] == ["b.csv", second]
    open(first, "w").close()
    assert files.split_paths(f"{first}, {second}") == [first, second]
    assert files.split_paths(first) == [first]
    assert files.split_paths("hf:a/b,x.csv") == ["hf:a/b", "x.csv"]
