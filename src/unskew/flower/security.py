"""Certificates and node keys for a federation on Flower.

A server shows a certificate that a CA of its own has signed, and nodes trust that CA alone. A node signs what
it sends with a key of its own, whose public half is registered at the server. No key is ever overwritten.
"""

from __future__ import annotations

import ipaddress
import os
import re
from collections.abc import Iterable
from datetime import UTC, datetime, timedelta
from pathlib import Path

from unskew.errors import UserError
from unskew.files import replacing, write_file

try:
    from cryptography import x509
    from cryptography.hazmat.primitives import hashes, serialization
    from cryptography.hazmat.primitives.asymmetric import ec
    from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID
except ModuleNotFoundError:
    raise UserError("certificates and keys need Flower: pip install 'unskew[flower]'.") from None

LOOPBACK = ("localhost", "127.0.0.1")
"""The names that every server certificate is for, in addition to the given ones."""
CA_DAYS, SERVER_DAYS = 3650, 365
CA, CA_KEY, SERVER, SERVER_KEY = "ca.crt", "ca.key", "server.crt", "server.key"
PEM = serialization.Encoding.PEM


def make_certificate(folder: Path, names: Iterable[str] = ()) -> None:
    """Make a certificate for a server of these names, and the CA that signs it unless the folder has one.
    Every node needs `ca.crt`, and the server `server.crt` and `server.key`; `ca.key` stays in the folder."""
    hosts = [_host(name) for name in dict.fromkeys((*LOOPBACK, *names))]
    refuse_existing(folder / SERVER, folder / SERVER_KEY)
    private_folder(folder)
    if not (folder / CA).exists():
        made = ec.generate_private_key(ec.SECP384R1())
        _write_key(folder / CA_KEY, _pem(made))
        constraints = x509.BasicConstraints(True, path_length=0)
        write_file(folder / CA, _signed("unskew CA", made, None, made, CA_DAYS, constraints))
    ca, ca_key = _read_certificate(folder / CA), _read_key(folder / CA_KEY)
    key = ec.generate_private_key(ec.SECP384R1())
    purpose = x509.ExtendedKeyUsage([ExtendedKeyUsageOID.SERVER_AUTH])
    more = (x509.BasicConstraints(False, None), purpose, x509.SubjectAlternativeName(hosts))
    certificate = _signed("unskew server", key, ca, ca_key, SERVER_DAYS, *more)
    _write_key(folder / SERVER_KEY, _pem(key))
    write_file(folder / SERVER, certificate)


def check_certificate(folder: Path, names: Iterable[str] = ()) -> None:
    """Refuse a server certificate that has expired or is not for all of these names."""
    path = folder / SERVER
    found = _read_certificate(path)
    again = f"remove {path} and {SERVER_KEY} beside it, and the next `up` makes new ones with the same CA."
    if found.not_valid_after_utc <= datetime.now(UTC):
        raise UserError(
            f"the certificate {path} has expired on {found.not_valid_after_utc:%Y-%m-%d}: {again}"
        )
    held = found.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    for name in names:
        if _host(name) not in held:
            raise UserError(f"the certificate {path} is not for {name}: {again}")


def make_node_key(folder: Path, name: str) -> tuple[Path, Path]:
    """Make the key pair of a node and return its files: NAME, which stays with the node, and NAME.pub, which
    is registered at the server. Curve and format are those that Flower reads."""
    if not re.fullmatch(r"\w[\w.-]*", name):
        raise UserError(f"'{name}' is no name for a key: use letters, digits, '.', '-' and '_'.")
    private, public = folder / name, folder / f"{name}.pub"
    refuse_existing(private, public)
    private_folder(folder)
    key = ec.generate_private_key(ec.SECP384R1())
    ssh = serialization.Encoding.OpenSSH, serialization.PublicFormat.OpenSSH
    unencrypted = serialization.NoEncryption()
    _write_key(private, key.private_bytes(PEM, serialization.PrivateFormat.OpenSSH, unencrypted))
    write_file(public, key.public_key().public_bytes(*ssh) + f" {name}\n".encode())
    return private, public


