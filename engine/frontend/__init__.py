"""The text side of the engine: tokenizer, processors, AsyncLLM, LLMEngine and LLM."""
