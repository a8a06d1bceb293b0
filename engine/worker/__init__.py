"""The worker process: input batch, model runner, device memory."""
