"""Reads console logs of any size: files to blocks, blocks to facts, without judging them.

- `log_files`: a file, pipe or compressed file -> blocks of UTF-8 that end with a line; a file's
  name -> its rank.
- `log_shapes`: a block -> the few lines to search (this decides the speed).
- `log_lines`: a line -> rank, time and text, without the prefixes of launchers and loggers.
- `log_blocks`: a block -> pieces with their line numbers, as harmless text.
- `log_scanner`: blocks -> matched signatures, the text around tracebacks, the last lines.
- `repeated_lines`: lines that only repeat with other numbers -> their counters.
- `scanned_logs`: the facts that a scan returns.
"""
