#!/usr/bin/env bash
# The packages of `make package`: the tarball and the .deb hold the same files, the command runs from both, every command has
# its man page and completion with every flag of --help in it, and after removal nothing is left.
# usage: test_deb.sh BUILD_DIR VERSION
set -euo pipefail
build=$1 version=$2
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT

fail()
{
    echo "test_deb: $1" >&2
    exit 1
}

cpack --config "$build/CPackConfig.cmake" -G TGZ -B "$work" >"$work/log" || fail "no tarball: $(cat "$work/log")"
mkdir "$work/tar"
tar -xzf "$work"/weft*.tar.gz -C "$work/tar" --strip-components=1
root=$work/tar
[ -d "$root/usr" ] && root=$root/usr
[ "$("$root/bin/weft" --version)" = "weft $version" ] || fail "the command of the tarball does not run"

# Man pages and completions name every flag.
weft=$root/bin/weft
for command in $("$weft" --help | sed -n 's/^  \([a-z]*\)  .*/\1/p'); do
    page=$root/share/man/man1/weft-$command.1
    [ -s "$page" ] || fail "no man page of $command"
    for flag in $("$weft" "$command" --help | sed -n 's/^  \(-.*\)/\1/p' | sed 's/   *.*//' | tr ' ,' '\n\n' | grep '^-'); do
        grep -qF -- "${flag//-/\\-}" "$page" || fail "$flag is missing in $page"
        grep -q "^    $command) .*[\" ]$flag[\" ]" "$root/share/bash-completion/completions/weft" || fail "$command $flag is not completed"
    done
done
. "$root/share/bash-completion/completions/weft"
COMP_WORDS=(weft bench gemm_r) COMP_CWORD=2
_weft
[ "${COMPREPLY[*]}" = gemm_rs ] || fail "gemm_r is completed as ${COMPREPLY[*]}"
COMP_WORDS=(weft tune all_re) COMP_CWORD=2
_weft
[ "${COMPREPLY[*]}" = all_reduce ] || fail "all_re is completed as ${COMPREPLY[*]}"
COMP_WORDS=(weft be) COMP_CWORD=1
_weft
[ "${COMPREPLY[*]}" = bench ] || fail "be is completed as ${COMPREPLY[*]}"

# Installed and removed in a root of its own.
if command -v dpkg >/dev/null && [ "$(id -u)" = 0 ]; then
    cpack --config "$build/CPackConfig.cmake" -G DEB -B "$work" >"$work/log" || fail "no .deb: $(cat "$work/log")"
    mkdir -p "$work/root/var/lib/dpkg/"{info,updates}
    touch "$work/root/var/lib/dpkg/"{status,available}
    dpkg --root="$work/root" --force-depends --log=/dev/null -i "$work"/weft_*.deb >"$work/log" 2>&1 || fail "$(cat "$work/log")"
    [ "$("$work/root/usr/bin/weft" --version)" = "weft $version" ] || fail "the command of the .deb does not run"
    diff <(cd "$root" && find . -type f | sort) <(cd "$work/root/usr" && find . -type f | sort) || fail "the packages differ"
    grep -q '^prefix=/usr$' "$(find "$work/root/usr" -name weft.pc)" || fail "weft.pc has another prefix"
    dpkg --root="$work/root" --log=/dev/null -P weft >"$work/log" 2>&1 || fail "$(cat "$work/log")"
    left=$(find "$work/root" -path "$work/root/var" -prune -o -type f -print)
    [ -z "$left" ] || fail "removal leaves $left"
fi
