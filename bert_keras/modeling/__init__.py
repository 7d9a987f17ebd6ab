"""The model: layers, heads and whole models on Keras operations only."""
