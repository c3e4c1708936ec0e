#!/bin/bash
# Makes what mutual TLS needs, in the folder given: an authority, and a P-256 certificate each for hop-a (client) and
# hop-b (server), valid 30 days. NAME.pem holds certificate and key, as haproxy wants them.
set -eu
mkdir -p "$1"; cd "$1"
key() { openssl ecparam -name prime256v1 -genkey -noout -out "$1.key"; }
key ca; openssl req -x509 -new -key ca.key -subj "/CN=bench CA" -days 30 -out ca.crt
leaf() { # name extended-key-usage
  key "$1"; openssl req -new -key "$1.key" -subj "/CN=$1" -out "$1.csr"
  openssl x509 -req -in "$1.csr" -CA ca.crt -CAkey ca.key -CAcreateserial -days 30 -out "$1.crt" \
    -extfile <(printf 'subjectAltName=DNS:%s\nextendedKeyUsage=%s\nbasicConstraints=CA:FALSE\nkeyUsage=digitalSignature\n' "$1" "$2") 2>/dev/null
  cat "$1.crt" "$1.key" >"$1.pem"
}
leaf hop-a clientAuth; leaf hop-b serverAuth
