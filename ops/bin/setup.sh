#!/usr/bin/env bash
# Set-up for a fresh machine. Idempotent; does nothing where all is there already.
#
#   setup.sh            servers and Wasm targets: all that `make demo` needs
#   setup.sh tests      also what only tests need: the browser that tries the page, and faketime
#   setup.sh check      also the tools of `make check` (cargo-deny)
#   setup.sh worker     only what builds the Cloudflare Worker and runs it here: Wasm targets, wasm-bindgen, npm packages
#
# Tools are kept in ${FLASHGATE_CACHE:-${XDG_CACHE_HOME:-$HOME/.cache}/flashgate}, outside the checkout.
# FLASHGATE_WASM=rustup|debian forces one of the two ways to get the Wasm targets.
set -euo pipefail
cd "$(dirname "$0")/../.."

CACHE=${FLASHGATE_CACHE:-${XDG_CACHE_HOME:-$HOME/.cache}/flashgate}
CARGO_DENY_VERSION=0.20.2
TARGETS=(wasm32-wasip2 wasm32-unknown-unknown)

started=$SECONDS
say() { printf '  %-58s %4d s\n' "$1" $((SECONDS - started)); }
fail() { printf 'setup: %s\n' "$*" >&2; exit 1; }

# The three servers, by the places where they are looked for (flashgate-servers looks there too).
find_program() {
    local name=$1; shift
    command -v "$name" 2>/dev/null && return 0
    local candidate
    for candidate in "$@"; do
        [[ -x $candidate ]] && { echo "$candidate"; return 0; }
    done
    return 1
}
missing_packages() {
    find_program redis-server >/dev/null || echo redis-server
    find_program rabbitmq-server /usr/lib/rabbitmq/bin/rabbitmq-server >/dev/null || echo rabbitmq-server
    find_program postgres /usr/lib/postgresql/*/bin/postgres /usr/pgsql-*/bin/postgres >/dev/null || echo postgresql
}

apt_install() {
    local -a packages=("$@")
    command -v apt-get >/dev/null || fail "missing: ${packages[*]}. Install them with your system's package manager (Debian's names are given), then run this again."
    local -a as_root=()
    if [[ $(id -u) -ne 0 ]]; then
        sudo -n true 2>/dev/null || fail "missing: ${packages[*]}. Run as root: apt-get install --no-install-recommends ${packages[*]}"
        as_root=(sudo)
    fi
    # Flashgate starts private servers of its own: the packages must not start theirs.
    local policy=/usr/sbin/policy-rc.d made=
    if [[ ! -e $policy ]]; then
        printf '#!/bin/sh\nexit 101\n' | "${as_root[@]}" tee $policy >/dev/null
        "${as_root[@]}" chmod +x $policy
        made=1
    fi
    local ok=1
    "${as_root[@]}" apt-get -qq update &&
        "${as_root[@]}" env DEBIAN_FRONTEND=noninteractive apt-get -qq install -y --no-install-recommends "${packages[@]}" >/dev/null || ok=0
    [[ -z $made ]] || "${as_root[@]}" rm -f $policy
    [[ $ok == 1 ]] || fail "apt-get could not install: ${packages[*]}"
}

