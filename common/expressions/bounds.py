"""How large an expression may be. Work is linear in the text, and the text is bounded."""

TEXT_CHARS_MAX = 10_000
TOKENS_MAX = 5_000
DEPTH_MAX = 32
"""Levels of the tree. A level costs about ten frames of Python's stack."""
LIST_MAX = 1_000
"""Members of an IN list, arguments of a variadic function, branches of a CASE."""
ASSIGNMENTS_MAX = 100
PATTERN_CHARS_MAX = 200
PATTERN_WAYS_MAX = 1_000
"""Ways in which the choices of a regular expression can be combined."""
PATTERN_REPEATS_MAX = 2
"""Unbounded repetitions of a pattern: each is one more power of the value's length."""
REPLACEMENT_CHARS_MAX = 100
DIGITS_MAX = 38
"""Of a number, as in Spark's widest decimal."""
INTERVAL_MAX = 1_000_000
SHOWN_CHARS = 100
"""How much of a long line a message shows."""
SUGGEST_COLUMNS_MAX = 1_000
SUGGEST_CHARS_MAX = 64
