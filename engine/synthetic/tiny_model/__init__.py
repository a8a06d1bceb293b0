"""The folder of the built-in model: a configuration and a byte-level tokenizer, as any model's folder has them."""
