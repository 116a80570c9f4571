# shellcheck shell=bash
# One PostgreSQL server of a stack folder: durable (fsync and synchronous_commit on), loopback only, no password.

PG_START_LIMIT=60 # seconds until it answers; crash recovery of a test's data is well below
PG_STOP_LIMIT=30

pg_home() { printf '%s/postgres' "$DIR"; }

pg_init() { # makes the data folder when there is none
  local home bin target
  home=$(pg_home)
  bin=$(pg_bin) || die "no PostgreSQL: run deploy/dev/stack setup"
  if is_root; then
    target=/var/tmp/laneway-$(path_hash "$DIR")
    private_folder "$target" "$(pg_user)"
    ln -sfn "$target" "$home"
  else
    mkdir -p -m 700 "$home"
  fi
  [ -f "$home/data/PG_VERSION" ] && [ -f "$home/initialised" ] && return 0
  rm -rf "$home/data"
  (as_pg_exec "$bin/initdb" -D "$(readlink -f "$home")/data" -U postgres --auth=trust \
    --encoding=UTF8 --locale=C --no-sync) </dev/null >"$DIR/initdb.log" 2>&1 ||
    { tail -n 20 "$DIR/initdb.log" >&2; die "initdb failed"; }
  touch "$home/initialised"
}

pg_ready() { # the postmaster writes its state into the eighth line of its pid file
  sed -n '8p' "$(pg_home)/data/postmaster.pid" 2>/dev/null | grep -q '^ready' && answers "$1"
}

pg_launch() { # PORT -> starts the server and waits; 1 when it ended before it answered
  local home bin tries
  home=$(readlink -f "$(pg_home)")
  bin=$(pg_bin) || die "no PostgreSQL: run deploy/dev/stack setup"
  rm -f "$home/data/postmaster.pid" # whoever wrote it is gone: postgres_start has checked
  : >>"$home/postgres.log"
  ! is_root || chown "$(pg_user)" "$home/postgres.log"
  rm -f "$DIR/postgres.pid"
  (
    exec </dev/null >>"$home/postgres.log" 2>&1 9>&-
    pid_remember "$DIR/postgres.pid" "$BASHPID"
    as_pg_exec setsid "$bin/postgres" -D "$home/data" -p "$1" \
      -c listen_addresses=127.0.0.1 -c unix_socket_directories= \
      -c fsync=on -c synchronous_commit=on -c full_page_writes=on \
      -c max_connections=200 -c max_prepared_transactions=20 -c shared_buffers=128MB \
      -c max_wal_size=2GB -c checkpoint_timeout=15min -c dynamic_shared_memory_type=mmap \
      -c timezone=UTC -c jit=off -c log_line_prefix='%m [%p] '
  ) &
  disown $!
  until [ -s "$DIR/postgres.pid" ]; do sleep 0.01; done
  tries=$((PG_START_LIMIT * 20))
  until pg_ready "$1"; do
    pid_alive "$DIR/postgres.pid" >/dev/null || return 1
    tries=$((tries - 1))
    [ "$tries" -gt 0 ] || { postgres_crash; return 1; }
    sleep 0.05
  done
}

postgres_start() {
  local port tries=5
  if pid_alive "$DIR/postgres.pid" >/dev/null; then return 0; fi
  pg_init
  port=$(state_get postgres_port)
  while [ "$tries" -gt 0 ]; do
    [ -n "$port" ] || port=$(free_port)
    state_set postgres_port "$port"
    pg_launch "$port" && { env_write; return 0; }
    tail -n 3 "$(pg_home)/postgres.log" >&2
    # Only a port that somebody took meanwhile is worth another try, on another port.
    port_taken "$port" || break
    port= tries=$((tries - 1))
  done
  die "PostgreSQL did not start: see $(pg_home)/postgres.log"
}

postgres_stop() { # fast shutdown: sessions are cut, everything is flushed
  local pid
  pid=$(pid_alive "$DIR/postgres.pid") || { rm -f "$DIR/postgres.pid"; return 0; }
  kill -INT "$pid" 2>/dev/null
  wait_gone "$DIR/postgres.pid" "$PG_STOP_LIMIT" || postgres_crash
  rm -f "$DIR/postgres.pid"
}

postgres_crash() { # kill -9 of the postmaster and of every process of its; returns when all are gone
  local pid child children tries=200
  pid=$(pid_alive "$DIR/postgres.pid") || return 0
  kill -STOP "$pid" # it must not start another child between the listing and the kill
  children=$(children_of "$pid")
  # shellcheck disable=SC2086
  kill -KILL $children "$pid" 2>/dev/null
  for child in $pid $children; do
    while pid_started "$child" >/dev/null && [ "$tries" -gt 0 ]; do
      sleep 0.02
      tries=$((tries - 1))
    done
  done
  rm -f "$DIR/postgres.pid"
}

postgres_signal() { # SIGNAL -> to the postmaster and every process of its, the postmaster first
  local pid
  pid=$(pid_alive "$DIR/postgres.pid") || die "PostgreSQL is down"
  kill "-$1" "$pid"
  # shellcheck disable=SC2046
  kill "-$1" $(children_of "$pid") 2>/dev/null
  return 0
}
