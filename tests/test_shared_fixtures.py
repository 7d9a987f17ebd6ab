"""The plugin of tests/conftest.py that guards the files of shared fixtures."""

import types

import pytest


@pytest.fixture
def guard(request):
    """The plugin, which pytest calls for the fixtures of all folders."""
    plugins = request.config.pluginmanager.get_plugins()
    (guard,) = [p for p in plugins if type(p).__name__ == "SharedFixtures"]
    return guard


def set_up(guard, value, scope):
    """Return the checks at the end of a fixture with this value."""
    checks = []
    fixture = types.SimpleNamespace(
        scope=scope, argname="made", addfinalizer=checks.append
    )
    running = guard.pytest_fixture_setup(fixture)
    next(running)
    with pytest.raises(StopIteration):
        running.send(value)
    return checks


@pytest.mark.parametrize("wrap", [str, lambda x: [x], lambda x: {"a": x}])
def test_a_test_that_changes_a_shared_folder_is_reported(guard, tmp_path, wrap):
    (tmp_path / "file").write_text("as made")
    (check,) = set_up(guard, wrap(tmp_path), "session")
    check()
    (tmp_path / "more").write_text("by a test")
    with pytest.raises(AssertionError, match="shared fixture made.*more"):
        check()
    assert set_up(guard, str(tmp_path), "function") == []


def test_values_that_name_no_folder_are_left_alone(guard):
    for value in (None, 3, "/" + "x" * 5000, ["a", 1]):
        (check,) = set_up(guard, value, "module")
        check()
