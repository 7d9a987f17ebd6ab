"""This package: pre-training data, from text to records."""

import os
import tempfile

os.environ["TF_CPP_MIN_LOG_LEVEL"] = "3"

from worker import serve


def prepare(settings):
    from bert_keras import WordPieceTokenizer
    from bert_keras.data.corpus import read_documents
    from bert_keras.data.pretraining_data import create_pretraining_data
    from bert_keras.data.sampling import SamplingRules
    from bert_keras.text.vocabulary import read_vocabulary
    from official_tasks.tools.benchmark.data import first_documents

    tokenizer = WordPieceTokenizer(read_vocabulary(settings["vocabulary"]))
    size = settings["megabytes"] * 1e6
    documents = list(first_documents(read_documents(settings["text"]), size))

    def create():
        with tempfile.TemporaryDirectory() as folder:
            create_pretraining_data(
                documents,
                tokenizer=tokenizer,
                folder=os.path.join(folder, "data"),
                rules=SamplingRules(),
                seed=0,
                held_out_share=0.0,
                workers=settings["workers"],
            )

    return create, 1


if __name__ == "__main__":  # several workers start from this file again
    serve(prepare)
