"""Console logs of any size: files to blocks, blocks to facts. No judgement of what a hit means.

log_files.py    a file, a pipe or a compressed file -> blocks of UTF-8 bytes that end with a
line;                 a file's name -> the rank that wrote it log_shapes.py   a block -> the few
lines that are worth a closer look (this decides the speed) log_lines.py    a line -> rank, time
and text, without the prefixes of launchers and loggers log_blocks.py   a block in pieces, each
with its line number and as harmless text log_scanner.py  blocks -> hits of signatures, the text
around tracebacks, the last lines"""
