"""Authorities and certificates for tests: real keys, made here."""

from __future__ import annotations

import ipaddress
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

KEY = serialization.PrivateFormat.PKCS8
PEM = serialization.Encoding.PEM
PLAIN = serialization.NoEncryption()


@dataclass
class Authority:
    """An authority that signs certificates for this machine."""

    name: str

    def __post_init__(self) -> None:
        self._key = ec.generate_private_key(ec.SECP256R1())
        self._name = _name(self.name)
        constraints = x509.BasicConstraints(ca=True, path_length=0)
        builder = _builder(self._name, self._name, self._key.public_key())
        usage = x509.KeyUsage(
            digital_signature=True,
            content_commitment=False,
            key_encipherment=False,
            data_encipherment=False,
            key_agreement=False,
            key_cert_sign=True,
            crl_sign=True,
            encipher_only=False,
            decipher_only=False,
        )
        self._certificate = (
            builder.add_extension(constraints, critical=True)
            .add_extension(usage, critical=True)
            .add_extension(
                x509.SubjectKeyIdentifier.from_public_key(self._key.public_key()), critical=False
            )
            .sign(self._key, hashes.SHA256())
        )

    def write(self, path: Path) -> str:
        """Write the authority's certificate; return where."""
        path.write_bytes(self._certificate.public_bytes(PEM))
        return str(path)

    def issue(
        self,
        path: Path,
        common_name: str = "localhost",
        *,
        expired: bool = False,
        host: str = "localhost",
    ) -> str:
        """Write a certificate and its key into one file; return where."""
        key = ec.generate_private_key(ec.SECP256R1())
        names = x509.SubjectAlternativeName(
            [x509.DNSName(host), x509.IPAddress(ipaddress.ip_address("127.0.0.1"))]
        )
        uses = [ExtendedKeyUsageOID.SERVER_AUTH, ExtendedKeyUsageOID.CLIENT_AUTH]
        certificate = (
            _builder(_name(common_name), self._name, key.public_key(), expired=expired)
            .add_extension(names, critical=False)
            .add_extension(x509.ExtendedKeyUsage(uses), critical=False)
            .add_extension(
                x509.AuthorityKeyIdentifier.from_issuer_public_key(self._key.public_key()),
                critical=False,
            )
            .sign(self._key, hashes.SHA256())
        )
        fresh = path.with_name(f"{path.name}.fresh")
        fresh.write_bytes(certificate.public_bytes(PEM) + key.private_bytes(PEM, KEY, PLAIN))
        fresh.replace(path)
        return str(path)


def _name(text: str) -> x509.Name:
    return x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, text)])


def _builder(
    subject: x509.Name,
    issuer: x509.Name,
    key: ec.EllipticCurvePublicKey,
    *,
    expired: bool = False,
) -> x509.CertificateBuilder:
    now = datetime.now(UTC)
    return (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(issuer)
        .public_key(key)
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - timedelta(hours=2))
        .not_valid_after(now + (-timedelta(hours=1) if expired else timedelta(days=1)))
    )
