"""Export models to SavedModel, LiteRT or ONNX; call and serve a SavedModel."""
