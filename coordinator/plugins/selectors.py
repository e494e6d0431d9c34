"""The built-in selectors: `all`, `age`, `size`, `name`, `deletes`, `expired`, `schema`, `layout`.

Each selector is one class that rejects invalid options (`check`) and chooses files (`select`). The
entry point group is `neve.selectors`. The code that the options share comes first.
"""

import re
from collections.abc import Collection, Mapping, Sequence
from fnmatch import translate

from common.documents import FieldKind, FieldRule, unknown
from common.errors import RequestError
from common.model.file import DataFile
from common.spi.planner import Chosen, SelectorParameters
from common.units import format_bytes, parse_duration_s, parse_size_bytes, shown

# -------------------------------------------------------- Options: names, numbers, minimum of files


FILES_MIN = "min_files"
"""Option: choose nothing if fewer files fit. All selectors except `deletes` have it."""
_FILES_MIN = FieldRule(kind=FieldKind.COUNT, least=1)
_SHARE = FieldRule(kind=FieldKind.NUMBER, above=0, most=1)
EDGE_S = 0.001
"""Added to a time, because bounds are exclusive and sums of times are rounded."""


def check_names(selector: str, options: Mapping[str, str], names: Collection[str]) -> None:
    """Reject options that a selector does not know.

    Raises:
        RequestError: An option is unknown; the message names it and the known options.
    """
    for name in sorted(set(options).difference(names)):
        raise unknown(f"selector {selector}: option {shown(name)}", name, names)


def check_given(selector: str, options: Mapping[str, str], wanted: Collection[str]) -> None:
    """Reject options that select nothing.

    Raises:
        RequestError: No selecting option is given; the message names those that exist.
    """
    if not set(options).intersection(wanted):
        names = " or ".join(sorted(wanted))
        raise RequestError(f"selector {selector}: give at least one of {names}")


def share_option(options: Mapping[str, str], name: str, default: float) -> float:
    """Return an option that is a fraction: more than 0, at most 1.

    Raises:
        RequestError: The value is not a number in that range.
    """
    share: float = _SHARE.read(options.get(name, default), f"option {name}")
    return share


def files_min(options: Mapping[str, str]) -> int:
    """Return the minimum number of files to choose.

    Raises:
        RequestError: The value is not a whole number of at least 1.
    """
    count: int = _FILES_MIN.read(options.get(FILES_MIN, 1), f"option {FILES_MIN}")
    return count


def choice_of(
    files: Sequence[DataFile],
    options: Mapping[str, str],
    what: str,
    times_s: Mapping[str, float] | None = None,
) -> Chosen:
    """Return a choice of these files, or an empty choice if there are too few.

    Args:
        files: The files that fit.
        options: With or without `min_files`.
        what: What the files have in common; it completes "3 files are …".
        times_s: Path → when a file starts to fit without any change; for chosen files
            and others.
    """
    times_s = times_s or {}
    wanted = files_min(options)
    count = f"{len(files)} file is" if len(files) == 1 else f"{len(files)} files are"
    if len(files) < wanted:
        reason = f"{count} {what}, {wanted} are wanted at least"
        return Chosen(reason=reason, times_s=times_s)
    paths = tuple(file.path for file in files)
    return Chosen(files=paths, reason=f"{count} {what}", times_s=times_s)


# ---------------------------------------------------------------------------------- all: every file


class AllFiles:
    """Chooses every file of the tablet."""

    def check(self, options: Mapping[str, str]) -> None:
        """Reject invalid options; see `Selector`."""
        check_names("all", options, {FILES_MIN})
        files_min(options)

    def select(self, parameters: SelectorParameters) -> Chosen:
        """Return every file."""
        return choice_of(parameters.files, parameters.options, "there")


# --------------------------------------------------- age: files added before or after some time ago


OLDER, YOUNGER = "older_than", "younger_than"


class ByAge:
    """Chooses files `older_than` and `younger_than` durations such as `7d`."""

    def check(self, options: Mapping[str, str]) -> None:
        """Reject invalid options.

        Raises:
            RequestError: No age is given, or an option is unknown or invalid.
        """
        check_names("age", options, {OLDER, YOUNGER, FILES_MIN})
        check_given("age", options, {OLDER, YOUNGER})
        files_min(options)
        _age_bounds_s(options)

    def select(self, parameters: SelectorParameters) -> Chosen:
        """Return the files between the two ages, both exclusive."""
        older_s, younger_s = _age_bounds_s(parameters.options)
        now_s = parameters.now_s
        chosen = [
            file
            for file in parameters.files
            if (older_s is None or now_s - file.added_at_s > older_s)
            and (younger_s is None or now_s - file.added_at_s < younger_s)
        ]
        names = {"older than": OLDER, "younger than": YOUNGER}
        given = parameters.options
        says = [f"{word} {given[name]}" for word, name in names.items() if name in given]
        return choice_of(
            chosen, given, " and ".join(says), _age_times_s(parameters, older_s, younger_s)
        )


