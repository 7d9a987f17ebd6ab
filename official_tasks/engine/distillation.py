"""Learning from a teacher: what it answers, and the loss against it.

Hinton et al. 2015, "Distilling the Knowledge in a Neural Network". The teacher
answers the training rows once, before training.
"""

import keras
import numpy as np
from keras import ops

from bert_keras.errors import InputError
from official_tasks.engine.models import Predictor, load_trained


class DistillationLoss(keras.losses.Loss):
    """A share of the teacher's loss and the rest of the labels' loss.

    teacher_weight * T^2 * KL(softmax(teacher / T) || softmax(student / T))
    + (1 - teacher_weight) * labels_loss, with T the temperature.

    Args:
        labels_loss: a `SparseCategoricalCrossentropy` of logits.
        temperature: T; the higher, the more the small logits count.
        teacher_weight: from 0 to 1.

    Call arguments:
        y_true: float (..., 1 + C), the class, then the teacher's logits.
        y_pred: float (..., C), logits.
    """

    def __init__(self, labels_loss, temperature, teacher_weight):
        super().__init__(name="distillation")
        self.labels_loss = labels_loss
        self.temperature = temperature
        self.teacher_weight = teacher_weight

    def call(self, y_true, y_pred):
        labels, teacher = y_true[..., 0], y_true[..., 1:]
        expected = ops.log_softmax(teacher / self.temperature)
        found = ops.log_softmax(y_pred / self.temperature)
        divergence = ops.sum(ops.exp(expected) * (expected - found), axis=-1)
        of_labels = self.labels_loss.call(labels, y_pred)
        return (
            self.teacher_weight * self.temperature**2 * divergence
            + (1 - self.teacher_weight) * of_labels
        )


def distillation_loss(task, temperature, teacher_weight):
    """The loss of a task that is learned from a teacher.

    Raises:
        InputError: the task's own loss is not over one class of several.
    """
    loss = task.loss()
    if not isinstance(loss, keras.losses.SparseCategoricalCrossentropy):
        raise InputError(
            f"The task {task.name} cannot learn from a teacher: it does not "
            "have one class of several for each row or token. Leave the "
            "teacher out."
        )
    return DistillationLoss(loss, temperature, teacher_weight)


def taught(task, teacher, examples, encoded):
    """The rows with the teacher's logits in their targets.

    Args:
        teacher: run or model folder, fine-tuned on the task with the same
            labels; it reads the texts by its own vocabulary.
        examples, encoded: of the training split.

    Returns:
        `Encoded` whose targets `DistillationLoss` takes, float (R, 1 + C) or
        ragged (R, None, 1 + C).

    Raises:
        InputError: another kind of model, other labels, other tokens.
    """
    model, preprocess = load_trained(task, teacher)
    rows = task.encode(examples, preprocess)
    targets = encoded.targets
    if task.per_token:
        ours, theirs = (
            part.inputs["token_ids"].flat_values for part in (encoded, rows)
        )
        if not np.array_equal(ours, theirs):
            raise InputError(
                f"The teacher {teacher} reads other tokens than these weights, "
                f"and the task {task.name} has a label for each token. Name a "
                "teacher of the same vocabulary and sequence length."
            )
    predict = Predictor(model, task.per_token, preprocess.packer.pad_id)
    logits = predict(rows)
    if not task.per_token:
        return encoded._replace(targets=_joined(targets, logits))
    values = _joined(targets.flat_values, np.concatenate(logits))
    return encoded._replace(targets=targets.with_flat_values(values))


def _joined(labels, logits):
    """float (..., 1 + C): a class, then logits."""
    labels = np.asarray(labels, np.float32)[..., None]
    return np.concatenate([labels, logits], axis=-1)
