#!/usr/bin/env bash
# Makes the certificates of the courier's TLS tests anew (row D27): an authority, and servers that are each wrong in one
# way. They are kept, so that no test needs a tool; the key protects nothing.
set -eu -o pipefail
cd "$(dirname "$(readlink -f "${BASH_SOURCE[0]}")")"
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT

key() { openssl genpkey -algorithm EC -pkeyopt ec_paramgen_curve:P-256 -out "$1" 2>/dev/null; }

authority() { # NAME KEY
  openssl req -x509 -new -key "$2" -subj "/CN=$1" -days 36500 -out "$1.pem" \
    -addext basicConstraints=critical,CA:TRUE -addext keyUsage=critical,keyCertSign
}

server() { # NAME SAN FROM UNTIL: signed by the authority
  openssl req -new -key server.key -subj "/CN=$1" -out "$work/$1.csr"
  printf 'subjectAltName=%s\nbasicConstraints=CA:FALSE\n' "$2" >"$work/$1.ext"
  touch "$work/index"
  openssl ca -batch -notext -config <(
    printf '[ca]\ndefault_ca=here\n[here]\ndatabase=%s/index\nnew_certs_dir=%s\n' "$work" "$work"
    printf 'rand_serial=yes\ndefault_md=sha256\npolicy=any\nunique_subject=no\n[any]\ncommonName=supplied\n'
  ) -cert authority.pem -keyfile "$work/authority.key" -extfile "$work/$1.ext" \
    -startdate "$3" -enddate "$4" -in "$work/$1.csr" -out "$1.pem" 2>/dev/null
}

key server.key
key "$work/authority.key"
authority authority "$work/authority.key"
server good IP:127.0.0.1 20200101000000Z 21200101000000Z
server expired IP:127.0.0.1 20200101000000Z 20200201000000Z
server elsewhere IP:127.0.0.2 20200101000000Z 21200101000000Z
openssl req -x509 -new -key server.key -subj "/CN=self-signed" -days 36500 -out self-signed.pem \
  -addext subjectAltName=IP:127.0.0.1 -addext basicConstraints=CA:FALSE
