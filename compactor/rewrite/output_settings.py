"""How outputs are written: the table's settings, its configurer's answer, the request's wish.

What comes later wins. A codec that comes without a level has its own usual one.
"""

from dataclasses import dataclass

from common.errors import CompactionError, ConfigError, PluginError, RewriteError
from common.model.request import OutputSpec
from common.parquet.footer_checks import codec_name, has_level
from common.plugins import load_configurer
from common.spi.output import OutputParameters
from common.wire import Assignment


@dataclass(frozen=True, slots=True)
class OutputSettings:
    """Codec and row groups of every output of a job."""

    codec: str
    codec_level: int | None
    """None: the codec's usual level."""
    row_group_bytes: int
    bloom_columns: tuple[str, ...] = ()
    """Each row group carries a Bloom filter of these."""


def output_settings(assignment: Assignment) -> OutputSettings:
    """Return how the outputs of a job are written.

    Raises:
        ConfigError: The table's configurer is not installed.
        PluginError: It raised, or its answer is not allowed.
        RewriteError: What the request wants is not allowed.
    """
    settings, request = assignment.table.settings, assignment.request
    chosen = OutputSettings(
        settings.codec, settings.codec_level, settings.row_group_bytes, settings.bloom_columns
    )
    if settings.configurer:
        chosen = _configured(chosen, assignment)
    if request is not None:
        try:
            chosen = _over(chosen, request.output)
        except ValueError as error:
            raise RewriteError(f"request {request.id} wants {error}") from error
    return chosen


def _configured(base: OutputSettings, assignment: Assignment) -> OutputSettings:
    name, request = assignment.table.settings.configurer, assignment.request
    parameters = OutputParameters(
        table=assignment.table,
        kind=assignment.job.kind,
        inputs=assignment.inputs,
        hints=request.hints if request is not None else {},
    )
    configurer = load_configurer(name)
    try:
        return _over(base, configurer.configure(parameters))
    except ConfigError:
        raise
    except CompactionError as error:
        raise PluginError(str(error)) from error
    except Exception as error:
        message = f"configurer {name} failed: {type(error).__name__}: {error}"
        raise PluginError(message) from error


def _over(base: OutputSettings, spec: OutputSpec) -> OutputSettings:
    """Return the settings with what a spec says.

    Raises:
        ValueError: Says what is not allowed.
    """
    codec, level = base.codec, base.codec_level
    if spec.codec is not None:
        known = codec_name(spec.codec)
        if known is None:
            raise ValueError(f"the codec {spec.codec!r}, which is not known")
        codec, level = known, level if known == codec_name(codec) else None
    if spec.codec_level is not None:
        level = spec.codec_level
        if not has_level(codec, level):
            raise ValueError(f"the level {level}, which {codec} does not have")
    row_group_bytes = spec.row_group_bytes or base.row_group_bytes
    if row_group_bytes <= 0:
        raise ValueError(f"row groups of {row_group_bytes} bytes")
    return OutputSettings(codec, level, row_group_bytes, base.bloom_columns)
