"""What a frame looks like, as lines of text: pure functions, the same for screen and `--once`.

Other people's words (names, messages, paths) go through `report.text.line` and into `Text`
objects, never through markup.
"""
