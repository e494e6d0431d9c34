"""What keeps a gateway from starting, before Ray is asked for anything."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from common.errors import ConfigError
from common.settings import AccessSettings, GatewaySettings, Settings
from neve.gateway.actor import require_token

ISSUER = {
    "oidc_issuer": "https://issuer.example",
    "oidc_audience": "neve",
    "oidc_grants": ("readers=read",),
}


def settings(gateway: dict[str, Any], access: dict[str, Any]) -> Settings:
    return replace(Settings(), gateway=GatewaySettings(**gateway), access=AccessSettings(**access))


@pytest.mark.parametrize(
    ("gateway", "access"),
    [({"token": "a-token"}, {}), ({}, {"tokens_file": "/etc/neve/tokens.json"}), ({}, ISSUER)],
)
def test_one_kind_of_callers_is_enough(gateway: dict[str, Any], access: dict[str, Any]) -> None:
    require_token(settings(gateway, access))


@pytest.mark.parametrize(
    ("gateway", "access", "said"),
    [
        ({}, {}, r"gateway\.token is empty"),
        ({"token": "t", "host": "0.0.0.0"}, {}, r"gateway\.insecure = true"),
        ({"token": "t"}, {**ISSUER, "oidc_audience": ""}, "oidc_audience is empty"),
        ({}, {"tokens_file": "tokens.json"}, r"access\.tokens_file is 'tokens\.json', expected"),
        ({"token": "t"}, {"audit_file": "~/audit"}, "expected an absolute path"),
        ({"token": "t", "tls_certificate": "tls.pem"}, {}, "expected an absolute path"),
    ],
)
def test_what_nobody_could_use_or_others_could_hear_is_refused(
    gateway: dict[str, Any], access: dict[str, Any], said: str
) -> None:
    with pytest.raises(ConfigError, match=said):
        require_token(settings(gateway, access))
