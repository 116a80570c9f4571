# shellcheck shell=bash
# One Apache Kafka broker of a stack folder: KRaft, broker and controller in one process, loopback only.

KAFKA_START_LIMIT=120 # seconds; about 3 on an idle machine
KAFKA_STOP_LIMIT=30

kafka_java() { # CLASS ARGS... (execs; in a session of its own, so that Ctrl-C does not reach it)
  exec setsid java -Xmx512m -XX:+UseSerialGC -XX:TieredStopAtLevel=1 -XX:+ExitOnOutOfMemoryError \
    -Djava.awt.headless=true -Dorg.slf4j.simpleLogger.showDateTime=true \
    -Dorg.slf4j.simpleLogger.dateTimeFormat=HH:mm:ss.SSS \
    -cp "$KAFKA_JARS/*" "$@"
}

kafka_properties() { # PORT CONTROLLER_PORT
  local via listen=
  # A second listener whose advertised port is a proxy's: clients that begin at the proxy stay behind it.
  via=$(state_get kafka_via_port) && listen=$(state_get kafka_via_listen_port)
  cat <<PROPERTIES
process.roles=broker,controller
node.id=1
controller.quorum.voters=1@127.0.0.1:$2
listeners=PLAINTEXT://127.0.0.1:$1,CONTROLLER://127.0.0.1:$2${listen:+,VIA://127.0.0.1:$listen}
advertised.listeners=PLAINTEXT://127.0.0.1:$1${listen:+,VIA://127.0.0.1:$via}
listener.security.protocol.map=CONTROLLER:PLAINTEXT,PLAINTEXT:PLAINTEXT,VIA:PLAINTEXT
controller.listener.names=CONTROLLER
inter.broker.listener.name=PLAINTEXT
log.dirs=$DIR/kafka/data
auto.create.topics.enable=false
delete.topic.enable=true
default.replication.factor=1
offsets.topic.replication.factor=1
offsets.topic.num.partitions=4
transaction.state.log.replication.factor=1
transaction.state.log.min.isr=1
transaction.state.log.num.partitions=4
group.initial.rebalance.delay.ms=0
group.min.session.timeout.ms=1000
# What is beyond its retention goes soon: tests wait for it.
log.initial.task.delay.ms=1000
log.retention.check.interval.ms=2000
log.segment.delete.delay.ms=1000
# Long enough that a busy machine does not fence its only broker, which leaves all partitions without a leader; a broker
# that was killed is let in again after it.
broker.session.timeout.ms=9000
broker.heartbeat.interval.ms=1000
num.network.threads=2
num.io.threads=4
log.cleaner.dedupe.buffer.size=16777216
PROPERTIES
  # What a test wants otherwise in a stack of its own.
  if [ -f "$DIR/kafka/extra.properties" ]; then cat "$DIR/kafka/extra.properties"; fi
}

kafka_init() { # formats the data folder when there is none
  local id
  [ -f "$DIR/kafka/formatted" ] && return 0
  rm -rf "$DIR/kafka/data"
  until id=$(head -c 16 /dev/urandom | base64 | tr '+/' '-_' | tr -d '=') && [ "${id#-}" = "$id" ]; do :; done
  (kafka_java kafka.tools.StorageTool format -t "$id" -c "$DIR/kafka/server.properties") \
    </dev/null >"$DIR/kafka/format.log" 2>&1 9>&- ||
    { tail -n 20 "$DIR/kafka/format.log" >&2; die "Kafka's storage cannot be formatted"; }
  touch "$DIR/kafka/formatted"
}

kafka_launch() { # PORT -> starts the broker and waits; 1 when it ended before it answered
  local tries seen=0 log=$DIR/kafka/kafka.log
  [ -f "$log" ] && seen=$(stat -c %s "$log")
  rm -f "$DIR/kafka.pid"
  (
    exec </dev/null >>"$log" 2>&1 9>&-
    cd "$DIR/kafka" || exit 1
    pid_remember "$DIR/kafka.pid" "$BASHPID"
    kafka_java kafka.Kafka "$DIR/kafka/server.properties"
  ) &
  disown $!
  until [ -s "$DIR/kafka.pid" ]; do sleep 0.01; done
  tries=$((KAFKA_START_LIMIT * 10))
  until tail -c "+$((seen + 1))" "$log" 2>/dev/null | grep -q 'Kafka Server started' && answers "$1"; do
    pid_alive "$DIR/kafka.pid" >/dev/null || return 1
    tries=$((tries - 1))
    [ "$tries" -gt 0 ] || { kafka_kill; return 1; }
    sleep 0.1
  done
}

kafka_start() {
  local port controller tries=5
  if pid_alive "$DIR/kafka.pid" >/dev/null; then return 0; fi
  [ -f "$KAFKA_JARS/.complete" ] || die "no Kafka: run deploy/dev/stack setup"
  mkdir -p "$DIR/kafka"
  port=$(state_get kafka_port) controller=$(state_get kafka_controller_port)
  while [ "$tries" -gt 0 ]; do
    if [ -z "$port" ]; then
      port=$(free_port)
      controller=$(free_port)
      [ "$port" != "$controller" ] || { port=; continue; }
    fi
    state_set kafka_port "$port"
    state_set kafka_controller_port "$controller"
    kafka_properties "$port" "$controller" >"$DIR/kafka/server.properties"
    kafka_init
    kafka_launch "$port" && { env_write; return 0; }
    port_taken "$port" || port_taken "$controller" || break
    port= tries=$((tries - 1))
  done
  tail -n 20 "$DIR/kafka/kafka.log" >&2
  die "Kafka did not start: see $DIR/kafka/kafka.log"
}

kafka_stop() {
  local pid
  pid=$(pid_alive "$DIR/kafka.pid") || { rm -f "$DIR/kafka.pid"; return 0; }
  kill -TERM "$pid" 2>/dev/null
  wait_gone "$DIR/kafka.pid" "$KAFKA_STOP_LIMIT" || kafka_kill
  rm -f "$DIR/kafka.pid"
}

kafka_kill() {
  local pid
  pid=$(pid_alive "$DIR/kafka.pid") || return 0
  kill -KILL "$pid" 2>/dev/null
  wait_gone "$DIR/kafka.pid" 10
  rm -f "$DIR/kafka.pid"
}

kafka_signal() { # SIGNAL
  local pid
  pid=$(pid_alive "$DIR/kafka.pid") || die "Kafka is down"
  kill "-$1" "$pid"
}

kafka_topic_config() { # TOPIC NAME=VALUE,... -> only these change
  (kafka_java kafka.admin.ConfigCommand --bootstrap-server "127.0.0.1:$(state_get kafka_port)" --alter \
    --entity-type topics --entity-name "$1" --add-config "$2") </dev/null >&2
}

kafka_partitions() { # TOPIC COUNT
  (kafka_java org.apache.kafka.tools.TopicCommand --bootstrap-server "127.0.0.1:$(state_get kafka_port)" --alter \
    --topic "$1" --partitions "$2") </dev/null >&2
}
