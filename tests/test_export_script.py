"""tools/export.py: what models and flags may go together."""

import pytest
from served_samples import VOCABULARY, encoder, preprocessor

from bert_keras.errors import InputError
from bert_keras.interop.presets import save_preset
from bert_keras.text.preprocessor import BertPreprocessor
from bert_keras.text.tokenizer import WordPieceTokenizer
from tools import export


def test_models_of_two_tokenizers_are_not_exported_together(tmp_path):
    model = encoder()
    folders = [str(tmp_path / name) for name in ("a", "same", "other", "cased")]
    other = VOCABULARY[::-1]
    for folder, preprocess in zip(
        folders,
        (
            preprocessor(),
            preprocessor(9),
            BertPreprocessor(WordPieceTokenizer(other), sequence_length=12),
            BertPreprocessor(
                WordPieceTokenizer(VOCABULARY, lowercase=False),
                sequence_length=12,
            ),
        ),
        strict=True,
    ):
        save_preset(folder, model, preprocess)
    a, same, other, cased = folders
    assert export.preprocessor_of([a, same]).sequence_length == 12
    with pytest.raises(InputError, match="other differ in vocabulary;"):
        export.preprocessor_of([a, same, other])
    with pytest.raises(InputError, match="cased differ in lowercase"):
        export.preprocessor_of([a, cased])
