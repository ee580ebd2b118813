# Starts the Redis of a pod. It is a file, because Kubernetes would expand $(NAME) and $$ in `command`.
export REDISCLI_AUTH=$(cat /etc/redis-auth/password)
ask() { redis-cli --tls --cacert /etc/redis-tls/ca.crt -h $POD_IP "$@"; }
# Cluster members know each other by address, and a restarted pod has a new address. One restarted member can still
# find the others; if several restart at once, none knows a valid address. So a member that misses another one
# introduces all members by their DNS names.
introduce() {
  shown=$(cksum </etc/redis-tls/tls.crt)
  while sleep 5 && kill -0 $$; do  # While Redis runs: this process becomes Redis below.
    # Setting the same file names again makes Redis read a renewed certificate.
    if [ "$shown" != "$(cksum </etc/redis-tls/tls.crt)" ] && ask config set \
      tls-cert-file /etc/redis-tls/tls.crt tls-key-file /etc/redis-tls/tls.key | grep -q OK; then
      shown=$(cksum </etc/redis-tls/tls.crt)
    fi
    # A replica may know its master's new address but still use the old one.
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
# The password is not put on the command line, because every user of the node can read command lines.
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
