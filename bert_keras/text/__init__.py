"""Text to ids: the tokenizer, its vocabulary, packing and masking."""
