# Starts the Redis of a pod. A file, because Kubernetes expands $(NAME) and $$ in what stands in `command`.
export REDISCLI_AUTH=$(cat /etc/redis-auth/password)
ask() { redis-cli --tls --cacert /etc/redis-tls/ca.crt -h $POD_IP "$@"; }
# Members know each other by addresses, and a pod that starts again has another. One finds the others; of
# several at once, none knows where any is. So a member that misses one introduces all by their names.
introduce() {
  shown=$(cksum </etc/redis-tls/tls.crt)
  while sleep 5 && kill -0 $$; do  # As long as Redis, which is to be this process, is there.
    # A renewed certificate is read when it is set, though its name is the same.
    if [ "$shown" != "$(cksum </etc/redis-tls/tls.crt)" ] && ask config set \
      tls-cert-file /etc/redis-tls/tls.crt tls-key-file /etc/redis-tls/tls.key | grep -q OK; then
      shown=$(cksum </etc/redis-tls/tls.crt)
    fi
    # A replica may hear of its master's new address and go on asking the old one.
    asked=$(ask info replication | tr -d '\r' | sed -n 's/^master_host://p')
    master=$(ask cluster nodes | grep myself | cut -d ' ' -f 4)
    if [ -n "$asked" ] && ! ask cluster nodes | grep -q "^$master $asked:"; then
      ask cluster replicate $master || true
    fi
    ask cluster nodes | grep -Eq ',(fail|noaddr)' || continue
    for i in 0 1 2 3 4 5; do
      address=$(getent hosts routing-replay-redis-$i.routing-replay-redis | cut -d ' ' -f 1)
      [ -z "$address" ] || ask cluster meet $address 6379 || true
    done
  done
}
introduce >/dev/null 2>&1 &
# The password stays out of the command line, where everybody on the node reads it.
umask 077
{ cat /etc/redis/redis.conf
  echo "cluster-announce-ip $POD_IP"
  echo "cluster-announce-hostname $POD_NAME.routing-replay-redis"
  echo "requirepass $(cat /etc/redis-auth/password)"
  echo "masterauth $(cat /etc/redis-auth/password)"
  # What servers may do: server/store/README.md.
  echo "user routing-replay on >$(cat /etc/redis-auth/server-password) ~rr:*" \
    "+@read +@write +@fast +@connection +@scripting -@dangerous +cluster +wait"
} >/run/redis/redis.conf
exec redis-server /run/redis/redis.conf
