"""The section `access` of the settings: who may call the gateway, and how much."""

from dataclasses import dataclass

from common.documents import FieldKind, check_section, setting, size_setting
from neve.api.messages import readable_across_releases


@readable_across_releases
@dataclass(frozen=True, slots=True, kw_only=True)
class AccessSettings:
    """Authentication, limits per caller, and the audit."""

    tokens_file: str = setting(
        "",
        "File of named tokens that `neve token` writes. It is read again when it changes. `neve up`"
        " uses `tokens.json` in the folder of the stack. Empty: no named tokens.",
    )
    caller_requests_s: float = setting(
        0.0,
        "Requests per second of one caller. A burst may use up to five seconds' worth at once."
        " 0: no limit.",
        kind=FieldKind.NUMBER,
    )
    caller_body_bytes_s: int = size_setting(
        0,
        "Bytes per second of request bodies from one caller. A burst may use up to five seconds'"
        " worth at once. 0: no limit.",
    )
    caller_scans_max: int = setting(
        0, "Concurrent scans of one caller. 0: as many as `gateway.scans_max`."
    )
    caller_compactions_max: int = setting(
        0, "Unfinished compaction requests of one caller. 0: no limit."
    )
    audit_file: str = setting(
        "",
        "Audit file in JSON lines format, with two lines for each call that may change something."
        " `neve up` uses `audit.jsonl` in the folder of the stack. Empty: the audit is written to"
        " the store only.",
    )
    audit_file_bytes_max: int = size_setting(
        16 * 1024**2, "Size at which the audit file is rotated.", least=64 * 1024
    )
    audit_files_kept: int = setting(
        10, "Number of rotated audit files that are kept.", least=1, most=1000
    )
    audit_entries_max: int = setting(
        100_000,
        "Number of audit entries that the store keeps; an entry takes about 400 bytes.",
        least=100,
        most=10_000_000,
    )
    oidc_issuer: str = setting(
        "",
        "OpenID Connect issuer (`https://…`) whose tokens are accepted. It must equal the `iss`"
        " claim of the tokens. Empty: none.",
        schemes=("https", "http"),
    )
    oidc_audience: str = setting(
        "", "Required audience (`aud`) of a token: the name that the issuer uses for this service."
    )
    oidc_keys_url: str = setting(
        "",
        "URL of the issuer's keys (JWKS). Empty: taken from the issuer's discovery document.",
        schemes=("https", "http"),
    )
    oidc_authorities: str = setting(
        "", "File of certificate authorities (PEM) for HTTPS to the issuer. Empty: the system's."
    )
    oidc_algorithms: tuple[str, ...] = setting(
        ("RS256", "ES256"),
        "Accepted signature algorithms. Algorithms with a shared secret are refused.",
    )
    oidc_claim: str = setting(
        "roles",
        "Claim whose values are looked up in `access.oidc_grants`: a list of strings, or one"
        " string. Dots lead into objects, as in `realm_access.roles`, unless a claim has the whole"
        " name, as in `https://example.com/roles`.",
    )
    oidc_grants: tuple[str, ...] = setting(
        (),
        "Rights granted by values of the claim: `lake-readers=read, etl=write:events-*`. A value"
        " may be listed several times. A token with none of the values has no rights.",
    )
    caller_request_bytes_max: int = size_setting(
        16 * 1024**2,
        "Total size of the unfinished compaction requests of one caller; one request has at most"
        " 32 KiB. 0: no limit.",
    )
    audit_reads: bool = setting(
        False,
        "Whether scans, counts and manifests are audited as well, in a separate file and stream.",
    )
    oidc_life_max_s: float = setting(
        86_400.0,
        "Longest lifetime of a token, from its `iat` to its `exp`.",
        least=60.0,
        most=31_622_400.0,
    )
    session_max_s: float = setting(
        43_200.0,
        "Longest session of the console. A session also ends with the token that it began with.",
        least=60.0,
        most=31_622_400.0,
    )

    oidc_client_id: str = setting(
        "",
        "Id under which the issuer knows the console; people then sign in there. It needs"
        " `gateway.public_url`, and `/console/sign-in/issued` below it as redirect URI. Empty:"
        " people sign in with a token.",
    )
    oidc_client_secret_file: str = setting(
        "",
        "Absolute path of a file with the client's secret. Empty: the client is public (PKCE).",
    )
    oidc_scopes: tuple[str, ...] = setting(
        ("openid",),
        "Scopes that the console requests. Some issuers need one for the audience of the access"
        " token, and `offline_access` for a refresh token, with which a session outlives it.",
    )

    def __post_init__(self) -> None:
        """Refuse values that break their rules."""
        check_section("access", self)
