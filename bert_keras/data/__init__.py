"""Convert raw text to batches for pre-training."""
