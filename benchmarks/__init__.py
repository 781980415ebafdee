"""What the provider costs, beside the floor and the peers: `python -m benchmarks NAME`, results in docs/benchmarks.md.

Not part of the distribution. Each benchmark is a module with `run(options) -> Report`.
"""