servers() {
    local -a packages
    mapfile -t packages < <(missing_packages)
    [[ ${#packages[@]} -eq 0 ]] || apt_install "${packages[@]}"
    mapfile -t packages < <(missing_packages)
    [[ ${#packages[@]} -eq 0 ]] || fail "still missing after the installation: ${packages[*]}"
    say "servers: Redis, RabbitMQ, Postgres"
}

has_targets() { # rustc
    local sysroot target
    sysroot=$("$1" --print sysroot) || return 1
    for target in "${TARGETS[@]}"; do
        compgen -G "$sysroot/lib/rustlib/$target/lib/libstd-*.rlib" >/dev/null || return 1
    done
}

# Debian's compiler with a standard library built from Debian's own source package: for machines
# where rustup's server cannot be reached.
debian_targets() {
    local -a packages=(rustc-web cargo-web rust-web-src rust-web-llvm lld-22 wasi-libc)
    if ! dpkg -s "${packages[@]}" >/dev/null 2>&1; then
        apt_install "${packages[@]}"
    fi
    has_targets /usr/bin/rustc && return
    [[ -w /usr/lib/rustlib ]] || fail "the Wasm targets of Debian's compiler are installed under /usr/lib/rustlib: run 'make setup' once as root"
    local build target
    build=$(mktemp -d)
    mkdir -p "$build/src"
    printf '[package]\nname = "empty"\nversion = "0.0.0"\nedition = "2021"\n' >"$build/Cargo.toml"
    : >"$build/src/lib.rs"
    for target in "${TARGETS[@]}"; do
        # Without the bitcode, a later build with link-time optimisation fails.
        (cd "$build" && RUSTC=/usr/bin/rustc RUSTC_BOOTSTRAP=1 RUSTFLAGS=-Cembed-bitcode=yes \
            /usr/bin/cargo build --quiet --release --target "$target" -Zbuild-std=std,panic_abort)
        mkdir -p "/usr/lib/rustlib/$target/lib"
        find "$build/target/$target/release/deps" -name '*.rlib' ! -name 'libempty-*' \
            -exec cp {} "/usr/lib/rustlib/$target/lib/" \;
    done
    mkdir -p /usr/lib/rustlib/wasm32-wasip2/lib/self-contained
    cp /usr/lib/wasm32-wasi/{crt1-command.o,crt1-reactor.o,libc.a} /usr/lib/rustlib/wasm32-wasip2/lib/self-contained/
    rm -rf "$build"
}

wasm_targets() {
    local way=${FLASHGATE_WASM:-}
    if [[ -z $way ]]; then
        if has_targets rustc; then way=rustup
        elif command -v rustup >/dev/null && rustup --quiet target add "${TARGETS[@]}" 2>/dev/null; then way=rustup
        else way=debian
        fi
    elif [[ $way == rustup ]]; then
        has_targets rustc || rustup target add "${TARGETS[@]}"
    fi
    case $way in
        rustup) ;;
        debian) debian_targets ;;
        *) fail "FLASHGATE_WASM must be rustup or debian, not '$way'" ;;
    esac
    mkdir -p "$CACHE"
    echo "$way" >"$CACHE/wasm-toolchain"
    say "Wasm targets ($way)"
}

# Chromium and its driver (Google Chrome will do), and what sets a program's clock wrong.
test_programs() {
    local -a packages=()
    find_program chromium >/dev/null || find_program google-chrome >/dev/null || packages+=(chromium)
    find_program chromedriver >/dev/null || packages+=(chromium-driver)
    compgen -G '/usr/lib/*/faketime/libfaketime.so.1' >/dev/null || packages+=(faketime)
    [[ ${#packages[@]} -eq 0 ]] || apt_install "${packages[@]}"
    { find_program chromium || find_program google-chrome; } >/dev/null && find_program chromedriver >/dev/null ||
        fail "the tests of the page need Chromium (or Google Chrome) and its chromedriver on PATH"
    say "browser: Chromium and its driver; faketime"
}

# A tool is used for seconds: one that is compiled in half the time serves better than a faster one.
install_tool() { # root, arguments of cargo install
    local root=$1; shift
    CARGO_PROFILE_RELEASE_OPT_LEVEL=1 CARGO_PROFILE_RELEASE_LTO=false CARGO_PROFILE_RELEASE_CODEGEN_UNITS=16 \
        cargo install --quiet --root "$root" "$@"
}

check_tools() {
    if ! "$CACHE/bin/cargo-deny" --version 2>/dev/null | grep -qF " $CARGO_DENY_VERSION"; then
        install_tool "$CACHE" --locked "cargo-deny@$CARGO_DENY_VERSION"
    fi
    say "cargo-deny $CARGO_DENY_VERSION"
}

# What builds the Cloudflare Worker and runs it here. wasm-bindgen has to be of the library's own version.
worker_tools() {
    local version lock installed root=$CACHE/worker
    version=$(awk '/^name = "wasm-bindgen"$/ { getline; gsub(/[^0-9.]/, ""); print; exit }' Cargo.lock)
    [[ -n $version ]] || fail "Cargo.lock names no wasm-bindgen"
    mkdir -p "$root"
    if ! "$root/bin/wasm-bindgen" --version 2>/dev/null | grep -qxF "wasm-bindgen $version"; then
        echo "  wasm-bindgen $version is being compiled: this takes some minutes, once"
        # Its lock file names a withdrawn package: without --locked it builds.
        install_tool "$root" "wasm-bindgen-cli@$version"
    fi
    say "wasm-bindgen $version"
    lock=edge/cloudflare/package-lock.json
    installed=$root/node_modules/.package-lock.json
    if [[ ! -e $installed ]] || ! cmp -s "$lock" "$root/package-lock.json"; then
        command -v npm >/dev/null || fail "npm is missing: install Node.js (Debian: apt-get install nodejs npm), then run this again"
        # The lock file is copied last: an installation that broke off begins anew.
        rm -rf "$root/node_modules" "$root/package-lock.json"
        mkdir -p "$root/npm"
        cp edge/cloudflare/package.json "$lock" "$root/npm/"
        # No package may run scripts: the programs come ready-made in packages of their own.
        npm ci --prefix "$root/npm" --omit=dev --ignore-scripts --no-audit --no-fund --loglevel=error >/dev/null ||
            fail "npm could not install the packages of edge/cloudflare/package-lock.json"
        mv "$root/npm/node_modules" "$root/node_modules"
        cp "$lock" "$root/package-lock.json"
        rm -rf "$root/npm"
    fi
    say "esbuild, workerd"
}

command -v cargo >/dev/null || fail "cargo is missing: install Rust by https://rustup.rs, then run this again"
command -v cc >/dev/null || fail "a C compiler is missing (Debian: apt-get install gcc libc6-dev)"
echo "setup:"
if [[ ${1:-} == worker ]]; then
    wasm_targets
    worker_tools
    exit
fi
servers
wasm_targets
case ${1:-} in
    '') ;;
    tests) test_programs ;;
    check) check_tools ;;
    *) fail "unknown argument '$1': see the head of this file" ;;
esac
