import pytest

from tests.support.data_samples import toy_tokenizer


@pytest.fixture(scope="session")
def tokenizer():
    return toy_tokenizer()
