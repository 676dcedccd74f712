/* SPDX-License-Identifier: Apache-2.0 */
#define _POSIX_C_SOURCE 200809L /* newlocale, uselocale */
#include "core/locale.h"

#include <locale.h>
#include <stddef.h>

void *stw_locale_enter(void) {
    /* glibc and musl return a constant for "C". */
    locale_t c = newlocale(LC_ALL_MASK, "C", (locale_t)0);
    return (void *)uselocale(c); /* of 0 it changes nothing */
}

void stw_locale_leave(void *before) {
    if (before != NULL) (void)uselocale((locale_t)before);
}
