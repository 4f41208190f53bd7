#!/usr/bin/env bash
# Installs what is missing to build weft (build), to measure it beside its peers (bench), or to run every
# check (ci), on Debian and Ubuntu. Elsewhere, or without the right to install, it says exactly what to
# install and stops. With nothing missing it is silent and takes no network.
#
# `python` is different: it makes a private environment in build/python with numpy, torch and expecttest (which torch's own tests need) from PyPI, for the
# tests of the package; with mpirun here, mpi4py too. Where they cannot be had it says so in one line, and those tests are skipped.
# WEFT_TORCH names another torch (WEFT_TORCH=torch==2.11.0); WEFT_TORCH=none leaves it out.
#
# usage: scripts/setup.sh [build] [bench] [ci] [python]
set -euo pipefail

missing=()
python=

# need PACKAGE COMMAND...: the package is missing when the shell cannot find one of its commands.
need()
{
    local package=$1 command
    shift
    for command in "$@"; do
        if ! command -v "$command" >/dev/null 2>&1; then
            missing+=("$package")
            return
        fi
    done
}

# need_library PACKAGE SONAME: the package is missing when the dynamic linker does not know the library.
need_library()
{
    if ! { ldconfig -p 2>/dev/null || /sbin/ldconfig -p; } | grep -q "$2"; then
        missing+=("$1")
    fi
}

# need_header PACKAGE HEADER: the package is missing when the compiler does not find the header.
need_header()
{
    if ! echo "#include <$2>" | cc -E - >/dev/null 2>&1; then
        missing+=("$1")
    fi
}

for part in "${@:-build}"; do
    case $part in
    build)
        need gcc cc
        need g++ c++
        need make make
        need cmake cmake
        need pkg-config pkg-config
        # Only where they can be installed: weft builds without UCX, and then knows TCP alone.
        if [ "$(id -u)" -eq 0 ] && command -v apt-get >/dev/null 2>&1; then
            need_header libucx-dev ucp/api/ucp.h
        fi
        ;;
    bench)
        need libopenmpi-dev mpicc
        need openmpi-bin mpirun
        need_library libopenblas0-pthread libopenblas.so.0
        need_library libblis4-pthread libblis.so.4
        ;;
    python)
        python=yes
        need python3 python3
        if command -v python3 >/dev/null 2>&1 && ! python3 -c 'import ensurepip' 2>/dev/null; then
            missing+=(python3-venv)
        fi
        ;;
    ci)
        need clang clang
        need clang-format-14 clang-format-14
        need clang-tidy clang-tidy
        need python3 python3
        # Where a browser is a plain package (Ubuntu has a stub that asks for snap): the pages are opened in it.
        if ! command -v google-chrome >/dev/null 2>&1 && grep -qx 'ID=debian' /etc/os-release 2>/dev/null; then
            need chromium chromium
        fi
        if [ "$(uname -m)" = aarch64 ]; then
            need gcc-x86-64-linux-gnu x86_64-linux-gnu-gcc
            need qemu-user qemu-x86_64
        else
            need gcc-aarch64-linux-gnu aarch64-linux-gnu-gcc
            need qemu-user qemu-aarch64
        fi
        ;;
    *)
        echo "setup: unknown part '$part'; the parts are build, bench, ci and python" >&2
        exit 2
        ;;
    esac
done

# What the last attempt asked for is kept beside the environment: one that failed is not tried again with every
# `make test`.
python_environment()
{
    local here torch=${WEFT_TORCH:-torch==2.10.0} log mpi=
    here=$(cd "$(dirname "$0")/.." && pwd)/build/python
    log=$here.log
    [ "$torch" = none ] && torch=
    command -v mpirun >/dev/null 2>&1 && mpi=mpi4py
    [ -f "$here/.asked" ] && [ "$(cat "$here/.asked")" = "numpy expecttest $torch $mpi" ] && return 0
    mkdir -p "$here"
    echo "setup: numpy and torch for the tests of the Python package, into build/python"
    if python3 -m venv "$here" >"$log" 2>&1 &&
        timeout "${WEFT_SETUP_TIMEOUT:-900}" "$here/bin/pip" install -q --disable-pip-version-check numpy expecttest $torch $mpi >>"$log" 2>&1; then
        rm -f "$log"
    else
        echo "setup: not to be had (build/python.log says why); tests of the Python package that need them are skipped"
    fi
    echo "numpy expecttest $torch $mpi" >"$here/.asked"
}

if [ ${#missing[@]} -eq 0 ]; then
    [ -z "$python" ] || python_environment
    exit 0
fi

# The cross compiler without its C library cannot link.
for package in "${missing[@]}"; do
    case $package in
    gcc-x86-64-linux-gnu) missing+=(libc6-dev-amd64-cross) ;;
    gcc-aarch64-linux-gnu) missing+=(libc6-dev-arm64-cross) ;;
    esac
done

if ! command -v apt-get >/dev/null 2>&1; then
    echo "setup: please install (Debian's names): ${missing[*]}" >&2
    exit 1
fi

root=()
if [ "$(id -u)" -ne 0 ]; then
    if command -v sudo >/dev/null 2>&1 && sudo -n true 2>/dev/null; then
        root=(sudo)
    else
        echo "setup: please run as root: apt-get install -y ${missing[*]}" >&2
        exit 1
    fi
fi

echo "setup: installing ${missing[*]}"
export DEBIAN_FRONTEND=noninteractive
"${root[@]}" apt-get update -qq
"${root[@]}" apt-get install -y -qq --no-install-recommends "${missing[@]}" >/dev/null
[ -z "$python" ] || python_environment
