#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# Numbers have a decimal point in every locale (core/locale.h): the programs set none, a thread of what the library links
# enters the C locale, and a public call that can fail begins and ends as library/handles.h says. Modules that others load
# (backend/mpi, backend/nvtx) read and print no fractions.
# Usage: locale.sh [ROOT]
set -u
. "$(dirname "$0")/_files.sh"
bad=0
refuse() {
    echo "$1"
    bad=1
}
sources=$(files '^(core|models|plan|blocks|engines|planner|sim|backend|reports|library|cli)/.*\.(c|h|cu)$')
for path in $(echo "$sources" | xargs grep -lE '\bsetlocale *\(' 2>/dev/null); do
    refuse "$path: sets a locale; use stw_locale_enter of core/locale.h"
done
for path in $(echo "$sources" | xargs grep -lE '\buselocale *\(' 2>/dev/null | grep -v '^core/locale\.c$'); do
    refuse "$path: sets a thread's locale; use stw_locale_enter of core/locale.h"
done
for path in $(echo "$sources" | grep -vE '^backend/(mpi|nvtx|cuda|probe)/' | xargs grep -lE '\bpthread_create *\(' 2>/dev/null); do
    grep -q 'stw_locale_enter' "$path" || refuse "$path: starts a thread that does not call stw_locale_enter"
done
for path in $(echo "$sources" | grep '^library/' | xargs grep -l 'stw_library_begin(error)' 2>/dev/null); do
    begins=$(grep -c 'stw_library_begin(error)' "$path")
    ends=$(grep -c 'return stw_library_end(status, error)' "$path")
    [ "$begins" = "$ends" ] || refuse "$path: $begins calls begin and $ends end"
done
exit $bad
