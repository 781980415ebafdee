"""Contract tests: one suite per protocol, against real parts."""
