"""A model of the protocol between tries, drivers and the bucket, explored exhaustively within small bounds.

`python -m tests.model` (or `make model`) explores all configurations; docs/protocol-model.md says what is modelled.
"""
