#!/bin/sh
# Makes the certificates of the tests, all of them valid from 2020 to 2120 but `expired`:
# sh make.sh, in this folder.
set -eu
FROM=20200101000000Z
WORK=$(mktemp -d)
trap 'rm -r "$WORK"' EXIT

cat > "$WORK/config" <<END
[ca]
default_ca = it
[it]
database = $WORK/index
new_certs_dir = $WORK
rand_serial = yes
default_md = sha256
policy = any
unique_subject = no
copy_extensions = copy
[any]
commonName = supplied
END

key() { openssl genpkey -algorithm EC -pkeyopt ec_paramgen_curve:P-256 -out "$1.key" 2> "$WORK/log"; }

# Signs a request: its name, the CA, its end, other arguments.
sign() {
    : > "$WORK/index"
    openssl ca -batch -notext -config "$WORK/config" -in "$WORK/$1.csr" -out "$1.pem" \
        -startdate $FROM -enddate "$3" -keyfile "$2.key" $4 2> "$WORK/log" || cat "$WORK/log"
}

# A CA: its name.
ca() {
    key "$1"
    openssl req -new -key "$1.key" -subj "/CN=$1" -addext basicConstraints=critical,CA:true \
        -out "$WORK/$1.csr"
    sign "$1" "$1" 21200101000000Z -selfsign
}

# A certificate: its name, the CA, its subject alternative names, its end.
certificate() {
    key "$1"
    openssl req -new -key "$1.key" -subj "/CN=$1" -addext "subjectAltName=$3" -out "$WORK/$1.csr"
    sign "$1" "$2" "$4" "-cert $2.pem"
}

ca ca
ca other-ca
certificate server ca DNS:localhost,IP:127.0.0.1 21200101000000Z
certificate second ca DNS:localhost,IP:127.0.0.1 21200101000000Z
certificate elsewhere ca DNS:elsewhere.example 21200101000000Z
certificate expired ca DNS:localhost,IP:127.0.0.1 20200201000000Z
certificate client ca DNS:client 21200101000000Z
certificate stranger other-ca DNS:client 21200101000000Z
rm ca.key other-ca.key