def _age_times_s(
    parameters: SelectorParameters, older_s: float | None, younger_s: float | None
) -> dict[str, float]:
    """Return when each file is old enough; a file that is too old never becomes young again."""
    if older_s is None or (younger_s is not None and younger_s <= older_s):
        return {}
    return {file.path: file.added_at_s + older_s + EDGE_S for file in parameters.files}


def _age_bounds_s(options: Mapping[str, str]) -> tuple[float | None, float | None]:
    older_s, younger_s = (
        parse_duration_s(options[name], f"option {name}") if name in options else None
        for name in (OLDER, YOUNGER)
    )
    return older_s, younger_s


# ---------------------------------------------------------------- size: files below or above a size


SMALLER, LARGER = "smaller_than", "larger_than"


class BySize:
    """Chooses files `smaller_than` and `larger_than` sizes such as `32MB`."""

    def check(self, options: Mapping[str, str]) -> None:
        """Reject invalid options.

        Raises:
            RequestError: No size is given, or an option is unknown or invalid.
        """
        check_names("size", options, {SMALLER, LARGER, FILES_MIN})
        check_given("size", options, {SMALLER, LARGER})
        files_min(options)
        _size_bounds(options)

    def select(self, parameters: SelectorParameters) -> Chosen:
        """Return the files between the two sizes, both exclusive."""
        larger, smaller = _size_bounds(parameters.options)
        chosen = [
            file
            for file in parameters.files
            if (larger is None or file.size_bytes > larger)
            and (smaller is None or file.size_bytes < smaller)
        ]
        says = [] if larger is None else [f"larger than {format_bytes(larger)}"]
        says += [] if smaller is None else [f"smaller than {format_bytes(smaller)}"]
        return choice_of(chosen, parameters.options, " and ".join(says))


def _size_bounds(options: Mapping[str, str]) -> tuple[int | None, int | None]:
    larger, smaller = (
        parse_size_bytes(options[name], f"option {name}") if name in options else None
        for name in (LARGER, SMALLER)
    )
    return larger, smaller


# ----------------------------- name: files whose name or path matches a pattern (`*`, `?`, `[a-z]`)


NAME_PATTERN, PATH_PATTERN = "pattern", "path"
PATTERN_CHARS_MAX = 256
"""Limit of one pattern. The time to match a path is at most the product of both lengths."""


class ByName:
    """Chooses by `pattern` (name after the last slash), `path` (the whole path), or both."""

    def check(self, options: Mapping[str, str]) -> None:
        """Reject invalid options.

        Raises:
            RequestError: No pattern is given, a pattern is too long, or an option is unknown or
                invalid.
        """
        check_names("name", options, {NAME_PATTERN, PATH_PATTERN, FILES_MIN})
        check_given("name", options, {NAME_PATTERN, PATH_PATTERN})
        files_min(options)
        for name in (NAME_PATTERN, PATH_PATTERN):
            if (length := len(options.get(name, ""))) > PATTERN_CHARS_MAX:
                raise RequestError(
                    f"option {name} has {length} characters, expected at most {PATTERN_CHARS_MAX}"
                )

    def select(self, parameters: SelectorParameters) -> Chosen:
        """Return the files that match every given pattern."""
        name, path = (
            parameters.options.get(NAME_PATTERN, "*"),
            parameters.options.get(PATH_PATTERN, "*"),
        )
        # Compiled here, because `fnmatch` caches up to 32,768 compiled patterns forever.
        of_name, of_path = re.compile(translate(name)), re.compile(translate(path))

        def fits(file: DataFile) -> bool:
            last = file.path.rpartition("/")[2]
            return bool(of_name.match(last) and of_path.match(file.path))

        chosen = [file for file in parameters.files if fits(file)]
        return choice_of(chosen, parameters.options, f"named {path if name == '*' else name}")


# -------------------------------------- deletes: all files of a tablet that has too many tombstones


DELETES_THRESHOLD = "threshold"
DELETES_THRESHOLD_DEFAULT = 0.25
SLACK_MIN_S = 300.0


