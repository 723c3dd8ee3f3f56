#!/usr/bin/env bash
# Builds the Cloudflare Worker into target/worker/: index.js and gate.wasm, ready for wrangler and for
# workerd. wrangler.toml calls this. Installs its tools first, if they are missing (setup.sh worker).
#
# Plain steps, each with a tool of a pinned version: cargo, wasm-bindgen, esbuild. `worker-build` does
# much the same, but brings an entry of its own, which cannot answer a request whose instance died.
set -euo pipefail
cd "$(dirname "$0")/../.."

ops/bin/setup.sh worker
CACHE=${FLASHGATE_CACHE:-${XDG_CACHE_HOME:-$HOME/.cache}/flashgate}
way=${FLASHGATE_WASM:-$(cat "$CACHE/wasm-toolchain" 2>/dev/null || echo rustup)}
out=target/worker

# Two compilers must not share a target directory.
case $way in
    rustup) cargo=(cargo) dir=target/wasm ;;
    debian) cargo=(env RUSTC=/usr/bin/rustc /usr/bin/cargo) dir=target/wasm-debian ;;
    *) echo "worker: FLASHGATE_WASM must be rustup or debian, not '$way'" >&2; exit 1 ;;
esac
"${cargo[@]}" build --quiet --release --target wasm32-unknown-unknown --target-dir "$dir" --package flashgate-cloudflare

work=$(mktemp -d "${TMPDIR:-/tmp}/flashgate-worker.XXXXXX")
trap 'rm -rf "$work"' EXIT
# The two flags let the entry replace an instance that died.
"$CACHE/worker/bin/wasm-bindgen" --target module --no-typescript --out-dir "$work" --out-name gate \
    --experimental-reset-state-function --force-enable-abort-handler \
    "$dir/wasm32-unknown-unknown/release/flashgate_cloudflare.wasm"
# Workers import a compiled module without the `source` phase that the newest standard asks for.
sed 's/^import source /import /' "$work/gate.js" >"$work/gate.mjs"
cp edge/cloudflare/entry.mjs "$work/"
"$CACHE/worker/node_modules/.bin/esbuild" "$work/entry.mjs" --bundle --format=esm --target=es2022 \
    --external:cloudflare:workers --loader:.wasm=copy --asset-names=gate --outfile="$work/out/index.js" --log-level=warning

mkdir -p "$out"
for file in index.js gate.wasm; do
    cmp -s "$work/out/$file" "$out/$file" || mv "$work/out/$file" "$out/$file"
done
printf '  worker: index.js %d KiB, gate.wasm %d KiB, together %d KiB compressed\n' \
    $(($(stat -c %s "$out/index.js" 2>/dev/null || stat -f %z "$out/index.js") / 1024)) \
    $(($(stat -c %s "$out/gate.wasm" 2>/dev/null || stat -f %z "$out/gate.wasm") / 1024)) \
    $(($(cat "$out/index.js" "$out/gate.wasm" | gzip -9 | wc -c) / 1024))
