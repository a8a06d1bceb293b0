"""The OpenAI HTTP API over AsyncLLM."""
