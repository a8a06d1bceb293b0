"""What holds for every test of the tree."""

from vllm_obs.engine.worker.threads import limit_spinning

limit_spinning()  # before any test imports torch: tests share their cores with the servers they start
