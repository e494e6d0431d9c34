"""The section `access` of the settings: who may call the gateway, and how much."""

from dataclasses import dataclass

from common.setting_rules import (
    SettingKind,
    check_section,
    setting,
    size_setting,
)


@dataclass(frozen=True, slots=True, kw_only=True)
class AccessSettings:
    """Who may do what, how much of it, and what is kept of it."""

    tokens_file: str = setting(
        "",
        "File of named tokens that `neve token` writes. It is read again when it changes. `neve up`"
        " uses `tokens.json` in the folder of the stack. Empty: no named tokens.",
    )
    caller_requests_s: float = setting(
        0.0,
        "Requests per second of one caller; as many as come in five seconds at this rate may come"
        " at once. 0: no limit.",
        kind=SettingKind.NUMBER,
    )
    caller_body_bytes_s: int = size_setting(
        0,
        "Bytes per second of the bodies that one caller sends; of five seconds at once. 0: no"
        " limit.",
    )
    caller_scans_max: int = setting(
        0, "Scans at a time of one caller. 0: as many as `gateway.scans_max`."
    )
    caller_compactions_max: int = setting(
        0, "Compaction requests of one caller that are not finished. 0: no limit."
    )
    caller_request_bytes_max: int = size_setting(
        16 * 1024**2,
        "Bytes of the compaction requests of one caller that are not finished; one request has at"
        " most 32 KiB. 0: no limit.",
    )
    audit_file: str = setting(
        "",
        "File of the audit: JSON lines, two for each call that may change something. `neve up` uses"
        " `audit.jsonl` in the folder of the stack. Empty: the audit is in the store only.",
    )
    audit_reads: bool = setting(
        False,
        "Whether scans, counts and manifests leave an entry in the audit, too: in a file and a"
        " stream of their own.",
    )
    audit_file_bytes_max: int = size_setting(
        16 * 1024**2, "Size at which the file of the audit is rotated.", least=64 * 1024
    )
    audit_files_kept: int = setting(
        10, "Rotated files of the audit that are kept.", least=1, most=1000
    )
    audit_entries_max: int = setting(
        100_000,
        "Entries of the audit that the store keeps, about 400 bytes each.",
        least=100,
        most=10_000_000,
    )
    oidc_issuer: str = setting(
        "",
        "Issuer of OpenID Connect (`https://…`) whose tokens are accepted, as its `iss` says."
        " Empty: none.",
    )
    oidc_audience: str = setting(
        "", "What `aud` of such a token must name: this service, as the issuer knows it."
    )
    oidc_keys_url: str = setting(
        "", "URL of the issuer's keys (JWKS). Empty: as its discovery document says."
    )
    oidc_authorities: str = setting(
        "", "File of authorities (PEM) for the issuer's HTTPS. Empty: those of the system."
    )
    oidc_algorithms: tuple[str, ...] = setting(
        ("RS256", "ES256"), "Signatures that are accepted; none with a shared secret can be named."
    )
    oidc_claim: str = setting(
        "roles",
        "Claim whose texts are looked up in `access.oidc_grants`: a list of texts, or one text."
        " Dots lead into objects, as `realm_access.roles`, unless a claim has the whole name, as"
        " `https://example.com/roles`.",
    )
    oidc_life_max_s: float = setting(
        86_400.0,
        "Longest life of a token, from its `iat` to its `exp`.",
        least=60.0,
        most=31_622_400.0,
    )
    oidc_grants: tuple[str, ...] = setting(
        (),
        "What the texts of the claim grant: `lake-readers=read, etl=write:events-*`. A text may"
        " stand several times; a token with none of them may do nothing.",
    )

    def __post_init__(self) -> None:
        """Refuse values that break their rules."""
        check_section("access", self)
