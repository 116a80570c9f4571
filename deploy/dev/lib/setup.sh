# shellcheck shell=bash
# Gets what the local stack needs: build tools, Java, Maven, the Kafka jars, PostgreSQL. Idempotent; quick when done.

KAFKA_VERSION=4.3.1
KAFKA_JARS=$TOOLS/kafka-$KAFKA_VERSION
PG_MAVEN_VERSION=17.5.0
PG_MIN_MAJOR=15
MAVEN_LIMIT=900 # seconds
TOXIPROXY=github.com/Shopify/toxiproxy/v2/cmd/server@v2.12.0
GO_LIMIT=600 # seconds

apt_updated=
apt_get() { # PACKAGE... -> installs, as root on a Debian-like machine only
  is_root && command -v apt-get >/dev/null || return 1
  export DEBIAN_FRONTEND=noninteractive
  if [ -z "$apt_updated" ]; then
    say "apt-get update"
    apt-get update -qq </dev/null >&2 || return 1
    apt_updated=yes
  fi
  say "apt-get install $*"
  apt-get install -y -qq --no-install-recommends "$@" </dev/null >&2
}

need() { # WHAT PACKAGE CHECK... -> runs the check, installs the package when it fails, checks again
  local what=$1 package=$2
  shift 2
  "$@" >/dev/null 2>&1 && return 0
  apt_get "$package" && "$@" >/dev/null 2>&1 && return 0
  die "$what is missing: install it (Debian package: $package) and run this again"
}

java_major() { # of the java on the PATH
  java -version 2>&1 | sed -n '1s/.*version "\([0-9]*\).*/\1/p'
}
java_is_new_enough() {
  local major
  major=$(java_major)
  [ -n "$major" ] && [ "$major" -ge 17 ]
}

maven() { # GOAL... with a pom of ours; the log is shown only when it fails
  need "Maven" maven command -v mvn
  local log=$TOOLS/maven.log
  timeout "$MAVEN_LIMIT" mvn -B -ntp -q "$@" </dev/null >"$log" 2>&1 && return 0
  tail -n 20 "$log" >&2
  return 1
}

setup_kafka() {
  [ -f "$KAFKA_JARS/.complete" ] && return 0
  say "downloading Apache Kafka $KAFKA_VERSION (54 MB of jars) with Maven"
  rm -rf "$KAFKA_JARS" "$KAFKA_JARS.new"
  maven -f "$HERE/kafka-pom.xml" -Dkafka.version=$KAFKA_VERSION dependency:copy-dependencies \
    -DoutputDirectory="$KAFKA_JARS.new" -DincludeScope=runtime ||
    die "Apache Kafka cannot be had: Maven could not download org.apache.kafka:kafka_2.13:$KAFKA_VERSION (see above)"
  touch "$KAFKA_JARS.new/.complete"
  mv "$KAFKA_JARS.new" "$KAFKA_JARS"
}

pg_major() { # BIN -> major version of BIN/postgres
  "$1/postgres" --version 2>/dev/null | sed -n 's/^postgres (PostgreSQL) \([0-9]*\).*/\1/p'
}

# Prints the folder with `postgres` and `initdb` to use; LANEWAY_POSTGRES=maven ignores what the machine has.
pg_bin() {
  local bin best= best_major=0 major
  if [ "${LANEWAY_POSTGRES:-}" != maven ]; then
    for bin in "$(dirname "$(command -v postgres 2>/dev/null || echo /nowhere/postgres)")" /usr/lib/postgresql/*/bin; do
      [ -x "$bin/postgres" ] && [ -x "$bin/initdb" ] || continue
      major=$(pg_major "$bin")
      [ "${major:-0}" -ge "$PG_MIN_MAJOR" ] && [ "$major" -gt "$best_major" ] && best=$bin best_major=$major
    done
    [ -n "$best" ] && { dirname "$(readlink -f "$best/postgres")"; return 0; }
  fi
  [ -f "$TOOLS/postgres-$PG_MAVEN_VERSION/.complete" ] || return 1
  readlink -f "$TOOLS/postgres-$PG_MAVEN_VERSION/bin"
}

setup_postgres() {
  pg_bin >/dev/null && return 0
  local goal=$TOOLS/postgres-$PG_MAVEN_VERSION home archive arch
  case $(uname -m) in
  x86_64) arch=amd64 ;;
  aarch64) arch=arm64v8 ;;
  *) die "no PostgreSQL $PG_MIN_MAJOR or later on this machine, and none to download for $(uname -m): install one" ;;
  esac
  say "downloading PostgreSQL $PG_MAVEN_VERSION with Maven"
  need "xz" xz-utils command -v xz
  rm -rf "$goal.new"
  maven -f "$HERE/postgres-pom.xml" -Dpostgres.version=$PG_MAVEN_VERSION -Dpostgres.arch="$arch" \
    dependency:unpack-dependencies -DoutputDirectory="$goal.new" ||
    die "PostgreSQL cannot be had: none on this machine, and Maven could not download it (see above)"
  archive=$(find "$goal.new" -name 'postgres-*.txz' | head -n 1)
  [ -n "$archive" ] || die "the PostgreSQL jar holds no .txz archive"
  # The server's user has to reach its binaries.
  home=$goal
  if is_root; then
    home=/var/tmp/laneway-$(path_hash "$goal")
    rm -rf "$home"
    private_folder "$home" "$(pg_user)"
    ln -sfn "$home" "$goal"
  else
    mkdir -p "$goal"
  fi
  tar -xJf "$archive" -C "$home" --no-same-owner || die "the PostgreSQL archive cannot be unpacked"
  ! is_root || chown -R "$(pg_user)" "$home"
  rm -rf "$goal.new"
  "$home/bin/postgres" --version >/dev/null || die "the downloaded PostgreSQL does not run on this machine"
  touch "$home/.complete"
}

setup() {
  mkdir -p "$TOOLS"
  (
    flock 8 # two set-ups at once would unpack into the same folder
    need "a C compiler" gcc command -v cc
    need "a C++ compiler" g++ command -v c++
    need "make" make command -v make
    need "pkg-config" pkg-config command -v pkg-config
    need "OpenSSL's headers" libssl-dev pkg-config --exists openssl
    need "setsid" util-linux command -v setsid
    command -v cargo >/dev/null || die "a Rust toolchain is missing: install it with rustup (https://rustup.rs)"
    need "Java 17 or later" default-jre-headless java_is_new_enough
    setup_kafka
    setup_postgres
  ) 8>"$TOOLS/lock"
}

# What faults of the network and of clocks need. Nothing here is required: a run names what it had to leave out.
setup_faults() {
  mkdir -p "$TOOLS"
  (
    flock 8
    compgen -G '/usr/lib/*/faketime/libfaketimeMT.so.1' >/dev/null || apt_get faketime || say "no faketime: clocks do not jump"
    command -v iptables >/dev/null || apt_get iptables || say "no iptables: no packets are dropped"
    [ -x "$TOOLS/toxiproxy/server" ] && return 0
    command -v go >/dev/null || { say "no Go: no toxiproxy"; return 0; }
    say "building toxiproxy"
    GOBIN=$TOOLS/toxiproxy GOFLAGS='-buildvcs=false -modcacherw' CGO_ENABLED=0 \
      timeout "$GO_LIMIT" go install -trimpath "$TOXIPROXY" </dev/null >"$TOOLS/toxiproxy.log" 2>&1 ||
      say "toxiproxy cannot be built: see $TOOLS/toxiproxy.log"
  ) 8>"$TOOLS/lock"
}
