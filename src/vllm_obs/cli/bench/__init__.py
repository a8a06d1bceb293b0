"""`vllm-obs bench serve`: a load generator for OpenAI completions servers that costs little CPU itself."""
