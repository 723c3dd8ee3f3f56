#!/usr/bin/env bash
# Builds the Wasm components into target/wasm/wasm32-wasip2/release/, with the compiler that
# setup.sh found, and checks that the pure crates build for wasm32-unknown-unknown too.
#
#   wasm.sh          build
#   wasm.sh clippy   lint the crates that only build for Wasm (needs rustup's way)
set -euo pipefail
cd "$(dirname "$0")/../.."

CACHE=${FLASHGATE_CACHE:-${XDG_CACHE_HOME:-$HOME/.cache}/flashgate}
way=${FLASHGATE_WASM:-$(cat "$CACHE/wasm-toolchain" 2>/dev/null || echo rustup)}
out=target/wasm/wasm32-wasip2/release
# The component itself, and those that tests and benchmarks need.
mapfile -t crates < <(sed -ns '0,/^name = /s/^name = "\(.*\)"/\1/p' edge/spin/Cargo.toml tests/components/*/Cargo.toml)

# Two compilers must not share a target directory.
case $way in
    rustup) cargo=(cargo) dir=target/wasm ;;
    debian) cargo=(env RUSTC=/usr/bin/rustc /usr/bin/cargo) dir=target/wasm-debian ;;
    *) echo "wasm: FLASHGATE_WASM must be rustup or debian, not '$way'" >&2; exit 1 ;;
esac
if [[ ${1:-build} == clippy ]]; then
    if [[ $way != rustup ]]; then
        echo "wasm clippy: not run, Debian's compiler comes without clippy"
        exit 0
    fi
    cargo clippy --quiet --release --target wasm32-unknown-unknown --target-dir "$dir" --package flashgate-cloudflare -- -D warnings
    exec cargo clippy --quiet --release --target wasm32-wasip2 --target-dir "$dir" "${crates[@]/#/--package=}" -- -D warnings
fi
"${cargo[@]}" build --release --target wasm32-wasip2 --target-dir "$dir" "${crates[@]/#/--package=}"
"${cargo[@]}" check --release --target wasm32-unknown-unknown --target-dir "$dir" --package flashgate-gate
if [[ $dir != target/wasm ]]; then
    mkdir -p $out
    for crate in "${crates[@]//-/_}"; do
        cmp -s "$dir/wasm32-wasip2/release/$crate.wasm" "$out/$crate.wasm" ||
            cp "$dir/wasm32-wasip2/release/$crate.wasm" "$out/"
    done
fi
