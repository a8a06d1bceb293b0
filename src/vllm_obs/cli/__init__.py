"""The command line: vllm-obs serve, bench, …"""
