# shellcheck shell=bash
# What every part of the local stack needs: messages, process identity, free ports, the state of one stack folder.

say() { printf 'stack: %s\n' "$*" >&2; }
die() { printf 'stack: %s\n' "$*" >&2; exit 1; }

# A process is known by pid AND start time, so that a recycled pid is never signalled.
pid_started() { # PID -> start time in clock ticks; fails when the process is gone or a zombie
  local stat
  stat=$(cat "/proc/$1/stat" 2>/dev/null) || return 1
  stat=${stat##*) }
  # shellcheck disable=SC2086
  set -- $stat
  [ "$1" != Z ] && printf '%s' "${20}"
}

pid_remember() { # FILE PID
  printf '%s %s\n' "$2" "$(pid_started "$2")" >"$1"
}

pid_alive() { # FILE -> prints the pid while that very process runs
  local pid started
  [ -f "$1" ] && read -r pid started <"$1" || return 1
  [ -n "$started" ] && [ "$(pid_started "$pid")" = "$started" ] && printf '%s' "$pid"
}

wait_gone() { # FILE SECONDS
  local tries=$(($2 * 20))
  while [ "$tries" -gt 0 ]; do
    pid_alive "$1" >/dev/null || return 0
    sleep 0.05
    tries=$((tries - 1))
  done
  return 1
}

children_of() { # PID -> pids of its direct children
  local stat rest
  for stat in /proc/[0-9]*/stat; do
    rest=$(cat "$stat" 2>/dev/null) || continue
    rest=${rest##*) }
    # shellcheck disable=SC2086
    set -- "$1" $rest
    [ "$3" = "$1" ] && { stat=${stat#/proc/}; printf '%s\n' "${stat%/stat}"; }
  done
  return 0
}

port_taken() { # PORT -> whether any socket of this machine has it as local port
  local hex
  hex=$(printf ':%04X ' "$1")
  grep -qsF "$hex" <(awk '{print $2" "}' /proc/net/tcp /proc/net/tcp6 2>/dev/null)
}

# Below the range that outgoing connections use: a port must stay ours while its server is down in a fault test.
free_port() {
  local port tries=200
  while [ "$tries" -gt 0 ]; do
    port=$((17000 + (RANDOM * 32768 + RANDOM) % 15000))
    port_taken "$port" || { printf '%s' "$port"; return 0; }
    tries=$((tries - 1))
  done
  die "no free loopback port between 17000 and 32000"
}

answers() { # PORT -> whether a TCP connection is accepted
  (exec 3<>"/dev/tcp/127.0.0.1/$1") 2>/dev/null
}

# What outlives the servers of a stack folder (ports), one file a value: the parts start at the same time.
state_get() { cat "$DIR/state/$1" 2>/dev/null; }
state_set() {
  mkdir -p "$DIR/state"
  printf '%s' "$2" >"$DIR/state/$1"
}

is_root() { [ "$(id -u)" = 0 ]; }

path_hash() { printf '%s' "$1" | sha256sum | cut -c1-12; }

# As root, what PostgreSQL's own user must reach lives under /var/tmp (the clone may lie where that user cannot go).
pg_user() {
  if getent passwd postgres >/dev/null; then printf postgres; else printf nobody; fi
}

private_folder() { # PATH OWNER -> makes it, refuses a folder that somebody else prepared
  local owner
  if [ -L "$1" ]; then die "$1 is a link: remove it"; fi
  mkdir -p -m 700 "$1"
  owner=$(stat -c %U "$1")
  [ "$owner" = root ] || [ "$owner" = "$2" ] || die "$1 belongs to $owner: remove it"
  chown "$2" "$1"
}

# Runs a command as PostgreSQL's user when we are root, as ourselves otherwise. It execs: the pid stays.
as_pg_exec() {
  if is_root; then
    local user
    user=$(pg_user)
    cd / && exec setpriv --reuid="$user" --regid="$(id -g "$user")" --clear-groups -- env HOME=/ "$@"
  else
    exec "$@"
  fi
}
