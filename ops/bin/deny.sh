#!/usr/bin/env bash
# Licences, bans and sources of all dependencies; advisories too where their database can be reached.
set -euo pipefail
cd "$(dirname "$0")/../.."
deny="${FLASHGATE_CACHE:-${XDG_CACHE_HOME:-$HOME/.cache}/flashgate}/bin/cargo-deny"

"$deny" --log-level error check bans licenses sources
if timeout 60 "$deny" --log-level error fetch db >/dev/null 2>&1; then
    "$deny" --log-level error check --disable-fetch advisories
else
    echo "advisories: not checked, the database cannot be reached from here"
fi
