# SPDX-License-Identifier: Apache-2.0
# For the lint scripts: enters the tree that is checked (first argument, or $STW_SOURCE_DIR), and
# `files REGEX...` lists its files whose path matches one of the extended regular expressions. In a
# clone that is what git tracks or would add; elsewhere everything outside build folders.

cd "${1:-${STW_SOURCE_DIR:-.}}" || exit 1

files() {
    pattern=$(printf '|%s' "$@")
    {
        if [ -e .git ] && git ls-files >/dev/null 2>&1; then
            git ls-files --cached --others --exclude-standard | while read -r path; do
                [ ! -f "$path" ] || echo "$path"
            done
        else
            find . \( -path './build*' -o -path './.git' \) -prune -o -type f -print | sed 's|^\./||'
        fi
    } | grep -E "${pattern#|}" | sort
}
