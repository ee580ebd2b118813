# Joins the six Redis servers into a cluster. Does nothing if they already are one.
export REDISCLI_AUTH=$(cat /etc/redis-auth/password)
cli() { redis-cli --tls --cacert /etc/redis-tls/ca.crt "$@"; }
members=
for i in 0 1 2 3 4 5; do
  name=routing-replay-redis-$i.routing-replay-redis
  until cli -h $name ping | grep -q PONG; do sleep 2; done
  members="$members $(getent hosts $name | cut -d ' ' -f 1):6379"
done
if cli -h routing-replay-redis-0.routing-replay-redis cluster info | grep -q cluster_slots_assigned:16384; then
  exit 0
fi
cli --cluster create $members --cluster-replicas 1 --cluster-yes
