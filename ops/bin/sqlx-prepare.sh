#!/usr/bin/env bash
# Prepares the compile-time checked queries: applies migrations/ to a private Postgres and lets the
# compiler ask it about every query of flashgate-ledger. Writes .sqlx/, which is committed.
#   sqlx-prepare.sh           writes .sqlx/ anew
#   sqlx-prepare.sh --check   fails when .sqlx/ is not what would be written
set -euo pipefail
cd "$(dirname "$0")/../.."
root=$PWD

check=no
case "${1:-}" in
  '') ;;
  --check) check=yes ;;
  *) echo "usage: $0 [--check]" >&2; exit 2 ;;
esac

find_tool() { # the newest of Debian's places when it is not on PATH
  command -v "$1" 2>/dev/null && return
  local found
  found=$(ls -d /usr/lib/postgresql/*/bin/"$1" 2>/dev/null | sort -V | tail -n 1)
  [ -n "$found" ] && echo "$found" && return
  echo "sqlx-prepare: $1 not found; install PostgreSQL (see make setup)" >&2
  return 1
}
initdb=$(find_tool initdb)
pg_ctl=$(find_tool pg_ctl)
psql=$(find_tool psql)

work=$(mktemp -d "${TMPDIR:-/tmp}/flashgate-sqlx.XXXXXX")
as_server=()
if [ "$(id -u)" -eq 0 ]; then # Postgres refuses root
  as_server=(runuser -u postgres --)
  chown postgres "$work"
fi
chmod 755 "$work"

stop() {
  (cd / && "${as_server[@]}" "$pg_ctl" -D "$work/data" -m immediate stop >/dev/null 2>&1) || true
  rm -rf "$work"
}
trap stop EXIT
trap 'exit 130' INT
trap 'exit 143' TERM

# Its socket lies in a directory of its own, so no port has to be free.
(
  cd /
  "${as_server[@]}" "$initdb" -D "$work/data" -U flashgate -A trust -E UTF8 --no-locale -N >"$work/initdb.log"
  "${as_server[@]}" "$pg_ctl" -D "$work/data" -w -t 60 -l "$work/data/server.log" \
    -o "-c listen_addresses='' -k $work -c fsync=off" start >/dev/null
) || { cat "$work/initdb.log" "$work/data/server.log" >&2 2>/dev/null || true; exit 1; }

for migration in migrations/*.sql; do
  "$psql" -h "$work" -U flashgate -d postgres -v ON_ERROR_STOP=1 --single-transaction -q -f "$migration"
done

target=$work/sqlx
mkdir "$target"
# The macros run only when the crate is compiled.
touch origin/ledger/src/lib.rs
DATABASE_URL="postgres:///postgres?host=$work&user=flashgate" SQLX_OFFLINE=false SQLX_OFFLINE_DIR="$target" \
  cargo check --quiet --package flashgate-ledger
touch origin/ledger/src/lib.rs

if [ "$check" = yes ]; then
  if ! diff -r "$root/.sqlx" "$target"; then
    echo "sqlx-prepare: .sqlx/ is stale: run make sqlx and commit it" >&2
    exit 1
  fi
  echo "sqlx-prepare: .sqlx/ is current ($(ls "$target" | wc -l) queries)"
else
  rm -rf "$root/.sqlx"
  mkdir "$root/.sqlx"
  cp "$target"/*.json "$root/.sqlx/"
  echo "sqlx-prepare: wrote .sqlx/ ($(ls "$root/.sqlx" | wc -l) queries)"
fi
