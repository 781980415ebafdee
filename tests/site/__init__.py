"""The documentation site: `make docs` builds it from docs/, with a reference written from the code."""
