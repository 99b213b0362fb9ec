"""The ranks' step records, joined: who works and who waits in each."""
