#!/bin/sh
# Man pages and shell completions from what `weft --help` and `weft COMMAND --help` print, which come from the flag tables.
# usage: scripts/make_man.sh path/to/weft output-folder     writes man1/*.1, weft.bash, _weft, weft.fish
set -eu
weft=${1:?usage: scripts/make_man.sh path/to/weft output-folder}
out=${2:?usage: scripts/make_man.sh path/to/weft output-folder}
mkdir -p "$out/man1"
version=$("$weft" --version | cut -d' ' -f2)
commands=$("$weft" --help | sed -n 's/^  \([a-z]*\)  .*/\1/p')

# The line of `weft --help` about a command.
about()
{
    "$weft" --help | sed -n "s/^  $1  *//p"
}

# Text to roff: the usage becomes the synopsis, lines that begin with a flag become tagged paragraphs, lines without
# indentation that have no full stop or colon begin sections, and the rest stays as it is.
to_roff()
{
    awk '
    function clean(text) { gsub(/\\/, "\\e", text); gsub(/-/, "\\-", text); if (text ~ /^[.\x27]/) text = "\\&" text; return text }
    function plain(on) { if (on && !verbatim) print ".nf"; if (!on && verbatim) print ".fi"; verbatim = on }
    NR == 1 || (usage && /^       /) { usage = 1; sub(/^usage: /, ""); sub(/^ +/, ""); if (NR == 1) print ".SH SYNOPSIS"; print ".B " clean($0); print ".br"; next }
    usage { usage = 0; print ".SH DESCRIPTION" }
    /^$/ { plain(0); print ".PP"; next }
    /^  -/ { plain(0); sub(/^  /, ""); at = match($0, /  +/); print ".TP"
             print ".B " clean(at ? substr($0, 1, at - 1) : $0)
             if (at) print clean(substr($0, at + RLENGTH)); flag = 1; next }
    flag && /^      / { sub(/^ +/, ""); print clean($0); next }
    { flag = 0 }
    /^[a-z][^.:]*$/ && length($0) < 80 { plain(0); print ".SH " toupper(clean($0)); next }
    /^  / { plain(1); print clean($0); next }
    { plain(0); print clean($0) }
    END { plain(0) }'
}

page()
{
    printf '.TH "%s" 1 "" "weft %s" "weft"\n.SH NAME\n%s \\- %s\n' "$(echo "$1" | tr a-z A-Z)" "$version" "$1" "$2"
}

{
    page weft "multiply matrices and route experts over several ranks"
    "$weft" --help | to_roff
    printf '.SH "SEE ALSO"\n'
    for command in $commands; do printf '.BR weft\\-%s (1)\n' "$command"; done
} >"$out/man1/weft.1"
for command in $commands; do
    {
        page "weft-$command" "$(about "$command")"
        "$weft" "$command" --help | to_roff
        printf '.SH "SEE ALSO"\n.BR weft (1)\n'
    } >"$out/man1/weft-$command.1"
done

# The flags of a command, and the words that come after its name.
flags()
{
    "$weft" "$1" --help | sed -n 's/^  \(-.*\)/\1/p' | sed 's/   *.*//' | tr ' ,' '\n\n' | grep '^-' | sort -u | tr '\n' ' '
}
words()
{
    case $1 in
    bench) "$weft" bench --help | sed -n '/^operations/,/^$/s/^  \([a-z_]*\)  .*/\1/p' ;;
    plan | sim | tune) "$weft" "$1" --help | sed -n '/^schedules/,/^$/s/^  \([a-z_]*\)  *.*/\1/p' ;;
    esac | tr '\n' ' '
}

{
    printf '# Completion of weft for bash, made from its --help.\n_weft()\n{\n    local word=${COMP_WORDS[COMP_CWORD]} list\n    case ${COMP_WORDS[1]} in\n'
    for command in $commands; do
        printf '    %s) list="%s%s" ;;\n' "$command" "$(words "$command")" "$(flags "$command")"
    done
    printf '    *) list="%s --help --version" ;;\n    esac\n' "$(echo $commands)"
    printf '    [ "$COMP_CWORD" = 1 ] && list="%s --help --version"\n' "$(echo $commands)"
    printf '    COMPREPLY=($(compgen -W "$list" -- "$word"))\n}\ncomplete -o default -F _weft weft\n'
} >"$out/weft.bash"

{
    printf '#compdef weft\n# Completion of weft for zsh, made from its --help.\nif (( CURRENT == 2 )); then\n    compadd -- %s --help --version\n    return\nfi\ncase $words[2] in\n' "$(echo $commands)"
    for command in $commands; do
        printf '%s) compadd -- %s%s ;;\n' "$command" "$(words "$command")" "$(flags "$command")"
    done
    printf 'esac\n_files\n'
} >"$out/_weft"

{
    printf '# Completion of weft for fish, made from its --help.\n'
    for command in $commands; do
        printf "complete -c weft -n __fish_use_subcommand -a %s -d '%s'\n" "$command" "$(about "$command" | tr -d "'")"
        for word in $(words "$command"); do
            printf "complete -c weft -n '__fish_seen_subcommand_from %s' -a %s\n" "$command" "$word"
        done
        for flag in $(flags "$command"); do
            case $flag in
            --*) printf "complete -c weft -n '__fish_seen_subcommand_from %s' -l %s\n" "$command" "${flag#--}" ;;
            *) printf "complete -c weft -n '__fish_seen_subcommand_from %s' -s %s\n" "$command" "${flag#-}" ;;
            esac
        done
    done
} >"$out/weft.fish"
