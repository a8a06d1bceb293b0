"""`python -m vllm_obs` is the same as `vllm-obs`."""

from vllm_obs.cli.main import main

if __name__ == "__main__":
    raise SystemExit(main())