class TooManyDeletes:
    """Chooses all files or none: tombstones per other row must reach `threshold` (0.25).

    This is Accumulo's rule: tombstones / (rows - tombstones), summed over all files. A rewrite
    keeps tombstones that are too young to drop; their file is chosen again when they are old
    enough.
    """

    def check(self, options: Mapping[str, str]) -> None:
        """Reject invalid options.

        Raises:
            RequestError: An option is unknown, or the threshold is not in (0, 1].
        """
        check_names("deletes", options, {DELETES_THRESHOLD})
        share_option(options, DELETES_THRESHOLD, DELETES_THRESHOLD_DEFAULT)

    def select(self, parameters: SelectorParameters) -> Chosen:
        """Return all files, or none."""
        threshold = share_option(parameters.options, DELETES_THRESHOLD, DELETES_THRESHOLD_DEFAULT)
        tombstones = sum(file.tombstones for file in parameters.files)
        others = sum(file.rows for file in parameters.files) - tombstones
        says = f"{tombstones} tombstones against {others} other rows, threshold {threshold:g}"
        if not tombstones or tombstones < threshold * others:
            return Chosen(reason=says)
        paths = tuple(file.path for file in parameters.files)
        return Chosen(files=paths, reason=says, times_s=_droppable_times_s(parameters))


def _droppable_times_s(parameters: SelectorParameters) -> dict[str, float]:
    """Return when tombstones may certainly be dropped, so that another merge pays off.

    That is one retention after their version was reached. Scans record reached versions, a sixth of
    a retention apart; the slack covers both delays.
    """
    retention_s = parameters.table.settings.tombstone_retention_s
    wait_s = retention_s + max(retention_s / 4, SLACK_MIN_S)
    return {
        file.path: file.tombstones_since_s + wait_s
        for file in parameters.files
        if file.tombstones and file.tombstones_since_s is not None
    }


# ------------------------------------------------ expired: files with a given share of expired rows


EXPIRED_RATIO = "ratio"
EXPIRED_RATIO_DEFAULT = 0.5


class ExpiredRatio:
    """Chooses files whose expired share of rows, estimated from times, reaches `ratio` (0.5).

    The estimate assumes that rows are spread evenly between a file's first and last time.
    """

    def check(self, options: Mapping[str, str]) -> None:
        """Reject invalid options; see `Selector`."""
        check_names("expired", options, {EXPIRED_RATIO, FILES_MIN})
        share_option(options, EXPIRED_RATIO, EXPIRED_RATIO_DEFAULT)
        files_min(options)

    def select(self, parameters: SelectorParameters) -> Chosen:
        """Return the files that reach the ratio; no file without a TTL."""
        ttl_s = parameters.table.settings.ttl_s
        if ttl_s is None:
            return Chosen(reason=f"table {parameters.table.name} has no ttl, so no row expires")
        ratio = share_option(parameters.options, EXPIRED_RATIO, EXPIRED_RATIO_DEFAULT)
        before_s = parameters.now_s - ttl_s
        chosen = [file for file in parameters.files if expired_part(file, before_s) >= ratio]
        reaches = ((file.path, reaches_s(file, ttl_s, ratio)) for file in parameters.files)
        times_s = {path: time_s for path, time_s in reaches if time_s is not None}
        return choice_of(chosen, parameters.options, f"expired by {ratio:.0%} or more", times_s)


def reaches_s(file: DataFile, ttl_s: float, ratio: float) -> float | None:
    """Return when a file's expired share of rows reaches `ratio`; None if its times are unknown."""
    first_s, last_s = file.time_min_s, file.time_max_s
    if first_s is None or last_s is None:
        return None
    return ttl_s + first_s + ratio * (last_s - first_s) + EDGE_S


def expired_part(file: DataFile, before_s: float) -> float:
    """Return the fraction of a file's rows older than a time; 0 if its times are unknown."""
    first_s, last_s = file.time_min_s, file.time_max_s
    if first_s is None or last_s is None or before_s <= first_s:
        return 0.0
    if before_s > last_s:
        return 1.0
    return (before_s - first_s) / (last_s - first_s)


# -------------------------------- schema: files that lack columns of the table, or have older types


class SchemaDrift:
    """Chooses files whose schema is older than the table's."""

    def check(self, options: Mapping[str, str]) -> None:
        """Reject invalid options; see `Selector`."""
        check_names("schema", options, {FILES_MIN})
        files_min(options)

    def select(self, parameters: SelectorParameters) -> Chosen:
        """Return the files of older schemas."""
        newest = parameters.table.schema_id
        chosen = [file for file in parameters.files if file.schema_id < newest]
        return choice_of(chosen, parameters.options, f"of a schema older than {newest}")


# ---------------------------------------------------- layout: files in which some readers miss rows


class FaultyLayout:
    """Chooses files with the tag `layout=faulty`; a rewrite fixes the order of their column chunks.

    Files are tagged when they are added; `neve fsck --repair` tags files that were added earlier.
    """

    def check(self, options: Mapping[str, str]) -> None:
        """Reject invalid options; see `Selector`."""
        check_names("layout", options, {FILES_MIN})
        files_min(options)

    def select(self, parameters: SelectorParameters) -> Chosen:
        """Return the tagged files."""
        chosen = [file for file in parameters.files if file.has_faulty_layout]
        return choice_of(chosen, parameters.options, "laid out so that some readers miss rows")