def read_node_key(path: Path) -> ec.EllipticCurvePrivateKey:
    """Read the private key of a node."""
    try:
        key = serialization.load_ssh_private_key(path.read_bytes(), None)
    except (OSError, ValueError, TypeError):
        key = None
    if not isinstance(key, ec.EllipticCurvePrivateKey):
        raise UserError(f"{path} cannot be read as a node's key: remove it and its .pub to have a new one.")
    return key


def private_folder(folder: Path) -> None:
    """Make a folder that only its owner can read. If it exists, leave it as it is."""
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)


def refuse_existing(*paths: Path) -> None:
    for path in paths:
        if path.exists():
            raise UserError(f"{path} is there and is not overwritten: choose another folder, or remove it.")


def _host(name: str) -> x509.GeneralName:
    try:
        return x509.IPAddress(ipaddress.ip_address(name))
    except ValueError:
        pass
    if not re.fullmatch(r"(\*\.)?[A-Za-z0-9_-]+(\.[A-Za-z0-9_-]+)*", name):
        raise UserError(f"'{name}' is no host: give a name such as server.example.org, or an address.")
    return x509.DNSName(name)


def _signed(
    name: str,
    key: ec.EllipticCurvePrivateKey,
    ca: x509.Certificate | None,
    ca_key: ec.EllipticCurvePrivateKey,
    days: int,
    *extensions: x509.ExtensionType,
) -> bytes:
    """Return a certificate for a key, signed by a CA. If `ca` is None, return the certificate of the CA
    itself."""
    subject = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)])
    now = datetime.now(UTC)
    usage = dict.fromkeys(
        ("digital_signature", "content_commitment", "key_encipherment", "data_encipherment", "key_agreement",
         "key_cert_sign", "crl_sign", "encipher_only", "decipher_only"), False
    )  # fmt: skip
    usage |= {"key_cert_sign": True} if ca is None else {"digital_signature": True}
    builder = (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(subject if ca is None else ca.subject)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - timedelta(hours=1))  # the clock of another machine may be behind
        .not_valid_after(now + timedelta(days=days))
        .add_extension(x509.KeyUsage(**usage), critical=True)
        .add_extension(x509.SubjectKeyIdentifier.from_public_key(key.public_key()), critical=False)
        .add_extension(
            x509.AuthorityKeyIdentifier.from_issuer_public_key(ca_key.public_key()), critical=False
        )
    )
    for extension in extensions:
        builder = builder.add_extension(extension, isinstance(extension, x509.BasicConstraints))
    return builder.sign(ca_key, hashes.SHA384()).public_bytes(PEM)


def _pem(key: ec.EllipticCurvePrivateKey) -> bytes:
    return key.private_bytes(PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption())


def _write_key(path: Path, content: bytes) -> None:
    """Write a private key into a file that only its owner can read, from its first byte on."""
    refuse_existing(path)
    with replacing(path) as partial:
        descriptor = os.open(partial, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
        with os.fdopen(descriptor, "wb") as file:
            file.write(content)


def _read_certificate(path: Path) -> x509.Certificate:
    try:
        return x509.load_pem_x509_certificate(path.read_bytes())
    except (OSError, ValueError):
        raise UserError(f"{path} cannot be read as a certificate: choose another folder.") from None


def _read_key(path: Path) -> ec.EllipticCurvePrivateKey:
    try:
        key = serialization.load_pem_private_key(path.read_bytes(), None)
    except (OSError, ValueError, TypeError):
        key = None
    if not isinstance(key, ec.EllipticCurvePrivateKey):
        raise UserError(f"{path} cannot be read as the key of a CA: choose another folder.")
    return key
