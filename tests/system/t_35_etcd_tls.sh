#!/bin/bash
# A registry in an etcd with TLS, client certificates and users. A gateway starts and makes a volume; its token is forgotten by
# etcd, and it goes on. What is not as etcd wants it is refused at once, with the remedy: another authority, no certificate
# of a client, another address, no TLS, no user, a wrong password, a key that the user may not write.
source "$(dirname "$0")/lib.sh"
need etcd etcdctl openssl jq

client="127.0.0.1:$(( port_base + 20 ))" peer="http://127.0.0.1:$(( port_base + 24 ))"
tls=$work/tls
mkdir "$tls"
# authority NAME; certificate NAME AUTHORITY SAN [SUBJECT]
authority() {
    openssl req -x509 -newkey ec -pkeyopt ec_paramgen_curve:P-256 -nodes -days 2 -subj "/CN=$1" -keyout "$tls/$1.key" \
        -out "$tls/$1.pem" 2>/dev/null
}
certificate() {
    openssl req -newkey ec -pkeyopt ec_paramgen_curve:P-256 -nodes -subj "${4:-/O=$1}" -keyout "$tls/$1.key" -out "$tls/$1.csr" 2>/dev/null
    openssl x509 -req -in "$tls/$1.csr" -CA "$tls/$2.pem" -CAkey "$tls/$2.key" -CAcreateserial -days 2 -out "$tls/$1.pem" \
        -extfile <(printf 'subjectAltName=%s\nextendedKeyUsage=serverAuth,clientAuth\n' "$3") 2>/dev/null
}
authority ca
authority other
certificate server ca IP:127.0.0.1
certificate client ca DNS:client
certificate named ca DNS:client /CN=client
certificate stranger other DNS:stranger

# start_etcd: starts the member, or starts it again.
start_etcd() {
    etcd --name m1 --data-dir "$work/etcd" --logger zap --log-level error --listen-client-urls "https://$client" \
        --advertise-client-urls "https://$client" --listen-peer-urls "$peer" --initial-advertise-peer-urls "$peer" \
        --initial-cluster "m1=$peer" --cert-file "$tls/server.pem" --key-file "$tls/server.key" --client-cert-auth \
        --trusted-ca-file "$tls/ca.pem" >>"$work/etcd.err" 2>&1 &
    pids[etcd]=$!
    at_end "kill -9 $! 2>/dev/null"
}
etcd_is() {
    ETCDCTL_API=3 etcdctl --endpoints "https://$client" --cacert "$tls/ca.pem" --cert "$tls/client.pem" --key "$tls/client.key" "$@"
}
start_etcd
for (( i = 0; i < 100; i++ )); do etcd_is endpoint health >/dev/null 2>&1 && break; sleep 0.1; done
etcd_is user add root:secret >/dev/null
etcd_is user grant-role root root >/dev/null
etcd_is role add rack >/dev/null
etcd_is role grant-permission --prefix=true rack readwrite /rack1/ >/dev/null
etcd_is user add rack:pass-word >/dev/null
etcd_is user grant-role rack rack >/dev/null
etcd_is auth enable >/dev/null

echo pass-word >"$work/password"
echo wrong >"$work/wrong"
certs="ca=$tls/ca.pem&cert=$tls/client.pem&key=$tls/client.key"
user="user=rack&password-file=$work/password"
registry="etcds://$client/rack1?$certs&$user"

# refused REGISTRY TEXT: at once, with the remedy.
refused() {
    local before
    before=$(date +%s%3N)
    expect_code 1 "$SWITCHYARD" registry show --registry "$1"
    expect_text "$2"
    (( $(date +%s%3N) - before < 2000 )) || fail "the refusal took $(( $(date +%s%3N) - before )) ms"
}
echo "· what etcd or its client does not trust is refused with the remedy"
refused "etcds://$client/rack1?ca=$tls/other.pem&cert=$tls/client.pem&key=$tls/client.key&$user" "ca=FILE"
refused "etcds://$client/rack1?$user" "ca=FILE"
refused "etcds://$client/rack1?ca=$tls/ca.pem&$user" "cert=FILE&key=FILE"
refused "etcds://$client/rack1?ca=$tls/ca.pem&cert=$tls/stranger.pem&key=$tls/stranger.key&$user" "cert=FILE&key=FILE"
refused "etcds://$client/rack1?ca=$tls/ca.pem&cert=$tls/client.pem&key=$tls/stranger.key&$user" "no pair"
refused "etcds://$client/rack1?ca=$tls/ca.pem&cert=$tls/client.pem&key=$tls/client.pem&$user" "no private key"
refused "etcds://localhost:${client#*:}/rack1?$certs&$user" "name the member as its certificate does"
refused "etcds://$client/rack1?ca=$tls/missing.pem" "cannot read"
refused "etcds://$client/rack1?ca=$tls/ca.key" "no certificate"
refused "etcds://$client/rack1?ca=$tls/ca.pem&cert=$tls/named.pem&key=$tls/named.key&$user" "common name"
refused "etcd://$client/rack1?$user" "etcds://"
refused "etcds://$client/rack1?$certs" "user=NAME&password-file=FILE"
refused "etcds://$client/rack1?$certs&user=rack&password-file=$work/wrong" "password-file"
refused "etcds://$client/rack2?$certs&$user" "grant-permission"
expect_code 1 "$SWITCHYARD" gateway --dir "$work/gateway" --registry "etcds://$client/rack1?$certs&user=rack&password-file=$work/wrong" \
    --listen "$(udp 11)" --tor "$(udp 0)" --node "1=$(udp 1)" --control "127.0.0.1:$control_port"
expect_text "password-file"

echo "· a gateway works with it, and gets another token when etcd has forgotten its own"
part tor tor --listen "$(udp 0)"
part node1 node --id 1 --listen "$(udp 1)" --tor "$(udp 0)" --dir "$work/node1" --size 192MiB
part gateway gateway --dir "$work/gateway" --registry "$registry" --listen "$(udp 11)" --tor "$(udp 0)" --node "1=$(udp 1)" \
    --replicas 1 --nbd "127.0.0.1:$nbd_port" --control "127.0.0.1:$control_port"
"$SWITCHYARD" volume create one --size 8MiB --control "$CONTROL" >/dev/null
kill -9 "${pids[etcd]}"
wait "${pids[etcd]}" 2>/dev/null || true
start_etcd
for (( i = 0; i < 100; i++ )); do
    "$SWITCHYARD" volume create two --size 8MiB --control "$CONTROL" >"$work/out" 2>&1 && break
    sleep 0.1
done
(( i < 100 )) || fail "commands do not go on: $(<"$work/out")"
"$SWITCHYARD" verify "$registry" | grep -q "clean (1 nodes, 2 volumes" || fail "verify does not find two volumes"
! grep -rq pass-word "$work"/*.json "$work"/gateway.err || fail "the password is shown"
for part in gateway node1 tor; do
    kill -TERM "${pids[$part]}"
    wait "${pids[$part]}" || fail "$part stopped with $?"
done
