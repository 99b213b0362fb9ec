"""What needs a GPU: `make test-gpu` tests it on one, CI as much as it can on a pretend one."""
