"""Smaller sections: shares of classes, buffered rows, messages, lake tables, the Ray cluster."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any
from urllib.parse import urlsplit

from common.documents import FieldKind, check_section, setting, size_setting
from common.errors import SettingError
from common.model.group import LIMIT_BYTES_S_MIN
from neve.api.messages import readable_across_releases


def _shares_setting(default: float, doc: str) -> Any:
    return setting(default, doc, kind=FieldKind.NUMBER, least=1, most=1_000_000)


@readable_across_releases
@dataclass(frozen=True, slots=True, kw_only=True)
class ControlSettings:
    """How much compaction runs, and how classes of work share it (control.md)."""

    controller: str = setting(
        "shares",
        "Controller plug-in that decides shares, slots and bytes per second: `shares` (only"
        " shares, by the backlog), `static` (nothing changes), `control-points`, `drain-time`,"
        " `debt`, or a plug-in of a package.",
    )
    options: tuple[str, ...] = setting(
        (), "Options of the controller, such as `goal=10m`; control.md lists them."
    )
    period_s: float = setting(
        1.0, "Interval between two decisions, at least `coordinator.tick_s`.", least=0.05, most=3600
    )
    system_shares: float = _shares_setting(
        100.0,
        "Shares of system jobs, which the service starts by itself: fixed with controller"
        " `static`; `shares` raises them up to ten times with the backlog.",
    )
    user_shares: float = _shares_setting(
        1_000.0,
        "Shares of requests. While several classes have jobs, each gets bytes in proportion to its"
        " shares.",
    )
    urgent_shares: float = _shares_setting(
        10_000.0,
        "Shares of urgent jobs: tablets with more files than their table allows, splits, and"
        " requests with the largest boost.",
    )
    statistics_shares: float = _shares_setting(10.0, "Shares of analyses, which count live bytes.")
    slew_shares_s: float = setting(
        100.0,
        "Shares per second that the controller may add to or take from a class; 0: no limit.",
        kind=FieldKind.NUMBER,
    )
    hysteresis: float = setting(
        0.05,
        "Smallest relative change of a class's shares; smaller changes are ignored.",
        kind=FieldKind.NUMBER,
        most=0.9,
    )
    bytes_s_max: int = size_setting(
        0,
        "Upper bound on the bytes per second that all rewrites together read and write; the"
        " controller divides them; 0: no limit.",
        least=LIMIT_BYTES_S_MIN,
        zero=True,
    )
    bytes_s_min: int = size_setting(
        1024**2,
        "Lower bound on the bytes per second that all rewrites together may read and write,"
        " whatever the controller decides and readers report.",
        least=LIMIT_BYTES_S_MIN,
    )
    foreground_limit_s: float = setting(
        0.0,
        "Target for the average wait of readers (`POST /v1/reads`). If they wait longer, rewrites"
        " get fewer bytes per second. 0: reports of readers are ignored.",
        most=3600,
    )
    memory_bytes: int = size_setting(
        0,
        "Divisor of the backlog in `control-points`; 0: the total heap of all possible executors.",
    )
    foreground_shares: float = setting(
        0.0,
        "Shares of the class `foreground`: reads and appends through gateways. While both want more"
        " than the limit of a volume, they and the compactions on it get bytes in proportion to"
        " these shares and those of system jobs. 0: the limit applies to compactions alone.",
        kind=FieldKind.NUMBER,
        most=1_000_000,
    )

    def __post_init__(self) -> None:
        """Refuse values that break their rules."""
        check_section("control", self)
        if 0 < self.bytes_s_max < self.bytes_s_min:
            raise SettingError(
                f"setting control.bytes_s_max is {self.bytes_s_max} B, expected 0 (none) or at"
                f" least control.bytes_s_min, {self.bytes_s_min} B",
                "control.bytes_s_max",
                "control.bytes_s_min",
            )

    def option_values(self) -> dict[str, object]:
        """Return the options of the controller by name.

        Raises:
            SettingError: An option is not of the form `name=value`, or is given twice.
        """
        values: dict[str, object] = {}
        for text in self.options:
            name, equals, value = (part.strip() for part in text.partition("="))
            if not equals or not name or name in values:
                raise SettingError(
                    f"setting control.options has {text[:80]!r}, expected name=value, each once",
                    "control.options",
                )
            values[name] = value
        return values


@readable_across_releases
@dataclass(frozen=True, slots=True, kw_only=True)
class IngestSettings:
    """Rows that are acknowledged before they are in files (operations.md)."""

    flush_age_max_s: float = setting(
        60.0,
        "Longest time that rows stay in a table's buffer before they are flushed into files.",
        least=0.1,
        most=3600,
    )
    flush_bytes: int = size_setting(
        16 * 1024**2,
        "Decoded size of buffered rows at which they are flushed before that, and the size of what"
        " one flush reads at a time.",
        least=64 * 1024,
        most=256 * 1024**2,
    )
    table_bytes_max: int = size_setting(
        64 * 1024**2,
        "Decoded size of a table's buffered rows at which further rows are refused with 503."
        " Writers are delayed from half of it on.",
        least=64 * 1024,
    )
    bytes_max: int = size_setting(
        256 * 1024**2,
        "Decoded size of all buffered rows, otherwise as `ingest.table_bytes_max`.",
        least=64 * 1024,
    )
    store_used_max_pct: float = setting(
        70.0,
        "Used percentage of the metadata store's memory limit above which no rows are buffered, so"
        " that metadata never waits for rows. It has no effect on a store without a limit.",
        least=1,
        most=95,
    )
    files_max: int = setting(
        200,
        "Overlapping files of a tablet whose merges wait, at which calls that buffer rows are"
        " delayed by a second; they are delayed from half of it on, and never refused for it. 0: no"
        " delay.",
    )
    backlog_bytes_max: int = size_setting(
        256 * 1024**3,
        "Backlog of a table, otherwise as `ingest.files_max`.",
        zero=True,
    )

    def __post_init__(self) -> None:
        """Refuse values that break their rules."""
        check_section("ingest", self)


CONDITIONS = (
    *("quarantined", "shed", "backlog", "request-done", "request-failed"),
    *("read-only", "store-silent", "coordinator-silent", "unpublished", "catalog-silent"),
)
"""What operators are notified of."""


@readable_across_releases
@dataclass(frozen=True, slots=True, kw_only=True)
class NotifySettings:
    """Messages to operators, by webhook and e-mail (notifications.md)."""

    webhook_url: str = setting(
        "",
        "Address (`https://…`) that gets each message as JSON. Redirects are not followed. Empty:"
        " no webhook.",
        schemes=("https", "http"),
        secret=True,
    )
    webhook_url_file: str = setting(
        "", "Absolute path of a file that holds the address, in place of `notify.webhook_url`."
    )
    webhook_key_file: str = setting(
        "",
        "Absolute path of a file that holds the key of the signatures (HMAC-SHA256) of webhook"
        " messages; required with a webhook.",
    )
    webhook_authorities: str = setting(
        "", "File of certificate authorities (PEM) for the webhook. Empty: the system's."
    )
    email_to: tuple[str, ...] = setting((), "Addresses that get an e-mail. Empty: no e-mail.")
    email_from: str = setting("", "Sender of e-mails; required with `notify.email_to`.")
    smtp_host: str = setting("", "Mail server; required with `notify.email_to`.")
    smtp_port: int = setting(587, "Port of the mail server.", least=1, most=65_535)
    smtp_tls: str = setting(
        "starttls",
        "How the connection to the mail server is encrypted: `starttls`, or `tls` from the start"
        " (port 465). There is no e-mail without encryption.",
        choices=("starttls", "tls"),
    )
    smtp_user: str = setting("", "User at the mail server. Empty: no login.")
    smtp_password_file: str = setting(
        "",
        "Absolute path of a file that holds the password of the user. It is read for each e-mail.",
    )
    smtp_authorities: str = setting(
        "", "File of certificate authorities (PEM) for the mail server. Empty: the system's."
    )
    conditions: tuple[str, ...] = setting(
        CONDITIONS, "What is notified; the others are left out.", choices=CONDITIONS
    )
    backlog_bytes: int = size_setting(
        0, "Backlog of a table above which the condition `backlog` holds; 0: none does."
    )
    backlog_after_s: float = setting(
        600.0, "Time that a backlog must stay above `notify.backlog_bytes`.", least=0.1
    )
    silent_after_s: float = setting(
        30.0, "Time after which a silent store or coordinator is notified.", least=0.1
    )
    gather_s: float = setting(
        10.0,
        "Time between the begin of another condition and its message, which has the number of"
        " tablets or requests at its end.",
        least=0.1,
        most=3600,
    )
    calm_s: float = setting(
        60.0,
        "Time that a condition must be over before the message that it has ended.",
        least=0.1,
        most=86_400,
    )
    service_name: str = setting(
        "neve", "Name of this service in messages, to tell several apart.", least=1, most=100
    )
    state_file: str = setting(
        "",
        "Absolute path of a file that remembers which messages were sent, also while the store is"
        " silent. `neve up` uses `notified.json` in the folder of the stack. Empty: only the store"
        " remembers it.",
    )
    catalog_silent_after_s: float = setting(
        300.0,
        "Time after which a lake table is notified whose log or catalog does not answer.",
        least=0.1,
    )

    def __post_init__(self) -> None:
        """Refuse values that break their rules, and targets that lack something."""
        check_section("notify", self)
        needs = {
            "webhook_key_file": bool(self.webhook_url or self.webhook_url_file),
            "email_from": bool(self.email_to),
            "smtp_host": bool(self.email_to),
            "smtp_password_file": bool(self.smtp_user),
        }
        for name, is_needed in needs.items():
            if is_needed and not getattr(self, name):
                raise SettingError(
                    f"setting notify.{name} is empty, expected a value, because"
                    f" {_NEEDED_BY[name]} is set",
                    f"notify.{name}",
                )


_NEEDED_BY = {
    "webhook_key_file": "notify.webhook_url",
    "email_from": "notify.email_to",
    "smtp_host": "notify.email_to",
    "smtp_password_file": "notify.smtp_user",
}
"""Setting → the one that needs it."""


@readable_across_releases
@dataclass(frozen=True, slots=True, kw_only=True)
class CatalogSettings:
    """How logs and catalogs of lake tables are reached and followed (lake-tables.md)."""

    poll_s: float = setting(
        10.0,
        "Interval at which the coordinator looks for new versions of each lake table. It looks at"
        " once after an own attempt has ended.",
        least=0.1,
        most=3600,
    )
    polls_max: int = setting(
        4,
        "Lake tables whose logs are read at a time. A table that does not answer occupies one of"
        " them for `catalog.answer_max_s` at most.",
        least=1,
        most=64,
    )
    answer_max_s: float = setting(
        60.0,
        "Longest wait for a log or catalog. A table that takes longer is shown as not answering.",
        least=1,
        most=3600,
    )
    options_file: str = setting(
        "",
        "Absolute path of a TOML file with options and secrets of storages: a table for each prefix"
        ' of URIs, such as `["s3://bucket"]` with `aws_access_key_id`. Every process of the'
        " service on every node must be able to read it. Empty: only the environment counts.",
    )

    def __post_init__(self) -> None:
        """Refuse values that break their rules."""
        check_section("catalog", self)


CATALOG_TYPES = ("sql", "rest", "glue")
HIVE = (
    "a catalog of the type hive is not supported: its clients replace a table without naming the"
    " version that they expect, so that commits of two writers overwrite each other"
)
CODE_PROPERTIES = ("py-catalog-impl", "py-io-impl", "botocore_session")
"""Properties of a catalog that load code. They are never taken from settings or tables."""
_SECRET_WORDS = (
    *("secret", "password", "token", "credential", "access-key", "account-key", "sas-"),
)


def check_catalog(name: str, properties: Mapping[str, str]) -> str:
    """Return the type of a catalog of Iceberg tables.

    Raises:
        SettingError: It is missing or not supported, or a property would load code.
    """
    kind, where = str(properties.get("type", "")).lower(), f"setting catalogs.{name}"
    if kind == "hive":
        raise SettingError(f"{where}.type: {HIVE}", f"catalogs.{name}.type")
    if kind not in CATALOG_TYPES:
        expected = ", ".join(CATALOG_TYPES)
        names = (f"catalogs.{name}.{key}" for key in properties)
        raise SettingError(f"{where}.type is {kind!r}, expected one of {expected}", *names)
    for code in CODE_PROPERTIES:
        if code in properties:
            raise SettingError(
                f"{where}.{code} is not allowed, because it loads code", f"catalogs.{name}.{code}"
            )
    return kind


def check_not_secret(name: str, properties: Mapping[str, str]) -> None:
    """Refuse secrets among the properties of a catalog, by their names or as passwords in URIs.

    Settings are kept by Ray and shown to operators.

    Raises:
        SettingError: One is a secret; the message has no value.
    """
    for key, value in properties.items():
        words = any(word in key.lower() for word in _SECRET_WORDS)
        if (words and "access-key-id" not in key.lower()) or _has_password(value):
            raise SettingError(
                f"setting catalogs.{name}.{key} is a secret; expected it in the file of the setting"
                f" catalog.options_file, in a table {name}, or in the environment of the service"
                " by PyIceberg's rules",
                f"catalogs.{name}.{key}",
            )


def _has_password(value: str) -> bool:
    try:
        return bool(urlsplit(value).password)
    except ValueError:
        return False


@readable_across_releases
@dataclass(frozen=True, slots=True, kw_only=True)
class ClusterSettings:
    """Where `neve serve` starts its actors on a Ray cluster."""

    service_resource: str = setting(
        "",
        "Custom Ray resource of the nodes for coordinator and gateway; empty: any node.",
    )

    def __post_init__(self) -> None:
        """Refuse values that break their rules."""
        check_section("cluster", self)
