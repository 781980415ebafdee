"""Other releases of Ray on the cluster than the one beside this interpreter: `make rays`."""
