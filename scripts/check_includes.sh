#!/usr/bin/env bash
# Dependencies point downward only: tools -> api -> moe, run -> choose -> sim -> plan -> symm, gemm -> group -> net -> core.
# trace stands on core and may be used by sim, run, moe and tools.
set -euo pipefail
cd "$(dirname "$0")/.."
declare -A may=(
    [core]="core"
    [trace]="trace core"
    [net]="net core"
    [group]="group net core"
    [symm]="symm group net core"
    [gemm]="gemm group core"
    [plan]="plan symm gemm group core"
    [sim]="sim plan symm gemm group core trace"
    [choose]="choose sim plan symm gemm group core trace"
    [run]="run choose sim plan symm gemm group net core trace"
    [moe]="moe sim plan symm gemm group net core trace"
    [api]="api moe run choose sim plan symm gemm group core trace"
)
bad=0
while IFS=: read -r file line text; do
    layer=$(echo "$file" | cut -d/ -f2)
    used=$(echo "$text" | sed -E 's/.*"([a-z0-9_]+)\/.*/\1/')
    if [[ -z ${may[$layer]:-} ]]; then
        echo "check_includes: $file: src/$layer is not a layer of the architecture" >&2
        bad=1
    elif [[ " ${may[$layer]} " != *" $used "* ]]; then
        echo "check_includes: $file:$line: $layer may not include $used/" >&2
        bad=1
    fi
done < <(grep -rnE '^ *# *include "[a-z0-9_]+/' src --include='*.[ch]' --include='*.cu' --include='*.cuh')
[ $bad -eq 0 ] && echo "check_includes: every include points downward"
exit $bad
