"""Console logs of any size: files to blocks, blocks to facts.

    read.py     a file, a pipe or a compressed file -> blocks of UTF-8 bytes that end with a line
    names.py    what a file's name tells of the rank that wrote it
    shapes.py   a block -> the few lines that are worth a look (this decides the speed)
    split.py    a line -> rank, time and text, without what launchers and loggers put before it
    stamps.py   a time stamp -> seconds since the epoch
    block.py    a block in pieces, each with its number and as harmless text
    facts.py    what is looked for, and what was found
    scan.py     blocks -> hits of signatures, the text around tracebacks and reports, the last lines

Facts only: what a hit means is not known here.
"""
