"""Layers, the encoder, heads, and models for pre-training and fine-tuning."""
